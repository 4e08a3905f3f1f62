"""Classify values that fallback steps make, and convert value trees to lists of arrays and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.dim import Dim
from ...core.shape import Shape
from ...graph.instruction import Instruction
from ...graph.substitution import holds_symbols, with_numbers
from ...runtime.plan import Region
from .buffers import View


def flatten(value: Any, into: list[View]) -> object:
    """Append the views of a value tree to ``into``; return the tree of their positions."""
    if isinstance(value, View):
        into.append(value)
        return len(into) - 1
    return [flatten(v, into) for v in value]


def rebuild(tree: Any, arrays: list) -> object:
    """Return the value tree of ``arrays`` for the tree of positions that `flatten` returned."""
    return arrays[tree] if isinstance(tree, int) else tuple(rebuild(t, arrays) for t in tree)


def leaves(value: object) -> list:
    """Return all arrays of a value; the members of tuples in order."""
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (tuple, list)) else [np.asarray(value)]


def is_on_host(shape: Shape) -> bool:
    """Return whether a value of this shape is an array that a fallback step makes in each run."""
    return shape.is_dynamic or shape.type.hosted


def has_memory(shape: Shape) -> bool:
    """Return whether a result of this shape gets memory of its own before a run."""
    return not shape.is_dynamic and (shape.type.coded or not shape.type.hosted)


def made_by_fallback(value: object) -> bool:
    """Return whether a value, or a member of a tuple, lies in the memory region of fallback steps."""
    if isinstance(value, View):
        return value.buffer.region is Region.HOST
    return isinstance(value, (list, tuple)) and any(made_by_fallback(v) for v in value)


def no_kernels(shapes: Sequence[Shape]) -> str:
    """Return why no target has kernels for values of these shapes; empty if a target may have."""
    if not any(shape.sub_shapes or shape.type.hosted for shape in shapes):
        return ""
    types = dict.fromkeys(leaf.type for shape in shapes for leaf in shape.flatten() if leaf.type.hosted)
    return f"no target has kernels for {', '.join(t.name for t in types)}" if types else ""


def result_converter(shape: Shape) -> Callable[[list], list]:
    """Return a function that converts a value to a result; values of the host's types get the rank that a user sees."""
    if shape.is_dynamic or has_memory(shape):
        return list
    if shape.symbolic:  # shapes with symbols have axes: their arrays have the right rank
        return lambda arrays: [np.array(array, order="C") for array in arrays]
    return lambda arrays: [np.array(array, order="C").reshape(shape.array_lens) for array in arrays]


def has_symbols(ins: Instruction) -> bool:
    """Return whether lengths or attributes of an instruction, its inputs or its submodules are symbolic.

    Submodules capture values from outside, whose lengths may be symbolic where no other length is.
    """
    if any(shape.symbolic for i in (ins, *ins.inputs) for shape in i.shape.flatten()):
        return True
    return holds_symbols(ins.op) or any(has_symbols(i) for module in ins.module_args for i in module)


def without_symbols(ins: Instruction, values: Mapping[Dim, int]) -> Instruction:
    """Return a copy of an instruction with symbols replaced by values, for `ref.interpreter.compute`.

    The copy is in no module. Submodules are not changed.
    """
    known: dict[Dim, int] = {}
    inputs = [Instruction(i.op, (), with_numbers(i.shape, values, known)) for i in ins.inputs]
    op, shape = with_numbers(ins.op, values, known), with_numbers(ins.shape, values, known)
    copy = Instruction(op, inputs, shape, ins.module_args)
    copy.debug_symbols = ins.debug_symbols
    return copy
