"""Copy images into padded or blocked pixels: zero channels, and several pixels as one (im2row, space-to-depth).

A block produces a tile of pixels of neighbouring image rows. It loads the pixels under the tile, along the image's
contiguous axis (pixels or channels), into shared memory with their zero channels, and stores whole vectors from there.
One pixel can be part of several output pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import known_equal, known_in
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ..cluster.flat_index import Axes
from ..kernel import gpu_launch
from ..printer import dtype_name, most_lanes

THREADS = 256
"""Most threads per block. ResNet-50's 32 images become 51 MB of float16 in 17 us on an H200; a copy of as many bytes
takes 14. No figures kept of other values."""
PIXELS = 16
"""Tile width in pixels, if a tile has several image rows. Narrower tiles load more pixels twice, wider ones exceed
image rows further. No figures kept of other values."""
VECTORS = 4
"""Output vectors per thread. No figures kept."""
MOST_HELD = 32
"""Most elements that a thread loads at once, one register each. No figures kept."""


def channel_padding_launch(
    data: Tensor,
    out: Tensor,
    own_channels: int,
    before: Sequence[int],
    step: Sequence[int],
    block: Sequence[int],
    taken: int,
    origin: str,
) -> Launch:
    """Return the launch that copies ``x`` [image, channel, *spatial] (any strides) to ``out``, packed channels-last.

    Args:
        own_channels: channels per input pixel after zero padding: a power of two, or whole 16-byte vectors.
        before, step, block: per spatial axis; pixel p of ``out`` holds ``block`` input pixels from ``p * step -
            before``. Pixels outside ``x`` are zeros. Axes before the last two must be copied unchanged.
        taken: input pixels of a block's last axis that are copied; the rest are zeros.
    """
    return _ChannelPaddingText(data, out, own_channels, before, step, block, taken).launch(origin)


class _ChannelPaddingText:
    """Kernel text of one launch.

    Attributes:
        own: padded channels per input pixel.
        piece, pieces: elements per store to shared memory (a vector or less), and pieces per input pixel.
        beside: whether an input pixel's channels are contiguous.
        read: neighbouring channels per load.
        lanes, vectors: elements per output vector, and vectors per output pixel.
        aside: vectors of an output pixel that threads store at once.
        at_once: output pixels whose vectors threads store at once.
        lines, pixels: image rows and pixels per row of an output tile.
        high, wide: the same of the input pixels under it.
    """

    def __init__(
        self,
        data: Tensor,
        out: Tensor,
        own_channels: int,
        before: Sequence[int],
        step: Sequence[int],
        block: Sequence[int],
        taken: int,
    ) -> None:
        self.data, self.out, self.own, self.taken = data, out, own_channels, taken
        self.dtype, most = dtype_name(data.type), most_lanes(data.type.size)
        self.piece, self.lanes = min(most, own_channels), min(most, out.lens[1])
        self.pieces, self.vectors = own_channels // self.piece, out.lens[1] // self.lanes
        self.beside = known_in(data.strides[1], 1)
        apart = data.lens[1], data.offset, data.strides[0], *data.strides[2:]
        self.read = self.piece if self.beside else 1
        while any(not known_equal(n % self.read, 0) for n in apart):
            self.read //= 2
        self.steps, self.block = (1, *step)[-2:], (1, *block)[-2:]
        lines, across = (1, *out.lens[2:])[-2:]
        self.aside = min(self.vectors, THREADS)
        self.at_once = 1 << (THREADS // self.aside).bit_length() - 1
        self.threads = self.aside * self.at_once
        held = MOST_HELD // self.piece * self.threads
        self.pixels, self.lines = PIXELS, 1  # whatever the lengths: kernels are for any
        while self.pixels > 1 and self.loaded > held:
            self.pixels //= 2
        down = 2 if len(out.lens) > 3 else 1
        while 2 * self.lines * self.pixels * self.vectors <= VECTORS * self.threads:
            self.lines, self.pixels = self.lines * down, self.pixels * 2 // down
            if self.loaded > held:
                self.lines, self.pixels = self.lines // down, self.pixels * down // 2
                break
        self.bands, self.segments = -(-lines // self.lines), -(-across // self.pixels)
        self.arguments = Arguments()
        for name in ("x", "out"):
            self.arguments.pointer(f"p_{name}", name, self.dtype)
        self.arguments.integers(lines=lines, across=across, bands=self.bands, segments=self.segments)
        rank = len(out.lens) - 2
        axes = [0, *range(2, max(2, rank))]
        self.outer = Axes(self.arguments, "", [out.lens[a] for a in axes], [[data.strides[a] for a in axes]])
        self.planes = prod(out.lens[a] for a in axes)
        spatial = zip("yx", (0, *before)[-2:], (1, *data.lens[2:])[-2:], (0, *data.strides[2:])[-2:])
        self.numbers = [
            (
                self.arguments.integer(f"before_{axis}", first),
                self.arguments.integer(f"length_{axis}", length),
                str(apart) if apart in (0, 1) else self.arguments.integer(f"apart_{axis}", apart),
            )
            for axis, first, length, apart in spatial
        ]
        self.apart = self.arguments.integer("apart", data.strides[1])

    @property
    def high(self) -> int:
        """See the class."""
        return (self.lines - 1) * self.steps[0] + self.block[0]

    @property
    def wide(self) -> int:
        """See the class."""
        return (self.pixels - 1) * self.steps[1] + self.taken

    @property
    def loaded(self) -> int:
        """Return the loads per block."""
        return self.high * self.wide * self.pieces

    def launch(self, origin: str) -> Launch:
        """Return the launch."""
        buffer = CodeBuffer()
        buffer.line(
            *self.arguments.bind(),
            "thread = thread_index(0)",
            "place = idiv32(block_index(0), segments)",
            f"first_pixel = (block_index(0) - place * segments) * {self.pixels}",
            "plane = idiv32(place, bands)",
            f"first_line = (place - plane * bands) * {self.lines}",
            f"tile = shared_{self.dtype}({self.loaded * self.piece})",
            f"zeros = const_{self.dtype}(0, {self.piece})",
        )
        self._load(buffer)
        buffer.line("barrier()")
        self._store(buffer)
        name, moved = "filled_channels_kernel", self.data.footprint + self.out.footprint
        blocks = self.planes * self.bands * self.segments
        return gpu_launch(name, buffer.lines, self.arguments, blocks, self.threads, moved, origin=origin)

    def _load(self, buffer: CodeBuffer) -> None:
        """Emit the loads of input pixels, and then their stores to shared memory."""
        rounds = -(-self.loaded // self.threads)
        together = min(rounds, MOST_HELD // self.piece)
        for axis, (before, *_), step, first in zip("yx", self.numbers, self.steps, ("line", "pixel")):
            buffer.line(f"origin_{axis} = first_{first} * {step} - {before}")
        buffer.line(f"base = {self.outer.offset(0, self.outer.split(buffer, 'plane'))}")
        with buffer.block(f"for turn in range({-(-rounds // together)}):"):
            loaded = []
            for k in range(together):
                number = buffer.emit(f"(turn * {together} + {k}) * {self.threads} + thread")
                loaded.append((number, *self._piece(buffer, k, number)))
            for number, place, value in loaded:
                with buffer.block(f"if {number} < {self.loaded}:"):
                    buffer.line(f"store_aligned(tile, {place}, {value})")

    def _piece(self, buffer: CodeBuffer, turn: int, number: str) -> tuple[str, str]:
        """Emit the loads of one piece, in the order of image rows, pieces of a pixel, pixels; where channels are
        contiguous, in that of pixels and their pieces.

        Returns:
            its offset in the tile, and its value.
        """
        inner, outer = (self.pieces, self.wide) if self.beside else (self.wide, self.pieces)
        row = buffer.emit(f"idiv32({number}, {inner})")
        pixel, piece = buffer.emit(f"{number} - {row} * {inner}"), "0"
        if self.pieces > 1 or self.beside:
            whole = buffer.emit(f"idiv32({row}, {outer})")
            row, piece = whole, buffer.emit(f"{row} - {whole} * {outer}")
        if self.beside:
            pixel, piece = piece, pixel
        place = buffer.emit(f"({row} * {self.wide} + {pixel}) * {self.own} + {piece} * {self.piece}")
        conditions, offsets = [], ["base"]
        for axis, index, (_, length, apart) in zip("yx", (row, pixel), self.numbers):
            at = buffer.emit(f"origin_{axis} + {index}")
            conditions.append(f"({at} >= 0) & ({at} < {length})")
            offsets.append(f"{at} * {apart}")
        inside, start = buffer.emit(" & ".join(conditions)), f"start{turn}"
        buffer.line(f"{start} = 0")
        with buffer.block(f"if {inside}:"):
            buffer.line(f"{start} = {' + '.join(offsets)}")
        elements, channels = [], self.data.lens[1]
        load = "load_aligned" if self.read > 1 else "load"
        zero = buffer.emit(f"const_{self.dtype}(0, {self.read})")
        for c in range(0, self.piece, self.read):
            if self.pieces == 1 and c >= channels:
                elements.append(zero)
                continue
            channel, seen = str(c), inside
            if self.pieces > 1:
                channel = buffer.emit(f"{piece} * {self.piece} + {c}")
                seen = buffer.emit(f"{inside} & ({channel} < {channels})")
                channel = buffer.emit(f"imin({channel}, {channels - self.read})")
            value = f"{load}(p_x, {start} + {channel} * apart, {self.read})"
            elements.append(buffer.emit(f"where({seen}, {value}, {zero})"))
        return place, _joined(buffer, elements)

    def _store(self, buffer: CodeBuffer) -> None:
        """Emit the output vectors; differences between a thread's vectors are immediates of the text."""
        buffer.line(f"number = idiv32(thread, {self.aside})")
        buffer.line(f"vector = thread - number * {self.aside}")
        buffer.line(f"line = idiv32(number, {self.pixels})")
        buffer.line(f"pixel = number - line * {self.pixels}")
        lines, pixels = max(1, self.at_once // self.pixels), min(self.at_once, self.pixels)
        with buffer.block(f"for more in range({-(-self.vectors // self.aside)}):"):
            buffer.line(f"own = vector + more * {self.aside}")
            pieces = [self._place(buffer, lane) for lane in range(0, self.lanes, self.piece)]
            with (
                buffer.block(f"for down in range({-(-self.lines // lines)}):"),
                buffer.block(f"for right in range({self.pixels // pixels}):"),
            ):
                buffer.line(f"below = line + down * {lines}")
                buffer.line(f"beside = pixel + right * {pixels}")
                inside = "(first_line + below < lines) & (first_pixel + beside < across)"
                if lines > self.lines:
                    inside += f" & (below < {self.lines})"
                if self.vectors % self.aside:
                    inside += f" & (own < {self.vectors})"
                with buffer.block(f"if {inside}:"):
                    corner = f"(below * {self.steps[0] * self.wide} + beside * {self.steps[1]}) * {self.own}"
                    values = [self._taken(buffer, f"{corner} + {place}", there) for place, there in pieces]
                    place = "(plane * lines + first_line + below) * across + first_pixel + beside"
                    value = _joined(buffer, values)
                    buffer.line(f"store_aligned(p_out, ({place}) * {self.out.lens[1]} + own * {self.lanes}, {value})")

    def _place(self, buffer: CodeBuffer, lane: int) -> tuple[str, str]:
        """Emit the shared-memory offset of a piece of the thread's vector, and the condition that it exists."""
        row = self.block[1] * self.own
        element = buffer.emit(f"own * {self.lanes} + {lane}")
        if self.vectors % self.aside:
            element = buffer.emit(f"imin({element}, {self.out.lens[1] - self.piece})")
        line = buffer.emit(f"idiv32({element}, {row})")
        inside = buffer.emit(f"{element} - {line} * {row}")
        pixel = buffer.emit(f"idiv32({inside}, {self.own})")
        near = buffer.emit(f"imin({pixel}, {self.taken - 1})")
        place = buffer.emit(f"({line} * {self.wide} + {near} - {pixel}) * {self.own} + {inside}")
        return place, f"{pixel} == {near}" if self.taken < self.block[1] else ""

    def _taken(self, buffer: CodeBuffer, place: str, there: str) -> str:
        """Emit the load of a piece from shared memory, zeros if ``there`` is false."""
        value = buffer.emit(f"load_aligned(tile, {place}, {self.piece})")
        return buffer.emit(f"where({there}, {value}, zeros)") if there else value


def _joined(buffer: CodeBuffer, values: list[str]) -> str:
    """Emit the concatenation of a power of two of vectors."""
    while len(values) > 1:
        values = [buffer.emit(f"join2({values[k]}, {values[k + 1]})") for k in range(0, len(values), 2)]
    return values[0]
