"""Dependency levels of a reduction cluster: the number of reductions that a value depends on, and whether it is one
value per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....core.dim import SharedLength, known_same
from ....dataclass import dataclass
from ....graph.instruction import Instruction
from ....graph.module import Module
from ...problems.cluster import Tensor, own_lens
from ...reductions import REDUCTIONS


@dataclass(frozen=True)
class Levels:
    """Evaluation order of a cluster.

    Attributes:
        parameters, results: of the module, one per input and output.
        level: of each instruction, the most reductions on a path to it.
        row_value: of each instruction, whether it is one value per row.
        count: levels that read full operands: the most passes over a row.
    """

    parameters: tuple[Instruction, ...]
    results: tuple[Instruction, ...]
    reductions: tuple[Instruction, ...]
    level: Mapping[Instruction, int]
    row_value: Mapping[Instruction, bool]
    count: int

    def reduced_in(self, level: int) -> list[Instruction]:
        """Return the reductions of full values of a level."""
        return [r for r in self.reductions if self.level[r] == level + 1]

    def stored_in(self, level: int) -> list[int]:
        """Return the indices of the full results of a level."""
        return [k for k, r in enumerate(self.results) if not self.row_value[r] and self.level[r] == level]


def levels_of(module: Module, inputs: Sequence[Tensor], full: tuple[SharedLength, ...]) -> Levels:
    """Return the levels of a cluster; ``full`` are the lengths of full operands."""
    parameters, results = tuple(module.parameters()), tuple(module.results())
    tensors, own = dict(zip(parameters, inputs)), own_lens(module)
    level: dict[Instruction, int] = {}
    row_value: dict[Instruction, bool] = {}
    for ins in module:
        if ins.name == "@return":
            break
        level[ins] = max((level[i] for i in ins.inputs), default=0) + (ins.name in REDUCTIONS)
        if ins.is_param:
            row_value[ins] = not known_same(tensors[ins].lens, full)
        elif ins.name in REDUCTIONS or ins.is_literal:
            row_value[ins] = True
        elif ins.name == "multibroadcast":
            row_value[ins] = not known_same(ins.shape.lens, own) and row_value[ins.inputs[0]]
        else:
            row_value[ins] = all(row_value[i] for i in ins.inputs)
    reductions = tuple(i for i in module if i.name in REDUCTIONS)
    walked = [level[r] - 1 for r in reductions] + [level[r] for r in results if not row_value[r]]
    return Levels(parameters, results, reductions, level, row_value, 1 + max(walked, default=0))
