"""Operators that give the same elements other lengths or another memory order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from ..core.dim import Dim, exact_quotient
from ..core.shape import DynamicDimension, Shape, invert_permutation
from ..dataclass import dataclass
from .base import Operator, register
from .dims import view_strides


def resolve_lens(op: Operator, shape: Shape, dims: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths that ``dims`` requests: 0 copies the input's length at that position, one -1 is inferred.

    For an empty input, 0 is a length itself where copying would create elements.

    Raises:
        ShapeError: two -1, a 0 beyond the input's rank, or another number of elements.
    """
    _check_dims(op, dims)
    if shape.symbolic or any(isinstance(d, Dim) for d in dims):
        return _symbolic_lens(op, shape, dims)
    if 0 in dims and -1 not in dims and 0 in shape.lens and not _copies_fit(shape, dims):
        return tuple(dims)
    _check_copies(op, shape, dims)
    result = [shape.lens[k] if d == 0 else d for k, d in enumerate(dims)]
    total = prod(shape.lens)
    if -1 in dims:
        place = list(dims).index(-1)
        result[place] = 1
        known = prod(result)
        result[place] = total // known if known else 0
    if prod(result) != total:
        raise op.fail(f"{shape} has {total} elements, dims {list(dims)} do not")
    return tuple(result)


def _symbolic_lens(op: Operator, shape: Shape, dims: Sequence[int]) -> tuple[int, ...]:
    """Return `resolve_lens` for symbolic lengths; a symbolic length that is 0 does not copy."""
    copied = [not isinstance(d, Dim) and d == 0 for d in dims]
    if any(copy and k >= shape.ndim for k, copy in enumerate(copied)):
        raise op.fail(f"dims {list(dims)} copy (0) a length that {shape} does not have")
    result = [shape.lens[k] if copy else d for k, (d, copy) in enumerate(zip(dims, copied))]
    total = prod(shape.lens)
    if -1 in dims:
        place = list(dims).index(-1)
        result[place] = 1
        known = prod(result)
        rest = exact_quotient(total, known)
        result[place] = rest if rest is not None else total // known if known != 0 else 0
    if prod(result) != total:
        raise op.fail(f"{shape} has {total} elements, dims {list(dims)} do not")
    return tuple(result)


def resolve_dims(op: Operator, shape: Shape, dims: Sequence[int]) -> tuple[DynamicDimension, ...]:
    """Return `resolve_lens` for an input of any shape."""
    if not shape.is_dynamic:
        return tuple(DynamicDimension(n, n) for n in resolve_lens(op, shape, dims))
    _check_dims(op, dims)
    _check_copies(op, shape, dims)
    copied = {k for k, d in enumerate(dims) if d == 0}
    result = [shape.dims[k] if d == 0 else DynamicDimension(abs(d), abs(d)) for k, d in enumerate(dims)]
    rest = [d for k, d in enumerate(shape.dims) if k not in copied]
    if -1 in dims:
        known = prod(d for d in dims if d > 0)
        low, high = prod(d.min for d in rest) // known, prod(d.max for d in rest) // known
        result[list(dims).index(-1)] = DynamicDimension(low, high)
    elif not prod(d.min for d in rest) <= prod(d for d in dims if d > 0) <= prod(d.max for d in rest):
        raise op.fail(f"no lengths of {shape} have the number of elements of dims {list(dims)}")
    return tuple(result)


def _check_dims(op: Operator, dims: Sequence[int]) -> None:
    if sum(d == -1 for d in dims) > 1 or any(d < -1 for d in dims):
        raise op.fail(f"dims {list(dims)} may hold one -1 and no other negative value")


def _check_copies(op: Operator, shape: Shape, dims: Sequence[int]) -> None:
    if any(d == 0 and k >= shape.ndim for k, d in enumerate(dims)):
        raise op.fail(f"dims {list(dims)} copy (0) a length that {shape} does not have")


def _copies_fit(shape: Shape, dims: Sequence[int]) -> bool:
    """Return whether an empty tensor stays empty if each 0 of ``dims`` copies a length."""
    return any(d == 0 and k < shape.ndim and shape.lens[k] == 0 for k, d in enumerate(dims))


@register
@dataclass(frozen=True)
class Reshape(Operator):
    """The elements in order with the lengths ``dims`` (0 copies one, -1 is inferred), packed row-major.

    With a second input its lengths are the result's; they may be known at run time only.
    """

    name: ClassVar[str] = "reshape"
    dims: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1, 2)
        if len(inputs) == 2:
            if not inputs[0].is_dynamic and not inputs[1].is_dynamic and inputs[0].elements != inputs[1].elements:
                raise self.fail(f"{inputs[0]} and {inputs[1]} have different numbers of elements")
            return inputs[1].with_type(inputs[0].type).to_standard()
        if not inputs[0].is_dynamic:
            return Shape(inputs[0].type, resolve_lens(self, inputs[0], self.dims))
        return Shape.dynamic(inputs[0].type, resolve_dims(self, inputs[0], self.dims))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        lens = args[1].shape if len(args) == 2 else output.lens
        if prod(lens) != args[0].size:
            raise self.fail(f"lengths {list(args[0].shape)} and {list(lens)} have different numbers of elements")
        return args[0].reshape(lens)


@register
@dataclass(frozen=True)
class ReshapeLazy(Operator):
    """``reshape`` as a view; refused where the input's strides would need a copy."""

    name: ClassVar[str] = "reshape_lazy"
    view: ClassVar[bool] = True
    dims: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if shape.is_dynamic:
            return Shape.dynamic(shape.type, resolve_dims(self, shape, self.dims))
        lens = resolve_lens(self, shape, self.dims)
        strides = view_strides(shape, lens)
        if strides is None:
            raise self.fail(f"{shape} cannot be seen with lengths {list(lens)} without a copy")
        return Shape.view(shape.type, lens, strides) if lens else Shape(shape.type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return args[0].reshape(output.lens)


@register
@dataclass(frozen=True)
class Contiguous(Operator):
    """The same tensor, packed in row-major order."""

    name: ClassVar[str] = "contiguous"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        return inputs[0].to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.ascontiguousarray(args[0]).reshape(args[0].shape)


@register
@dataclass(frozen=True)
class Layout(Operator):
    """The same tensor, packed with its axes in the memory order ``permutation`` (slowest first)."""

    name: ClassVar[str] = "layout"
    permutation: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if inputs[0].is_dynamic:
            raise self.fail(f"needs static lengths, got {inputs[0]}")
        return Shape.from_permutation(inputs[0].type, inputs[0].lens, self.permutation)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        packed = np.ascontiguousarray(np.transpose(args[0], self.permutation))
        return np.transpose(packed, invert_permutation(self.permutation))
