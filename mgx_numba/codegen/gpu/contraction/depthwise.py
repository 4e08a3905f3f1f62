"""Depthwise convolutions: each thread computes one vector of channels of a few neighbouring pixels of an image row.

The kernel is bound by memory latency, and by conversions of 16 bits for large filters. Taps of a small filter are
unrolled, so that all loads of a thread are in flight together; for a large filter the loads of one filter row are.
Neighbouring pixels of a thread share image loads and weights, and neighbouring threads compute the same columns of
several image rows, which share rows in the L1 cache. A thread computes fewer pixels where the grid would otherwise have
too few threads.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product
from math import prod

from ....core.dim import typical
from ....dataclass import dataclass
from ...launch import Solution
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...tuning.request import least_bytes
from ..architecture import WARP
from ..cluster.flat_index import Axes
from ..kernel import gpu_launch
from ..machine import multiprocessors
from .contraction_text import ContractionText
from .gpu_contraction import VECTOR_BYTES, GpuContraction
from .operands import ConvolutionOperands

SHORT_LOADS = {2: 4, 4: 5}
"""Bytes that a load of 2 or 4 bytes costs: in float16 on an H200 8 images of 128 x 128 x 291 take 155 us, 64 of 64 x 9
x 50 8.1, and 4 of 112 x 112 x 58 8.5."""
MOST_LANES = 8
"""Most channels per vector; each channel takes one accumulator register."""


@dataclass(frozen=True)
class PixelTiling:
    """Number of neighbouring pixels of a row, and most channels of each, that one thread computes."""

    pixels: int
    lanes: int = MOST_LANES


LEAST_THREADS, MOST_THREADS = 64, 256
"""Threads per block. Small blocks spread a small image over more multiprocessors."""
ACROSS, MOST_LINES = 16, 8
"""Neighbouring vectors of a block, about half to twice as many, and most image rows."""
HALO = 0.1
"""Part of a block's time that loading a filter's rows once more takes. With blocks that are no whole groups of rows 64
images of 104 x 104 x 96 take 573 us by 5 x 5 on an H200, with whole groups 175; 64 of 44 x 44 x 576 by 3 x 3 take 147
with four rows of 64 threads, and 173 with eight, of which 9% are outside the image."""
PIXELS, LANES = (1, 2, 4, 7, 8), (2, 4, 8)
"""Pixels, and channels, per thread that tuning compares."""
# (threads per multiprocessor that hide memory latency, pixels, channels per thread), the first one with enough threads;
# 0 pixels: 7 or 8, whichever leaves fewer threads' pixels outside the image. Best times of 16 bits on an H200, in us:
#   3 x 3: 32 images of 56 x 56 x 144 29.2 with 8 pixels of 4 channels, 40.7 with 2 of 8; one image 2.8 and 2.5
#   5 x 5: 32 of 28 x 28 x 240, stride 2: 10.5 with 7 of 4, 12.5 with 1 of 8; one of 14 x 14 x 672 2.5 with 4 of 2
#   7 x 7: 8 of 56 x 56 x 96 17.7 with 8 of 4, 67 with 1 of 8; 8 of 14 x 14 x 384 6.8 with 7 of 4, 14.8
#   11 x 11: 8 of 28 x 28 x 256 23.9 with 7 of 4, 81 with 2 of 8
FEW_TAP_TILINGS = ((512, 0, 4), (256, 2, 8), (0, 1, 8))
MANY_TAP_TILINGS = ((128, 0, 4), (128, 4, 4), (0, 4, 2))
FEW_TAPS = 16
"""Most taps whose loads are always in flight together."""
UNROLLED_REGISTERS = 140
"""Most registers for the loads of all taps in flight; with more, filter rows are a loop. Found by the times above: 8
images of 7 x 7 x 768 take 4.4 us with 140 registers and 6.2 with a loop, but 56 x 56 x 96 22.3 with 147 and 19.3."""
WIDE_REACH, WIDE_REACH_TILINGS = 4, ((128, 7, 8), (128, 4, 4), (0, 4, 2))
"""Pixels from the first to the last tap across, with stride 1, that have tilings of their own: 64 images of 104 x 104 x
96 take 175 us by 5 x 5 with 7 pixels of 8 channels, with 8 of 4 220 and with 7 of 4 251; 8 of 176 x 111 x 448 by 3 x 3,
dilation 2, 161, 182 and 213; 2 of 32 x 32 x 320 by 5 x 5 take 4.0 with 4 of 4, and 6.1 with 7 of 4."""
MOST_ACROSS = 32
"""Most taps of a filter row, which is always unrolled. No known network has more."""


def depthwise_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the depthwise kernel does not apply to a contraction; "" if it applies."""
    problem = contraction.problem
    if not isinstance(problem, ConvProblem):
        return "it is a matrix product"
    if problem.transposed:
        return "it is transposed"
    if problem.prologue is not None:
        return "the left operand has a prologue"
    if problem.group_in != 1 or problem.group_out != 1 or problem.groups == 1:
        return "groups are no single channels"
    return "" if problem.kernel[-1] <= MOST_ACROSS else f"more than {MOST_ACROSS} taps across"


