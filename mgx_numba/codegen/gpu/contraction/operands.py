"""Index arithmetic of contraction operands in kernel text, for products and convolutions alike.

A contraction is one matrix product per *plane* (an index of the batch, or a group of a convolution). Rows are rows of a
product or output pixels of a convolution, columns are result columns or output channels, and the sum runs over k, or
over taps and input channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod

from ....core.dim import SharedLength, ceil_div, known_equal, known_in
from ....dataclass import dataclass
from ...arguments import Arguments
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.epilogue import Epilogue
from ...problems.gemm import GemmProblem
from ..cluster.flat_index import Axes

MASK_BITS = 32
"""Bits of a row's tap mask (int32): the most taps that a masked convolution can have."""


@dataclass(frozen=True)
class Extent:
    """Size of a contraction as matrix products: rows, columns and depth of one product, and ``planes``, the number of
    products."""

    rows: SharedLength
    columns: SharedLength
    depth: SharedLength
    planes: SharedLength

    @classmethod
    def of(cls, problem: GemmProblem | ConvProblem) -> Extent:
        """Return the size of a problem."""
        if isinstance(problem, GemmProblem):
            return cls(problem.m, problem.n, problem.k, prod(problem.batch))
        rows = problem.batch * problem.out_pixels
        return cls(rows, problem.group_out, problem.taps * problem.group_in, problem.groups)

    def tiles(self, rows: int, columns: int) -> SharedLength:
        """Return the number of ``rows`` x ``columns`` tiles that cover all planes of the result."""
        return ceil_div(self.rows, rows) * ceil_div(self.columns, columns) * self.planes


@dataclass
class RowPlace:
    """Values of one row of the left operand that are computed before the K loop; each is a name in the text.

    Attributes:
        inside: condition that the row exists.
        offset: offset of the row in its plane.
        starts: for a convolution, the position of the first tap along each spatial axis.
        image: index of the row's image.
        mask: bit t tells whether tap t lies inside the image; set by `ConvolutionOperands.taps_of_rows`, empty unless
            `ConvolutionOperands.masked`.
    """

    inside: str
    offset: str
    starts: tuple[str, ...] = ()
    image: str = ""
    mask: str = ""


class ProductOperands:
    """Operands of a matrix product.

    Attributes:
        rows, columns, depth: size of the product.
        planes: number of products in the batch.
        contiguous_depth: whether the left operand is contiguous along k.
        whole: whether no K slice is partial, so that bounds checks along k are unnecessary.
    """

    whole = False

    def __init__(
        self, problem: GemmProblem, epilogue: Epilogue, strides: Sequence[Sequence[int]], arguments: Arguments
    ) -> None:
        rank = len(problem.batch)
        extent = Extent.of(problem)
        self.rows, self.columns, self.depth, self.planes = extent.rows, extent.columns, extent.depth, extent.planes
        self.contiguous_depth = known_in(problem.a_strides[-1], 1)
        own = [(*s[:rank], 0, 0)[:rank] if s else (0,) * rank for s in strides]
        batch = [problem.a_strides[:rank], problem.b_strides[:rank], problem.out_strides[:rank], *own]
        self._batch = Axes(arguments, "b", problem.batch, batch)
        row = [problem.a_strides[rank : rank + 1], problem.out_strides[rank : rank + 1]]
        self._row = Axes(arguments, "m", (problem.m,), [*row, *((s[-1:] or (0,)) for s in strides)])
        sums = [problem.a_strides[rank + 1 :], problem.b_strides[rank : rank + 1], problem.b_strides[rank + 1 :]]
        self._sum = Axes(arguments, "k", (problem.k,), sums)

    def in_slices(self, depth: int) -> None:
        """Declare that the kernel walks k in slices of ``depth`` elements, with the same rows in each slice."""
        self.whole = known_equal(self.depth % depth, 0)

    def enter(self, buffer: CodeBuffer, k: str) -> None:
        """Emit the values of position ``k``, the first position of a thread's K loop."""

    def advance(self, buffer: CodeBuffer, positions: int) -> None:
        """Emit the update of the values of `enter` for a position ``positions`` further."""

    def begin(self, buffer: CodeBuffer) -> None:
        """Emit the batch indices of the block's plane."""
        self._places = self._batch.split(buffer, "plane") if self._batch.lens else []

    @property
    def plane_indices(self) -> list[str]:
        """Return the plane's index along each batch axis; valid after `begin`."""
        return self._places

    def plane_offset(self, operand: int) -> str:
        """Return the offset of the plane in an operand: 0 left, 1 right, 2 result, 3 and above the epilogue's."""
        return self._batch.offset(operand, self._places)

    def row_place(self, buffer: CodeBuffer, row: str) -> RowPlace:
        """Emit the values of a row of the left operand; ``row`` may exceed the last row."""
        inside = buffer.emit(f"{row} < rows")
        clamped = buffer.emit(f"imin({row}, rows - 1)")
        return RowPlace(inside, buffer.emit(self._row.offset(0, [clamped])))

    def taps_of_rows(self, buffer: CodeBuffer, places: Sequence[RowPlace]) -> None:
        """Emit the tap masks of rows; nothing for a product."""

    def step(self, buffer: CodeBuffer, k: str) -> None:
        """Emit the values of position ``k`` that `left` needs."""
        self._k = k

    def left(self, buffer: CodeBuffer, place: RowPlace) -> tuple[str, str, str]:
        """Return the left operand's element of a row at the position of the last `step`.

        Returns:
            the condition that the element exists, its offset in the plane, and its index along k for a prologue.
        """
        offset = buffer.emit(f"{place.offset} + {self._sum.offset(0, [self._k])}")
        return place.inside if self.whole else buffer.emit(f"{place.inside} & ({self._k} < depth)"), offset, self._k

    def right(self, buffer: CodeBuffer, k: str, column: str) -> str:
        """Emit the offset of the right operand's element ``[k, column]`` in its plane."""
        return buffer.emit(self.right_offset(k, column))

    def right_offset(self, k: str, column: str) -> str:
        """Return the offset of the right operand's element ``[k, column]`` as an expression; it is linear, so it serves
        for differences of offsets, too."""
        return f"{self._sum.offset(1, [k])} + {self._sum.offset(2, [column])}"

    def result_row(self, buffer: CodeBuffer, row: str) -> list[str]:
        """Emit the offsets of a row in the planes of the result and of each operand of the epilogue."""
        return [buffer.emit(self._row.offset(k, [row])) for k in range(1, len(self._row.strides))]


