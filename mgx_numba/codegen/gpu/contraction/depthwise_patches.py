"""Depthwise convolutions with patches of the images in shared memory.

A block computes a rectangle of pixels of one image for a few vectors of channels. It copies the patch under the
rectangle once, with zeros outside the image and behind the last channel; all taps read it from shared memory. Whole
vectors of channels are copied asynchronously, others through registers. The kernel of `depthwise` reads each pixel
several times through the L1 cache, whose latency its registers do not hide in float32 or in loads of few channels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from ....dataclass import dataclass
from ...alternatives import has_lengths
from ...launch import Grid, Launch, Solution
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...tuning.request import least_bytes
from ..architecture import WARP
from ..cluster.flat_index import Axes, whole_vectors, widest
from ..driver.device import known_architecture
from ..kernel import gpu_kernel
from ..machine import GpuMachine, machine, multiprocessors
from .contraction_text import ContractionText
from .cost import NEAR, not_below_memory
from .depthwise import FEW_TAPS, depthwise_refusal, tap_columns
from .fma import shared_bytes
from .gpu_contraction import VECTOR_BYTES, GpuContraction

ACROSS = 8
"""Most vectors of a block: 128 bytes, which eight lanes read from different banks at once."""
PIXELS, TURNS = (4, 7, 8), (1, 2)
"""Neighbouring pixels of a row, and rows, of a thread."""
LANES = 4
"""Most channels of a thread. With 8, as many as a vector of 16 bits has, kernels take up to 244 registers."""
IN_FLIGHT = 16
"""Narrow loads of a patch that a thread makes before it stores the first vector."""
MOST_THREADS = 256
"""Most threads of a block: half of `LEAST_RESIDENT`, so that one block copies while the other computes."""
MOST_PATCH = 100 << 10
"""Most bytes of a patch, such that two blocks share a multiprocessor."""
REGISTERS = 128
"""Most registers per thread: kernels of 3 x 3 to 7 x 7 taps take 91 to 122."""
LEAST_RESIDENT = (1 << 16) // REGISTERS
"""Threads of a multiprocessor that have that many registers."""
# Fitted to the times of 500 tilings of 54 convolutions on an H200 (3 x 3 to 7 x 7; float32 and float16), with a mean
# error of 20%; the chosen tilings take 5% longer than the fastest of those that were measured.
LOADED = 22
"""Bytes/cycle that a multiprocessor copies to shared memory."""
PER_ITEM, PER_PIXEL, PER_READ, PER_CONVERSION = 80, 26, 7, 0.8
"""Instructions to copy a vector; beside the multiply-adds of a vector of results and of a vector read from the patch;
and to convert an element of 16 bits."""
PER_PART, PART_WAIT = 4, 750
"""Instructions to load a part of a vector that is no whole vector in memory; and cycles until such loads arrive."""
STARTING = 85
"""Cycles of a block beside its work."""
WAITING = 3100
"""Cycles until the patch of a block that is alone on its multiprocessor has arrived, and of a launch."""
RESERVED = 2048
"""Bytes of shared memory beside the patch: of the driver (CUDA C++ programming guide), and for alignment."""
MOST_ACROSS = 11
"""Most taps of a filter row, which is unrolled."""


_volume = functools.lru_cache(maxsize=256)(ConvProblem.volume)


@dataclass(frozen=True)
class RectangleTiling:
    """The work of a block.

    Attributes:
        pixels: neighbouring pixels of a row that one thread computes.
        strips, high: threads along a row, and along the height.
        turns: rows that one thread computes.
    """

    pixels: int
    strips: int
    high: int
    turns: int


@dataclass(frozen=True)
class DepthwisePatch:
    """Sizes of a block's patch.

    Attributes:
        vectors: 16-byte vectors of a pixel.
        rows, columns: pixels.
        pitch: vectors from one row to the next.
    """

    vectors: int
    rows: int
    columns: int
    pitch: int

    @property
    def bytes(self) -> int:
        """Return the bytes of the patch."""
        return self.rows * self.pitch * VECTOR_BYTES


def rectangle_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the kernel does not apply to a contraction; "" if it applies."""
    problem, arch = contraction.problem, known_architecture()
    reason = depthwise_refusal(contraction)
    if reason:
        return reason
    assert isinstance(problem, ConvProblem)
    if arch is not None and not (arch.nvidia and arch.copies):
        return f"{arch.name} has no asynchronous copies"
    if has_lengths(problem):
        return "lengths are not known"
    types = problem.types
    if types.a != types.b or types.a not in ("float16", "bfloat16", "float32"):
        return "elements are no floats of one type"
    full = _volume(problem)
    if full.kernel[0] > 1 or full.in_lens[0] > 1 or full.out_lens[0] > 1:
        return "patches have two dimensions"
    if full.kernel[-1] > MOST_ACROSS:
        return f"more than {MOST_ACROSS} taps across"
    return "" if rectangle_tilings(contraction) else "no patch fits the image and the memory of a block"


