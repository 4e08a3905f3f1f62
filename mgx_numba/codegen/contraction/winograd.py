"""3x3 convolutions of stride 1 by Winograd's minimal filtering, for `fast_math`.

A task transforms the input of a block of output tiles (m x m pixels each), multiplies the block with the transformed
weights at each of the n * n points (n = m + 2) over the register tile, transforms the products back, and finishes them
with the epilogue. The transformed block stays in the L2 cache. The transforms of the activations are in
:mod:`mgx_numba.codegen.cpu.winograd`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..cpu.tile_table import RegisterTile, tile_for
from ..kernel import KernelSource
from ..launch import Launch, Operand
from .blocking import SUMS_BYTES, Blocking
from .pack import aligned_zeros, panel_count
from .problem import ITEMSIZE, ConvProblem, Epilogue
from .roofline import BYTES_PER_SECOND, CLOCK
from .rows import image_strides, row_offsets, stride_arguments
from .skeleton import TABLE_ROWS, height_table, run_tile
from .solver import NO_EPILOGUE, Plan, Strides
from .text import Arguments, Rows, indent, kernel_name
from .tile_source import tile_source

__all__ = ["ConvWinograd"]

# Transform of a filter line g[3]: rows of G.
_FILTER = {
    2: ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
_PLANE_PAD = 64
"""Bytes that keep the points' planes from falling into the same cache sets."""
_CACHE = 700 * 1024
"""Bytes of a transformed block beyond which it leaves the L2 cache."""


_MOST_TILES = 128
"""Tiles of one task."""


@dataclass(frozen=True)
class _Block:
    """Tiles and weight panels of one task, and tasks of one claim (each claim has its own scratch)."""

    tiles: int
    panels: int
    grain: int


