"""The inner loops of depthwise convolution as intrinsics: accumulators of a run of output pixels in one or two lines.

``depthwise_<dtype>(block, sums, x, w, pixel, PIXELS, LINES, DOWN, ROWS, WINDOW, STRIDE, LEFT, RIGHT, MASKED, LANES)``
computes, for one vector of channels c, LINES lines l and PIXELS pixels p of each line, starting with pixel number
``pixel``,

    sums[l, p, c] = sum over planes d, rows i = l * DOWN + r with row0 <= i < row1 and 0 <= r < ROWS, taps k of
        x[d * x_plane + i * x_row + (p * STRIDE + k) * x_column + c] * w[d * w_plane + (r * WINDOW + k) * LANES + c]

where ROWS and WINDOW are the filter's numbers of rows and taps. An input vector that several accumulators share is
loaded once. An input column exists if it is in ``[0, columns)`` when the column of the first tap of pixel 0 is
``first``; other columns add nothing. Only the first LEFT and the last RIGHT columns of a run are tested.

``depthwise_taps_<dtype>(block, sums, x, w, pixel, PIXELS, MASKED, LANES)`` takes any number of ``taps``, ``dilation``
columns apart, and any ``stride``; it tests every column. No memory outside the input is read; with MASKED only the
first ``channels`` lanes are read.

Both intrinsics also take int8, uint8 or bfloat16 inputs, with float32 weights. Accumulators are float32. For integers
they are below 2**24, therefore exact, and are stored as int32.

``block`` is a `LINE_BLOCK`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ...lang.builder import element_type
from ...lang.convert import convert
from ...lang.vector import Definition, KernelFunction, make_intrinsic, pointer_type
from ...toolchain.numba_core import types
from ..host import itemsize
from .depthwise_table import DEPTHWISE_SUMS, LINE_BLOCK
from .tile import literal_shape
from .tile_writer import Values, VectorWriter, constant

_WINDOW = ("PIXELS", "LINES", "DOWN", "ROWS", "WINDOW", "STRIDE", "LEFT", "RIGHT", "MASKED", "LANES")
_TAPS = ("PIXELS", "MASKED", "LANES")
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


class DepthwiseWriter(VectorWriter):
    """Writes the accumulation of one run over an input of a ``dtype``."""

    def __init__(
        self, builder: ir.IRBuilder, dtype: str, block: ir.Value, pixels: int, masked: int, lanes: int
    ) -> None:
        super().__init__(builder, "float32" if dtype in DEPTHWISE_SUMS else dtype, lanes)
        self.given = dtype
        self.pixels, self.count = pixels, pixels
        self.slot = {
            word.name: builder.load(self.at(block, constant(LINE_BLOCK.number(word.name)))) for word in LINE_BLOCK.words
        }
        self.mask = self._lanes_left() if masked else None

    def windows(
        self,
        x: ir.Value,
        w: ir.Value,
        pixel: ir.Value,
        rows: int,
        window: int,
        stride: int,
        left: int,
        right: int,
        lines: int = 1,
        down: int = 1,
    ) -> Values:
        """Return accumulators over ``rows`` rows of ``window`` taps, for ``lines`` lines ``down`` rows apart, line by
        line."""
        self.count *= lines
        inputs = (self.pixels - 1) * stride + window
        columns = [self.ir.mul(self.slot["x_column"], constant(j)) for j in range(inputs)]
        first = self.ir.add(self.slot["first"], self.ir.mul(pixel, constant(stride)))
        edges = sorted({*range(min(left, inputs)), *range(max(inputs - right, 0), inputs)})
        exist = {j: self.ir.icmp_unsigned("<", self.ir.add(first, constant(j)), self.slot["columns"]) for j in edges}

        def row_places(row_x: ir.Value) -> Values:
            places = [self.at(row_x, column) for column in columns]
            for j, exists in exist.items():
                places[j] = self.ir.select(exists, places[j], self._zeros())
            return places

        def add_plane(plane_x: ir.Value, plane_w: ir.Value, sums: Values) -> Values:
            for r in range((lines - 1) * down + rows):
                before, old = self.ir.block, sums
                begun = self.ir.icmp_signed("<=", self.slot["row0"], constant(r))
                with self.ir.if_then(self.ir.and_(begun, self.ir.icmp_signed("<", constant(r), self.slot["row1"]))):
                    row_x = self.at(plane_x, self.ir.mul(self.slot["x_row"], constant(r)))
                    taps = {
                        line: self.at(plane_w, constant((r - line * down) * window * self.lanes))
                        for line in range(lines)
                        if 0 <= r - line * down < rows
                    }
                    new = self._row(row_places(row_x), taps, window, stride, list(sums))
                    inside = self.ir.block
                sums = [self.ir.phi(self.vector) for _ in old]
                for phi, *values in zip(sums, old, new):
                    for value, origin in zip(values, (before, inside)):
                        phi.add_incoming(value, origin)
            return sums

        return self._planes(x, w, add_plane)

    def _row(self, places: Values, w: dict[int, ir.Value], window: int, stride: int, sums: Values) -> Values:
        """Add one input row, whose columns are at ``places``, to the accumulators of each line that reads it, by the
        taps at ``w``."""
        weights = {
            line: [self._load(self.at(row, constant(k * self.lanes))) for k in range(window)] for line, row in w.items()
        }
        for j, place in enumerate(places):
            value = self._load_channels(place)
            for line, taps in weights.items():
                for p in range(self.pixels):
                    tap, k = j - p * stride, line * self.pixels + p
                    if 0 <= tap < window:
                        sums[k] = self.b.muladd(value, taps[tap], sums[k])
        return sums

    def any_taps(self, x: ir.Value, w: ir.Value, pixel: ir.Value) -> Values:
        """Return accumulators over any number of rows and taps."""
        slot = self.slot
        first = self.ir.add(slot["first"], self.ir.mul(pixel, slot["stride"]))
        tap_step = self.ir.mul(slot["dilation"], slot["x_column"])
        pixel_step = self.ir.mul(slot["stride"], slot["x_column"])
        row_step = self.ir.mul(slot["taps"], constant(self.lanes))

        def add_plane(plane_x: ir.Value, plane_w: ir.Value, sums: Values) -> Values:
            def one_row(row: ir.Value, found: Values) -> Values:
                row_x = self.at(plane_x, self.ir.mul(row, slot["x_row"]))
                row_w = self.at(plane_w, self.ir.mul(row, row_step))

                def one_tap(tap: ir.Value, inner: Values) -> Values:
                    weights = self._load(self.at(row_w, self.ir.mul(tap, constant(self.lanes))))
                    place = self.at(row_x, self.ir.mul(tap, tap_step))
                    column = self.ir.add(first, self.ir.mul(tap, slot["dilation"]))
                    for p in range(self.pixels):
                        exists = self.ir.icmp_unsigned("<", column, slot["columns"])
                        value = self._load_channels(self.ir.select(exists, place, self._zeros()))
                        inner[p] = self.b.muladd(value, weights, inner[p])
                        place, column = self.at(place, pixel_step), self.ir.add(column, slot["stride"])
                    return inner

                return self.loop("tap", constant(0), slot["taps"], 1, found, one_tap)

            return self.loop("row", slot["row0"], slot["row1"], 1, sums, one_row)

        return self._planes(x, w, add_plane)

    def store(self, place: ir.Value, sums: Values) -> None:
        """Store the accumulators."""
        exact = DEPTHWISE_SUMS.get(self.given) == "int32"
        for p, value in enumerate(sums):
            if exact:
                value = self.ir.fptosi(value, ir.VectorType(_I32, self.lanes))
            goal = self.ir.bitcast(self.at(place, constant(p * self.lanes)), value.type.as_pointer())
            self.ir.store(value, goal, align=self.align)

    def _planes(self, x: ir.Value, w: ir.Value, add: Callable[[ir.Value, ir.Value, Values], Values]) -> Values:
        """Return accumulators over all planes of taps; ``add(x, w, sums)`` adds one plane."""

        def one_plane(_: ir.Value, state: Values) -> Values:
            plane_x, plane_w, *sums = state
            sums = add(plane_x, plane_w, sums)
            return [self.at(plane_x, self.slot["x_plane"]), self.at(plane_w, self.slot["w_plane"]), *sums]

        zeros = [ir.Constant(self.vector, None)] * self.count
        return self.loop("plane", constant(0), self.slot["planes"], 1, [x, w, *zeros], one_plane)[2:]

    def _lanes_left(self) -> ir.Value:
        lanes = ir.Constant(ir.VectorType(_I64, self.lanes), list(range(self.lanes)))
        return self.ir.icmp_signed("<", lanes, self.splat(self.slot["channels"]))

    def _load(self, pointer: ir.Value) -> ir.Value:
        return self.ir.load(self._vector(pointer, 0), align=self.align)

    def _load_channels(self, pointer: ir.Value) -> ir.Value:
        vector, align = ir.VectorType(element_type(self.given), self.lanes), itemsize(self.given)
        place = self.ir.bitcast(pointer, vector.as_pointer())
        if self.mask is None:
            value = self.ir.load(place, align=align)
        else:
            arguments = [place, ir.Constant(_I32, align), self.mask, ir.Constant(vector, None)]
            value = self.call(f"llvm.masked.load.{self.b.mangled(vector)}.p0", vector, arguments)
        return convert(self.b, value, self.given, "float32") if self.given in DEPTHWISE_SUMS else value

    def _zeros(self) -> ir.Value:
        """Return a pointer to as many zeros as are read at one place."""
        name, module, room = f"zeros_{self.vector}", self.ir.module, ir.ArrayType(self.element, 4 * self.lanes)
        if name not in module.globals:
            made = ir.GlobalVariable(module, room, name)
            made.initializer = ir.Constant(room, None)
            made.global_constant, made.linkage = True, "internal"
        return self.ir.bitcast(module.globals[name], element_type(self.given).as_pointer())


def _signature(dtype: str, literals: Sequence[types.Type]) -> Any:
    """Return the signature of an intrinsic for an input of a dtype: pointers to record, accumulators, input and
    weights."""
    given = pointer_type(dtype)
    sums = pointer_type(DEPTHWISE_SUMS.get(dtype, dtype))
    weights = pointer_type("float32") if dtype in DEPTHWISE_SUMS else given
    return types.void(types.CPointer(types.int64), sums, given, weights, types.int64, *literals)


def _define(dtype: str) -> KernelFunction:
    """Return the intrinsic ``depthwise_<dtype>``."""

    def define(*operands: types.Type) -> Definition:
        literals = operands[5:]
        count, high, apart, *window_shape, mask, width = literal_shape(_WINDOW, literals)
        taps = [*window_shape, high, apart]

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            place, target, *rest = values[:5]
            writer = DepthwiseWriter(builder, dtype, place, count, mask, width)
            writer.store(target, writer.windows(*rest, *taps))

        return _signature(dtype, literals), emit

    return make_intrinsic(f"depthwise_{dtype}", define, 5 + len(_WINDOW), literal=True)


def _define_taps(dtype: str) -> KernelFunction:
    """Return the intrinsic ``depthwise_taps_<dtype>``."""

    def define(*operands: types.Type) -> Definition:
        literals = operands[5:]
        shape = literal_shape(_TAPS, literals)

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            place, target, *rest = values[:5]
            writer = DepthwiseWriter(builder, dtype, place, *shape)
            writer.store(target, writer.any_taps(*rest))

        return _signature(dtype, literals), emit

    return make_intrinsic(f"depthwise_taps_{dtype}", define, 5 + len(_TAPS), literal=True)


depthwise_float32, depthwise_float64 = _define("float32"), _define("float64")
depthwise_int8, depthwise_uint8, depthwise_bfloat16 = map(_define, DEPTHWISE_SUMS)
depthwise_taps_float32, depthwise_taps_float64 = _define_taps("float32"), _define_taps("float64")
depthwise_taps_int8, depthwise_taps_uint8, depthwise_taps_bfloat16 = map(_define_taps, DEPTHWISE_SUMS)
