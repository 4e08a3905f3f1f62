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

``depthwise_groups_<dtype>`` and ``depthwise_groups_taps_<dtype>`` take two further literals, TERMS and SHARES: SHARES
adjacent accumulators read the same TERMS adjacent input channels. The input of accumulator c and term t is

    x[... + c // SHARES * TERMS + t] * w[(... * TERMS + t) * LANES + c]

SHARES divides LANES. ``channels`` counts input channels.

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
_GROUPS = ("TERMS", "SHARES")
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


class DepthwiseWriter(VectorWriter):
    """Writes the accumulation of one run over an input of a ``dtype``."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        dtype: str,
        block: ir.Value,
        pixels: int,
        masked: int,
        lanes: int,
        terms: int = 1,
        shares: int = 1,
    ) -> None:
        super().__init__(builder, "float32" if dtype in DEPTHWISE_SUMS else dtype, lanes)
        self.given = dtype
        self.pixels, self.count = pixels, pixels
        self.terms, self.span = terms, lanes // shares * terms
        self.orders = [[lane // shares * terms + t for lane in range(lanes)] for t in range(terms)]
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
                        line: self.at(plane_w, constant((r - line * down) * window * self.terms * self.lanes))
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
            line: [self._load(self.at(row, constant(k * self.lanes))) for k in range(window * self.terms)]
            for line, row in w.items()
        }
        for j, place in enumerate(places):
            for t, value in enumerate(self._load_channels(place)):
                for line, taps in weights.items():
                    for p in range(self.pixels):
                        tap, k = j - p * stride, line * self.pixels + p
                        if 0 <= tap < window:
                            sums[k] = self.b.muladd(value, taps[tap * self.terms + t], sums[k])
        return sums

    def any_taps(self, x: ir.Value, w: ir.Value, pixel: ir.Value) -> Values:
        """Return accumulators over any number of rows and taps."""
        slot = self.slot
        first = self.ir.add(slot["first"], self.ir.mul(pixel, slot["stride"]))
        tap_step = self.ir.mul(slot["dilation"], slot["x_column"])
        pixel_step = self.ir.mul(slot["stride"], slot["x_column"])
        row_step = self.ir.mul(slot["taps"], constant(self.terms * self.lanes))

        def add_plane(plane_x: ir.Value, plane_w: ir.Value, sums: Values) -> Values:
            def one_row(row: ir.Value, found: Values) -> Values:
                row_x = self.at(plane_x, self.ir.mul(row, slot["x_row"]))
                row_w = self.at(plane_w, self.ir.mul(row, row_step))

                def one_tap(tap: ir.Value, inner: Values) -> Values:
                    tap_w = self.at(row_w, self.ir.mul(tap, constant(self.terms * self.lanes)))
                    weights = [self._load(self.at(tap_w, constant(t * self.lanes))) for t in range(self.terms)]
                    place = self.at(row_x, self.ir.mul(tap, tap_step))
                    column = self.ir.add(first, self.ir.mul(tap, slot["dilation"]))
                    for p in range(self.pixels):
                        exists = self.ir.icmp_unsigned("<", column, slot["columns"])
                        values = self._load_channels(self.ir.select(exists, place, self._zeros()))
                        for value, weight in zip(values, weights):
                            inner[p] = self.b.muladd(value, weight, inner[p])
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
        lanes = ir.Constant(ir.VectorType(_I64, self.span), list(range(self.span)))
        return self.ir.icmp_signed("<", lanes, self.b.splat(self.slot["channels"], self.span))

    def _load(self, pointer: ir.Value) -> ir.Value:
        return self.ir.load(self._vector(pointer, 0), align=self.align)

    def _load_channels(self, pointer: ir.Value) -> Values:
        """Return the input of the accumulators for each term."""
        vector, align = ir.VectorType(element_type(self.given), self.span), itemsize(self.given)
        place = self.ir.bitcast(pointer, vector.as_pointer())
        if self.mask is None:
            value = self.ir.load(place, align=align)
        else:
            arguments = [place, ir.Constant(_I32, align), self.mask, ir.Constant(vector, None)]
            value = self.call(f"llvm.masked.load.{self.b.mangled(vector)}.p0", vector, arguments)
        value = convert(self.b, value, self.given, "float32") if self.given in DEPTHWISE_SUMS else value
        plain = self.orders == [list(range(self.span))]
        return [value] if plain else [self.b.shuffle(value, order) for order in self.orders]

    def _zeros(self) -> ir.Value:
        """Return a pointer to as many zeros as are read at one place."""
        size = max(4 * self.lanes, self.span)
        name, module, room = f"zeros_{size}_{self.vector}", self.ir.module, ir.ArrayType(self.element, size)
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


def _define(dtype: str, names: tuple[str, ...] = _WINDOW, groups: bool = False) -> KernelFunction:
    """Return the intrinsic ``depthwise[_groups][_taps]_<dtype>`` with literals ``names``."""
    named = (*names, *_GROUPS * groups)

    def define(*operands: types.Type) -> Definition:
        literals = operands[5:]
        given = dict(zip(named, literal_shape(named, literals)))
        line = [given[name] for name in ("PIXELS", "MASKED", "LANES", *_GROUPS) if name in given]

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            place, target, *rest = values[:5]
            writer = DepthwiseWriter(builder, dtype, place, *line)
            if names is _TAPS:
                sums = writer.any_taps(*rest)
            else:
                window = (given[name] for name in ("ROWS", "WINDOW", "STRIDE", "LEFT", "RIGHT", "LINES", "DOWN"))
                sums = writer.windows(*rest, *window)
            writer.store(target, sums)

        return _signature(dtype, literals), emit

    kind = "_groups" * groups + "_taps" * (names is _TAPS)
    return make_intrinsic(f"depthwise{kind}_{dtype}", define, 5 + len(named), literal=True)


depthwise_float32, depthwise_float64 = _define("float32"), _define("float64")
depthwise_int8, depthwise_uint8, depthwise_bfloat16 = map(_define, DEPTHWISE_SUMS)
depthwise_taps_float32, depthwise_taps_float64 = _define("float32", _TAPS), _define("float64", _TAPS)
depthwise_taps_int8, depthwise_taps_uint8, depthwise_taps_bfloat16 = (_define(t, _TAPS) for t in DEPTHWISE_SUMS)
depthwise_groups_float32, depthwise_groups_float64 = (_define(t, groups=True) for t in ("float32", "float64"))
depthwise_groups_taps_float32 = _define("float32", _TAPS, groups=True)
depthwise_groups_taps_float64 = _define("float64", _TAPS, groups=True)
