"""Convolutions in which each channel is a group: a thread has a vector of channels of some pixels of a row.

Little is multiplied of what is read: what takes the time is bringing images, and waiting for that. Taps are written one
by one, so that all loads of a thread are on their way together. Pixels side by side share what lies under several of
them, and the weights; few are computed by one thread where there would not be enough threads otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...tuning.request import least_bytes
from ..cluster.indexing import Axes
from ..kernel import gpu_grid, gpu_kernel
from .operands import ConvolutionOperands
from .placed import VECTOR_BYTES, PlacedRequest
from .text import ContractionText
from .wgmma_tiles import multiprocessors

__all__ = ["PixelTiling", "chosen_pixels", "depthwise_refusal", "depthwise_solution", "depthwise_tilings", "loads"]

THREADS = 64
"""Threads of a block: small images leave fewer multiprocessors without any than with larger blocks."""
PIXELS = (1, 2, 4)
"""Of a thread. Eight of 16 bytes would take 64 registers of sums alone."""
ENOUGH_THREADS = 256
"""Threads of a multiprocessor that are enough for pixels to share a thread: with nine taps they have 36 KiB of images
on their way, its share of the bandwidth times the latency of memory."""
MOST_TAPS = 81
"""Taps that are written one by one: a filter of 9 by 9. Text grows with them, and time to compile it."""
MOST_LANES = 8
"""Channels of a vector: their sums are as many registers."""


@dataclass(frozen=True)
class PixelTiling:
    """Pixels of a row that a thread computes."""

    pixels: int


def depthwise_refusal(placed: PlacedRequest) -> str:
    """Why these kernels do not compute a contraction; empty if they do."""
    problem = placed.problem
    if not isinstance(problem, ConvProblem):
        return "it is a matrix product"
    if problem.transposed:
        return "it is transposed"
    if problem.prologue is not None:
        return "the left operand has a prologue"
    if problem.group_in != 1 or problem.group_out != 1 or problem.groups == 1:
        return "groups are no single channels"
    return "" if problem.taps <= MOST_TAPS else f"more than {MOST_TAPS} taps"


def depthwise_tilings(placed: PlacedRequest) -> list[PixelTiling]:
    """What a thread may compute."""
    across = _conv(placed).out_lens[-1]
    return [PixelTiling(n) for n in PIXELS if n < 2 * across]


def chosen_pixels(placed: PlacedRequest) -> PixelTiling:
    """The most pixels of a thread with which there are `ENOUGH_THREADS`."""
    enough = [t for t in depthwise_tilings(placed) if _threads(placed, t) >= ENOUGH_THREADS * multiprocessors()]
    return enough[-1] if enough else PixelTiling(PIXELS[0])


def loads(placed: PlacedRequest, tiling: PixelTiling) -> int:
    """Bytes that all threads load of images and weights, which mostly come from the first-level caches."""
    problem = _conv(placed)
    columns = len(_columns(problem, tiling.pixels)) + problem.kernel[-1]
    rows = prod(problem.kernel[:-1])
    return _threads(placed, tiling) * rows * columns * _lanes(placed) * ITEMSIZE[problem.types.a]


def depthwise_solution(placed: PlacedRequest, tiling: PixelTiling) -> Solution:
    """The launch of a convolution that is not refused; its weights lie in the order `weights.CHANNELS`.

    Raises:
        UnsupportedError: sums of this type, or an operation around the convolution, have no kernel.
    """
    text = _DepthwiseText(placed, tiling.pixels)
    lines, values, problem = text.lines(), text.arguments.values, _conv(placed)
    epilogue = placed.request.epilogue
    name = f"convolution_depthwise_{problem.types.out}{'_' * bool(epilogue.name)}{epilogue.name}_kernel"
    grid = gpu_grid(-(-_threads(placed, tiling) // THREADS), THREADS)
    kernel = gpu_kernel(name, lines, THREADS, len(values))
    return Solution((Launch(kernel, values, grid, problem.flops, least_bytes(problem)),))


def _conv(placed: PlacedRequest) -> ConvProblem:
    problem = placed.problem
    assert isinstance(problem, ConvProblem)
    return problem


def _lanes(placed: PlacedRequest) -> int:
    """Channels of a vector, in which those of images and results lie at multiples of its size."""
    problem = _conv(placed)
    lanes = min(MOST_LANES, VECTOR_BYTES // ITEMSIZE[problem.types.a])
    while lanes > 1 and any(n % lanes for n in (problem.in_channels, *problem.x_strides)):
        lanes //= 2
    return placed.lanes(problem.out_channels, lanes)


def _strips(problem: ConvProblem, pixels: int) -> tuple[int, ...]:
    """Lengths of the space of threads but for vectors of channels: images, lines, strips of a line."""
    return (problem.batch, *problem.out_lens[:-1], -(-problem.out_lens[-1] // pixels))


def _threads(placed: PlacedRequest, tiling: PixelTiling) -> int:
    """Those that have something to do."""
    problem = _conv(placed)
    return prod(_strips(problem, tiling.pixels)) * (problem.out_channels // _lanes(placed))


def _columns(problem: ConvProblem, pixels: int) -> list[int]:
    """Where along a line, from the first pixel's first tap on, elements lie under the taps of a thread's pixels."""
    step, apart, taps = problem.stride[-1], problem.dilation[-1], problem.kernel[-1]
    return sorted({p * step + t * apart for p in range(pixels) for t in range(taps)})


class _DepthwiseText(ContractionText):
    """The text of one convolution. A plane of its operands is a channel: the first one of the thread's vector."""

    operands: ConvolutionOperands

    def __init__(self, placed: PlacedRequest, pixels: int) -> None:
        super().__init__(placed)
        self.pixels = pixels
        self.lanes = _lanes(placed)
        self.problem = problem = _conv(placed)
        rank, vectors = len(problem.out_lens), problem.out_channels // self.lanes
        lens = (*_strips(problem, pixels), vectors)
        self.arguments.integers(items=prod(lens), all_channels=problem.out_channels, line=problem.out_lens[-1])
        self._space = Axes(self.arguments, "i", lens, [(problem.x_strides[0], *(0,) * (rank + 1))])
        self._out = [self.arguments.integer(f"out{d}", n) for d, n in enumerate(problem.out_lens)]
        names = {"length": problem.in_lens, "apart": problem.x_strides[1:], "before": problem.pads_begin}
        names |= {"step": problem.stride, "reach": problem.dilation}
        self._of = [{n: self.arguments.integer(f"{n}{d}", v[d]) for n, v in names.items()} for d in range(rank)]
        pads = zip(problem.pads_begin, problem.pads_end)
        self._padded = [max(pair) > 0 for pair in pads]
        self._cut = problem.out_lens[-1] % pixels != 0

    def lines(self) -> list[str]:
        """All statements of the kernel."""
        buffer = CodeBuffer()
        for line in (*self.arguments.bind(), f"number = block_index(0) * {THREADS} + thread_index(0)"):
            buffer.line(line)
        buffer.line("item = imin(number, items - 1)")
        image, *places, strip, vector = self._space.split(buffer, "item")
        buffer.line(f"plane = {vector} * {self.lanes}")
        self._planes(buffer)
        buffer.line("r_taps = offset(p_w, plane)")
        lines = [*places, buffer.emit(f"{strip} * {self.pixels}")]
        weights = self._weights(buffer) if self.placed.constant else []
        buffer.line("grid_wait()")
        weights = weights or self._weights(buffer)
        once = self._extras(buffer, "0", "0", self.lanes, True, ("per_n", "scalar"))[1]
        self._sums(buffer, image, lines, weights)
        row = image
        for index, length in zip(lines[:-1], self._out):
            row = f"({row}) * {length} + {index}"
        first = buffer.emit(f"({row}) * line + {lines[-1]}")
        for p in range(self.pixels):
            inside = f" & ({lines[-1]} + {p} < line)" if self._cut and p else ""
            with buffer.block(f"if (number < items){inside}:"):
                place, own = self._extras(
                    buffer, buffer.emit(f"{first} + {p}"), "0", self.lanes, True, ("full", "per_m")
                )
                extras = [value for _, value in sorted({**once, **own}.items())]
                finished = self._finished(buffer, f"sums{p}", extras, self.lanes)
                self._put(buffer, place, finished, self.lanes, True)
        return buffer.lines

    def _weights(self, buffer: CodeBuffer) -> list[str]:
        """Emit the loads of all taps' weights."""
        load = self._load
        return [buffer.emit(f"{load}(r_taps, {t} * all_channels, {self.lanes})") for t in range(self.problem.taps)]

    @property
    def _load(self) -> str:
        return "load_aligned" if self.lanes > 1 else "load"

    def _sums(self, buffer: CodeBuffer, image: str, places: list[str], weights: list[str]) -> None:
        """Emit ``sums<p>`` of each pixel; ``places`` are indices along the result's spatial axes."""
        problem, acc, lanes = self.problem, self.accumulator, self.lanes
        for p in range(self.pixels):
            buffer.line(f"sums{p} = const_{acc}(0, {lanes})")
        base = buffer.emit(self._space.offset(0, [image, *("0" for _ in places), "0"]))
        starts = [buffer.emit(f"{i} * {n['step']} - {n['before']}") for i, n in zip(places, self._of)]
        wide = [buffer.emit(f"cast_{acc}({w})") for w in weights]
        across = problem.kernel[-1]
        columns = {}
        for c in _columns(problem, self.pixels):
            columns[c] = self._tap(buffer, len(places) - 1, starts[-1], str(c))
        for line, taps in enumerate(product(*(range(n) for n in problem.kernel[:-1]))):
            found = [self._tap(buffer, d, starts[d], f"{t} * {self._of[d]['reach']}") for d, t in enumerate(taps)]
            offset = buffer.emit(" + ".join([base, *(place for place, _ in found)]))
            values = {}
            for c, (place, inside) in columns.items():
                conditions = [i for _, i in found if i] + [inside] * bool(inside)
                value = buffer.emit(f"cast_{acc}({self._load}(r_x, {offset} + {place}, {lanes}))")
                if conditions:
                    value = buffer.emit(f"where({' & '.join(conditions)}, {value}, const_{acc}(0, {lanes}))")
                values[c] = value
            for p, t in product(range(self.pixels), range(across)):
                x = values[p * problem.stride[-1] + t * problem.dilation[-1]]
                buffer.line(f"sums{p} = fma({x}, {wide[line * across + t]}, sums{p})")

    def _tap(self, buffer: CodeBuffer, axis: int, start: str, reach: str) -> tuple[str, str]:
        """Emit where along an axis of the image a tap is, within it: its offset, and the condition under which that is
        the tap's place, empty if it always is."""
        n, padded = self._of[axis], self._padded[axis]
        at = near = buffer.emit(f"{start} + {reach}")
        if padded or (self._cut and axis == len(self._of) - 1):
            near = buffer.emit(f"imin(imax({at}, 0), {n['length']} - 1)")
        inside = buffer.emit(f"({at} >= 0) & ({at} < {n['length']})") if padded else ""
        return buffer.emit(f"{near} * {n['apart']}"), inside
