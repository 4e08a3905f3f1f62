"""Constant values in the IR: literals, and literals seen through view operators.

A constant is never expanded in memory: a broadcast of a literal stays a view with zero strides, and folding works on
the part of the data that differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.argument import Argument
from ..core.copying import copy_elements
from ..core.dim import is_symbolic, known_equal, known_same
from ..core.pages import aligned_array
from ..core.shape import Shape, common_lens
from ..core.types import Type
from ..ops.base import Operator, make_op
from .instruction import Instruction

CONSTANT_VIEWS = frozenset(
    "broadcast multibroadcast scalar reshape reshape_lazy transpose squeeze unsqueeze flatten slice step"
    " identity contiguous layout".split()
)
"""Operators whose value on a literal is computed as a view, or kept as one."""

UNSEEN = frozenset({"identity", "contiguous", "layout"})
"""View operators that change neither lengths nor the order of elements."""

STORED = frozenset({"dequantizelinear", "unpack_int4", "unpack_fp4"})
"""Operators that represent a constant in fewer bits. They are not folded, so that a target may compute with the packed
bits."""

UNIFORM_LIMIT = 1 << 16
"""Most elements that are compared to find whether a literal is uniform: some ten microseconds."""


def is_given(ins: Instruction) -> bool:
    """Return whether no kernel computes a value: it is a parameter or a constant."""
    return ins.is_param or is_constant(ins)


def is_constant(ins: Instruction) -> bool:
    """Return whether the value is a literal, directly or through views of one input."""
    while ins.literal is None:
        if ins.op.name not in CONSTANT_VIEWS or len(ins.inputs) != 1:
            return False
        ins = ins.inputs[0]
    return ins.literal.array is not None


def constant_array(ins: Instruction) -> np.ndarray | None:
    """Return the value of a constant with its logical lengths (a view where possible); ``None`` for any other value.

    A constant repeats along an axis of symbolic length: the array has length 1 on that axis.
    """
    chain: list[Instruction] = []
    while ins.literal is None:
        if ins.op.name not in CONSTANT_VIEWS or len(ins.inputs) != 1 or ins.shape.is_dynamic:
            return None
        chain.append(ins)
        ins = ins.inputs[0]
    array = ins.literal.array
    if array is None:
        return None
    for view in reversed(chain):
        array = viewed(view, array)
        if array is None:
            return None
    return array


def viewed(view: Instruction, array: np.ndarray) -> np.ndarray | None:
    """Return the result of a view operator on a constant (an array as of `constant_array`); None if it is unknown."""
    if view.op.symbolic or view.shape.symbolic or view.inputs[0].shape.symbolic:
        return _repeating_view(view, array)
    found: np.ndarray = array if view.op.name in UNSEEN else view.op.compute(view.shape, [array])
    return found


def _repeating_view(view: Instruction, array: np.ndarray) -> np.ndarray | None:
    """Return the value of a view with symbolic lengths, with length 1 on symbolic axes; None if it repeats on another
    axis."""
    before, after = view.inputs[0].shape.lens, view.shape.lens
    lens = tuple(1 if is_symbolic(n) else n for n in after)
    if view.op.name in UNSEEN:
        return array
    if (small := compact(array)).size == 1:
        return np.broadcast_to(small.reshape((1,) * len(lens)), lens)
    if view.op.name == "transpose":
        return np.transpose(array, view.op.attributes()["permutation"])
    if view.op.name in ("multibroadcast", "broadcast"):
        if view.op.name == "broadcast":
            axis = view.op.attributes()["axis"] % len(after)
            array = array.reshape(array.shape + (1,) * (len(after) - axis - array.ndim))
        fits = all(n in (1, m) for n, m in zip(array.shape[::-1], lens[::-1]))
        return np.broadcast_to(array, lens) if fits else None  # a guard may have fixed a symbolic length
    if known_same([n for n in before if is_symbolic(n) or n != 1], [n for n in after if is_symbolic(n) or n != 1]):
        return array.reshape(lens)  # axes of length 1 are added or removed
    return None


def uniform(array: np.ndarray) -> bool:
    """Return whether all elements are equal (NaN equals NaN, 0 does not equal -0); False beyond `UNIFORM_LIMIT`
    elements."""
    small = compact(array)
    if small.size <= 1:
        return array.size > 0
    if small.size > UNIFORM_LIMIT:
        return False
    one = small.item(0)
    if one == one and one != small.item(small.size - 1):  # most constants differ there
        return False
    first = small[(0,) * small.ndim]
    same = small == first
    if first != first:
        same = small != small
    elif first == 0 and np.asarray(first).dtype.kind not in "biu?":
        same &= np.signbit(small) == np.signbit(first)
    return bool(np.all(same))


def uniform_value(ins: Instruction) -> Any:
    """Return the single element value of a uniform constant as a NumPy scalar; ``None`` for any other value."""
    shape = ins.shape
    while ins.literal is None:
        if ins.op.name not in CONSTANT_VIEWS or len(ins.inputs) != 1:
            return None
        ins = ins.inputs[0]
    array = ins.literal.array
    if array is None or known_equal(shape.elements, 0) or not uniform(array):
        return None
    return array[(0,) * array.ndim]


def is_causal(keep: np.ndarray) -> bool:
    """Return whether a boolean array [..., s, t] is true exactly where ``j <= i + t - s``, equally in all batches."""
    if keep.ndim < 2:
        return False
    s, t = keep.shape[-2:]
    expected = np.arange(t) <= np.arange(s)[:, None] + (t - s)
    return s > 1 and t >= s and keep.size > 0 and bool((keep == expected).all())


def compact(array: np.ndarray) -> np.ndarray:
    """Return a view of the array with length 1 on every axis along which it repeats (zero stride)."""
    if 0 not in array.strides or 0 in array.shape:
        return array
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def fold_pointwise(op: Operator, output: Shape, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the value of a pointwise operator on constants, with length 1 on axes along which every operand repeats.

    Args:
        op: a pointwise operator.
        output: its output shape for these operands.
        arrays: operands of the output's lengths, repeated by zero strides.
    """
    small = [compact(a) for a in arrays]
    lens = common_lens(*(a.shape for a in small))
    same = [np.broadcast_to(a, lens) for a in small]
    return np.asarray(op.compute(Shape(output.type, lens), same)).reshape(lens)


def scalar_array(value: object, type: Type) -> np.ndarray:
    """Return a zero-dimensional array of an element type."""
    return np.asarray(value).astype(type.numpy).reshape(())


def literal_argument(array: np.ndarray) -> Argument:
    """Return an array as a literal, packed in the array's own axis order; an array without axes gives a scalar."""
    argument = Argument.from_array(array)
    if array.ndim and not (argument.shape.packed and not argument.shape.broadcasted):
        argument = Argument.from_array(np.ascontiguousarray(array))
    return argument


def laid_out(array: np.ndarray, shape: Shape) -> Argument:
    """Return an array as a literal with the (packed) strides of a shape."""
    order = sorted(range(array.ndim), key=lambda axis: -shape.strides[axis])
    turned = np.transpose(array, order)
    if not turned.flags.c_contiguous:
        source, turned = turned, aligned_array(turned.shape, turned.dtype)
        copy_elements(turned, source)
    return Argument.from_flat(shape, turned.reshape(-1))


def spread_operator(shape: Shape) -> Operator:
    """Return a ``multibroadcast`` to a shape's lengths."""
    return make_op("multibroadcast", out_lens=shape.lens)
