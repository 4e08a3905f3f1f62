"""Values of host steps: which are, and arrays or tuples of them as lists of arrays and back."""

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

__all__ = [
    "flatten", "has_memory", "has_symbols", "is_hosts", "leaves", "made_by_host", "no_kernels", "numbered", "rebuild",
    "returned",
]  # fmt: skip


def flatten(value: Any, into: list[View]) -> Any:
    """Append the views of a value tree to a list; returns the tree of their positions."""
    if isinstance(value, View):
        into.append(value)
        return len(into) - 1
    return [flatten(v, into) for v in value]


def rebuild(tree: Any, arrays: list) -> Any:
    """The value whose tree of positions `flatten` gave, of arrays; tuples are tuples of them."""
    return arrays[tree] if isinstance(tree, int) else tuple(rebuild(t, arrays) for t in tree)


def leaves(value: Any) -> list:
    """All arrays of a value, those of tuples one after the other."""
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (tuple, list)) else [np.asarray(value)]


def is_hosts(shape: Shape) -> bool:
    """Whether a value of this shape is the host's: an array that a host step of this run makes."""
    return shape.is_dynamic or shape.type.hosted


def has_memory(shape: Shape) -> bool:
    """Whether a result of this shape gets memory of its own before a run."""
    return not shape.is_dynamic and (shape.type.coded or not shape.type.hosted)


def made_by_host(value: Any) -> bool:
    """Whether a value, or one of a tuple, lies where host steps leave theirs."""
    if isinstance(value, View):
        return value.buffer.region is Region.HOST
    return isinstance(value, (list, tuple)) and any(made_by_host(v) for v in value)


def no_kernels(shapes: Sequence[Shape]) -> str:
    """Why values of some shapes are the host's whatever the target, empty if they are not."""
    if not any(shape.sub_shapes or shape.type.hosted for shape in shapes):
        return ""
    types = dict.fromkeys(leaf.type for shape in shapes for leaf in shape.flatten() if leaf.type.hosted)
    return f"no target has kernels for {', '.join(t.name for t in types)}" if types else ""


def returned(shape: Shape) -> Callable[[list], list]:
    """What gives a value as a result; those of the host's types have the rank that a user sees."""
    if shape.is_dynamic or has_memory(shape):
        return list
    if shape.symbolic:  # has axes: its arrays have their lengths
        return lambda arrays: [np.array(array, order="C") for array in arrays]
    return lambda arrays: [np.array(array, order="C").reshape(shape.array_lens) for array in arrays]


def has_symbols(ins: Instruction) -> bool:
    """Whether lengths or attributes of an instruction, of its inputs, or of those in its submodules are symbolic.

    Submodules read values from outside, whose lengths may be symbolic where no other is.
    """
    if any(shape.symbolic for i in (ins, *ins.inputs) for shape in i.shape.flatten()):
        return True
    return holds_symbols(ins.op) or any(has_symbols(i) for module in ins.module_args for i in module)


def numbered(ins: Instruction, values: Mapping[Dim, int]) -> Instruction:
    """Return a copy of an instruction in which symbols have values, for `ref.interpreter.compute`; it is in no module.

    Submodules are as they are.
    """
    known: dict[Dim, int] = {}
    inputs = [Instruction(i.op, (), with_numbers(i.shape, values, known)) for i in ins.inputs]
    op, shape = with_numbers(ins.op, values, known), with_numbers(ins.shape, values, known)
    copy = Instruction(op, inputs, shape, ins.module_args)
    copy.debug_symbols = ins.debug_symbols
    return copy
