"""Plans in files, for a process on the same machine that wants the same plan at once.

A file is a head (magic, length and SHA-256 of what follows), JSON, and the plan's constants, each at a multiple of 64
bytes. The JSON is checked by its hash; that the file is whole, by its length. A plan tells the machine what to
compute on which addresses, so a file is only to be read from where kernels are read from too: the cache folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any

import numpy as np

from ..codegen.kernel import KernelSource
from ..codegen.launch import Geometry, Grid, OneCall, TaskRange, TensorLayout, Windows
from ..core.types import numpy_dtype
from ..errors import FormatError
from .memory import scratch
from .plan import MappedTensor, ParameterSpec, Plan, Pointer, Region, Step, TensorSpec, TensorView, Use

__all__ = ["PlanReader", "constant_pieces", "plan_pieces"]

_HEAD = struct.Struct("<8sQ32s")
_MAGIC = b"mgxplan3"
_ALIGNMENT = 64  # bytes of a cache line
_PIECE_BYTES = 64 << 20
"""Read at a time: what takes some hundredths of a second."""


def plan_pieces(plan: Plan, about: Mapping[str, Any]) -> list[bytes | memoryview] | None:
    """What a file with this plan consists of, in order; None if the plan has Python functions among its steps, or is
    symbolic.

    ``about`` is kept beside the plan: JSON values.
    """
    if plan.symbols or not all(isinstance(step, Step) for step in plan.steps):
        return None
    offsets, size, constants = constant_pieces(plan.constants)
    body = json.dumps({"about": about, "plan": _to_json(plan, offsets), "constants_bytes": size}, default=int).encode()
    body += b" " * (-(len(body) + _HEAD.size) % _ALIGNMENT)
    pieces: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, len(body), hashlib.sha256(body).digest()), body]
    return pieces + constants


def constant_pieces(constants: Sequence[np.ndarray]) -> tuple[list[int], int, list[bytes | memoryview]]:
    """Offsets of constants that lie one after the other, each at a multiple of 64 bytes; how many bytes that is; and
    these, in order."""
    offsets, size = [], 0
    pieces: list[bytes | memoryview] = []
    for array in constants:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        offsets.append(size)
        pieces += [flat.data, bytes(-flat.size % _ALIGNMENT)]
        size += flat.size + len(pieces[-1])
    return offsets, size, pieces


def _to_json(plan: Plan, offsets: list[int]) -> dict[str, Any]:
    kernels = {kernel: number for number, kernel in enumerate(plan.kernels())}
    steps = [step for step in plan.steps if isinstance(step, Step)]
    instructions = {text: number for number, text in enumerate(dict.fromkeys(step.instruction for step in steps))}
    return {
        "instructions": list(instructions),
        "kernels": [[k.backend, k.name, k.text, k.origin, k.symbol] for k in kernels],
        "steps": [_step(step, kernels, instructions) for step in steps],
        "arena_bytes": plan.arena_bytes,
        "constants": [[a.dtype.name, a.shape, at] for a, at in zip(plan.constants, offsets, strict=True)],
        "parameters": [[p.name, p.dtype, p.lens] for p in plan.parameters],
        "outputs": [[o.dtype, o.lens] for o in plan.outputs],
        "parallel": plan.parallel,
        "uses": [[u.offset, u.bytes, u.first, u.last] for u in plan.uses],
    }


def _step(step: Step, kernels: Mapping[KernelSource, int], instructions: Mapping[str, int]) -> dict[str, Any]:
    fields = {field.name: getattr(step, field.name) for field in dataclasses.fields(Step)}
    fields["kernel"], fields["instruction"] = kernels[step.kernel], instructions[step.instruction]
    fields["args"] = [_argument(arg, kernels) for arg in step.args]
    fields["geometry"] = _geometry(step.geometry)
    fields["outputs"] = [[_pointer(v.pointer), v.dtype, v.lens, v.strides] for v in step.outputs]
    return fields


def _geometry(geometry: Geometry) -> list[Any]:
    if isinstance(geometry, TaskRange):
        return [geometry.tasks, geometry.grain]
    if not isinstance(geometry, Grid):
        return []
    return [geometry.blocks, geometry.threads, geometry.shared_bytes, geometry.cooperative]


def _argument(arg: int | Pointer | MappedTensor | KernelSource, kernels: Mapping[KernelSource, int]) -> Any:
    if isinstance(arg, MappedTensor):
        return [_pointer(arg.pointer), asdict(arg.layout)]
    if isinstance(arg, KernelSource):
        return [kernels[arg]]
    return _pointer(arg) if isinstance(arg, Pointer) else arg


def _pointer(pointer: Pointer) -> list[int]:
    return [int(pointer.region), pointer.index, pointer.offset]


class PlanReader:
    """A plan file that is open; ``about`` is what was kept beside the plan."""

    def __init__(self, file: IO[bytes]) -> None:
        """``file`` is at its begin, unbuffered; it is not closed.

        Raises:
            FormatError: it is no such file, or damaged.
        """
        magic, length, digest = _HEAD.unpack(_exactly(file, _HEAD.size))
        if magic != _MAGIC or length > os.fstat(file.fileno()).st_size:
            raise FormatError("not a plan file of this version")
        body = _exactly(file, length)
        if hashlib.sha256(body).digest() != digest:
            raise FormatError("the plan file is damaged")
        self._content = json.loads(body)
        self.about: dict[str, Any] = self._content["about"]
        self.constants_bytes: int = self._content["constants_bytes"]
        if os.fstat(file.fileno()).st_size != _HEAD.size + length + self.constants_bytes:
            raise FormatError("the plan file has another length than it says")
        self._file = file

    def allocate(self) -> np.ndarray:
        """Memory for all constants, bytes that are not set, where large pages serve them."""
        return scratch(self.constants_bytes)

    def fill(self, block: np.ndarray, ended: threading.Event | None = None) -> None:
        """Read all constants into what `allocate` gave; other threads run meanwhile. Not all once ``ended`` is set.

        Raises:
            FormatError: the file has become shorter.
        """
        view, done = block.data, 0
        while done < len(view) and not (ended is not None and ended.is_set()):
            count = self._file.readinto(view[done : done + _PIECE_BYTES])  # type: ignore[attr-defined]
            if not count:
                raise FormatError("the plan file ends early")
            done += count

    def plan(self, block: np.ndarray) -> Plan:
        """The plan over memory that `allocate` gave, whether it is filled yet or not; to be asked once."""
        content = self._content["plan"]
        kernels = []
        for backend, name, text, origin, symbol in content["kernels"]:
            kernel = KernelSource(backend, name, text, origin)
            kernel.__dict__["symbol"] = symbol  # as it would be computed: the file is of this machine
            kernels.append(kernel)
        return Plan(
            steps=[_read_step(fields, kernels, content["instructions"]) for fields in content["steps"]],
            arena_bytes=content["arena_bytes"],
            constants=[_read_constant(block, *entry) for entry in content["constants"]],
            parameters=[ParameterSpec(name, dtype, tuple(lens)) for name, dtype, lens in content["parameters"]],
            outputs=[TensorSpec(dtype, tuple(lens)) for dtype, lens in content["outputs"]],
            parallel=content["parallel"],
            uses=tuple(Use(*entry) for entry in content["uses"]),
        )


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise FormatError("the plan file ends early")
    return data


def _read_step(fields: dict[str, Any], kernels: list[KernelSource], instructions: list[str]) -> Step:
    fields["kernel"], fields["instruction"] = kernels[fields["kernel"]], instructions[fields["instruction"]]
    fields["args"] = tuple(_read_argument(arg, kernels) for arg in fields["args"])
    fields["geometry"] = _read_geometry(fields["geometry"])
    fields["outputs"] = tuple(
        TensorView(_read_pointer(p), dtype, tuple(lens), tuple(strides))
        for p, dtype, lens, strides in fields["outputs"]
    )
    fields["checks"] = tuple((who, what) for who, what in fields["checks"])
    fields["along"] = tuple(fields["along"])
    return Step(**fields)


def _read_geometry(entry: list[Any]) -> Geometry:
    if len(entry) == 2:
        return TaskRange(*entry)
    if not entry:
        return OneCall()
    return Grid(tuple(entry[0]), tuple(entry[1]), *entry[2:])


def _read_argument(arg: Any, kernels: list[KernelSource]) -> int | Pointer | MappedTensor | KernelSource:
    if isinstance(arg, int):
        return arg
    if len(arg) == 2:
        return MappedTensor(_read_pointer(arg[0]), _read_layout(arg[1]))
    return kernels[arg[0]] if len(arg) == 1 else _read_pointer(arg)


def _read_layout(fields: dict[str, Any]) -> TensorLayout:
    windows = fields.pop("windows")
    numbers = {name: tuple(value) for name, value in fields.items() if name != "dtype"}
    found = None if windows is None else Windows(**{name: tuple(value) for name, value in windows.items()})
    return TensorLayout(fields["dtype"], **numbers, windows=found)


def _read_pointer(entry: list[int]) -> Pointer:
    return Pointer(Region(entry[0]), entry[1], entry[2])


def _read_constant(block: np.ndarray, dtype: str, lens: list[int], offset: int) -> np.ndarray:
    return np.ndarray(tuple(lens), numpy_dtype(dtype), block, offset)
