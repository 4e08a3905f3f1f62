"""The inner loops of depthwise convolution as intrinsics: sums of a run of output pixels of one line.

``depthwise_<dtype>(args, begin, end, PIXELS, WINDOW, STRIDE, LANES)`` computes, for the blocks ``begin`` to ``end`` of
PIXELS output pixels and all channels c,

    acc[p, c] = sum over r < rows, g < groups, k < WINDOW of
                x[row_x[r] + column * x_column + c] * w[row_w[r] + g * WINDOW + k, c]
    where column = first + p * STRIDE * column_step + g * group_step + k * column_step

and nothing is added where ``column`` is not in ``[0, columns)``. A vector of the input that several pixels of a block
share is loaded once. Weights are in panels of one vector of channels, each ``[tap][LANES]``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .tile import literal_shape, written_function
from .tile_writer import TileWriter, Values, constant

__all__ = ["DEPTHWISE_SLOTS", "depthwise_float32", "depthwise_float64"]

DEPTHWISE_SLOTS = (
    "x",  # pointer: the first channel of column 0
    "table",  # pointer to int64 [rows + coming][2]: offset from x of a row of the input, first tap of its weights
    "w",  # pointer: first panel
    "acc",  # pointer: sums of the first pixel of block 0
    "rows",
    "groups",
    "group_step",  # columns from one group of taps to the next
    "column_step",  # columns from one input vector to the next
    "x_column",  # elements from one column to the next
    "first",  # column of the first tap of the first pixel of block 0, perhaps negative
    "columns",  # columns of the input
    "channels",
    "w_panel",  # elements from one panel to the next
    "acc_row",  # elements from one pixel's sums to the next
    "pixels",  # selects the variant
    "coming",  # lines of the table after the first `rows` that will be needed soon: only fetched
)

_CONSTANTS = ("PIXELS", "WINDOW", "STRIDE", "LANES")
_I32 = ir.IntType(32)


class DepthwiseWriter(TileWriter):
    """Writes one variant: blocks, in them vectors of channels, in them rows of taps."""

    SLOTS = DEPTHWISE_SLOTS
    POINTERS = frozenset({"x", "w", "acc"})
    TABLE = "table"

    def __init__(self, function: ir.Function, dtype: str, pixels: int, window: int, stride: int, lanes: int) -> None:
        super().__init__(function, dtype, pixels, 1, lanes, 1, True)
        self.window, self.stride = window, stride
        self.inputs = (pixels - 1) * stride + window

    def write(self) -> None:
        """The whole function."""
        step = self.ir.mul(constant(self.rows * self.stride), self.slot["column_step"])
        groups = self.ir.sub(self.slot["groups"], constant(1))
        reach = self.ir.mul(constant(self.inputs - 1), self.slot["column_step"])
        reach = self.ir.add(reach, self.ir.mul(groups, self.slot["group_step"]))
        block_sums = self.ir.mul(constant(self.rows), self.slot["acc_row"])

        def one_block(block: ir.Value, state: Values) -> Values:
            first, acc = state
            last = self.ir.add(first, reach)
            inside = self.ir.icmp_signed(">=", first, constant(0))
            inside = self.ir.and_(inside, self.ir.icmp_signed("<", last, self.slot["columns"]))
            x = self.at(self.slot["x"], self.ir.mul(first, self.slot["x_column"]))

            def one_panel(channel: ir.Value, inner: Values) -> Values:
                w, place = inner
                self._fetch(self.at(x, channel))
                left = self.ir.sub(self.slot["channels"], channel)
                whole = self.ir.icmp_signed(">=", left, constant(self.lanes))
                with self.ir.if_else(self.ir.and_(inside, whole)) as (plain, guarded):
                    with plain:
                        self._store(place, self._sums(w, self.at(x, channel), None, left))
                    with guarded:
                        self._store(place, self._sums(w, self.at(x, channel), first, left))
                return [self.at(w, self.slot["w_panel"]), self.at(place, constant(self.lanes))]

            self.loop("panel", constant(0), self.slot["channels"], self.lanes, [self.slot["w"], acc], one_panel)
            return [self.ir.add(first, step), self.at(acc, block_sums)]

        first = self.ir.add(self.slot["first"], self.ir.mul(self.begin, step))
        acc = self.at(self.slot["acc"], self.ir.mul(self.begin, block_sums))
        self.loop("block", self.begin, self.end, 1, [first, acc], one_block)
        self.ir.ret_void()

    def _fetch(self, x: ir.Value) -> None:
        """Bring the block's part of the coming lines, for one vector of channels, into the cache."""
        step = self.ir.mul(self.slot["column_step"], self.slot["x_column"])
        hints = [ir.Constant(_I32, hint) for hint in (0, 3, 1)]  # read, keep in all caches, data

        def one_row(row: ir.Value, state: Values) -> Values:
            place = self.at(x, self.ir.load(self.at(self.slot["table"], self.ir.mul(row, constant(2)))))
            for j in range(self.rows * self.stride):
                self.call("llvm.prefetch.p0", ir.VoidType(), [self.at(place, self.ir.mul(constant(j), step)), *hints])
            return state

        self.loop("coming", self.slot["rows"], self.ir.add(self.slot["rows"], self.slot["coming"]), 1, [], one_row)

    def _sums(self, w: ir.Value, x: ir.Value, first: ir.Value | None, left: ir.Value) -> Values:
        """Sums of one vector of channels; with ``first``, its column, each input vector is checked."""
        zeros = [ir.Constant(self.vector, None)] * self.rows

        def one_row(row: ir.Value, sums: Values) -> Values:
            entry = self.at(self.slot["table"], self.ir.mul(row, constant(2)))
            row_x = self.at(x, self.ir.load(entry))
            taps = self.ir.load(self.at(entry, constant(1)))
            row_w = self.at(w, self.ir.mul(taps, constant(self.lanes)))

            def one_group(group: ir.Value, inner: Values) -> Values:
                shift = self.ir.mul(group, self.slot["group_step"])
                column = None if first is None else self.ir.add(first, shift)
                group_x = self.at(row_x, self.ir.mul(shift, self.slot["x_column"]))
                group_w = self.at(row_w, self.ir.mul(group, constant(self.window * self.lanes)))
                return self._window(inner, group_w, group_x, column, left)

            if self.window > 1:
                return one_group(constant(0), sums)
            return self.loop("group", constant(0), self.slot["groups"], 1, sums, one_group)

        return self.loop("row", constant(0), self.slot["rows"], 1, zeros, one_row)

    def _window(self, sums: Values, w: ir.Value, x: ir.Value, column: ir.Value | None, left: ir.Value) -> Values:
        """One window of taps along the line: every input vector goes to all pixels that use it."""
        sums = list(sums)
        weights = [self.ir.load(self._vector(w, k), align=self.align) for k in range(self.window)]
        step = self.ir.mul(self.slot["column_step"], self.slot["x_column"])
        for j in range(self.inputs):
            place = self._vector(self.at(x, self.ir.mul(constant(j), step)), 0)
            if column is None:
                value = self.ir.load(place, align=self.align)
            else:
                at = self.ir.add(column, self.ir.mul(constant(j), self.slot["column_step"]))
                value = self._guarded(place, at, left)
            for p in range(self.rows):
                tap = j - p * self.stride
                if 0 <= tap < self.window:
                    sums[p] = self.b.muladd(value, weights[tap], sums[p])
        return sums

    def _guarded(self, place: ir.Value, column: ir.Value, left: ir.Value) -> ir.Value:
        """The channels that exist, if the column does; else zeros."""
        exists = self.ir.icmp_unsigned("<", column, self.slot["columns"])
        count = self.ir.trunc(self.ir.select(exists, left, constant(0)), _I32)
        numbers = ir.Constant(ir.VectorType(_I32, self.lanes), list(range(self.lanes)))
        mask = self.ir.icmp_signed("<", numbers, self.splat(count))
        arguments = [place, ir.Constant(_I32, self.align), mask, ir.Constant(self.vector, None)]
        return self.call(f"llvm.masked.load.{self.b.mangled(self.vector)}.p0", self.vector, arguments)


def _define(dtype: str) -> Any:
    """The intrinsic ``depthwise_<dtype>``."""

    def depthwise(typingctx, args, begin, end, pixels, window, stride, lanes):
        literals = (pixels, window, stride, lanes)
        shape = literal_shape(_CONSTANTS, literals)
        name = "_".join(["depthwise", dtype, *map(str, shape)])

        def lower(context, builder, signature, values):
            function = written_function(builder.module, name, lambda f: DepthwiseWriter(f, dtype, *shape).write())
            builder.call(function, values[:3])
            return context.get_dummy_value()

        return types.void(types.CPointer(types.int64), types.int64, types.int64, *literals), lower

    depthwise.__name__ = depthwise.__qualname__ = f"depthwise_{dtype}"
    return intrinsic(prefer_literal=True)(depthwise)


depthwise_float32 = _define("float32")
depthwise_float64 = _define("float64")
