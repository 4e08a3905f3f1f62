"""Fuse gathers with the operations that read them, and these with scatters: messages of a graph network are gathered,
weighted and added up without being stored."""

from __future__ import annotations

from ...core.dim import known_in, known_same
from ...core.shape import Shape
from ...ops.base import make_op
from ...ops.scatter import REDUCTIONS
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .regions import parameter_name, unfusable

COMBINING = tuple(f"scatter_{name}" for name, function in REDUCTIONS.items() if function is not None)
"""Scatters that combine updates with the data."""


class FuseIndexed(Pass):
    """``scatter_add(data, indices, pointwise(gather(x, i), ...))`` -> ``fused_scatter``, and
    ``pointwise(gather(x, i), ...)`` -> ``fused_gather``, where nothing else reads the values in between.

    Applies to scatters for which the target has a kernel (`Capabilities.computes_updates`).
    """

    name = "fuse_indexed"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.computes_updates is None:
            return
        for ins in module.named(COMBINING):
            if len(region := _updates(ins)) > 1 and not any(map(unfusable, region)):
                if can.computes_updates(ins):
                    self._fuse(program, module, region, "scatter")
                else:
                    self.log.refuse(self.name, ins, "its kernel reads stored updates")
        for ins in module.named(("pointwise",)):
            if len(region := _gathered(ins)) > 1 and not any(map(unfusable, region)):
                self._fuse(program, module, region, "gather")

    def _fuse(self, program: Program, module: Module, region: list[Instruction], name: str) -> None:
        """Move a region into the submodule of a ``fused_<name>`` at the place of its last member."""
        last = region[-1]
        self.log.apply(self.name, last)
        body, members = program.unique_module(f"{module.name}:{name}"), set(region)
        outside = dict.fromkeys(i for ins in region for i in ins.inputs if i not in members)
        known = {i: body.add_parameter(parameter_name(k), i.shape) for k, i in enumerate(outside)}
        for ins in region:
            known[ins] = body.add_instruction(ins.op, [known[i] for i in ins.inputs], ins.module_args)
            known[ins].debug_symbols, known[ins].place = ins.debug_symbols, ins.place
        body.add_return([known[last]])
        fused = module.insert_instruction(last, make_op(f"fused_{name}"), list(outside), [body])
        fused.debug_symbols = tuple(dict.fromkeys(s for ins in region for s in ins.debug_symbols))
        fused.place = last.place
        module.replace_instruction(last, fused)
        for ins in reversed(region):
            module.remove_instruction(ins)


def _updates(scatter: Instruction) -> list[Instruction]:
    """Return the scatter, after the operators that compute its updates and nothing else, in program order."""
    updates = scatter.inputs[2]
    if not _is_own(updates, scatter):
        return [scatter]
    if updates.name == "pointwise" and not updates.shape.sub_shapes:
        return [*_gathered(updates), scatter]
    return [updates, scatter] if _is_gather(updates) else [scatter]


def _gathered(pointwise: Instruction) -> list[Instruction]:
    """Return a pointwise operator, and before it the gathers that it alone reads; no gathers if it has several
    results, or reads across rows, for which its own kernel transposes."""
    if pointwise.shape.sub_shapes or not all(_along_rows(i.shape) for i in (pointwise, *pointwise.inputs)):
        return [pointwise]
    lens = pointwise.shape.lens
    own = dict.fromkeys(i for i in pointwise.inputs if _is_gather(i) and _is_own(i, pointwise))
    return [*(i for i in own if known_same(i.shape.lens, lens)), pointwise]


def _is_gather(ins: Instruction) -> bool:
    """Return whether a value is gathered from a tensor that has elements."""
    return ins.name == "gather" and not any(known_in(n, 0) for n in ins.inputs[0].shape.lens)


def _along_rows(shape: Shape) -> bool:
    """Return whether neighbours along the last axis are neighbours in memory, or one element."""
    return not shape.strides or known_in(shape.strides[-1], 0, 1) or known_in(shape.lens[-1], 1)


def _is_own(ins: Instruction, reader: Instruction) -> bool:
    """Return whether a value is computed for one reader in the reader's module."""
    return len(ins.users) == 1 and reader in ins.users and ins.module is reader.module
