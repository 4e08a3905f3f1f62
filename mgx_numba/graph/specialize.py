"""Static programs from dynamic ones: the actual lengths of the inputs settle every shape."""

from __future__ import annotations

from collections.abc import Mapping

from .instruction import Parameter
from .program import Program
from .shape import Shape

__all__ = ["is_dynamic", "specialize"]


def is_dynamic(program: Program) -> bool:
    """Whether some input has a range for a length."""
    return any(s.is_dynamic for s in program.parameter_shapes().values())


def specialize(program: Program, lens: Mapping[str, tuple[int, ...]]) -> Program:
    """A copy whose inputs have these lengths, with all shapes computed again.

    Raises:
        ShapeError: the lengths do not fit the operators.
    """
    copy = program.clone()
    for ins in copy.main:
        if isinstance(ins.op, Parameter) and ins.shape.is_dynamic:
            ins.shape = Shape(ins.shape.type, lens[ins.op.parameter])
    copy.main.recompute_shapes()
    return copy
