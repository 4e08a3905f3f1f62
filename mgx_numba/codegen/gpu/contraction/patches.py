"""Convolutions of few channels or few outputs on tensor cores of warps, with patches of the images in shared memory.

A block computes a rectangle of pixels of one image. It reads the patch under the rectangle once, and all taps read
their left fragments from there; the ring of slices holds weights alone. Of many channels it takes one chunk after
another.
Channels that are no whole vectors are padded with zeros in the patch, so that no other launch copies the images.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ....core.dim import Length
from ....dataclass import dataclass
from ...alternatives import has_lengths
from ...launch import Grid, Solution
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ..cluster.flat_index import whole_vectors, widest
from ..driver.device import known_architecture
from ..machine import machine, multiprocessors
from .cost import ARRIVAL, BEGINNING, not_below_memory
from .fma import shared_bytes
from .gpu_contraction import VECTOR_BYTES, GpuContraction
from .operands import Extent
from .ring import RingTile, ring_solution
from .tensor_cores import TensorText, product_refusal

STAGES = 3
"""Slices of weights in the ring; they come from L2."""
MOST_VECTORS = 1024
"""Most vectors of K in a chunk: two tables of 4 KiB hold where they lie."""
MOST_PATCH, MOST_CHUNK = 72 << 10, 256
"""Most bytes of a patch, such that three blocks share a multiprocessor, and most bytes of a chunk of channels."""
IN_FLIGHT = 16
"""Narrow loads of a patch that a thread makes before it stores the first vector."""
# Fitted to the times of 75 tiles of convolutions on an H200 (`bench.gpu_random --tiles`), with a mean error of 15%.
REUSE, BESIDE = 9.0, 50
"""Multiplications per cycle relative to those of ``mma.sync``, if reading a left fragment took no time; and the columns
whose products take as long as reading it."""
LOADING, STORED = 2.3, 4.3
"""Time of loads relative to that of their bytes at `ARRIVAL`, and accumulators/cycle that the epilogue stores."""
WAITING, STARTING = 3600, 250
"""Cycles of a block alone on its multiprocessor that a chunk takes beside its work: until its patch has arrived; and of
a block, for its tables."""
NARROW_ITEM, NARROW_LOAD, NARROW_WAIT = 0.4, 0.08, 1000
"""Cycles for a vector of a patch that is loaded in parts, 50 instructions of 32 lanes by four schedulers; for each part
of it, 10 instructions; and until loads arrive."""
MOST_PIXELS = 1 << 31
"""Pixels of a result that signed numbers of 32 bits do not count."""
WEIGHT_ROW = 144
"""Bytes of a row of weights in a slice: 128, and 16 so that successive rows start in other banks."""


@dataclass(frozen=True)
class ImagePatch:
    """The work of a block along the images.

    Attributes:
        high, wide: pixels of the result.
        down, side: blocks that cover the height and the width of an image.
        rows, columns: pixels of the image. Columns that a stride apart are neighbours in memory, so that the rows of a
            fragment are in different banks.
        vectors: 16-byte vectors of a pixel, in one chunk of channels.
        chunks: chunks of channels.
    """

    high: int
    wide: int
    down: int
    side: int
    rows: int
    columns: int
    vectors: int
    chunks: int

    @property
    def pitch(self) -> int:
        """Return the vectors from one pixel of the patch to the next: an odd number, for different banks."""
        return self.vectors | 1

    @property
    def bytes(self) -> int:
        """Return the bytes of the patch, and of a vector of zeros behind it."""
        return (self.rows * self.columns * self.pitch + 1) * VECTOR_BYTES


@functools.lru_cache(maxsize=1024)
def patch_of(problem: ConvProblem, pixels: int) -> ImagePatch | None:
    """Return the patch of blocks of up to ``pixels`` pixels that loads and multiplies least; None if none fits."""
    full, vectors = problem.volume(), -(-problem.group_in * ITEMSIZE[problem.types.a] // VECTOR_BYTES)
    (_, tall, long), (_, *steps) = full.out_lens, full.stride
    reach = [d * (k - 1) + 1 for d, k in zip(full.dilation[1:], full.kernel[1:])]
    least, found = float("inf"), None
    for wide in sorted({-(-long // n) for n in range(1, long + 1)}):
        if wide > pixels:
            break
        down = -(-tall // min(tall, pixels // wide))
        high, side = -(-tall // down), -(-long // wide)
        rows, columns = ((n - 1) * step + far for n, step, far in zip((high, wide), steps, reach))
        columns = -(-columns // steps[1]) * steps[1]
        weight = down * side * (pixels * problem.taps * 16 / machine().warp_products + 2 * rows * columns / ARRIVAL)
        if weight >= least:
            continue
        for each in range(min(vectors, MOST_CHUNK // VECTOR_BYTES), 0, -1):
            patch = ImagePatch(high, wide, down, side, rows, columns, each, vectors // each)
            if vectors % each == 0 and patch.bytes <= MOST_PATCH and problem.taps * each <= MOST_VECTORS:
                least, found = weight, patch
                break
    return found


def patch_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the kernel does not apply to a contraction; "" if it applies."""
    problem, arch = contraction.problem, known_architecture()
    if not isinstance(problem, ConvProblem):
        return "it is a matrix product"
    reason = product_refusal(contraction)
    if reason or problem.prologue is not None or problem.transposed or has_lengths(problem):
        return reason or "it is transposed, has a prologue, or lengths that are not known"
    if arch is not None and not (arch.nvidia and arch.copies):
        return f"{arch.name} has no asynchronous copies"
    full = problem.volume()
    if full.kernel[0] > 1 or full.in_lens[0] > 1 or full.out_lens[0] > 1:
        return "patches have two dimensions"
    if problem.group_in == 1 and problem.groups > 1:
        return "groups are single channels"
    if Extent.of(problem).rows >= MOST_PIXELS:
        return "more pixels than numbers of 32 bits"
    if _lanes(problem) < VECTOR_BYTES // ITEMSIZE[problem.types.a] and not contraction.constant:
        return "its weights are not constant and would be padded"
    return "" if patch_of(problem, PatchText.tiles[-1].rows) else "no patch fits the memory of a block"


