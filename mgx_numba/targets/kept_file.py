"""Compiled programs in files: what `Compiled.kept_plan` gives, written and read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..runtime.plan_file import PlanFile, file_pieces
from ..runtime.plan_json import PlansReader, PlansWriter
from .base import Kept, KeptChoice, KeptPlan, KeptStages
from .host_file import read_host
from .seam import Seam

__all__ = ["KeptFile", "kept_pieces", "read_kept", "written_kept"]


def kept_pieces(kept: Kept, about: Mapping[str, Any]) -> list[bytes | memoryview] | None:
    """Return what a file with a program consists of, in order; None if a step is a function of a user.

    Args:
        kept: the program.
        about: kept beside it: JSON values.
    """
    writer = PlansWriter()
    try:
        return file_pieces(writer, about, written_kept(kept, writer))
    except UnsupportedError:
        return None


class KeptFile(PlanFile):
    """A file of a program that is open."""

    def kept(self, block: np.ndarray) -> Kept:
        """Return the program over memory that `allocate` gave, whether it is filled yet or not; to be asked once."""
        return read_kept(self.content, self.plans(block, read_host))


def written_kept(kept: Kept, writer: PlansWriter) -> dict[str, Any]:
    """Return a program as JSON values.

    Raises:
        UnsupportedError: a step is a function of a user.
    """
    if isinstance(kept, KeptPlan):
        return {"plan": writer.plan(kept.plan), "trees": kept.trees}
    if isinstance(kept, KeptStages):
        stages = {"head": written_kept(kept.head, writer), "tail": written_kept(kept.tail, writer)}
        return {**stages, "seam": [kept.seam.inputs, kept.seam.results], "trees": kept.trees, "given": kept.given}
    fixed = [[key, written_kept(one, writer)] for key, one in kept.fixed]
    return {"names": kept.names, "plans": [written_kept(one, writer) for one in kept.plans], "fixed": fixed}


def read_kept(written: Mapping[str, Any], reader: PlansReader) -> Kept:
    """Return the program that `written_kept` wrote."""
    if "plan" in written:
        return KeptPlan(reader.plan(written["plan"]), written["trees"])
    if "seam" in written:
        inputs, results = written["seam"]
        seam = Seam(tuple(inputs), tuple([(early, k) for early, k in results]))
        head, tail = read_kept(written["head"], reader), read_kept(written["tail"], reader)
        return KeptStages(head, tail, seam, written["trees"], written["given"])
    fixed = [(tuple(map(tuple, key)), read_kept(one, reader)) for key, one in written["fixed"]]
    return KeptChoice(
        tuple(written["names"]), tuple([read_kept(one, reader) for one in written["plans"]]), tuple(fixed)
    )