@dataclass(frozen=True)
class ConvWinograd:
    """F(m x m, 3 x 3) for m = 2 or 4."""

    m: int

    @property
    def name(self) -> str:
        return f"conv_winograd_{self.m}x{self.m}"

    @property
    def points(self) -> int:
        """Multiplications of one tile and channel."""
        return (self.m + 2) ** 2

    def refusal(self, problem: ConvProblem) -> str | None:
        if not problem.fast_math:
            return "fast_math is off, and Winograd's transforms change rounding"
        if problem.transposed or problem.groups > 1:
            return "the convolution is transposed or grouped"
        if len(problem.kernel) < 2 or problem.kernel[-2:] != (3, 3):
            return "the kernel is not 3x3"
        if max(problem.stride) > 1 or max(problem.dilation) > 1:
            return "a stride or dilation is larger than 1"
        if any(n != 1 for n in (*problem.kernel[:-2], *problem.in_lens[:-2], *problem.out_lens[:-2])):
            return "the convolution is over three dimensions"
        if any((*problem.pads_begin[:-2], *problem.pads_end[:-2])):
            return "the convolution is over three dimensions"
        if problem.in_channels % 4:
            return "the input channels are not a multiple of 4"
        if _blocks(self, problem, 1) is None:
            return "the output channels of one tile do not fit the stack"
        return None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Transformed panels of each point, then a row of zeros."""
        return (math.prod(self.panels(problem)) + problem.in_channels,)

    def panels(self, problem: ConvProblem) -> tuple[int, int, int, int]:
        """Lens of the packed weights: points, panels, input channels, columns of a panel."""
        tile = tile_for(problem.dtype)
        return self.points, panel_count(tile, problem.out_channels), problem.in_channels, tile.columns

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        lens = self.panels(problem)
        out = aligned_zeros(self.packed_lens(problem), problem.dtype)
        panels = out[: math.prod(lens)].reshape(lens)
        line = np.asarray(_FILTER[self.m])
        both = np.einsum("ia,jb->abij", line, line).reshape(9, self.points)
        filters = weights.reshape(*weights.shape[:2], 3, 3) if weights.ndim != 4 else weights
        columns = lens[-1]
        for panel in range(lens[1]):
            part = filters[panel * columns : (panel + 1) * columns].astype(np.float64)
            transformed = part.reshape(*part.shape[:2], 9) @ both
            panels[:, panel, :, : part.shape[0]] = transformed.transpose(2, 1, 0)
        return out

    def plan(
        self,
        problem: ConvProblem,
        epilogue: Epilogue = NO_EPILOGUE,
        strides: Strides = (),
        threads: int = 1,
        blocking: Blocking | None = None,
    ) -> Plan:
        if blocking is None:
            block, _ = _blocks(self, problem, threads) or (_Block(1, 1, 1), 0.0)
        else:
            block = _given(self, problem, threads, blocking)
        return _Writer(self, problem, epilogue, image_strides(problem, epilogue, strides), block).plan()

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        found = _blocks(self, problem, threads)
        if found is None:
            return math.inf
        pixels = problem.in_pixels * problem.in_channels + problem.out_pixels * problem.out_channels
        moved = problem.itemsize * (problem.batch * pixels + math.prod(self.panels(problem)))
        return max(found[1] / CLOCK, moved / BYTES_PER_SECOND)


def _tiles(solver: ConvWinograd, problem: ConvProblem) -> tuple[int, int]:
    """Tiles of an image along height and width."""
    return -(-problem.out_lens[-2] // solver.m), -(-problem.out_lens[-1] // solver.m)


def _blocks(solver: ConvWinograd, problem: ConvProblem, threads: int) -> tuple[_Block, float] | None:
    """The cheapest cut into tasks and its rough cycles; None if the outputs of one tile do not fit the stack."""
    tile = tile_for(problem.dtype)
    panels = panel_count(tile, problem.out_channels)
    tiles = problem.batch * math.prod(_tiles(solver, problem))
    stacked = SUMS_BYTES // (problem.itemsize * tile.columns * solver.m**2)
    best = None
    for split in (1, 2, 4, 8, 16):
        p_block = min(-(-panels // split), stacked)
        if p_block < 1:
            return None
        for count in {min(tiles, n) for n in (*range(4, 65, 4), 96, 128)}:
            task = _cycles(solver, problem, tile, count, p_block)
            tasks = -(-tiles // count) * -(-panels // p_block)
            claim = -(-tasks // threads)
            last = (tiles - (-(-tiles // count) - 1) * count) / count
            cycles = task * (claim if claim < tasks else tasks - 1 + last)
            if best is None or cycles < best[1]:
                best = _Block(count, p_block, claim), cycles
    return best


def _given(solver: ConvWinograd, problem: ConvProblem, threads: int, blocking: Blocking) -> _Block:
    """A cut that was asked for, made to fit: ``rows`` counts tiles, taps and depth have no meaning."""
    tile = tile_for(problem.dtype)
    panels = panel_count(tile, problem.out_channels)
    tiles = problem.batch * math.prod(_tiles(solver, problem))
    stacked = SUMS_BYTES // (problem.itemsize * tile.columns * solver.m**2)
    count = max(1, min(blocking.rows, tiles, _MOST_TILES))
    p_block = max(1, min(blocking.panels, panels, stacked))
    tasks = -(-tiles // count) * -(-panels // p_block)
    return _Block(count, p_block, -(-tasks // threads))


def _cycles(solver: ConvWinograd, problem: ConvProblem, tile: RegisterTile, count: int, p_block: int) -> float:
    """Cycles of one task: transforms by vectors, products by tile rows, more where the block leaves the cache."""
    points, depth, size = solver.points, problem.in_channels, problem.itemsize
    rows, left = 0.0, count
    while left:
        height = (height_table(tile) >> (4 * min(left, tile.rows))) & 15
        rows += height * 1.06 + 0.7
        left -= min(left, height)
    products = points * (rows * depth * p_block * tile.vectors / 2 + 40.0 * -(-count // tile.rows))
    into = count * (depth / tile.lanes * points * 3.0 + points * 4)
    back = count * p_block * tile.vectors * points * 3.5
    weights = points * depth * p_block * tile.columns * size / 24
    block = points * count * (depth + p_block * tile.columns) * size
    spilled = max(0, block - _CACHE) / 8
    streamed = weights * (0.6 if points * depth * p_block * tile.columns * size > _CACHE else 0.1)
    return products + streamed + into + back + spilled


class _Writer:
    """Text and arguments of the kernels for one problem.

    The input transforms and the products are a kernel of their own, which those with different epilogues call. It
    reads their argument block, in which its sizes come first.
    """

    def __init__(
        self,
        solver: ConvWinograd,
        problem: ConvProblem,
        epilogue: Epilogue,
        strides: dict[str, tuple[int, int]],
        block: _Block,
    ) -> None:
        self.solver, self.problem, self.epilogue, self.strides, self.block = solver, problem, epilogue, strides, block
        self.tile = tile_for(problem.dtype)
        self.rows = Rows(epilogue, problem.dtype, self.tile.lanes)
        self.arguments = Arguments()
        self.tile_slot = self.arguments.callee(tile_source(self.tile))

    def plan(self) -> Plan:
        problem, tile, block = self.problem, self.tile, self.block
        points, panels, depth, columns = self.solver.panels(problem)
        high, across = _tiles(self.solver, problem)
        tiles = problem.batch * high * across
        blocks = -(-tiles // block.tiles)
        tasks = blocks * -(-panels // block.panels)
        pad = _PLANE_PAD // problem.itemsize
        held = block.tiles + tile.rows
        u_plane, m_plane = held * depth + pad, held * block.panels * columns + pad
        u_size = -(-points * u_plane // pad) * pad
        claim = u_size + -(-points * m_plane // pad) * pad
        a = self.arguments
        a.integers(
            grain=block.grain, claim_size=claim, u_size=u_size, m_plane=m_plane, tiles=tiles,
            tile_block=block.tiles, blocks=blocks, panels=panels, p_block=block.panels, n=problem.out_channels,
            high=high, across=across,
        )  # fmt: skip
        a.pointer("scratch", "scratch", problem.dtype)
        shared = list(a.lines)
        a.pointer("x", "x", problem.dtype)
        a.pointer("w", "w", problem.dtype)
        a.pointer("zero", Operand("w", points * panels * depth * columns * problem.itemsize), problem.dtype)
        a.integers(
            u_plane=u_plane, depth=depth, w_point=panels * depth * columns, w_panel=depth * columns,
            in_h=problem.in_lens[-2], in_w=problem.in_lens[-1], pad_h=problem.pads_begin[-2],
            pad_w=problem.pads_begin[-1], x_image=problem.x_strides[0], x_h=problem.x_strides[-2],
            x_w=problem.x_strides[-1],
        )  # fmt: skip
        self.products_slot = a.callee(self._products_source(a.lines))
        del a.lines[len(shared) :]
        self.rows.pointers(a)
        a.integers(out_h=problem.out_lens[-2], out_w=problem.out_lens[-1])
        stride_arguments(a, self.strides)
        source = KernelSource(kernel_name(self.solver.name, self.epilogue), "\n".join(self._text()) + "\n")
        moved = problem.itemsize * (problem.batch * problem.in_pixels * depth + points * panels * depth * columns)
        results = problem.batch * problem.out_pixels * problem.out_channels
        moved += ITEMSIZE[self.epilogue.out_dtype(problem.dtype)] * results
        launch = Launch(source, tuple(a.values), tasks, block.grain, problem.flops, moved)
        return Plan((launch,), -(-tasks // block.grain) * claim * problem.itemsize)

    def _text(self) -> list[str]:
        return [
            "def kernel(args, begin, end):",
            *indent([
                *self.arguments.lines,
                "call = local_int64(2)",
                "put_words(call, 0, args)",
                "call[1] = idiv(begin, grain) * claim_size",
                "products = offset(scratch, call[1] + u_size)",
                f"sums = local_{self.problem.dtype}({SUMS_BYTES // self.problem.itemsize})",
                *self.rows.invariant(),
                "for task in range(begin, end):",
                *indent([
                    f"call_kernel(args, {self.products_slot}, call, task, task + 1)",
                    *self._block(),
                    "for t in range(count):",
                    *indent([*self._place(), *self._output()]),
                ]),
            ]),
        ]  # fmt: skip

    def _products_source(self, sizes: list[str]) -> KernelSource:
        """Kernel that transforms and multiplies the block of task ``begin`` in the scratch at ``call[1]``."""
        columns = self.tile.columns
        lines = [
            "args = words_at(call, 0)",
            *sizes,
            "u = offset(scratch, call[1])",
            "products = offset(u, u_size)",
            "block = local_int64(16)",
            f"table = local_int64({TABLE_ROWS})",
            "places = local_int64(64)",
            f"for i in range({TABLE_ROWS}):",
            "    table[i] = i * depth",
            "put_words(block, 1, table)",
            "put_pointer(block, 2, zero)",
            "block[5] = 1",
            "block[6] = depth",
            "block[7] = 1",
            f"block[8] = {columns}",
            "block[9] = w_panel",
            f"block[11] = {columns}",
            "block[12] = 0",
            "task = begin",
            *self._block(),
            "block[10] = sums_ld",
            *self._narrow(),
            "for t in range(count):",
            *indent([*self._place(), *self._input()]),
            f"for point in range({self.solver.points}):",
            *indent(self._products()),
        ]
        text = "\n".join(["def kernel(call, begin, end):", *indent(lines)]) + "\n"
        return KernelSource(f"{self.solver.name}_products_kernel", text)

    def _block(self) -> list[str]:
        columns = self.tile.columns
        return [
            "first = imod(task, blocks) * tile_block",
            "p0 = idiv(task, blocks) * p_block",
            "count = imin(tiles - first, tile_block)",
            "wide = imin(panels - p0, p_block)",
            f"sums_ld = wide * {columns}",
            f"n0 = p0 * {columns}",
            "columns = imin(n - n0, sums_ld)",
        ]

    def _narrow(self) -> list[str]:
        if self.tile.vectors == 1:
            return []
        missing = self.tile.columns - self.tile.lanes
        return [f"narrow = columns <= sums_ld - {missing}", "if narrow:", "    wide -= 1"]

    def _place(self) -> list[str]:
        """Image and first output pixel of tile ``first + t``."""
        m = self.solver.m
        return [
            "line = idiv(first + t, across)",
            f"left_edge = (first + t - line * across) * {m}",
            "image = idiv(line, high)",
            f"top = (line - image * high) * {m}",
        ]

    def _input(self) -> list[str]:
        side, lanes = self.solver.m + 2, math.gcd(self.problem.in_channels, self.tile.lanes)
        call = f"winograd_input_{self.problem.dtype}(x, places, zero, offset(u, t * depth), u_plane, depth"
        return [
            f"for i in range({side}):",
            "    y = top - pad_h + i",
            "    in_rows = y >= 0 and y < in_h",
            f"    for j in range({side}):",
            "        z = left_edge - pad_w + j",
            "        inside = in_rows and z >= 0 and z < in_w",
            f"        places[i * {side} + j] = image * x_image + y * x_h + z * x_w if inside else -1",
            f"{call}, {self.solver.m}, {lanes})",
        ]

    def _products(self) -> list[str]:
        return [
            "put_pointer(block, 3, offset(w, point * w_point + p0 * w_panel))",
            "row = 0",
            "while row < count:",
            *indent([
                f"left = imin(count - row, {self.tile.rows})",
                f"height = ({height_table(self.tile)} >> (4 * left)) & 15",
                "put_pointer(block, 0, offset(u, point * u_plane + row * depth))",
                "put_pointer(block, 4, offset(products, point * m_plane + row * sums_ld))",
                *run_tile(self.tile, self.tile_slot),
                "row += height",
            ]),
        ]  # fmt: skip

    def _output(self) -> list[str]:
        m = self.solver.m
        call = f"winograd_output_{self.problem.dtype}(offset(products, t * sums_ld), m_plane, sums, sums_ld, sums_ld"
        return [
            f"{call}, {m}, {self.tile.lanes})",
            f"for i in range(imin({m}, out_h - top)):",
            f"    for j in range(imin({m}, out_w - left_edge)):",
            *indent(
                [
                    "pixel = (top + i) * out_w + left_edge + j",
                    f"sums_row = (i * {m} + j) * sums_ld",
                    *row_offsets(self.epilogue),
                    *self.rows.text(),
                ],
                2,
            ),
        ]
