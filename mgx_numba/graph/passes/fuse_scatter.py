"""Fuse scatters with the operations that compute their updates: messages of a graph network are gathered, weighted and
added up without being stored."""

from __future__ import annotations

from ...core.dim import known_same
from ...ops.base import make_op
from ...ops.scatter import REDUCTIONS
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .regions import parameter_name, unfusable

COMBINING = tuple(f"scatter_{name}" for name, function in REDUCTIONS.items() if function is not None)
"""Scatters that combine updates with the data."""


class FuseScatter(Pass):
    """``scatter_add(data, indices, pointwise(gather(x, i), ...))`` -> ``fused_scatter``, where nothing else reads the
    gathered values and the updates.

    Applies to scatters for which the target has a kernel (`Capabilities.computes_updates`).
    """

    name = "fuse_scatter"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.computes_updates is None:
            return
        for ins in module.named(COMBINING):
            region = _region(ins)
            if len(region) == 1 or any(unfusable(i) is not None for i in region):
                continue
            if not can.computes_updates(ins):
                self.log.refuse(self.name, ins, "its kernel reads stored updates")
                continue
            self.log.apply(self.name, ins)
            _move(program, module, region)


def _region(scatter: Instruction) -> list[Instruction]:
    """Return the scatter, and before it what computes its updates alone, in program order."""
    updates = scatter.inputs[2]
    if _is_own(updates, scatter) and updates.name == "gather":
        return [updates, scatter]
    if not _is_own(updates, scatter) or updates.name != "pointwise" or updates.shape.sub_shapes:
        return [scatter]
    lens = updates.shape.lens
    gathers = [
        i for i in updates.inputs if i.name == "gather" and _is_own(i, updates) and known_same(i.shape.lens, lens)
    ]
    return [*dict.fromkeys(gathers), updates, scatter]


def _is_own(ins: Instruction, reader: Instruction) -> bool:
    """Return whether a value is computed for one reader in the reader's module."""
    return len(ins.users) == 1 and reader in ins.users and ins.module is reader.module


def _move(program: Program, module: Module, region: list[Instruction]) -> None:
    """Move the region into the submodule of a ``fused_scatter`` at the scatter's place."""
    body, scatter = program.unique_module(f"{module.name}:scatter"), region[-1]
    members = set(region)
    outside = dict.fromkeys(i for ins in region for i in ins.inputs if i not in members)
    known = {i: body.add_parameter(parameter_name(k), i.shape) for k, i in enumerate(outside)}
    for ins in region:
        known[ins] = body.add_instruction(ins.op, [known[i] for i in ins.inputs], ins.module_args)
        known[ins].debug_symbols = ins.debug_symbols
    body.add_return([known[scatter]])
    fused = module.insert_instruction(scatter, make_op("fused_scatter"), list(outside), [body])
    fused.debug_symbols = tuple(dict.fromkeys(s for ins in region for s in ins.debug_symbols))
    module.replace_instruction(scatter, fused)
    for ins in reversed(region):
        module.remove_instruction(ins)
