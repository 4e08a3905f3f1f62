"""Base class of everything that emits instructions: macros, rewrites and frontends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.dim import Dim, Length, SymbolicLengthError, ceil_div, known_equal, known_same, maximum, range_of
from ..core.shape import common_lens, same_lengths
from ..core.types import Type
from ..errors import ShapeError, UnsupportedError
from .instruction import Instruction

LARGEST_TABLE = 1 << 28
"""Most elements of a constant created for an operation: 1 GiB of float32. A model that needs more is malformed."""


class Emitter:
    """Emits instructions through `op`, which decides the insertion point. A helper whose operation would change nothing
    returns its input."""

    def op(self, op: Any, *inputs: Instruction, **attributes: Any) -> Instruction:
        """Emit an operation, given an operator or its name and attributes."""
        raise NotImplementedError

    def literal(self, value: object, type: Type | None = None) -> Instruction:
        """Emit a constant; a zero-dimensional array becomes a scalar."""
        raise NotImplementedError

    def iota(self, length: Length, axis: int = 0, axes: int = 1) -> Instruction:
        """Return ``0, 1, ... length - 1`` as int64 along one axis, the others of length 1; a constant, unless the
        length is symbolic.
        """
        if not isinstance(length, Dim):
            self.limit(length, "a table of positions")
            lens = [1] * axes
            lens[axis] = length
            return self.literal(np.arange(length, dtype=np.int64).reshape(lens))
        places = self.op("iota", length=length)
        others = [k for k in range(axes) if k != axis]
        return self.unsqueeze(places, others)

    def progression(self, start: Instruction, delta: Instruction, bounds: Sequence[Any]) -> Instruction:
        """Emit the arithmetic progression from ``start`` up to before a limit in steps of ``delta``, computed at run
        time.

        Args:
            start: a scalar; the result has its type.
            delta: a scalar of this type.
            bounds: values of start, limit and delta, which may be symbolic lengths.

        Raises:
            SymbolicLengthError: the number of elements does not follow from the lengths.
        """
        first, limit, step = bounds
        if not all(isinstance(v, (Dim, int)) or v == int(v) for v in bounds):
            raise SymbolicLengthError(
                f"a range from {first} to {limit} by {step} has a number of elements that is not followed"
            )
        first, limit, step = (v if isinstance(v, Dim) else int(v) for v in bounds)
        low, high = range_of(step)
        if low is not None and low > 0:
            count = ceil_div(limit - first, step)
        elif high is not None and high < 0:
            count = ceil_div(first - limit, -step)
        else:
            raise SymbolicLengthError(f"a range in steps of {step} goes up or down")
        steps = self.iota(maximum(0, count))
        type = start.shape.type
        wide = Type.double_type if type.is_floating else Type.int64_type
        result = steps if wide is Type.int64_type else self.op("convert", steps, target_type=wide)
        if not known_equal(step, 1):
            result = self.op("mul", *self.same_lens(result, self.convert(delta, wide)))
        if not known_equal(first, 0):
            result = self.op("add", *self.same_lens(result, self.convert(start, wide)))
        return result if type is wide else self.op("convert", result, target_type=type)

    def like(self, value: float | int | bool, x: Instruction) -> Instruction:
        """Emit a scalar constant of the element type of ``x``."""
        return self.literal(value, x.shape.type)

    def fail(self, message: str) -> ShapeError:
        """Return the error for values that do not fit."""
        return ShapeError(message)

    def lens(self, x: Instruction) -> tuple[int, ...]:
        """Return the lengths of ``x``.

        Raises:
            ShapeError: they are not fixed.
        """
        if x.shape.is_dynamic:
            raise self.fail(f"needs fixed lengths, got {x.shape}")
        return x.shape.lens

    def limit(self, count: int, what: str) -> None:
        """Check the size of a constant to be created.

        Raises:
            UnsupportedError: ``count`` exceeds 2**28; the message names ``what``.
        """
        if not isinstance(count, Dim) and count > LARGEST_TABLE:
            raise UnsupportedError(f"{what} of {count} elements is too large")

    def convert(self, x: Instruction, type: Type) -> Instruction:
        """Emit the conversion of ``x`` to another element type; between floats it is elidable, because no author asked
        for it."""
        if x.shape.type is type:
            return x
        elidable = x.shape.type.is_floating and type.is_floating
        return self.op("convert", x, target_type=type, **({"elidable": True} if elidable else {}))

    def transpose(self, x: Instruction, permutation: Sequence[int]) -> Instruction:
        """Emit ``x`` with permuted axes."""
        if list(permutation) == list(range(len(permutation))):
            return x
        return self.op("transpose", x, permutation=tuple(permutation))

    def swap_last(self, x: Instruction) -> Instruction:
        """Emit ``x`` with its last two axes exchanged.

        Raises:
            ShapeError: it has fewer axes.
        """
        axes = x.shape.ndim
        if axes < 2:
            raise self.fail(f"an input to transpose has fewer than two axes: {x.shape}")
        return self.transpose(x, [*range(axes - 2), axes - 1, axes - 2])

    def reshape(self, x: Instruction, lens: Sequence[Length]) -> Instruction:
        """Return ``x`` with the lengths ``lens``; ``()`` means one element. An empty ``x`` becomes a constant."""
        lens = tuple(lens) or (1,)
        if known_same(x.shape.lens, lens):
            return x
        empty = any(known_equal(n, 0) for n in lens) and any(known_equal(n, 0) for n in x.shape.lens)
        if empty:  # a 0 among the dims of `Reshape` copies a length
            return self.literal(np.empty(lens, x.shape.type.numpy))
        return self.op("reshape", x, dims=lens)

    def squeeze(self, x: Instruction, axes: Sequence[int]) -> Instruction:
        """Emit ``x`` without some axes of length 1."""
        return self.op("squeeze", x, axes=tuple(axes)) if axes else x

    def unsqueeze(self, x: Instruction, axes: Sequence[int]) -> Instruction:
        """Emit ``x`` with additional axes of length 1; ``axes`` count in the result."""
        return self.op("unsqueeze", x, axes=tuple(sorted(axes))) if axes else x

    def slice(self, x: Instruction, axis: int, start: Length, end: Length) -> Instruction:
        """Emit elements ``start`` to ``end`` (exclusive) of an axis."""
        if not x.shape.is_dynamic and known_equal(start, 0) and known_equal(end, x.shape.lens[axis]):
            return x
        return self.op("slice", x, axes=(axis,), starts=(start,), ends=(end,))

    def split(self, x: Instruction, axis: int, sizes: Sequence[Length]) -> list[Instruction]:
        """Emit consecutive slices of an axis with lengths ``sizes``."""
        result = []
        start: Length = 0
        for size in sizes:
            result.append(self.slice(x, axis, start, start + size))
            start += size
        return result

    def reduce(self, name: str, x: Instruction, axes: Sequence[int], keep: bool = True) -> Instruction:
        """Emit a reduction; without ``keep`` the reduced axes are dropped."""
        if not axes:
            return x
        result = self.op(name, x, axes=tuple(sorted(axes)))
        return result if keep else self.squeeze(result, sorted(axes))

    def matmul(
        self, a: Instruction, b: Instruction, op: str = "dot", more: Sequence[Instruction] = (), **attributes: object
    ) -> Instruction:
        """Emit NumPy's ``matmul`` with operator ``op``: vectors become matrices, outer axes broadcast; ``more`` are
        further inputs.

        Raises:
            ShapeError: the lengths are incompatible.
        """
        row, column = a.shape.ndim == 1, b.shape.ndim == 1
        a = self.unsqueeze(a, [0]) if row else a
        b = self.unsqueeze(b, [1]) if column else b
        if a.shape.is_dynamic or b.shape.is_dynamic:
            if not same_lengths(a.shape.dims[:-2], b.shape.dims[:-2]):
                a, b = self.op("broadcast_for_dot", a, b), self.op("broadcast_for_dot", b, a)
        else:
            outer = self.outer_lens(a.shape.lens[:-2], b.shape.lens[:-2])
            a, b = (self.broadcast(x, (*outer, *x.shape.lens[-2:])) for x in (a, b))
        result = self.op(op, a, b, *more, **attributes)
        last = result.shape.ndim - 1
        return self.squeeze(result, [last - 1] * row + [last] * column)

    def broadcast(self, x: Instruction, lens: Sequence[Length]) -> Instruction:
        """Emit ``x`` broadcast to ``lens`` by NumPy's rule."""
        if not x.shape.is_dynamic and known_same(self.lens(x), lens):
            return x
        return self.op("multibroadcast", x, out_lens=tuple(lens))

    def broadcast_axis(self, x: Instruction, axis: int, like: Instruction) -> Instruction:
        """Emit ``x`` broadcast to the shape of ``like``, its axes aligned from ``axis`` on."""
        if like.shape.is_dynamic:
            return self.op("broadcast", x, like, axis=axis)
        return self.op("broadcast", x, axis=axis, out_lens=like.shape.lens)

    def same_lens(self, *values: Instruction) -> list[Instruction]:
        """Emit the values broadcast to common lengths.

        Raises:
            ShapeError: they do not broadcast.
        """
        if any(v.shape.is_dynamic for v in values):
            if all(v.shape.dims == values[0].shape.dims for v in values):
                return list(values)
            others = [[w for other, w in enumerate(values) if other != k] for k in range(len(values))]
            return [self.op("multibroadcast", v, *rest) for v, rest in zip(values, others)]
        lens = [v.shape.lens for v in values]
        if all(known_same(n, lens[0]) for n in lens):
            return list(values)
        out = self.outer_lens(*lens)
        return [self.broadcast(v, out) for v in values]

    def outer_lens(self, *lens: Sequence[int]) -> tuple[int, ...]:
        """Return the common lengths by NumPy's rule.

        Raises:
            ShapeError: there are none.
        """
        try:
            return common_lens(*lens)
        except ValueError as error:
            raise self.fail(str(error)) from None
