"""Programs whose symbolic lengths become numbers: those of one run, or the example lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.dim import Dim
from ..core.shape import Shape
from ..ops.base import Operator
from .instruction import Return
from .module import Module
from .program import Program

__all__ = ["evaluate_lengths", "evaluated_body", "evaluated_shape"]

Value = Callable[[Any], int]
"""An expression's value; a plain integer is its own."""


def evaluate_lengths(program: Program, value: Value) -> None:
    """Replace each length in a program's shapes and attributes by its value, in place."""
    for module in program.reachable_modules():
        for ins in module:
            if ins.is_param:
                ins.shape = evaluated_shape(ins.shape, value)
            elif ins.literal is None and not isinstance(ins.op, Return):
                ins.op = _evaluated_operator(ins.op, value)
    program.main.recompute_shapes()


def evaluated_body(body: Module, value: Value) -> Module:
    """Return a copy of a kernel's body, which takes parameters alone, in which each length is its value."""
    copy, _ = Program.of_module(body)
    evaluate_lengths(copy, value)
    return copy.main


def evaluated_shape(shape: Shape, value: Value) -> Shape:
    """Return a shape in which each length and stride is its value."""
    if shape.sub_shapes:
        return Shape.tuple([evaluated_shape(s, value) for s in shape.sub_shapes])
    if not shape.symbolic:
        return shape
    return Shape.view(shape.type, [value(n) for n in shape.lens], [value(n) for n in shape.strides])


def _evaluated_operator(op: Operator, value: Value) -> Operator:
    changes = {}
    for name in op.attribute_kinds():
        old = getattr(op, name)
        new = _evaluated(old, value)
        if new is not old:
            changes[name] = new
    return op.with_attributes(**changes) if changes else op


def _evaluated(old: Any, value: Value) -> Any:
    if isinstance(old, Dim):
        return value(old)
    if isinstance(old, (tuple, list)):
        new = [_evaluated(v, value) for v in old]
        return old if all(a is b for a, b in zip(new, old)) else type(old)(new)
    if isinstance(old, Shape):
        return evaluated_shape(old, value)
    if isinstance(old, Operator):
        return _evaluated_operator(old, value)
    return old
