"""Convert plans to JSON values, beside their arrays and the kernels, texts and symbols that they share.

A plain integer is stored unchanged. An expression over symbols is stored as the text of its number in the plan's size
program. The program's rows are stored too, so that a reader evaluates no expression.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from ..codegen.kernel import KernelSource
from ..codegen.launch import Geometry, Grid, OneCall, OpenAxis, TaskRange, TensorLayout, Windows
from ..core.dim import Dim, ExpressionSpace, Length
from ..core.types import numpy_dtype
from ..errors import UnsupportedError
from ..json_types import JsonArray, JsonObject
from .plan import (
    ControlStep,
    FallbackStep,
    Jump,
    MappedTensor,
    ParameterSpec,
    Plan,
    PlannedStep,
    Pointer,
    Region,
    Step,
    TensorSpec,
    TensorView,
    Use,
)
from .size_program import SizeProgram

_REGIONS = tuple(Region)
_FIELDS = ("label", "instruction", "reason")  # texts of a fallback step


class PlansWriter:
    """Converts plans to JSON values; `common` returns the values that they share.

    Attributes:
        arrays: the distinct arrays of all plans.
    """

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._array_numbers: dict[Hashable, int] = {}
        self._kernels: dict[KernelSource, int] = {}
        self._texts: dict[str, int] = {}
        self._symbols: dict[Dim, int] = {}

    def common(self) -> dict[str, object]:
        """Return the JSON values that the plans share; call after all plans are written."""
        return {
            "texts": list(self._texts),
            "kernels": [[k.backend, k.name, k.text, k.origin, k.symbol] for k in self._kernels],
            "symbols": [[str(symbol), symbol.low, symbol.high] for symbol in self._symbols],
        }

    def array(self, array: np.ndarray) -> int:
        """Return the number of an array; equal views of the same memory have one number."""
        key: Hashable = array.__array_interface__["data"][0], array.dtype, array.shape, array.strides
        key = key if array.size and not array.dtype.hasobject else id(array)
        number = self._array_numbers.get(key)
        if number is None:
            self.arrays.append(array)
            number = self._array_numbers[key] = len(self.arrays) - 1
        return number

    def kernel(self, kernel: KernelSource) -> int:
        """Return the number of a kernel."""
        return self._kernels.setdefault(kernel, len(self._kernels))

    def text(self, text: str) -> int:
        """Return the number of a text, which many steps may share."""
        return self._texts.setdefault(text, len(self._texts))

    def symbol(self, symbol: Dim) -> int:
        """Return the number of a symbol."""
        return self._symbols.setdefault(symbol, len(self._symbols))

    def plan(self, plan: Plan) -> dict[str, object]:
        """Return a plan as JSON values.

        Raises:
            UnsupportedError: a fallback step has no ``write``.
        """
        lengths = LengthsWriter(self, plan)
        written = {
            "symbols": [self.symbol(symbol) for symbol in plan.symbols],
            "condition": lengths(plan.condition),
            "parameters": [[p.name, p.dtype, lengths.all(p.lens)] for p in plan.parameters],
            "outputs": [[o.dtype, None if o.lens is None else lengths.all(o.lens)] for o in plan.outputs],
            "arena_bytes": lengths(plan.arena_bytes),
            "constants": [self.array(array) for array in plan.constants],
            "parallel": plan.parallel,
            "steps": [self._step(step, lengths) for step in plan.steps],
            "uses": [[*map(lengths, (u.offset, u.bytes)), u.first, u.last] for u in plan.uses],
            "jumps": [[j.by, j.at, j.to, j.where, j.place] for j in plan.jumps],
            "updates": plan.updates,
        }
        return {**written, "sizes": lengths.rows()}

    def _step(self, step: PlannedStep, lengths: LengthsWriter) -> list[object]:
        if isinstance(step, Step):
            return [
                self.kernel(step.kernel),
                [self._argument(arg, lengths) for arg in step.args],
                _geometry(step.geometry, lengths),
                self.text(step.label),
                self.text(step.instruction),
                lengths(step.flops),
                lengths(step.bytes),
                [_view(view, lengths) for view in step.outputs],
                [_check(who, what, lengths) for who, what in step.checks],
            ]
        if isinstance(step, ControlStep) or step.write is None:
            raise UnsupportedError(f"step {step.label or step.instruction} is in no file")
        texts = [self.text(getattr(step, name)) for name in _FIELDS]
        views = [[_view(view, lengths) for view in some] for some in (step.inputs, step.outputs)]
        return [texts, *views, step.write(lengths)]

    def _argument(self, arg: int | Pointer | MappedTensor | KernelSource, lengths: LengthsWriter) -> object:
        if isinstance(arg, MappedTensor):
            return [_pointer(arg.pointer, lengths), _layout(arg.layout, lengths)]
        if isinstance(arg, KernelSource):
            return [self.kernel(arg)]
        return _pointer(arg, lengths) if isinstance(arg, Pointer) else lengths(arg)


class LengthsWriter:
    """Converts the lengths of one plan to JSON values; ``writer`` is the writer of all plans."""

    def __init__(self, writer: PlansWriter, plan: Plan) -> None:
        self.writer = writer
        self._program = program = SizeProgram(plan.symbols)
        if not plan.symbols:
            return
        # Numbers that a binding needs come first: it evaluates rows up to the last of them.
        self.all([*(n for p in plan.parameters for n in p.lens), plan.condition, plan.arena_bytes])
        for output in plan.outputs:
            self.all(output.lens or ())
            program.product(output.lens or (), numpy_dtype(output.dtype).itemsize)
        for step in plan.steps:
            if isinstance(step, Step):
                _geometry(step.geometry, self)
                self.all([step.flops, step.bytes])
                for arg in step.args:
                    if isinstance(arg, Pointer):
                        self(arg.offset)
                    elif isinstance(arg, Dim):
                        self(arg)

    def __call__(self, length: Length) -> int | str:
        """Return a length as a JSON value."""
        return str(self._program.number(length)) if isinstance(length, Dim) else int(length)

    def all(self, lengths: Iterable[Length]) -> list[int | str]:
        """Return lengths as JSON values."""
        return [self(length) for length in lengths]

    def rows(self) -> list[list[int]]:
        """Return the constants and rows of the size program; call after all lengths are written."""
        return [self._program.constants, [word for row in self._program.rows for word in row]]


def _geometry(geometry: Geometry, lengths: LengthsWriter) -> Sequence[object]:
    if isinstance(geometry, TaskRange):
        return lengths.all([geometry.tasks, geometry.grain])
    if not isinstance(geometry, Grid):
        return []
    return [lengths.all(geometry.blocks), geometry.threads, geometry.shared_bytes, geometry.cooperative]


def _layout(layout: TensorLayout, lengths: LengthsWriter) -> list[object]:
    windows = None if layout.windows is None else [layout.windows.lower, layout.windows.upper, layout.windows.steps]
    return [layout.dtype, *map(lengths.all, (layout.lens, layout.strides, layout.box)), windows]


def _pointer(pointer: Pointer, lengths: LengthsWriter) -> list[object]:
    return [int(pointer.region), pointer.index, lengths(pointer.offset)]


def _view(view: TensorView, lengths: LengthsWriter) -> list[object]:
    return [_pointer(view.pointer, lengths), view.dtype, lengths.all(view.lens), lengths.all(view.strides)]


def _check(who: str, what: str, lengths: LengthsWriter) -> list[object]:
    return [who, str(what), what.axis, lengths(what.length)] if isinstance(what, OpenAxis) else [who, what]


HostReader = Callable[[Any, "LengthsReader"], JsonObject]
"""Returns the fields of a `FallbackStep` from the result of its ``write``."""


class PlansReader:
    """Reads the JSON values of a `PlansWriter`.

    Attributes:
        arrays: arrays of all plans.
        kernels: kernels of all plans.
    """

    def __init__(self, common: JsonObject, arrays: Sequence[np.ndarray], host: HostReader) -> None:
        """Read the shared values ``common`` that `PlansWriter.common` returned; ``host`` reads fallback steps."""
        self.arrays = arrays
        self._host = host
        self._texts: list[str] = common["texts"]
        self.kernels: list[KernelSource] = []
        for backend, name, text, origin, symbol in common["kernels"]:
            kernel = KernelSource(backend, name, text, origin)
            kernel.restore_symbol(symbol)  # equal to the computed symbol, since the file is from this machine
            self.kernels.append(kernel)
        space = ExpressionSpace()
        self._symbols = [space.symbol(number, *symbol) for number, symbol in enumerate(common["symbols"])]

    def symbol(self, number: int) -> Dim:
        """Return the symbol whose number `PlansWriter.symbol` returned."""
        return self._symbols[number]

    def plan(self, written: JsonObject) -> Plan:
        """Return the plan that `PlansWriter.plan` wrote."""
        symbols = tuple(map(self.symbol, written["symbols"]))
        sizes = SizeProgram.read(symbols, *written["sizes"]) if symbols else None
        lengths = LengthsReader(self, sizes)
        return Plan(
            steps=[self._step(fields, lengths) for fields in written["steps"]],
            arena_bytes=lengths(written["arena_bytes"]),
            constants=[self.arrays[number] for number in written["constants"]],
            parameters=[ParameterSpec(name, dtype, lengths.all(lens)) for name, dtype, lens in written["parameters"]],
            outputs=[
                TensorSpec(dtype, None if lens is None else lengths.all(lens)) for dtype, lens in written["outputs"]
            ],
            parallel=written["parallel"],
            uses=tuple([Use(*lengths.all(entry[:2]), *entry[2:]) for entry in written["uses"]]),
            jumps=tuple([Jump(by, at, to, where, tuple(place)) for by, at, to, where, place in written["jumps"]]),
            updates=tuple([(output, parameter) for output, parameter in written["updates"]]),
            symbols=symbols,
            condition=lengths(written["condition"]),
            sizes=sizes,
        )

    def _step(self, written: JsonArray, lengths: LengthsReader) -> Step | FallbackStep:
        if len(written) == 4:
            texts, inputs, outputs, function = written
            return FallbackStep(
                inputs=tuple([_read_view(view, lengths) for view in inputs]),
                outputs=tuple([_read_view(view, lengths) for view in outputs]),
                **{name: self._texts[number] for name, number in zip(_FIELDS, texts, strict=True)},
                **self._host(function, lengths),
            )
        kernel, args, geometry, label, instruction, flops, bytes_, outputs, checks = written
        return Step(
            self.kernels[kernel],
            tuple([arg if type(arg) is int else self._argument(arg, lengths) for arg in args]),
            _read_geometry(geometry, lengths),
            self._texts[label],
            self._texts[instruction],
            lengths(flops),
            lengths(bytes_),
            tuple([_read_view(view, lengths) for view in outputs]),
            tuple([_read_check(check, lengths) for check in checks]),
        )

    def _argument(self, arg: Any, lengths: LengthsReader) -> Any:
        if isinstance(arg, str):
            return lengths(arg)
        if len(arg) == 2:
            return MappedTensor(_read_pointer(arg[0], lengths), _read_layout(arg[1], lengths))
        return self.kernels[arg[0]] if len(arg) == 1 else _read_pointer(arg, lengths)


class LengthsReader:
    """Reads the JSON values of a `LengthsWriter`; ``reader`` is the reader of all plans."""

    def __init__(self, reader: PlansReader, sizes: SizeProgram | None) -> None:
        self.reader = reader
        self._sizes = sizes
        self._known: dict[int | str, Dim] = {}

    def __call__(self, written: int | str) -> Any:
        """Return the length that `LengthsWriter.__call__` wrote."""
        if isinstance(written, int):
            return written
        found = self._known.get(written)
        if found is None:
            if self._sizes is None:
                raise ValueError("a plan without symbols has the length of a size program")
            found = self._known[written] = self._sizes.stored(int(written))
        return found

    def all(self, written: Iterable[int | str]) -> tuple[Any, ...]:
        """Return the lengths that `LengthsWriter.all` wrote."""
        return tuple([one if type(one) is int else self(one) for one in written])


def _read_geometry(written: JsonArray, lengths: LengthsReader) -> Geometry:
    if len(written) == 2:
        return TaskRange(*lengths.all(written))
    if not written:
        return OneCall()
    return Grid(lengths.all(written[0]), tuple(written[1]), *written[2:])


def _read_layout(written: JsonArray, lengths: LengthsReader) -> TensorLayout:
    dtype, lens, strides, box, windows = written
    made: Any = TensorLayout
    found = None if windows is None else Windows(*map(tuple, windows))
    layout: TensorLayout = made(dtype, *map(lengths.all, (lens, strides, box)), found)
    return layout


def _read_pointer(written: JsonArray, lengths: LengthsReader) -> Pointer:
    region, index, offset = written
    return Pointer(_REGIONS[region], index, offset if type(offset) is int else lengths(offset))


def _read_view(written: JsonArray, lengths: LengthsReader) -> TensorView:
    pointer, dtype, lens, strides = written
    return TensorView(_read_pointer(pointer, lengths), dtype, lengths.all(lens), lengths.all(strides))


def _read_check(written: JsonArray, lengths: LengthsReader) -> tuple[str, str]:
    who, what = written[:2]
    if len(written) == 4:
        what = OpenAxis(what)
        what.axis, what.length = written[2], lengths(written[3])
    return who, what