class ConvolutionOperands:
    """Operands of a channels-last convolution; a plane is a group. Attributes as in `ProductOperands`.

    The right operand has one row per output channel: for each tap, the input channels of the group.

    Attributes:
        masked: whether tap masks of rows are computed before the K loop.
    """

    contiguous_depth = True
    whole = masked = False

    def __init__(
        self, problem: ConvProblem, epilogue: Epilogue, strides: Sequence[Sequence[int]], arguments: Arguments
    ) -> None:
        self._arguments = arguments
        self.problem = full = problem.volume()
        extent = Extent.of(problem)
        self.rows, self.columns, self.depth, self.planes = extent.rows, extent.columns, extent.depth, extent.planes
        axes = range(3)
        out = (full.out_strides[0], *(full.out_strides[1] * prod(full.out_lens[d + 1 :]) for d in axes))
        own = [(s[0], *(s[1] * prod(full.out_lens[d + 1 :]) for d in axes)) if s else (0,) * 4 for s in strides]
        lens = (full.batch, *full.out_lens)
        self._pixel = Axes(arguments, "m", lens, [(full.x_strides[0], 0, 0, 0)])
        self._result = _result_axes(full, arguments, [out, *own])
        self._full = [o.access == "full" or o.access == "per_n" for o in epilogue.operands]
        self._channels = arguments.integer("channels", full.group_in)
        self._taps = [arguments.integer(f"t{d}", n) for d, n in enumerate(full.kernel)]
        self._lens = [arguments.integer(f"l{d}", n) for d, n in enumerate(full.in_lens)]
        self._wide = [d for d, n in enumerate(full.kernel) if n > 1]
        self._narrow = [d for d, n in enumerate(full.kernel) if n == 1]
        self._x = [arguments.integer(f"x{d}", s) for d, s in enumerate(full.x_strides[1:])]
        self._stride = [arguments.integer(f"g{d}", s) for d, s in enumerate(full.stride)]
        self._dilation = [arguments.integer(f"d{d}", s) for d, s in enumerate(full.dilation)]
        self._pads = [arguments.integer(f"q{d}", s) for d, s in enumerate(full.pads_begin)]

    def in_slices(self, depth: int) -> None:
        self.whole = known_equal(self.depth % depth, 0)
        self.masked = not self.problem.transposed and self.problem.taps <= MASK_BITS
        if self.masked:
            steps = zip(self.problem.dilation, self.problem.x_strides[1:])
            self._steps = [self._arguments.integer(f"h{d}", n * s) for d, (n, s) in enumerate(steps)]

    def begin(self, buffer: CodeBuffer) -> None:
        """See `ProductOperands.begin`."""

    def plane_offset(self, operand: int) -> str:
        if operand == 0:
            return "plane * channels"
        if operand == 1:
            return "plane * depth * columns"
        moves = operand == 2 or self._full[operand - 3]
        return "plane * columns" if moves else "0"

    def row_place(self, buffer: CodeBuffer, row: str) -> RowPlace:
        inside = buffer.emit(f"{row} < rows")
        indices = self._pixel.split(buffer, buffer.emit(f"imin({row}, rows - 1)"))
        if self.problem.transposed:
            starts = tuple(buffer.emit(f"{i} + {pad}") for i, pad in zip(indices[1:], self._pads))
        else:
            starts = tuple(
                buffer.emit(f"{i} * {stride} - {pad}") for i, stride, pad in zip(indices[1:], self._stride, self._pads)
            )
        offset = self._pixel.offset(0, indices)
        if self.masked:
            first = buffer.emit(" + ".join([offset, *(f"{i} * {s}" for i, s in zip(starts, self._x))]))
            return RowPlace(inside, first, starts, indices[0])
        return RowPlace(inside, buffer.emit(offset), starts, indices[0])

    def taps_of_rows(self, buffer: CodeBuffer, places: Sequence[RowPlace]) -> None:
        """See `ProductOperands.taps_of_rows`: emit the mask of taps inside the image for each row. The loops over an
        axis serve all rows at once, so that their instructions are independent."""
        if not self.masked:
            return
        one, none = "const_int32(1, 0)", "const_int32(0, 0)"
        for place in places:
            inside = " & ".join([place.inside, *(self._on_image(d, place.starts[d]) for d in self._narrow)])
            place.mask = buffer.emit(f"where({inside}, {one}, {none})")
        apart = "1"
        for d in reversed(self._wide):
            tap, *found = (buffer.fresh() for _ in range(1 + len(places)))
            for mask in found:
                buffer.line(f"{mask} = {none}")
            with buffer.block(f"for {tap} in range({self._taps[d]}):"):
                reach = buffer.emit(f"{tap} * {self._dilation[d]}")
                by = buffer.emit(f"cast_int32({tap} * {apart})")
                for place, mask in zip(places, found):
                    valid = self._on_image(d, buffer.emit(f"{place.starts[d]} + {reach}"))
                    buffer.line(f"{mask} = where({valid}, bitwise_or({mask}, shift_left({place.mask}, {by})), {mask})")
            for place, mask in zip(places, found):
                place.mask = mask
            apart = f"{self._taps[d]} * {apart}"

    def _on_image(self, d: int, at: str) -> str:
        """Return the condition that ``at`` lies inside the image along axis ``d``."""
        return f"({at} >= 0) & ({at} < {self._lens[d]})"

    def enter(self, buffer: CodeBuffer, k: str) -> None:
        """See `ProductOperands.enter`. With masks: emit the channel, the tap's index along each axis, its mask bit, and
        the element's offset from the first tap's. The bit of a tap beyond the last is in no mask."""
        if not self.masked:
            return
        buffer.line(f"channel = {k}")
        buffer.line("bit = const_int32(1, 0)")
        terms = ["channel"]
        if self._wide:
            rest = buffer.emit(f"idiv32(channel, {self._channels})")
            buffer.line(f"channel = channel - {rest} * {self._channels}")
            buffer.line(f"bit = shift_left(bit, cast_int32({rest}))")
            for d in reversed(self._wide[1:]):
                before = buffer.emit(f"idiv32({rest}, {self._taps[d]})")
                buffer.line(f"tap{d} = {rest} - {before} * {self._taps[d]}")
                terms.append(f"tap{d} * {self._steps[d]}")
                rest = before
            terms.append(f"{rest} * {self._steps[self._wide[0]]}")
        buffer.line(f"moved = {' + '.join(terms)}")

    def advance(self, buffer: CodeBuffer, positions: int) -> None:
        if not self.masked:
            return
        buffer.line(f"channel = channel + {positions}")
        buffer.line(f"moved = moved + {positions}")
        if not self._wide:
            return
        with ExitStack() as blocks:
            blocks.enter_context(buffer.block(f"while channel >= {self._channels}:"))
            buffer.line(f"channel = channel - {self._channels}")
            buffer.line("bit = add(bit, bit)")
            buffer.line(f"moved = moved + ({self._steps[self._wide[-1]]} - {self._channels})")
            for before, d in zip(self._wide[-2::-1], self._wide[:0:-1]):
                buffer.line(f"tap{d} = tap{d} + 1")
                blocks.enter_context(buffer.block(f"if tap{d} == {self._taps[d]}:"))
                buffer.line(f"tap{d} = 0")
                buffer.line(f"moved = moved + ({self._steps[before]} - {self._taps[d]} * {self._steps[d]})")

    def step(self, buffer: CodeBuffer, k: str) -> None:
        """See `ProductOperands.step`. Uses 32-bit division: a 64-bit division is a call, and ptxas serialises warpgroup
        MMAs around calls."""
        if self.masked:
            self._valid = "" if self.whole or self._wide else buffer.emit(f"{k} < depth")
            return
        tap = buffer.emit(f"idiv32({k}, {self._channels})")
        self._channel = buffer.emit(f"{k} - {tap} * {self._channels}")
        self._valid = buffer.emit(f"{k} < depth")
        plane = buffer.emit(f"idiv32({tap}, {self._taps[2]})")
        last = buffer.emit(f"{tap} - {plane} * {self._taps[2]}")
        first = buffer.emit(f"idiv32({plane}, {self._taps[1]})")
        middle = buffer.emit(f"{plane} - {first} * {self._taps[1]}")
        self._reach = [buffer.emit(f"{t} * {d}") for t, d in zip((first, middle, last), self._dilation)]

    def left(self, buffer: CodeBuffer, place: RowPlace) -> tuple[str, str, str]:
        if self.masked:
            inside = buffer.emit(f"ne(bitwise_and({place.mask}, bit), const_int32(0, 0))")
            if self._valid:
                inside = buffer.emit(f"{inside} & {self._valid}")
            return inside, buffer.emit(f"{place.offset} + moved"), "channel"
        conditions, terms = [place.inside, self._valid], [place.offset, self._channel]
        for d, (start, reach) in enumerate(zip(place.starts, self._reach)):
            if self.problem.transposed:
                distance = buffer.emit(f"{start} - {reach}")
                at = buffer.emit(f"idiv32(imax({distance}, 0), {self._stride[d]})")
                conditions.append(f"({at} * {self._stride[d]} == {distance})")
            else:
                at = buffer.emit(f"{start} + {reach}")
                conditions.append(f"({at} >= 0)")
            conditions.append(f"({at} < {self._lens[d]})")
            terms.append(f"{at} * {self._x[d]}")
        return buffer.emit(" & ".join(conditions)), buffer.emit(" + ".join(terms)), self._channel

    def right(self, buffer: CodeBuffer, k: str, column: str) -> str:
        return buffer.emit(f"{k} * columns + {column}")

    def result_row(self, buffer: CodeBuffer, row: str) -> list[str]:
        indices = self._result.split(buffer, row)
        return [buffer.emit(self._result.offset(k, indices)) for k in range(len(self._result.strides))]


def _result_axes(full: ConvProblem, arguments: Arguments, strides: Sequence[Sequence[int]]) -> Axes:
    """Return the axes of the result's rows: images and pixels, or one axis if their strides can be merged."""
    pairs = [(s[0], s[-1]) for s in strides]
    if known_equal(full.out_pixels, 1):
        return Axes(arguments, "o", (full.batch,), [(image,) for image, _ in pairs])
    if all(known_equal(image, pixel * full.out_pixels) for image, pixel in pairs) or known_equal(full.batch, 1):
        return Axes(arguments, "o", (full.batch * full.out_pixels,), [(pixel,) for _, pixel in pairs])
    return Axes(arguments, "o", (full.batch, full.out_pixels), pairs)


Operands2D = ProductOperands | ConvolutionOperands


def operands_of(
    problem: GemmProblem | ConvProblem, epilogue: Epilogue, strides: Sequence[Sequence[int]], arguments: Arguments
) -> Operands2D:
    """Return the operands of a product or a convolution."""
    kind = ProductOperands if isinstance(problem, GemmProblem) else ConvolutionOperands
    return kind(problem, epilogue, strides, arguments)  # type: ignore[arg-type]
