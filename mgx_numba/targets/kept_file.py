"""Write compiled programs, as `Compiled.kept_plan` returns them, to files and read them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple

import numpy as np

from ..errors import UnsupportedError
from ..json_types import JsonArray, JsonObject
from ..runtime.completed import Counted, Spaced
from ..runtime.plan_file import PlanFile, file_pieces
from ..runtime.plan_json import PlansReader, PlansWriter
from .base import Kept, KeptChoice, KeptPlan, KeptSplit
from .fallback_file import read_host
from .split_point import SplitPoint


def kept_pieces(
    kept: Kept, about: Mapping[str, object], objects: Mapping[str, bytes]
) -> list[bytes | memoryview] | None:
    """Return the pieces of a program's file, in order; None if a fallback step calls a function of a user.

    Args:
        kept: the program.
        about: JSON values that are stored beside the program.
        objects: objects of kernels, by symbol, that are stored beside the program.
    """
    writer = PlansWriter()
    try:
        content = written_kept(kept, writer)
        content["objects"] = {symbol: writer.array(np.frombuffer(data, np.uint8)) for symbol, data in objects.items()}
        return file_pieces(writer, about, content)
    except UnsupportedError:
        return None


def constant_bytes(kept: Kept) -> int:
    """Return the total size (bytes) of the constants of a program's plans; a shared constant counts for each plan."""
    if isinstance(kept, KeptPlan):
        return sum(array.nbytes for array in kept.plan.constants)
    if isinstance(kept, KeptSplit):
        return constant_bytes(kept.head) + constant_bytes(kept.tail)
    return sum(map(constant_bytes, [*kept.plans, *(one for _, one in kept.fixed)]))


class KeptFile(PlanFile):
    """An open file of a compiled program."""

    def objects(self, block: np.ndarray) -> dict[str, np.ndarray]:
        """Return the bytes of the kernels' objects, by symbol, in the filled memory that `allocate` returned."""
        return {symbol: self.array(block, number) for symbol, number in self.content["objects"].items()}

    def kept(self, block: np.ndarray) -> Kept:
        """Return the program over the memory of its constants that `allocate` returned; call only once. The memory may
        be filled later."""
        return read_kept(self.content, self.plans(block, read_host))


def written_kept(kept: Kept, writer: PlansWriter) -> dict[str, object]:
    """Return a program as JSON values.

    Raises:
        UnsupportedError: a fallback step calls a function of a user.
    """
    if isinstance(kept, KeptPlan):
        return {"plan": writer.plan(kept.plan), "trees": kept.trees, "symbols": list(kept.symbols)}
    if isinstance(kept, KeptSplit):
        stages = {"head": written_kept(kept.head, writer), "tail": written_kept(kept.tail, writer)}
        point = kept.split_point
        completed = [astuple(one) for one in point.completed]
        seam = [point.inputs, point.results, completed, point.shared, point.sizes]
        return {**stages, "seam": seam, "trees": kept.trees, "given": kept.given}
    fixed = [[key, written_kept(one, writer)] for key, one in kept.fixed]
    return {"names": kept.names, "plans": [written_kept(one, writer) for one in kept.plans], "fixed": fixed}


def read_kept(written: JsonObject, reader: PlansReader) -> Kept:
    """Return the program that `written_kept` wrote."""
    if "plan" in written:
        return KeptPlan(reader.plan(written["plan"]), written["trees"], written["symbols"])
    if "seam" in written:
        seam: JsonArray = list(written["seam"])
        inputs, results, completed, shared, sizes = seam + [[], [], [], [], 0][len(seam) :]  # files of 0.2 have two
        places = tuple([(early, k) for early, k in results])
        done = tuple(map(_completed, completed))
        split_point = SplitPoint(tuple(inputs), places, done, tuple(shared), sizes)
        head, tail = read_kept(written["head"], reader), read_kept(written["tail"], reader)
        return KeptSplit(head, tail, split_point, written["trees"], written["given"])
    fixed = [(tuple(map(tuple, key)), read_kept(one, reader)) for key, one in written["fixed"]]
    return KeptChoice(
        tuple(written["names"]), tuple([read_kept(one, reader) for one in written["plans"]]), tuple(fixed)
    )


def _completed(written: JsonArray) -> Counted | Spaced:
    """Return what completes a result between the stages; `Counted` has lengths as its last value."""
    number, other, last = written
    return Counted(number, other, tuple(last)) if isinstance(last, (list, tuple)) else Spaced(number, other, last)
