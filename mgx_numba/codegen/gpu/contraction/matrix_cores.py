"""Products and convolutions on AMD matrix cores (MFMA, WMMA): 8 and 16 bits, float32, TF32, float64.

Both operands assign the K elements of a slice to lanes in memory order (`matrix_tiles`).
"""

from __future__ import annotations

import functools

from ...printer import CodeBuffer
from ..driver.device import known_architecture
from ..matrix_tiles import MatrixTile, matrix_tiles
from .cores import CoresText
from .gpu_contraction import GpuContraction
from .ring import RingTile, ring_refusal


def declared_tiles(contraction: GpuContraction) -> tuple[MatrixTile, ...]:
    """Return the architecture's MMA instructions for a contraction, the larger one first."""
    arch = known_architecture()
    return () if arch is None else matrix_tiles(arch, contraction.request.problem.types, contraction.precision)


def matrix_refusal(contraction: GpuContraction) -> str:
    """Return the reason why matrix cores do not compute a contraction; "" if they do."""
    if not declared_tiles(contraction):
        return f"no matrix cores have products of {contraction.problem.types}"
    return ring_refusal(contraction)


class MatrixText(CoresText):
    """Kernel text of one contraction."""

    @functools.cached_property
    def core(self) -> MatrixTile:
        """Return the largest MMA instruction that divides a wave's sub-tile."""
        fitting = (t for t in declared_tiles(self.contraction) if self.high % t.side == self.wide % t.side == 0)
        return next(fitting)

    @property
    def _side(self) -> tuple[int, int]:
        return self.core.side, self.core.side

    def _own(self) -> list[str]:
        core = self.core
        column, first = (self.pitch, 1) if self.along else (1, self.transposed_pitch)
        return [
            f"own_line = imod(lane, {core.side})",
            f"own_block = idiv(lane, {core.side})",
            f"own_first = imod(own_block * {core.held}, {core.depth})",
            f"own_a = (warp_row + own_line) * {self.pitch} + own_first",
            "own_column = warp_column + own_line",
            f"own_b = own_column * {column} + own_first * {first}",
        ]

    def _multiply(self, buffer: CodeBuffer) -> None:
        side, depth = self.core.side, self.core.depth
        for start in range(0, self.depth, depth):
            for i in range(self.high // side):
                place = f"slice_a + {side * i * self.pitch + start}"
                buffer.line(f"a{i} = load_aligned(ring_a, {place}, {self.core.held})")
            for j in range(self.wide // side):
                buffer.line(f"b{j} = {self._right_part(side * j, start)}")
            for i, j in self._parts():
                buffer.line(f"acc{i}_{j} = {self.core.name}(acc{i}_{j}, a{i}, b{j})")

    def _right_part(self, column: int, start: int) -> str:
        """Return a lane's fragment of the right operand: contiguous along K, or one element per slice row."""
        if self.along:
            return f"load_aligned(ring_b, slice_b + {column * self.pitch + start}, {self.core.held})"
        rows = range(start, start + self.core.held)
        return joined([f"load(ring_b, slice_b + {row * self.transposed_pitch + column}, 1)" for row in rows])

    def _stage(self, buffer: CodeBuffer, i: int, j: int, pitch: int) -> None:
        core = self.core
        buffer.line(f"place = area + own_block * {core.group * pitch} + own_line + {core.side * j}")
        for number in range(core.sums):
            down = core.row(0, number) * pitch
            buffer.line(f"store_scalar(staged, place + {down}, extract(acc{i}_{j}, {number}))")


class Wave32Text(MatrixText):
    """Kernel text for waves of 32 lanes."""

    tiles = (RingTile(128, 128, 2, 4), RingTile(128, 64, 4, 2), RingTile(64, 64, 2, 2), RingTile(32, 32, 1, 2))
    split_tile = tiles[2]


class Wave64Text(MatrixText):
    """Kernel text for waves of 64 lanes."""

    tiles = (
        RingTile(128, 128, 2, 2, 64),
        RingTile(128, 64, 2, 2, 64),
        RingTile(64, 64, 2, 2, 64),
        RingTile(32, 32, 1, 2, 64),
    )
    split_tile = tiles[2]


def joined(parts: list[str]) -> str:
    """Return the concatenation of one-lane vectors, whose number is a power of two."""
    while len(parts) > 1:
        count = 4 if len(parts) % 4 == 0 else 2
        parts = [f"join{count}({', '.join(parts[k : k + count])})" for k in range(0, len(parts), count)]
    return parts[0]
