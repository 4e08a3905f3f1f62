"""Images with more channels and other pixels than they have: zeros besides their own, and several pixels as one.

A block makes a tile of pixels of neighbouring lines. It brings the images' pixels below it, along which memory lies in
most images, to its own memory, each with its zeros, and has whole vectors from there: a pixel may be in several of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ....core.types import Type
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ..cluster.indexing import Axes
from ..kernel import gpu_grid, gpu_kernel
from ..printer import dtype_name, most_lanes

__all__ = ["filled_channels_launch"]

THREADS = 256
"""Threads of a block, and pixels of the images that a block brings at once. No figures kept."""
WIDTHS = (16, 32, 64, 128)
"""Pixels of a tile along a line. Narrower ones bring more twice, wider ones may end beyond a line. No figures kept."""
VECTORS = 4
"""Those that each thread makes of a tile. No figures kept."""
MOST_HELD = 32
"""Elements that a thread brings together, a register each. No figures kept."""


@dataclass(frozen=True)
class _Tile:
    """What a block makes.

    Attributes:
        lines, pixels: of the result.
        high, wide: pixels of the images that are below a line of it.
        pieces: parts of a pixel of the images, each a vector or less, of ``lanes`` elements.
        lanes: a power of two.
    """

    lines: int
    pixels: int
    high: int
    wide: int
    pieces: int
    lanes: int

    @property
    def brought(self) -> int:
        """Pieces that a block brings."""
        return self.lines * self.high * self.wide * self.pieces

    @property
    def elements(self) -> int:
        """Those that it has in its memory."""
        return self.brought * self.lanes


def _tile(type: Type, own_channels: int, out: Tensor, step: Sequence[int], block: Sequence[int], taken: int) -> _Tile:
    """The tile of a result."""
    across, most = out.lens[-1], most_lanes(type.size)
    lanes = min(most, own_channels)

    def tile(pixels: int, lines: int = 1) -> _Tile:
        wide = (pixels - 1) * step[-1] + taken
        return _Tile(lines, pixels, prod(block[:-1]), wide, own_channels // lanes, lanes)

    pixels = max(WIDTHS, key=lambda p: (across / (-(-across // p) * p), p))
    held = MOST_HELD // lanes * THREADS
    while pixels > 1 and tile(pixels).brought > held:
        pixels //= 2
    vectors = pixels * out.lens[1] // min(most, out.lens[1])
    all_lines = prod(out.lens) // (out.lens[1] * across)
    return tile(pixels, max(1, min(VECTORS * THREADS // vectors, held // tile(pixels).brought, all_lines)))


def filled_channels_launch(
    data: Tensor,
    out: Tensor,
    own_channels: int,
    before: Sequence[int],
    step: Sequence[int],
    block: Sequence[int],
    taken: int,
    origin: str,
) -> Launch:
    """``x`` [image, channel, *spatial] of any strides to ``out``, whose elements follow one another, channels first.

    Pixel p of ``out`` along a spatial dimension has ``block`` of those of ``x``, from ``p * step - before`` on, each
    with zeros behind its channels up to ``own_channels``; pixels that ``x`` does not have are zeros, and so are all but
    the first ``taken`` of the block along the last dimension. ``own_channels``, and channels of ``out``, are a power of
    two or whole vectors of 16 bytes.
    """
    return _FilledText(data, out, own_channels, before, step, block, taken).launch(origin)


class _FilledText:
    """The text of one launch."""

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
        self.data, self.out, self.own, self.block, self.taken = data, out, own_channels, block, taken
        self.step = step[-1]
        self.tile = _tile(data.type, own_channels, out, step, block, taken)
        self.dtype = dtype_name(data.type)
        self.lanes = min(most_lanes(data.type.size), out.lens[1])
        self.vectors = out.lens[1] // self.lanes
        across = out.lens[-1]
        self.lines = prod(out.lens) // (out.lens[1] * across)
        self.segments = -(-across // self.tile.pixels)
        self.arguments = Arguments()
        for name in ("x", "out"):
            self.arguments.pointer(f"p_{name}", name, self.dtype)
        self.arguments.integers(lines=self.lines, across=across, segments=self.segments, apart=data.strides[1])
        outer = [out.lens[0], *out.lens[2:-1]]
        self.outer = Axes(self.arguments, "", outer, [])
        self.arguments.integer("images_apart", data.strides[0])
        self.numbers = [
            {n: self.arguments.integer(f"{n}{d}", v) for n, v in zip(("first", "step", "length", "along"), values)}
            for d, values in enumerate(zip(before, step, data.lens[2:], data.strides[2:]))
        ]

    def launch(self, origin: str) -> Launch:
        """The launch."""
        tile, buffer = self.tile, CodeBuffer()
        for line in (
            *self.arguments.bind(),
            "thread = thread_index(0)",
            "band = idiv32(block_index(0), segments)",
            f"first_line = band * {tile.lines}",
            f"first_pixel = (block_index(0) - band * segments) * {tile.pixels}",
            f"tile = shared_{self.dtype}({tile.elements})",
            f"zero = const_{self.dtype}(0, 1)",
            f"zeros = const_{self.dtype}(0, {tile.lanes})",
        ):
            buffer.line(line)
        rounds = -(-tile.brought // THREADS)
        together = min(rounds, MOST_HELD // tile.lanes)
        with buffer.block(f"for turn in range({-(-rounds // together)}):"):
            brought = []
            for k in range(together):
                number = buffer.emit(f"(turn * {together} + {k}) * {THREADS} + thread")
                brought.append((number, *self._bring(buffer, f"imin({number}, {tile.brought - 1})")))
            for number, place, value in brought:
                with buffer.block(f"if {number} < {tile.brought}:"):
                    buffer.line(f"store_aligned(tile, {place}, {value})")
        buffer.line("barrier()")
        count = tile.lines * tile.pixels * self.vectors
        with buffer.block(f"for turn in range({-(-count // THREADS)}):"):
            self._store(buffer, buffer.emit(f"turn * {THREADS} + thread"), count % THREADS != 0)
        kernel = gpu_kernel("filled_channels_kernel", buffer.lines, THREADS, len(self.arguments.values), origin)
        grid = gpu_grid(-(-self.lines // tile.lines) * self.segments, THREADS)
        return Launch(kernel, self.arguments.values, grid, 0, self.data.footprint + self.out.footprint)

    def _bring(self, buffer: CodeBuffer, number: str) -> tuple[str, str]:
        """Emit the loads of a piece of a pixel of the images: in the order of lines of the result, lines of the images
        below it, pieces, pixels. Gives its place in the tile, and the piece."""
        tile = self.tile
        number = buffer.emit(number)
        row = buffer.emit(f"idiv32({number}, {tile.wide})")
        pixel, piece = buffer.emit(f"{number} - {row} * {tile.wide}"), "0"
        if tile.pieces > 1:
            whole = buffer.emit(f"idiv32({row}, {tile.pieces})")
            row, piece = whole, buffer.emit(f"{row} - {whole} * {tile.pieces}")
        place = buffer.emit(f"({row} * {tile.wide} + {pixel}) * {self.own} + {piece} * {tile.lanes}")
        line, inner = row, "0"
        if tile.high > 1:
            line = buffer.emit(f"idiv32({row}, {tile.high})")
            inner = buffer.emit(f"{row} - {line} * {tile.high}")
        line = buffer.emit(f"imin(first_line + {line}, lines - 1)")
        image, *places = self.outer.split(buffer, line)
        conditions, offsets = [], [f"{image} * images_apart"]
        for d in reversed(range(len(self.numbers))):
            n = self.numbers[d]
            if d == len(self.numbers) - 1:
                at = f"first_pixel * {self.step} + {pixel}"
            else:
                own = inner
                if d:
                    inner = buffer.emit(f"idiv32({own}, {self.block[d]})")
                    own = f"{own} - {inner} * {self.block[d]}"
                at = f"{places[d]} * {n['step']} + {own}"
            at = buffer.emit(f"{at} - {n['first']}")
            near = buffer.emit(f"imin(imax({at}, 0), {n['length']} - 1)")
            conditions.append(f"({at} == {near})")
            offsets.append(f"{near} * {n['along']}")
        inside = buffer.emit(" & ".join(conditions))
        start = buffer.emit(" + ".join(offsets))
        channels, elements = self.data.lens[1], []
        for c in range(tile.lanes):
            if tile.pieces == 1 and c >= channels:
                elements.append("zero")
                continue
            channel, seen = str(c), inside
            if tile.pieces > 1:
                channel = buffer.emit(f"{piece} * {tile.lanes} + {c}")
                seen = buffer.emit(f"{inside} & ({channel} < {channels})")
                channel = buffer.emit(f"imin({channel}, {channels - 1})")
            elements.append(buffer.emit(f"where({seen}, load(p_x, {start} + {channel} * apart, 1), zero)"))
        return place, _joined(buffer, elements)

    def _store(self, buffer: CodeBuffer, number: str, beyond: bool) -> None:
        """Emit a vector of the result, by its number in the tile; it may be one ``beyond``."""
        tile = self.tile
        place = buffer.emit(f"idiv32({number}, {self.vectors})")
        vector = buffer.emit(f"{number} - {place} * {self.vectors}")
        line = buffer.emit(f"idiv32({place}, {tile.pixels})")
        pixel = buffer.emit(f"{place} - {line} * {tile.pixels}")
        pieces, row = [], self.block[-1] * self.own
        partly = self.taken < self.block[-1]
        own = buffer.emit(f"imin({line}, {tile.lines - 1})") if beyond else line
        for lane in range(0, self.lanes, tile.lanes):
            element = buffer.emit(f"{vector} * {self.lanes} + {lane}")
            inner = buffer.emit(f"idiv32({element}, {row})") if tile.high > 1 else "0"
            inside = buffer.emit(f"{element} - {inner} * {row}")
            aside = buffer.emit(f"idiv32({inside}, {self.own})")
            near = buffer.emit(f"imin({aside}, {self.taken - 1})") if partly else aside
            piece = f"{inside} - {aside} * {self.own}" if tile.pieces > 1 else "0"
            start = f"(({own} * {tile.high} + {inner}) * {tile.wide} + {pixel} * {self.step} + {near}) * {self.own}"
            value = buffer.emit(f"load_aligned(tile, {start} + {piece}, {tile.lanes})")
            pieces.append(buffer.emit(f"where({aside} == {near}, {value}, zeros)") if partly else value)
        value = _joined(buffer, pieces)
        whole = buffer.emit(f"first_line + {line}")
        along = buffer.emit(f"first_pixel + {pixel}")
        stored = f"({whole} < lines) & ({along} < across)" + f" & ({line} < {tile.lines})" * beyond
        with buffer.block(f"if {stored}:"):
            start = f"({whole} * across + {along}) * {self.out.lens[1]} + {vector} * {self.lanes}"
            buffer.line(f"store_aligned(p_out, {start}, {value})")


def _joined(buffer: CodeBuffer, values: list[str]) -> str:
    """Emit one vector of a power of two of them."""
    while len(values) > 1:
        values = [buffer.emit(f"join2({values[k]}, {values[k + 1]})") for k in range(0, len(values), 2)]
    return values[0]
