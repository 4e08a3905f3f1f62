"""Remove copies to standard layout that no user needs."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.dim import known_same
from ...environment import environment_flag
from ...errors import MgxError
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .rewriter import remove_dead

NEEDS_STANDARD = frozenset({"reshape_lazy", "as_shape", "load", "bit_cast"})


class EliminateContiguous(Pass):
    """``f(contiguous(x)) -> f(x)`` where the operator takes any strides; results of the module stay standard.

    Args:
        name: operator that copies to standard layout.
    """

    name = "eliminate_contiguous"

    def __init__(self, operator: str = "contiguous") -> None:
        self.operator = operator

    def apply(self, program: Program, module: Module, options: Options) -> None:
        fixed = bool(module.named(NEEDS_STANDARD))
        trace = environment_flag("MIGRAPHX_TRACE_ELIMINATE_CONTIGUOUS")
        for ins in module.named((self.operator,)):
            if ins is not module.last and ins.inputs[0].shape == ins.shape:
                source = ins.inputs[0]
                module.replace_instruction(ins, source)
                remove_dead(module, [ins])
        for user in list(module):
            copies = {k: i for k, i in enumerate(user.inputs) if i.op.name == self.operator}
            if not copies or user.module is not module:
                continue
            # All at once first: a user of thousands of copies is looked at once then.
            alone = [{k: i} for k, i in copies.items()] if len(copies) > 1 else []
            for chosen in (copies, *alone):
                sources = {k: i.inputs[0] for k, i in chosen.items()}
                if _takes_any_layout(user, sources, fixed):
                    if trace:
                        print(f"eliminate_contiguous: {user.op} takes inputs {sorted(sources)} as they lie")
                    module.set_inputs(user, sources)
                    if chosen is copies:
                        break
            for copied in dict.fromkeys(copies.values()):
                if copied.module is not None:
                    remove_dead(copied.module, [copied])


def _takes_any_layout(user: Instruction, sources: Mapping[int, Instruction], fixed: bool) -> bool:
    """Return whether an operator accepts its operands without their copies; ``fixed``: the result's strides must not
    change."""
    if isinstance(user.op, Return) or user.module_args or user.name in NEEDS_STANDARD:
        return False
    shapes = [sources.get(k, i).shape for k, i in enumerate(user.inputs)]
    try:
        shape = user.op.result_shape(shapes, user.module_args)
    except MgxError:
        return False
    if fixed:
        return shape == user.shape
    return known_same(shape.lens, user.shape.lens) and shape.type is user.shape.type