def _copied(problem: ConvProblem) -> int:
    """Return the channels of a vector."""
    return VECTOR_BYTES // ITEMSIZE[problem.types.a]


def _loaded(problem: ConvProblem) -> int:
    """Return the channels per load of the images, at most a vector: all loads are aligned."""
    return widest(_copied(problem), lambda n: whole_vectors(n, problem.in_channels, *problem.x_strides))


def _lanes(contraction: GpuContraction) -> int:
    """Return the channels of a thread, which it loads from the patch and stores together."""
    assert isinstance(contraction.problem, ConvProblem)
    return contraction.lanes(contraction.problem.out_channels, min(LANES, _loaded(contraction.problem)))


def _vectors(problem: ConvProblem) -> int:
    """Return the vectors of a pixel; the last one may have fewer channels."""
    return -(-problem.in_channels // _copied(problem))


def _across(problem: ConvProblem, lanes: int) -> int:
    """Return the vectors of a block: as many in each chunk of the channels."""
    vectors, most = _vectors(problem), min(ACROSS, WARP * lanes // _copied(problem))
    return -(-vectors // -(-vectors // most))


def _threads(problem: ConvProblem, lanes: int, tiling: RectangleTiling) -> int:
    """Return the threads of a block."""
    return _across(problem, lanes) * _copied(problem) // lanes * tiling.strips * tiling.high


def patch_under(problem: ConvProblem, lanes: int, tiling: RectangleTiling) -> DepthwisePatch:
    """Return the patch of a block. Where strides allow, lanes of successive image rows read successive banks."""
    full, vectors = _volume(problem), _across(problem, lanes)
    sides = tiling.high * tiling.turns, tiling.strips * tiling.pixels
    rows, columns = (
        (n - 1) * step + apart * (taps - 1) + 1
        for n, step, apart, taps in zip(sides, full.stride[1:], full.dilation[1:], full.kernel[1:])
    )
    pitch = columns * vectors
    fitting = (n for n in range(pitch, pitch + ACROSS) if (full.stride[1] * n - vectors) % ACROSS == 0)
    return DepthwisePatch(vectors, rows, columns, next(fitting, pitch))


def _shared(problem: ConvProblem, patch: DepthwisePatch) -> int:
    """Return the bytes of a patch and, of a filter whose weights do not fit the registers, of the weights."""
    return patch.bytes + (problem.taps * patch.vectors * VECTOR_BYTES if problem.taps > FEW_TAPS else 0)


def rectangle_tilings(contraction: GpuContraction) -> list[RectangleTiling]:
    """Return the applicable tilings."""
    problem = contraction.problem
    assert isinstance(problem, ConvProblem)
    return list(_tilings(problem, _lanes(contraction)))


@functools.lru_cache(maxsize=256)
def _tilings(problem: ConvProblem, lanes: int) -> tuple[RectangleTiling, ...]:
    _, tall, long = _volume(problem).out_lens
    return tuple(
        tiling
        for tiling in _rectangles(tall, long)
        if _threads(problem, lanes, tiling) <= MOST_THREADS
        and _shared(problem, patch_under(problem, lanes, tiling)) <= MOST_PATCH
    )


def _rectangles(tall: int, long: int) -> Iterator[RectangleTiling]:
    """Yield balanced tilings of an image of ``tall`` rows of ``long`` pixels."""
    for pixels in PIXELS:
        strips = -(-long // pixels)
        for across in sorted({-(-strips // n) for n in range(1, strips + 1)}):
            for turns in TURNS:
                lines = -(-tall // turns)
                for high in sorted({-(-lines // n) for n in range(1, lines + 1)}):
                    if pixels < 2 * long and across * high <= MOST_THREADS:
                        yield RectangleTiling(pixels, across, high, turns)


def rectangle_seconds(contraction: GpuContraction, tiling: RectangleTiling) -> float:
    """Return the estimated time (s) with a tiling."""
    problem = contraction.problem
    assert isinstance(problem, ConvProblem)
    return not_below_memory(contraction, _cycles(problem, _lanes(contraction), tiling) / machine().clock)


def _cycles(problem: ConvProblem, lanes: int, tiling: RectangleTiling) -> float:
    """Return the estimated cycles with a tiling."""
    full, patch, threads = _volume(problem), patch_under(problem, lanes, tiling), _threads(problem, lanes, tiling)
    chunks, parts = -(-_vectors(problem) // patch.vectors), _copied(problem) // _loaded(problem)
    down, side = _blocks(problem, tiling)
    blocks = problem.batch * down * side * chunks
    here, cores = machine(), multiprocessors()
    items, warps = patch.rows * patch.columns * patch.vectors, -(-threads // WARP) * WARP
    resident = max(1, min(shared_bytes() // (_shared(problem, patch) + RESERVED), LEAST_RESIDENT // warps))
    per_item = PER_ITEM + (parts * PER_PART if parts > 1 else 0)
    loading = max(items * VECTOR_BYTES / LOADED, -(-items // threads) * warps * per_item / here.fma_lanes)
    waiting = WAITING
    if parts > 1:
        copied = (items, problem.taps * patch.vectors if problem.taps > FEW_TAPS else 0)
        waiting += sum(-(-count * parts // (threads * IN_FLIGHT)) * PART_WAIT for count in copied)
    taps, high = full.kernel[2], full.kernel[1]
    read = high * len(tap_columns(full, tiling.pixels)) + (problem.taps if problem.taps > FEW_TAPS else 0)
    near = read * max(lanes * ITEMSIZE[problem.types.a], NEAR // WARP) / NEAR
    sums = tiling.pixels * (lanes * high * taps + PER_PIXEL * (LANES + lanes) / (2 * LANES))
    converted = read * lanes * PER_CONVERSION if ITEMSIZE[problem.types.a] == 2 else 0
    issued = (sums + converted + PER_READ * read) / here.fma_lanes
    work = loading + warps * tiling.turns * max(near, issued)
    sharing = min(resident, -(-blocks // cores))
    rounds = blocks / (cores * resident) if blocks > 4 * cores * resident else -(-blocks // (cores * resident))
    return float(rounds * max(sharing * (work + STARTING), work + waiting) + WAITING)


def chosen_rectangle(contraction: GpuContraction) -> RectangleTiling:
    """Return the tiling with the least estimate."""
    assert isinstance(contraction.problem, ConvProblem)
    return _chosen(contraction.problem, _lanes(contraction), machine())


@functools.lru_cache(maxsize=256)
def _chosen(problem: ConvProblem, lanes: int, here: GpuMachine) -> RectangleTiling:
    return min(_tilings(problem, lanes), key=lambda tiling: _cycles(problem, lanes, tiling))


def _blocks(problem: ConvProblem, tiling: RectangleTiling) -> tuple[int, int]:
    """Return the blocks along the height and the width of an image."""
    _, tall, long = _volume(problem).out_lens
    return -(-tall // (tiling.high * tiling.turns)), -(-long // (tiling.strips * tiling.pixels))


def rectangle_solution(contraction: GpuContraction, tiling: RectangleTiling) -> Solution:
    """Return the launch of an applicable convolution; weights have the layout `weights.CHANNELS`.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    text = _RectangleText(contraction, tiling)
    lines, values, problem = text.lines(), text.arguments.values, contraction.problem
    epilogue = contraction.request.epilogue
    name = f"convolution_depthwise_patch_{problem.types.out}{'_' * bool(epilogue.name)}{epilogue.name}_kernel"
    grid = Grid((text.blocks, 1, 1), (text.threads, 1, 1), _shared(text.problem, text.patch))
    kernel = gpu_kernel(
        name, lines, text.threads, len(values), blocks=max(1, LEAST_RESIDENT // max(WARP, text.threads))
    )
    return Solution((Launch(kernel, values, grid, problem.flops, least_bytes(problem)),))


class _RectangleText(ContractionText):
    """Kernel text of one convolution. A plane of an operand is a channel: the first one of the thread's vector.

    The sizes of the rectangle, the filter and the patch are part of the text, those of the images are arguments.
    """

    def __init__(self, contraction: GpuContraction, tiling: RectangleTiling) -> None:
        super().__init__(contraction)
        problem = contraction.problem
        assert isinstance(problem, ConvProblem)
        self.problem, self.tiling = problem, tiling
        self.lanes, self.copied, self.few = _lanes(contraction), _copied(problem), problem.taps <= FEW_TAPS
        self.full, self.patch = _volume(problem), patch_under(problem, self.lanes, tiling)
        self.loaded = _loaded(problem)
        whole = self.loaded == self.copied
        self.at_once = 1 if whole else max(1, IN_FLIGHT * self.loaded // self.copied)
        self.threads = _threads(problem, self.lanes, tiling)
        self.across = self.patch.vectors * self.copied // self.lanes
        down, side = _blocks(problem, tiling)
        lens = [problem.batch, down, side, -(-_vectors(problem) // self.patch.vectors)]
        self.blocks = lens[0] * lens[1] * lens[2] * lens[3]
        full, pixels = self.full, self.patch.rows * self.patch.columns
        self.arguments.integers(
            all_channels=full.out_channels, vectors=full.in_channels // self.lanes, x_image=full.x_strides[0],
            loads=-(-pixels * self.patch.vectors // self.threads), turns=tiling.turns,
        )  # fmt: skip
        for axis, name in enumerate("yx", 1):
            self.arguments.integers(
                **{
                    f"len_{name}": full.in_lens[axis], f"pad_{name}": full.pads_begin[axis],
                    f"x_{name}": full.x_strides[axis + 1], f"out_{name}": full.out_lens[axis],
                }
            )  # fmt: skip
        self._space = Axes(self.arguments, "i", lens, [])
        self._cut = full.out_lens[2] % tiling.pixels != 0

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, tiling, patch, full = CodeBuffer(), self.tiling, self.patch, self.full
        buffer.line(*self.arguments.bind())
        image, down, side, chunk = self._space.split(buffer, "block_index(0)")
        buffer.line(
            "thread = thread_index(0)",
            f"chunk = {chunk}",
            f"pixel = idiv32(thread, {self.across})",
            f"own = thread - pixel * {self.across}",
            f"vector = chunk * {self.across} + own",
            f"plane = imin(vector, vectors - 1) * {self.lanes}",
            f"strip = idiv32(pixel, {tiling.high})",
            f"below = pixel - strip * {tiling.high}",
            f"first_y = {down} * {tiling.high * tiling.turns}",
            f"first_x = {side} * {tiling.strips * tiling.pixels}",
            f"image = {image}",
        )
        self._planes(buffer)
        buffer.line(
            f"first = idiv32(thread, {patch.vectors})",
            f"aside = thread - first * {patch.vectors}",
            f"channel = (chunk * {patch.vectors} + aside) * {self.copied}",
            f"patch = dynamic_{self.problem.types.a}(0)",
        )
        if not self.contraction.constant:
            buffer.line("grid_wait()")
        if self.few:
            buffer.line("r_taps = offset(p_w, plane)")
        else:
            self._copy_weights(buffer)
        rows = range(full.kernel[1] if self.few else 0)
        weights = [self._weights(buffer, str(row * full.kernel[2])) for row in rows]
        if self.contraction.constant:
            buffer.line("grid_wait()")
        self._copy(buffer)
        once = self._extras(buffer, "0", "0", self.lanes, True, ("per_n", "scalar"))[1]
        buffer.line("copy_commit()", "copy_wait(0)", "barrier()")
        place = f"below * {full.stride[1] * patch.pitch} + strip * {tiling.pixels * full.stride[2] * patch.vectors}"
        buffer.line(f"begin = ({place}) * {self.copied} + own * {self.lanes}")
        with buffer.block("for turn in range(turns):"):
            self._sums(buffer, weights)
            buffer.line(f"y = first_y + turn * {tiling.high} + below", f"x = first_x + strip * {tiling.pixels}")
            first = buffer.emit("(image * out_y + y) * out_x + x")
            buffer.line("there = (vector < vectors) & (y < out_y)")
            for p in range(tiling.pixels):
                with buffer.block(f"if there & (x + {p} < out_x):"):
                    at, own = self._extras(
                        buffer, buffer.emit(f"{first} + {p}"), "0", self.lanes, True, ("full", "per_m")
                    )
                    extras = [value for _, value in sorted({**once, **own}.items())]
                    self._put(buffer, at, self._finished(buffer, [f"sums{p}"], extras, self.lanes), self.lanes, True)
        return buffer.lines

    def _copy(self, buffer: CodeBuffer) -> None:
        """Emit the copies of the patch; pixels outside the image and channels behind the last are 0."""
        full, patch, per = self.full, self.patch, self.threads // self.patch.vectors
        at_once = self.at_once
        buffer.line(
            f"from_y = first_y * {full.stride[1]} - pad_y",
            f"from_x = first_x * {full.stride[2]} - pad_x",
            "r_image = offset(p_x, image * x_image)",
        )
        with buffer.block(f"for turn in range(idiv(loads + {at_once - 1}, {at_once})):"):
            found = []
            for k in range(at_once):
                item = buffer.emit(f"(turn * {at_once} + {k}) * {per} + first")
                row = buffer.emit(f"idiv32({item}, {patch.columns})")
                column = buffer.emit(f"{item} - {row} * {patch.columns}")
                y, x = buffer.emit(f"from_y + {row}"), buffer.emit(f"from_x + {column}")
                inside = buffer.emit(f"({y} >= 0) & ({y} < len_y) & ({x} >= 0) & ({x} < len_x)")
                to = buffer.emit(f"({row} * {patch.pitch} + {column} * {patch.vectors} + aside) * {self.copied}")
                found.append((f"({item} < {patch.rows * patch.columns})", to, f"{y} * x_y + {x} * x_x", inside))
            self._copy_vectors(buffer, "patch", "r_image", found)

    def _copy_weights(self, buffer: CodeBuffer) -> None:
        """Emit the copies of the weights of the block's channels, with zeros after the last channel."""
        patch, taps, per = self.patch, self.problem.taps, self.threads // self.patch.vectors
        buffer.line(f"taps = dynamic_{self.problem.types.b}({patch.bytes})")
        with buffer.block(f"for turn in range({-(-taps // (per * self.at_once))}):"):
            found = []
            for k in range(self.at_once):
                tap = buffer.emit(f"(turn * {self.at_once} + {k}) * {per} + first")
                to = buffer.emit(f"({tap} * {patch.vectors} + aside) * {self.copied}")
                found.append((f"({tap} < {taps})", to, f"{tap} * all_channels", f"({tap} < {taps})"))
            self._copy_vectors(buffer, "taps", "p_w", found)

    def _copy_vectors(
        self, buffer: CodeBuffer, shared: str, memory: str, found: Sequence[tuple[str, str, str, str]]
    ) -> None:
        """Emit the copies of vectors of the thread's channels.

        Args:
            found: of each vector, the condition that it is in ``shared``, its place there, the place of its pixel or
                tap in ``memory``, and the condition that ``memory`` has it; otherwise it is 0.
        """
        if self.loaded == self.copied:
            for there, to, place, inside in found:
                with buffer.block(f"if {there}:"):
                    own = f"{inside} & (channel < all_channels)"
                    buffer.line(f"copy_async({shared}, {to}, {memory}, {place} + channel, {own})")
            return
        dtype, size = self.problem.types.a, self.loaded
        values = []
        for there, _, place, inside in found:
            start = buffer.emit(f"where({there} & {inside}, {place}, 0)")
            parts = []
            for k in range(0, self.copied, size):
                own = buffer.emit(f"imin(channel + {k}, all_channels - {size})")
                value = buffer.emit(f"{_load(size)}({memory}, {start} + {own}, {size})")
                have = f"{there} & {inside} & (channel + {k} < all_channels)"
                parts.append(buffer.emit(f"where({have}, {value}, const_{dtype}(0, {size}))"))
            while len(parts) > 1:
                count = 4 if len(parts) % 4 == 0 else 2
                groups = (parts[k : k + count] for k in range(0, len(parts), count))
                parts = [buffer.emit(f"join{count}({', '.join(group)})") for group in groups]
            values.append(parts[0])
        for (there, to, *_), value in zip(found, values):
            with buffer.block(f"if {there}:"):
                buffer.line(f"store_aligned({shared}, {to}, {value})")

    def _weights(self, buffer: CodeBuffer, first: str) -> list[str]:
        """Emit the loads of the weights of a filter row whose first tap is ``first``."""
        found = []
        for t in range(self.full.kernel[2]):
            place = f"r_taps, ({first} + {t}) * all_channels"
            if not self.few:
                place = f"taps, ({first} + {t}) * {self.patch.vectors * self.copied} + own * {self.lanes}"
            found.append(buffer.emit(f"{_load(self.lanes)}({place}, {self.lanes})"))
        return found

    def _sums(self, buffer: CodeBuffer, weights: list[list[str]]) -> None:
        """Emit the accumulators ``sums<p>`` of each pixel p of the row of this turn.

        Args:
            weights: weights of each filter row; empty if the rows load them.
        """
        full, patch, tiling = self.full, self.patch, self.tiling
        for p in range(tiling.pixels):
            buffer.line(f"sums{p} = const_{self.accumulator}(0, {self.lanes})")
        line = tiling.high * full.stride[1] * patch.pitch * self.copied
        buffer.line(f"at = begin + turn * {line}")
        step = full.dilation[1] * patch.pitch * self.copied
        for row, own in enumerate(weights):
            self._row(buffer, f"at + {row * step}", own)
        if not weights:
            with buffer.block(f"for row in range({full.kernel[1]}):"):
                self._row(buffer, buffer.emit(f"at + row * {step}"), self._weights(buffer, f"row * {full.kernel[2]}"))

    def _row(self, buffer: CodeBuffer, at: str, weights: list[str]) -> None:
        """Emit the multiply-adds of a filter row, whose first pixel lies at ``at``."""
        full, acc = self.full, self.accumulator
        wide = [buffer.emit(f"cast_{acc}({w})") for w in weights]
        for column in tap_columns(full, self.tiling.pixels):
            place = f"{at} + {column * self.patch.vectors * self.copied}"
            value = buffer.emit(f"cast_{acc}({_load(self.lanes)}(patch, {place}, {self.lanes}))")
            for tap, w in enumerate(wide):
                p, rest = divmod(column - tap * full.dilation[2], full.stride[2])
                if rest == 0 and 0 <= p < self.tiling.pixels:
                    buffer.line(f"sums{p} = fma({value}, {w}, sums{p})")


def _load(lanes: int) -> str:
    """Return the name of the load of ``lanes`` neighbouring elements."""
    return "load_aligned" if lanes > 1 else "load"