def _lanes(problem: ConvProblem) -> int:
    """Return the elements of the widest vectors of which the channels of a group consist."""
    lanes = VECTOR_BYTES // ITEMSIZE[problem.types.a]
    return widest(lanes, lambda n: whole_vectors(n, problem.group_in, *problem.x_strides))


def patch_seconds(contraction: GpuContraction, tile: RingTile) -> float:
    """Return the estimated time (s) with a tile; infinite if it has no patch."""
    problem, text = contraction.problem, PatchText
    assert isinstance(problem, ConvProblem)
    patch = patch_of(problem, tile.rows)
    if patch is None:
        return float("inf")
    extent, size = Extent.of(problem), ITEMSIZE[problem.types.a]
    blocks = patch.down * patch.side * problem.batch * -(-extent.columns // tile.columns) * extent.planes
    shared = patch.bytes + text.table_bytes + STAGES * tile.columns * WEIGHT_ROW
    resident = max(1, shared_bytes() // shared)
    resident = min(resident, 8, 2048 // tile.threads // (4 if tile.columns > 32 else 2))
    depth = problem.taps * patch.vectors * VECTOR_BYTES // size
    multiplying = tile.rows * (tile.columns + BESIDE) * depth * size / (REUSE * machine().warp_products)
    loading = (patch.bytes + tile.columns * depth * size) / ARRIVAL * LOADING
    waiting = WAITING
    narrow = VECTOR_BYTES // size // _lanes(problem)
    if narrow > 1:
        items = patch.rows * patch.columns * patch.vectors
        loading += items * (NARROW_ITEM + narrow * NARROW_LOAD)
        waiting += -(-items * narrow // (tile.threads * IN_FLIGHT)) * NARROW_WAIT
    sharing = min(resident, -(-blocks // multiprocessors()))
    rounds = -(-blocks // (multiprocessors() * resident))
    storing = tile.rows * min(tile.columns, extent.columns) / STORED
    busy = patch.chunks * (multiplying + loading) + storing + STARTING
    cycles = rounds * max(sharing * busy, busy + patch.chunks * waiting)
    return not_below_memory(contraction, (cycles + BEGINNING) / machine().clock)


def patch_solution(contraction: GpuContraction, tile: RingTile) -> Solution:
    """Return the launch of an applicable convolution; weights have the layout `weights.COLUMNS`.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    text = PatchText(contraction, tile)
    return replace(ring_solution(text, "patch"), channels=text.channels)


class PatchText(TensorText):
    """Kernel text of one convolution.

    Attributes:
        channels: input channels of a group with their padding.
    """

    tiles = (
        RingTile(128, 128, 2, 4), RingTile(128, 64, 2, 2), RingTile(128, 32, 4, 1), RingTile(128, 16, 4, 1),
        RingTile(64, 64, 2, 2), RingTile(64, 32, 4, 1), RingTile(64, 16, 4, 1),
    )  # fmt: skip
    table_bytes = 2 * 4 * MOST_VECTORS

    def __init__(self, contraction: GpuContraction, tile: RingTile) -> None:
        super().__init__(contraction, tile, 1)
        problem = contraction.problem
        assert isinstance(problem, ConvProblem)
        patch = patch_of(problem, tile.rows)
        assert patch is not None
        self.problem, self.patch, self.narrow = problem, patch, _lanes(problem)
        self.channels = patch.chunks * patch.vectors * self.lanes
        self.stages = STAGES
        self.ring_bytes = STAGES * self.right_slot * self.size
        self.shared_bytes = max(self.ring_bytes + patch.bytes, ITEMSIZE[self.accumulator] * self._staged())
        total, full = problem.taps * patch.vectors, problem.volume()
        self.odd, self.whole = total % 2 == 1, total % (self.depth // self.lanes) == 0
        names = {
            "tiles": patch.down * patch.side, "side": patch.side, "high": patch.high, "wide": patch.wide,
            "patch_wide": patch.columns, "turn_x": patch.columns // full.stride[2],
            "pitch": patch.pitch * self.lanes, "chunks": patch.chunks,
            "chunk": patch.vectors * self.lanes, "vectors": patch.vectors, "total": total,
            "zero": patch.rows * patch.columns * patch.pitch * self.lanes, "row_w": problem.taps * self.channels,
            "padded": self.channels, "taps_x": full.kernel[2], "out_y": full.out_lens[1], "out_x": full.out_lens[2],
            "items": patch.rows * patch.columns * patch.vectors,
            "x_image": full.x_strides[0],
        }  # fmt: skip
        for axis, name in enumerate("yx", 1):
            names |= {
                f"step_{name}": full.stride[axis], f"reach_{name}": full.dilation[axis],
                f"len_{name}": full.in_lens[axis], f"pad_{name}": full.pads_begin[axis],
                f"x_{name}": full.x_strides[axis + 1],
            }  # fmt: skip
        self.arguments.integers(**names)

    def _tiles(self, rows: int, columns: int) -> int:
        return self.patch.down * self.patch.side * self.problem.batch * -(-self.operands.columns // columns)

    def grid(self, blocks: Length) -> Grid:
        """Return the grid: the groups of a rectangle are neighbours, because several of them share a line of memory."""
        return Grid((blocks * self.problem.groups, 1, 1), (self.tile.threads, 1, 1), self.shared_bytes)

    def _begin_plane(self, buffer: CodeBuffer, blocks: Length) -> str:
        groups = self.arguments.integer("groups", self.problem.groups)
        buffer.line(
            *self.arguments.bind(),
            "thread = thread_index(0)",
            f"block = idiv(block_index(0), {groups})",
            f"plane = block_index(0) - block * {groups}",
        )
        self.operands.begin(buffer)
        self._planes(buffer)
        return "block"

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, tile, types = CodeBuffer(), self.tile, self.problem.types
        table = MOST_VECTORS + self.depth // self.lanes
        self._begin(buffer, tile.rows, tile.columns)
        buffer.line(
            "r_w = offset(p_w, plane * columns * row_w)",
            f"ring_b = dynamic_{types.b}(0)",
            f"ring_a = dynamic_{types.a}({self.ring_bytes})",
            f"staged = dynamic_{self.accumulator}(0)",
            f"near = shared_int32({table})",
            f"far = shared_int32({table})",
            f"places = shared_int32({tile.rows})",
            f"warp = idiv(thread, {tile.wave})",
            f"lane = thread - warp * {tile.wave}",
            "half = idiv(lane, 16)",
            "image = idiv32(down, tiles)",
            "down = down - image * tiles",
            "first_y = idiv32(down, side)",
            "first_x = (down - first_y * side) * wide",
            "first_y = first_y * high",
        )
        self._start(buffer)
        self._tables(buffer)
        self._pixels = [self._pixel(buffer, f"warp_row + {16 * i} + imod(lane, 16)")[2] for i in range(self.high // 16)]
        right = self._right_places(buffer)
        buffer.line(f"own_part = idiv({right[0][2]}, {self.lanes})", "barrier()")
        with buffer.block("for number in range(chunks):"):
            buffer.line("channel = number * chunk")
            self._load_patch(buffer)
            self._sums(buffer, right)
        self._finish(buffer)
        return buffer.lines

    def _pixel(self, buffer: CodeBuffer, row: str) -> tuple[str, str, str]:
        """Emit the indices of a tile's row in the block's rectangle, and its offset in the patch."""
        y = buffer.emit(f"idiv32({row}, wide)")
        x = buffer.emit(f"{row} - {y} * wide")
        place = buffer.emit(f"(imin({y}, high - 1) * step_y * patch_wide + {x}) * pitch")
        return y, x, buffer.emit(f"{place} - zero") if self.odd else place

    def _tables(self, buffer: CodeBuffer) -> None:
        """Emit the tables of where vectors of K lie in the patch (``near``) and in a row of weights (``far``), -1
        behind the last; and of the results' rows of the tile's rows (``places``)."""
        threads, slice = self.tile.threads, self.depth // self.lanes
        with buffer.block(f"for turn in range(idiv32(total + {slice + threads - 1}, {threads})):"):
            buffer.line(f"item = turn * {threads} + thread")
            with buffer.block(f"if item < total + {slice}:"):
                buffer.line(
                    "tap = idiv32(item, vectors)",
                    f"along = (item - tap * vectors) * {self.lanes}",
                    "tap_y = idiv32(tap, taps_x)",
                    "inside = imin(imax(total - item, 0), 1)",
                    "tap_x = (tap - tap_y * taps_x) * reach_x",
                    f"moved = (tap_y * reach_y * patch_wide + {self._in_turns('tap_x')}) * pitch + along",
                    "store_scalar(near, item, cast_int32(inside * (moved + 1) - 1))",
                    "store_scalar(far, item, cast_int32(inside * (tap * padded + along + 1) - 1))",
                )
        with buffer.block(f"if thread < {self.tile.rows}:"):
            y, x, _ = self._pixel(buffer, "thread")
            buffer.line(
                f"y = first_y + {y}",
                f"x = first_x + {x}",
                "row = (image * out_y + y) * out_x + x",
            )
            with buffer.block(f"if ({y} >= high) | (y >= out_y) | (x >= out_x):"):
                buffer.line("row = rows")
            buffer.line("store_scalar(places, thread, cast_int32(row))")
        if self.odd:
            with buffer.block("if thread == 0:"):
                buffer.line(f"store_aligned(ring_a, zero, const_{self.problem.types.a}(0, {self.lanes}))")

    def _load_patch(self, buffer: CodeBuffer) -> None:
        """Emit the copies of a chunk of the patch; pixels outside the image and channels behind the last are 0."""
        copied, threads = self.narrow == self.lanes, self.tile.threads
        at_once = 1 if copied else max(1, IN_FLIGHT * self.narrow // self.lanes)
        with buffer.block(f"for turn in range(idiv32(items + {at_once * threads - 1}, {at_once * threads})):"):
            found = []
            for k in range(at_once):
                item = buffer.emit(f"(turn * {at_once} + {k}) * {threads} + thread")
                pixel, along = item, "0"
                if self.patch.vectors > 1:
                    pixel = buffer.emit(f"idiv32({item}, vectors)")
                    along = buffer.emit(f"({item} - {pixel} * vectors) * {self.lanes}")
                below = buffer.emit(f"idiv32({pixel}, patch_wide)")
                own = buffer.emit(f"{pixel} - {below} * patch_wide")
                y = buffer.emit(f"first_y * step_y - pad_y + {below}")
                x = buffer.emit(f"first_x * step_x - pad_x + {own}")
                inside = f"({y} >= 0) & ({y} < len_y) & ({x} >= 0) & ({x} < len_x)"
                to = buffer.emit(f"({below} * patch_wide + {self._in_turns(own)}) * pitch + {along}")
                if copied:
                    place = f"image * x_image + {y} * x_y + {x} * x_x + channel + {along}"
                    with buffer.block(f"if {item} < items:"):
                        buffer.line(f"copy_async(ring_a, {to}, r_x, {place}, {inside})")
                    continue
                inside = buffer.emit(f"{inside} & ({item} < items)")
                y, x = (buffer.emit(f"imin(imax({at}, 0), len_{name} - 1)") for at, name in ((y, "y"), (x, "x")))
                first = buffer.emit(f"imin(channel + {along}, padded - {self.lanes})")
                place = buffer.emit(f"image * x_image + {y} * x_y + {x} * x_x + {first}")
                found.append((item, to, self._narrow_vector(buffer, inside, place, first)))
            for item, to, value in found:
                with buffer.block(f"if {item} < items:"):
                    buffer.line(f"store_aligned(ring_a, {to}, {value})")

    def _narrow_vector(self, buffer: CodeBuffer, inside: str, place: str, first: str) -> str:
        """Return the vector at offset ``place`` of the images, from narrow loads; ``first``: its first channel."""
        narrow, load = self.narrow, f"load{'_aligned' * (self.narrow > 1)}"
        rest = self.problem.group_in % self.lanes or self.lanes
        zero = f"const_{self.problem.types.a}(0, {narrow})"
        within, apart = inside, "1"
        if rest < self.lanes < self.problem.group_in:  # the last vector ends with zeros
            apart = buffer.emit(f"imin(imax(channels - {first} - {self.lanes - 1}, 0), 1)")
            within = buffer.emit(f"{inside} & ({apart} > 0)")
        parts = []
        for k in range(0, self.lanes, narrow):
            if k < rest:
                loaded = buffer.emit(f"{load}(r_x, {place} + {k}, {narrow})")
                parts.append(buffer.emit(f"where({inside}, {loaded}, {zero})"))
            elif self.lanes < self.problem.group_in:
                loaded = buffer.emit(f"{load}(r_x, {place} + {k} * {apart}, {narrow})")
                parts.append(buffer.emit(f"where({within}, {loaded}, {zero})"))
            else:
                parts.append(zero)
        while len(parts) > 1:
            count = 4 if len(parts) % 4 == 0 else 2
            groups = (parts[k : k + count] for k in range(0, len(parts), count))
            parts = [buffer.emit(f"join{count}({', '.join(group)})") for group in groups]
        return parts[0]

    def _sums(self, buffer: CodeBuffer, right: list[tuple[str, str, str]]) -> None:
        """Emit the products of a chunk; slices of weights are copied ahead."""
        slice = self.depth // self.lanes
        with buffer.block(f"for stage in range({STAGES - 1}):"):
            self._copy_weights(buffer, right, f"stage * {slice}", "stage")
        buffer.line("start = 0", "slot = 0", f"free = {STAGES - 1}")
        with buffer.block("while start < total:"):
            buffer.line(f"copy_wait({STAGES - 2})", "barrier()")
            self._copy_weights(buffer, right, f"start + {(STAGES - 1) * slice}", "free")
            buffer.line(f"slice_b = slot * {self.right_slot} + own_b")
            self._multiply(buffer)
            buffer.line("free = slot", "slot = slot + 1")
            with buffer.block(f"if slot == {STAGES}:"):
                buffer.line("slot = 0")
            buffer.line(f"start = start + {slice}")
        buffer.line("copy_wait(0)", "barrier()")

    def _copy_weights(self, buffer: CodeBuffer, right: list[tuple[str, str, str]], start: str, slot: str) -> None:
        """Emit the copies of the slice of weights at vector ``start`` of the chunk."""
        begin = buffer.emit(start)
        with buffer.block(f"if {begin} < total:"):
            place = buffer.emit(f"cast_int64(load_scalar(far, {begin} + own_part))")
            for home, column, _ in right:
                n = buffer.emit(f"first_column + {column}")
                source = f"{n} * row_w + channel + {place}"
                to = f"{slot} * {self.right_slot} + {home}"
                buffer.line(f"copy_async(ring_b, {to}, r_w, {source}, ({place} >= 0) & ({n} < columns))")
        buffer.line("copy_commit()")

    def _multiply(self, buffer: CodeBuffer) -> None:
        for step in range(self.form.words // 8):
            if self.whole or not step:
                self._at(buffer, step)
                continue
            with buffer.block(f"if start + {2 * step} < total:"):
                self._at(buffer, step)

    def _at(self, buffer: CodeBuffer, step: int) -> None:
        """Emit the MMAs of a step, with this lane's place of K in the patch."""
        buffer.line(f"at = cast_int64(load_scalar(near, start + half + {2 * step}))")
        if self.odd:
            buffer.line("valid = imin(at + 1, 1)")
        self._step(buffer, self.high // 16, self.tile.columns // self.tile.across // 8, step)

    def _left_place(self, i: int, step: int) -> str:
        place = f"{self._pixels[i]} + at"
        return f"zero + valid * ({place})" if self.odd else place

    def _result_row(self, row: str) -> str:
        return f"cast_int64(load_scalar(places, {row}))"

    def _in_turns(self, column: str) -> str:
        """Return the place of a patch's column in its row: columns a stride apart are neighbours."""
        if self.problem.stride[-1] == 1:
            return column
        return f"(idiv32({column}, step_x) + ({column} - idiv32({column}, step_x) * step_x) * turn_x)"
