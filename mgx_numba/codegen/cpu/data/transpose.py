"""Copies between memory orders in which two dimensions, each contiguous on one side, are swapped.

Square blocks are transposed in registers, so that both sides move whole vectors. The last block of a row or column
overlaps the block before instead of being smaller. Where one of the dimensions has length 2, 3 or 4 (the channels of
images and boxes), vectors are interleaved, also with themselves, or deinterleaved instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import (
    Length,
    all_of,
    ceil_div,
    is_symbolic,
    known_equal,
    known_in,
    known_less_equal,
    less_equal,
    maximum,
    minimum,
    permitted,
    typical,
)  # fmt: skip
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import INDENT, for_tasks, indent, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import Odometer, claim, is_streamed, task_elements
from .row_tasks import mover

TILE = 64
"""Least rows and columns of a square tile: runs of 64 elements on both sides."""
TILE_BYTES = 256  # four cache lines, also for types of less than 4 bytes, so that lines are fully used
LINED_TILE = 32
"""Rows of a tile are a multiple of this value where whole cache lines are stored: two blocks of 16."""
LONG_BYTES = 4096
"""Run (bytes) of the source in a tile that is stored past the caches: a page, the range of hardware prefetching."""
ALIASING = 4096
"""Addresses that differ by a multiple of this many bytes share an L1 cache set; each way is a page."""
LARGEST_BLOCK = 16
"""Most rows of a block that is transposed in registers: 16 of the 32 of AVX-512."""
SMALLEST_BLOCK = 4  # lanes of a 128-bit register of float32
RIBBON = 4096
"""Steps of a task along the longer dimension: at least as many elements as other tasks have
(`loops.LEAST_ELEMENTS`)."""
WIDEST_RIBBON = 15  # a block of 16 is wider than the run
STAGED_BYTES = 4096  # runs in scratch memory before they are stored: a page, a twelfth of the L1 cache
STAGED_COLUMNS = 512
"""Most columns of a stripe of 16 rows in scratch memory: 32 KiB of float32, in the L1 cache."""
STRIPE_BYTES = 256  # four cache lines of each row of the target at a time


def transpose_launch(x: Tensor, out: Tensor, origin: str = "") -> Launch | None:
    """Return a launch that copies operand ``x0`` to ``out0``; ``None`` if no two dimensions are swapped.

    Args:
        x: the source; lengths as ``out``.
        out: the target; its strides must not repeat elements.
    """
    space = collapse(out.lens, [x.strides, out.strides], order_by=1)
    if space.rank < 2 or known_in(space.elements, 0):
        return None
    from_strides, to_strides = space.strides
    inner = space.rank - 1
    others = [d for d in range(inner) if known_in(from_strides[d], 1)]
    if not known_in(to_strides[inner], 1) or known_in(from_strides[inner], 1) or len(others) != 1:
        return None
    across = others[0]
    outer = [d for d in range(inner) if d != across]
    plan = _Plan(x, out, origin)
    if not known_less_equal(to_strides[across], WIDEST_RIBBON):
        # Reading in order saves more than writing in order, unless the target has short runs.
        outer.sort(key=lambda d: -abs(typical(from_strides[d])))
    plan.outer(
        [space.lens[d] for d in outer],
        [[from_strides[d] for d in outer], [to_strides[d] for d in outer]],
    )
    lens = (space.lens[across], space.lens[inner])
    widest = min(max(host.lanes(mover(x.type)), SMALLEST_BLOCK), LARGEST_BLOCK)
    x_step, out_step = from_strides[inner], to_strides[across]
    for intrinsic, length, count, packed, step in (
        ("interleave", lens[0], lens[1], out_step, x_step),
        ("deinterleave", lens[1], lens[0], x_step, out_step),
    ):
        if is_symbolic(count) or not known_equal(packed, count):
            continue
        if count in (2, 3, 4):
            lanes = _block(widest, length)
            if lanes:
                return plan.ribbon(intrinsic, length, count, step, lanes)
            if is_symbolic(length):  # a kernel for few elements alone
                return None
        wide = 1 << (count - 1).bit_length()
        if 4 < count <= WIDEST_RIBBON and wide <= widest and permitted(less_equal(wide, length)):
            make = plan.packed if intrinsic == "interleave" else plan.unpacked
            return make(length, count, step, wide)
    size = 0 if known_in(x_step, 0) else _block(widest, *lens)
    return plan.blocks(size, lens, (x_step, out_step)) if size else None


def transposes_short_rows(x: Tensor, out: Tensor) -> bool:
    """Return whether the target's rows have unknown length and the source's have another, known length.

    `transpose_launch` has a kernel for target rows that are no shorter than a block.
    """
    space = collapse(out.lens, [x.strides, out.strides], order_by=1)
    across = [n for n, s in zip(space.lens, space.strides[0]) if known_in(s, 1)]
    return bool(across) and is_symbolic(space.lens[-1]) and not is_symbolic(across[0])


def _block(widest: int, *lens: Length) -> int:
    """Return the rows of a block: the largest power of two up to the least known length of ``lens``.

    Returns 0 if that is too few, or an unknown length may be shorter.
    """
    least = min([widest, *(n for n in lens if not is_symbolic(n))])
    size: int = 1 << (least.bit_length() - 1)
    return size if size >= SMALLEST_BLOCK and permitted(all_of(*(less_equal(size, n) for n in lens))) else 0


class _Plan:
    """Printer of the kernel that transposes two dimensions, with all other dimensions as outer loops."""

    def __init__(self, x: Tensor, out: Tensor, origin: str) -> None:
        self.x, self.out, self.origin = x, out, origin
        self.streamed = is_streamed([out])
        self.arguments = Arguments()
        self.arguments.pointer("p_x", "x0", mover(x.type))
        self.arguments.pointer("p_out", "out0", mover(x.type))

    def outer(self, lens: list[Length], strides: list[list[Length]]) -> None:
        """Declare the dimensions around the pair."""
        self.points = prod(lens)
        self.odometer = Odometer(self.arguments, lens, strides)

    def blocks(self, size: int, lens: tuple[Length, Length], steps: tuple[Length, Length]) -> Launch:
        """Return a launch whose tasks are square tiles.

        Args:
            size: rows and columns of the blocks that are transposed in registers.
            lens: lengths of the dimensions that are contiguous in the source, and in the target.
            steps: the source's stride along the second, the target's along the first.
        """
        item = self.x.type.size
        lined = size * item % host.CACHE_LINE == 0 and known_in(steps[1] * item % host.CACHE_LINE, 0)
        tile = max(TILE_BYTES // item, TILE)
        across = LONG_BYTES // item if self.streamed else tile
        if self.streamed and not lined:
            tile = STAGED_COLUMNS
        elif self.streamed:
            rows = LINED_TILE * across // (across if is_symbolic(lens[0]) else min(lens[0], across))
            tile = min(LONG_BYTES // item, rows // LINED_TILE * LINED_TILE)
        tiles = [ceil_div(lens[0], across), ceil_div(lens[1], tile)]
        for name, value in (
            ("across", lens[0]),
            ("along", lens[1]),
            ("tiles_across", tiles[0]),
            ("tiles_along", tiles[1]),
            ("x_step", steps[0]),
            ("out_step", steps[1]),
        ):
            self.arguments.integer(name, value)
        # Rows of the target that are a multiple of this apart compete for the same few cache sets.
        staged = not lined if self.streamed else known_in(steps[1] * item % ALIASING, 0)
        dense = self.streamed and known_equal(steps[1], lens[1]) and known_less_equal(lens[1], tile)
        moves = self._staged(size, tile, dense) if staged else self._direct(size)
        lines = [
            "rest = idiv(task, tiles_along)",
            f"first = (task - rest * tiles_along) * {tile}",
            f"last = imin(along, first + {tile})",
            "point = idiv(rest, tiles_across)",
            f"j = (rest - point * tiles_across) * {across}",
            f"stop = imin(across, j + {across})",
            *self._pointers(),
            "while j < stop:",
            *indent([f"col = imin(j, across - {size})", *moves, f"j += {size}"]),
        ]
        scratch = [f"scratch = local_{mover(self.x.type)}({size * (tile + size)})"] if staged else []
        elements = minimum(lens[0], across) * minimum(lens[1], tile)
        return self._launch("transpose_kernel", lines, self.points * prod(tiles), elements, scratch)

    @staticmethod
    def _rows(size: int, *body: str) -> list[str]:
        """Return ``body`` in a loop over the blocks of a stripe, each of which starts at ``row``."""
        loop = [f"row = imin(i, along - {size})", *body, f"i += {size}"]
        return ["i = first", "while i < last:", *indent(loop)]

    def _direct(self, size: int) -> list[str]:
        """Return lines that transpose blocks from the source directly to the target."""
        target = "offset(r_out, col * out_step + row)"
        name = "transpose_block_stream" if self.streamed else "transpose_block"
        move = f"{name}(offset(r_x, row * x_step + col), x_step, {size}, {target}, out_step, {size})"
        return self._rows(size, move)

    def _staged(self, size: int, tile: int, dense: bool) -> list[str]:
        """Return lines that transpose blocks to scratch memory, whose rows then go to the target one after the
        other."""
        pitch = "along" if dense else str(tile + size)
        place = f"row - first + {size}"
        to_scratch = (
            f"transpose_block(offset(r_x, row * x_step + col), x_step, {size},"
            f" offset(scratch, {place}), {pitch}, {size})"
        )
        if not self.streamed:
            to_target = f"store(r_out, (col + k) * out_step + row, load(scratch, k * {pitch} + {place}, {size}))"
            return [
                *self._rows(size, to_scratch),
                f"for k in range({size}):",
                *indent(self._rows(size, to_target)),
            ]
        wide = host.CACHE_LINE // self.x.type.size

        def move(left: str) -> list[str]:
            source = f"scratch, k * {pitch} + c + {size}"
            if left:
                return [f"store_tail(q_out, c, load_tail({source}, left, 0, {wide}), left)"]
            return [f"store_stream(q_out, c, load({source}, {wide}))"]

        ahead = [f"prefetch(r_x, (row + {k}) * x_step + col + {2 * size})" for k in range(size)]
        rows = [
            "q_out = offset(r_out, (col + k) * out_step + first)",
            *vector_loop(wide, move, first="0", last="last - first", aligned="q_out"),
        ]
        if dense:  # all rows are one run of memory; only its ends are partial cache lines
            rows = ["k = 0", rows[0], *vector_loop(wide, move, first="0", last=f"{size} * along", aligned="q_out")]
            return [*self._rows(size, to_scratch, *ahead), *rows]
        return [*self._rows(size, to_scratch, *ahead), f"for k in range({size}):", *indent(rows)]

    def ribbon(self, intrinsic: str, length: Length, count: int, step: Length, lanes: int) -> Launch:
        """Return a launch with tasks of RIBBON steps along the longer dimension of ``length``, each of ``count``
        elements."""
        chunks = ceil_div(length, RIBBON)
        for name, value in (("length", length), ("chunks", chunks), ("step", step)):
            self.arguments.integer(name, value)
        if intrinsic == "interleave":
            source, target = "offset(r_x, c), step", f"offset(r_out, c * {count})"
            scratch, places = "scratch", [f"c * {count} + {r * lanes}" for r in range(count)]
        else:
            source, target = f"offset(r_x, c * {count})", "offset(r_out, c), step"
            scratch, places = f"scratch, {lanes}", [f"c + {r} * step" for r in range(count)]
        staged = self.streamed and lanes * self.x.type.size % host.CACHE_LINE == 0
        move = [f"{intrinsic}({source}, {scratch if staged else target}, {count}, {lanes})"]
        for r, place in enumerate(places if staged else []):
            move.append(f"store_stream(r_out, {place}, load(scratch, {r * lanes}, {lanes}))")
        prologue = [f"scratch = local_{mover(self.x.type)}({count * lanes})"] if staged else []
        lines = [
            "point = idiv(task, chunks)",
            f"i = (task - point * chunks) * {RIBBON}",
            f"last = imin(length, i + {RIBBON})",
            *self._pointers(),
            "while i < last:",
            *indent([f"c = imin(i, length - {lanes})", *move, f"i += {lanes}"]),
        ]
        return self._launch(
            f"{intrinsic}_kernel", lines, self.points * chunks, minimum(length, RIBBON) * count, prologue
        )

    def packed(self, length: Length, count: int, step: Length, lanes: int) -> Launch:
        """Return a launch with tasks of RIBBON steps along the longer dimension, to runs of ``count`` elements.

        Each run is stored with extra elements, which the next run overwrites, in a buffer that is copied when full.
        """
        item, ahead = self.x.type.size, lanes * count
        steps = max(1, STAGED_BYTES // (count * item) // lanes) * lanes
        block = f"offset(r_x, k), step, {count}, offset(scratch, (k - i) * count + {ahead}), count, {lanes}"
        wide = host.CACHE_LINE // item

        def move(left: str) -> list[str]:
            place = f"r_out, i * count + c, load(scratch, c + {ahead}, {wide})"
            if left:
                return [f"store_tail(r_out, i * count + c, load_tail(scratch, c + {ahead}, left, 0, {wide}), left)"]
            return [f"store_stream({place})" if self.streamed else f"store({place})"]

        out = "offset(r_out, i * count)" if self.streamed else ""
        lines = [
            *self._steps(steps, lanes, [f"transpose_block({block})"]),
            *vector_loop(wide, move, first="0", last="(stop - i) * count", aligned=out),
        ]
        return self._ribbons("packing_kernel", lines, length, count, step, (steps + lanes) * count + lanes)

    def unpacked(self, length: Length, count: int, step: Length, lanes: int) -> Launch:
        """Return a launch with tasks of RIBBON steps along the longer dimension, from runs of ``count`` elements.

        Each run is loaded with elements past its end; the last runs, which may end the memory, from a copy.
        """
        item, near = self.x.type.size, -(-(lanes - count) // count)
        steps = max(1, STRIPE_BYTES // item // lanes) * lanes
        pitch = steps + 2 * lanes
        target = f"offset(scratch, k - i + {lanes}), {pitch}" if self.streamed else "offset(r_out, k), step"
        wide = host.CACHE_LINE // item
        block = [
            f"if k + {lanes + near} <= length:",
            f"{INDENT}transpose_part(offset(r_x, k * count), count, {lanes}, {target}, {count}, {lanes})",
            "else:",
            f"{INDENT}for part in range({count}):",
            f"{INDENT * 2}store(ending, part * {lanes}, load(r_x, k * count + part * {lanes}, {lanes}))",
            f"{INDENT}transpose_part(ending, count, {lanes}, {target}, {count}, {lanes})",
        ]

        def move(left: str) -> list[str]:
            source = f"scratch, r * {pitch} + c + {lanes}"
            if left:
                return [f"store_tail(q_out, c, load_tail({source}, left, 0, {wide}), left)"]
            return [f"store_stream(q_out, c, load({source}, {wide}))"]

        lines = self._steps(steps, lanes, block)
        if self.streamed:
            rows = vector_loop(wide, move, first="0", last="stop - i", aligned="q_out")
            lines += [f"for r in range({count}):", *indent(["q_out = offset(r_out, r * step + i)", *rows])]
        ending = [f"ending = local_{mover(self.x.type)}({lanes * count + lanes})"]
        return self._ribbons("unpacking_kernel", lines, length, count, step, count * pitch, ending)

    @staticmethod
    def _steps(steps: int, lanes: int, block: list[str]) -> list[str]:
        """Return ``block`` for the next ``steps`` steps from ``i``, at ``k``; the last vectors overlap those before."""
        return [
            f"stop = imin(last, i + {steps})",
            "c = i",
            "while c < stop:",
            *indent([f"k = imin(c, length - {lanes})", *block, f"c += {lanes}"]),
        ]

    def _ribbons(
        self,
        name: str,
        inside: list[str],
        length: Length,
        count: int,
        step: Length,
        scratch: int,
        more: Sequence[str] = (),
    ) -> Launch:
        """Return a launch with tasks of RIBBON steps; ``inside`` does the steps from ``i`` to ``stop``, which it
        sets."""
        chunks = ceil_div(length, RIBBON)
        for key, value in (("length", length), ("chunks", chunks), ("step", step), ("count", count)):
            self.arguments.integer(key, value)
        lines = [
            "point = idiv(task, chunks)",
            f"i = (task - point * chunks) * {RIBBON}",
            f"last = imin(length, i + {RIBBON})",
            *self._pointers(),
            "while i < last:",
            *indent([*inside, "i = stop"]),
        ]
        prologue = [f"scratch = local_{mover(self.x.type)}({scratch})", *more]
        return self._launch(name, lines, self.points * chunks, minimum(length, RIBBON) * count, prologue)

    def _pointers(self) -> list[str]:
        return [
            *self.odometer.start("point"),
            f"r_x = offset(p_x, {self.odometer.offset(0)})",
            f"r_out = offset(p_out, {self.odometer.offset(1)})",
        ]

    def _launch(
        self, name: str, lines: list[str], tasks: Length, elements: Length, prologue: list[str] | None = None
    ) -> Launch:
        fence = ["stream_fence()"] if self.streamed else []
        text = kernel_text([*self.arguments.bind(), *(prologue or []), *for_tasks(lines), *fence])
        traffic, shared = self.x.footprint + self.out.footprint, task_elements(prod(self.out.lens))
        return Launch(
            kernel=cpu_kernel(name, text, self.origin),
            args=self.arguments.values,
            geometry=TaskRange(tasks, maximum(1, shared // maximum(elements, 1), claim(tasks, traffic))),
            bytes=traffic,
        )
