"""Static programs from dynamic ones: the actual lengths of the inputs settle every shape."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.shape import Shape
from ..ops.base import make_op
from .instruction import Parameter
from .module import Module
from .program import Program

__all__ = ["is_dynamic", "specialize"]

_BROADCASTS = frozenset({"multibroadcast", "broadcast_for_dot"})
"""Operators whose result is their first input by NumPy's rule, and the other inputs say how long."""


def is_dynamic(program: Program) -> bool:
    """Whether some input has a range for a length."""
    return any(s.is_dynamic for s in program.parameter_shapes().values())


def specialize(program: Program, lens: Mapping[str, tuple[int, ...]]) -> Program:
    """A copy whose inputs have these lengths, with all shapes computed again.

    What is broadcast to the lengths of another value is broadcast to lengths then, as in a program that was static from
    the start.

    Raises:
        ShapeError: the lengths do not fit the operators.
    """
    copy = program.clone()
    for ins in copy.main:
        if isinstance(ins.op, Parameter) and ins.shape.is_dynamic:
            ins.shape = Shape(ins.shape.type, lens[ins.op.parameter])
    copy.main.recompute_shapes()
    for module in copy.reachable_modules():
        _settle_broadcasts(module)
    copy.keep_ranks(program.output_shapes())
    return copy


def _settle_broadcasts(module: Module) -> None:
    for ins in module:
        if ins.name in _BROADCASTS and len(ins.inputs) > 1 and not ins.shape.is_dynamic:
            settled = make_op("multibroadcast", out_lens=ins.shape.lens)
            module.replace_instruction(ins, settled, ins.inputs[:1])