def depthwise_tilings(contraction: GpuContraction) -> list[PixelTiling]:
    """Return the applicable tilings of a thread."""
    across = _conv(contraction).out_lens[-1]
    return [PixelTiling(n, lanes) for n in PIXELS if n < 2 * across for lanes in LANES]


def chosen_pixels(contraction: GpuContraction) -> PixelTiling:
    """Return the first of the preferred tilings that leaves enough threads per multiprocessor."""
    problem = _conv(contraction)
    across = problem.out_lens[-1]
    wide = min((8, 7), key=lambda n: -(-across // n) * n)
    tilings = FEW_TAP_TILINGS if problem.taps <= FEW_TAPS else MANY_TAP_TILINGS
    if (problem.kernel[-1] - 1) * problem.dilation[-1] == WIDE_REACH and problem.stride[-1] == 1:
        tilings = WIDE_REACH_TILINGS
    for threads, pixels, lanes in tilings:
        tiling = PixelTiling(pixels or wide, lanes)
        if tiling.pixels < 2 * across and _threads(contraction, tiling) >= threads * multiprocessors():
            return tiling
    return PixelTiling(1, LANES[0])


def loads(contraction: GpuContraction, tiling: PixelTiling) -> int:
    """Return the bytes of images and weights that all threads load; most of them hit the L1 cache. Short ones
    count as `SHORT_LOADS`."""
    problem = _conv(contraction)
    columns = len(tap_columns(problem, tiling.pixels)) + problem.kernel[-1]
    rows, own = prod(problem.kernel[:-1]), _lanes(contraction, tiling.lanes) * ITEMSIZE[problem.types.a]
    return _threads(contraction, tiling) * rows * columns * SHORT_LOADS.get(own, own)


def depthwise_solution(contraction: GpuContraction, tiling: PixelTiling) -> Solution:
    """Return the launch of an applicable convolution; weights have the layout `weights.CHANNELS`.

    Raises:
        UnsupportedError: no kernel exists for this accumulator type or for an operation of the epilogue.
    """
    text = _DepthwiseText(contraction, tiling)
    lines, problem = text.lines(), _conv(contraction)
    epilogue = contraction.request.epilogue
    name = f"convolution_depthwise_{problem.types.out}{'_' * bool(epilogue.name)}{epilogue.name}_kernel"
    blocks, moved = -(-text.groups // text.at_once), least_bytes(problem)
    return Solution((gpu_launch(name, lines, text.arguments, blocks, text.threads, moved, problem.flops),))


def _conv(contraction: GpuContraction) -> ConvProblem:
    problem = contraction.problem
    assert isinstance(problem, ConvProblem)
    return problem


def _lanes(contraction: GpuContraction, most: int) -> int:
    """Return the channels per vector, at most ``most``, such that all vectors of images and results are aligned."""
    problem = _conv(contraction)
    lanes = min(most, VECTOR_BYTES // ITEMSIZE[problem.types.a])
    while lanes > 1 and any(n % lanes for n in (problem.in_channels, *problem.x_strides)):
        lanes //= 2
    return contraction.lanes(problem.out_channels, lanes)


def _strips(problem: ConvProblem, pixels: int) -> tuple[int, ...]:
    """Return the iteration space of threads without the channel axis: images, image rows, strips of a row."""
    return (problem.batch, *problem.out_lens[:-1], -(-problem.out_lens[-1] // pixels))


def _threads(contraction: GpuContraction, tiling: PixelTiling) -> int:
    """Return the number of threads that compute pixels."""
    problem = _conv(contraction)
    return prod(_strips(problem, tiling.pixels)) * (problem.out_channels // _lanes(contraction, tiling.lanes))


def tap_columns(problem: ConvProblem, pixels: int) -> list[int]:
    """Return the columns under the taps of a thread's pixels, relative to the first tap of its first pixel."""
    step, apart, taps = problem.stride[-1], problem.dilation[-1], problem.kernel[-1]
    return sorted({p * step + t * apart for p in range(pixels) for t in range(taps)})


def _unrolled(problem: ConvProblem, pixels: int, lanes: int) -> bool:
    """Return whether all loads of a thread are in flight together."""
    columns, words = len(tap_columns(problem, pixels)), lanes * ITEMSIZE[problem.types.a] / 4
    in_flight = words * (problem.taps // problem.kernel[-1] * columns + problem.taps)
    return problem.taps <= FEW_TAPS or in_flight <= UNROLLED_REGISTERS


def looped_rows(contraction: GpuContraction, tiling: PixelTiling) -> int:
    """Return the filter rows whose loads wait for one another."""
    problem = _conv(contraction)
    together = _unrolled(problem, tiling.pixels, _lanes(contraction, tiling.lanes))
    return 0 if together else prod(problem.kernel[:-1])


def _group(vectors: int, problem: ConvProblem, rows: int, others: int) -> tuple[int, int, int]:
    """Return the vectors and image rows of a group of threads, and the groups per block, for which warps with threads
    outside the image, and rows that several blocks load, cost least; ``others``: groups along all other axes."""

    def cost(group: tuple[int, int, int]) -> float:
        across, high, at_once = group
        warps = -(-across * high * at_once // WARP) / at_once
        groups = -(-vectors // across) * -(-rows // high)
        halo = HALO * problem.kernel[-2] / high if high < rows else 0.0
        return groups * warps * (1 + halo) * max(1.0, multiprocessors() * at_once / (groups * others))

    chunks = range(-(-vectors // ACROSS), max(0, -(-vectors // (2 * ACROSS)) - 1), -1)
    sides = [(-(-vectors // n), high) for n in chunks for high in range(1, min(rows, MOST_LINES) + 1)]
    fitting = [own for own in sides if prod(own) <= MOST_THREADS]
    return min(((*own, max(1, LEAST_THREADS // prod(own))) for own in fitting), key=cost)


class _DepthwiseText(ContractionText):
    """Kernel text of one depthwise convolution. A plane of an operand is a channel: the first channel of the thread's
    vector.

    Attributes:
        across, high: neighbouring vectors, and image rows, of a group of threads.
        groups, at_once: groups, and groups per block.
        threads: threads per block.
    """

    operands: ConvolutionOperands

    def __init__(self, contraction: GpuContraction, tiling: PixelTiling) -> None:
        super().__init__(contraction)
        self.pixels = pixels = tiling.pixels
        self.lanes = _lanes(contraction, tiling.lanes)
        self.problem = problem = _conv(contraction)
        rank, vectors = len(problem.out_lens), problem.out_channels // self.lanes
        *outer, strips = _strips(problem, pixels)
        rows = outer.pop() if rank > 1 else 1
        usual = typical(rows), typical(prod(outer) * strips)  # groups of any form compute all lengths
        self.across, self.high, self.at_once = _group(vectors, problem, *usual)
        self.threads = self.across * self.high * self.at_once
        lens = [*outer, *[-(-rows // self.high)] * (rank > 1), strips, -(-vectors // self.across)]
        self.groups = prod(lens)
        self.arguments.integers(groups=self.groups, all_channels=problem.out_channels, line=problem.out_lens[-1])
        self.arguments.integer("vectors", vectors)
        self._space = Axes(self.arguments, "i", lens, [(problem.x_strides[0], *(0,) * (rank + 1))])
        self._out = [self.arguments.integer(f"out{d}", n) for d, n in enumerate(problem.out_lens)]
        names = {"length": problem.in_lens, "apart": problem.x_strides[1:], "before": problem.pads_begin}
        names |= {"step": problem.stride, "reach": problem.dilation, "size": problem.kernel}
        self._of = [{n: self.arguments.integer(f"{n}{d}", v[d]) for n, v in names.items()} for d in range(rank)]
        pads = zip(problem.pads_begin, problem.pads_end)
        self._padded = [max(pair) > 0 for pair in pads]
        self._cut = problem.out_lens[-1] % pixels != 0
        self._few = _unrolled(problem, pixels, self.lanes)

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, problem = CodeBuffer(), self.problem
        buffer.line(
            *self.arguments.bind(),
            f"own = idiv(thread_index(0), {self.across})",
            f"aside = thread_index(0) - own * {self.across}",
            f"group = idiv(own, {self.high})",
            f"below = own - group * {self.high}",
            f"number = block_index(0) * {self.at_once} + group",
            "near = imin(number, groups - 1)",
        )
        image, *places, strip, chunk = self._space.split(buffer, "near")
        buffer.line(f"vector = {chunk} * {self.across} + aside")
        there = "(number < groups) & (vector < vectors)"
        if places:
            row = buffer.emit(f"{places[-1]} * {self.high} + below")
            there += f" & ({row} < {self._out[-2]})"
            places[-1] = buffer.emit(f"imin({row}, {self._out[-2]} - 1)")
        buffer.line(f"there = {there}", f"plane = imin(vector, vectors - 1) * {self.lanes}")
        self._planes(buffer)
        buffer.line("r_taps = offset(p_w, plane)")
        lines = [*places, buffer.emit(f"{strip} * {self.pixels}")]
        weights = self._weights(buffer, "0", problem.taps) if self._few and self.contraction.constant else []
        buffer.line("grid_wait()")
        once = self._extras(buffer, "0", "0", self.lanes, True, ("per_n", "scalar"))[1]
        self._sums(buffer, image, lines, weights)
        row = image
        for index, length in zip(lines[:-1], self._out):
            row = f"({row}) * {length} + {index}"
        first = buffer.emit(f"({row}) * line + {lines[-1]}")
        for p in range(self.pixels):
            inside = f" & ({lines[-1]} + {p} < line)" if self._cut and p else ""
            with buffer.block(f"if there{inside}:"):
                place, own = self._extras(
                    buffer, buffer.emit(f"{first} + {p}"), "0", self.lanes, True, ("full", "per_m")
                )
                extras = [value for _, value in sorted({**once, **own}.items())]
                finished = self._finished(buffer, [f"sums{p}"], extras, self.lanes)
                self._put(buffer, place, finished, self.lanes, True)
        return buffer.lines

    def _weights(self, buffer: CodeBuffer, first: str, count: int) -> list[str]:
        """Emit the loads of the weights of ``count`` taps, starting at tap ``first``."""
        load = self._load
        return [buffer.emit(f"{load}(r_taps, ({first} + {t}) * all_channels, {self.lanes})") for t in range(count)]

    @property
    def _load(self) -> str:
        return "load_aligned" if self.lanes > 1 else "load"

    def _sums(self, buffer: CodeBuffer, image: str, places: list[str], weights: list[str]) -> None:
        """Emit the accumulators ``sums<p>`` of each pixel p.

        Args:
            places: indices along the spatial axes of the result.
            weights: weights of all taps; empty if the filter rows load them.
        """
        for p in range(self.pixels):
            buffer.line(f"sums{p} = const_{self.accumulator}(0, {self.lanes})")
        base = buffer.emit(self._space.offset(0, [image, *("0" for _ in places), "0"]))
        starts = [buffer.emit(f"{i} * {n['step']} - {n['before']}") for i, n in zip(places, self._of)]
        last = len(places) - 1
        columns = {c: self._tap(buffer, last, starts[last], str(c)) for c in tap_columns(self.problem, self.pixels)}
        *outer, across = self.problem.kernel
        if self._few:
            for number, taps in enumerate(product(*(range(n) for n in outer))):
                own = weights[number * across : (number + 1) * across]
                self._line(buffer, base, starts, [str(t) for t in taps], columns, own)
            return
        with ExitStack() as loops:
            for d in range(last):
                loops.enter_context(buffer.block(f"for tap{d} in range({self._of[d]['size']}):"))
            self._line(buffer, base, starts, [f"tap{d}" for d in range(last)], columns, [])

    def _line(
        self,
        buffer: CodeBuffer,
        base: str,
        starts: list[str],
        taps: list[str],
        columns: dict[int, tuple[str, str]],
        weights: list[str],
    ) -> None:
        """Emit the multiply-adds of one filter row; ``taps`` are its indices along all spatial axes but the last."""
        problem, acc, lanes = self.problem, self.accumulator, self.lanes
        found = [self._tap(buffer, d, starts[d], f"{t} * {self._of[d]['reach']}") for d, t in enumerate(taps)]
        offset = buffer.emit(" + ".join([base, *(place for place, _ in found)]))
        across = problem.kernel[-1]
        if not weights:
            number = "0"
            for d, t in enumerate(taps):
                number = f"({number}) * {self._of[d]['size']} + {t}"
            weights = self._weights(buffer, buffer.emit(f"({number}) * {across}"), across)
        values = {}
        for c, (place, inside) in columns.items():
            conditions = [i for _, i in found if i] + [inside] * bool(inside)
            value = buffer.emit(f"{self._load}(r_x, {offset} + {place}, {lanes})")
            if conditions:
                zeros = f"const_{problem.types.a}(0, {lanes})"
                value = buffer.emit(f"where({' & '.join(conditions)}, {value}, {zeros})")
            values[c] = value
        values = {c: buffer.emit(f"cast_{acc}({value})") for c, value in values.items()}
        wide = [buffer.emit(f"cast_{acc}({w})") for w in weights]
        for p, tap in product(range(self.pixels), range(across)):
            x = values[p * problem.stride[-1] + tap * problem.dilation[-1]]
            buffer.line(f"sums{p} = fma({x}, {wide[tap]}, sums{p})")

    def _tap(self, buffer: CodeBuffer, axis: int, start: str, reach: str) -> tuple[str, str]:
        """Emit the offset of a tap along one image axis, clamped to the image.

        Returns:
            the offset, and the condition that the tap is inside the image ("" if it always is).
        """
        n, padded = self._of[axis], self._padded[axis]
        at = near = buffer.emit(f"{start} + {reach}")
        if padded or (self._cut and axis == len(self._of) - 1):
            near = buffer.emit(f"imin(imax({at}, 0), {n['length']} - 1)")
        inside = buffer.emit(f"({at} >= 0) & ({at} < {n['length']})") if padded else ""
        return buffer.emit(f"{near} * {n['apart']}"), inside
