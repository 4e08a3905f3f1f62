"""The kernels of a Winograd convolution: transforms and products of a block of tiles, then outputs and epilogue."""

from __future__ import annotations

import math

from ..cpu.tile_table import tile_for
from ..kernel import KernelSource
from ..launch import Launch, Operand
from .blocking import SUMS_BYTES
from .pack import panel_count
from .problem import ITEMSIZE, ConvProblem, Epilogue
from .rows import row_offsets, stride_arguments
from .skeleton import TABLE_ROWS, height_table, run_tile
from .solver import Plan
from .text import Arguments, Rows, indent, kernel_name
from .tile_source import tile_block, tile_source
from .winograd_blocks import Block, tiles_of

__all__ = ["WinogradWriter", "panel_lens"]

_PLANE_PAD = 64
"""Bytes that keep the points' planes from falling into the same cache sets."""


def panel_lens(m: int, problem: ConvProblem) -> tuple[int, int, int, int]:
    """Lens of the packed weights: points, panels, input channels, columns of a panel."""
    tile = tile_for(problem.dtype)
    return (m + 2) ** 2, panel_count(tile, problem.out_channels), problem.in_channels, tile.columns


class WinogradWriter:
    """Text and arguments of the kernels for one problem.

    The input transforms and the products are a kernel of their own, which those with different epilogues call. It
    reads their argument block, in which its sizes come first.
    """

    def __init__(
        self,
        m: int,
        problem: ConvProblem,
        epilogue: Epilogue,
        strides: dict[str, tuple[int, int]],
        block: Block,
    ) -> None:
        self.m, self.problem, self.epilogue, self.strides, self.block = m, problem, epilogue, strides, block
        self.name = f"conv_winograd_{m}x{m}"
        self.tile = tile_for(problem.dtype)
        self.rows = Rows(epilogue, problem.dtype, self.tile.lanes)
        self.arguments = Arguments()
        self.tile_slot = self.arguments.callee(tile_source(self.tile))

    def plan(self) -> Plan:
        """The one launch and its scratch, a part for each claim."""
        problem, tile, block = self.problem, self.tile, self.block
        points, panels, depth, columns = panel_lens(self.m, problem)
        high, across = tiles_of(self.m, problem)
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
        source = KernelSource(kernel_name(self.name, self.epilogue), "\n".join(self._text()) + "\n")
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
            *tile_block(),
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
            f"for point in range({(self.m + 2) ** 2}):",
            *indent(self._products()),
        ]
        text = "\n".join(["def kernel(call, begin, end):", *indent(lines)]) + "\n"
        return KernelSource(f"{self.name}_products_kernel", text)

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
        m = self.m
        return [
            "line = idiv(first + t, across)",
            f"left_edge = (first + t - line * across) * {m}",
            "image = idiv(line, high)",
            f"top = (line - image * high) * {m}",
        ]

    def _input(self) -> list[str]:
        side, lanes = self.m + 2, math.gcd(self.problem.in_channels, self.tile.lanes)
        call = f"winograd_input_{self.problem.dtype}(x, places, zero, offset(u, t * depth), u_plane, depth"
        return [
            f"for i in range({side}):",
            "    y = top - pad_h + i",
            "    in_rows = y >= 0 and y < in_h",
            f"    for j in range({side}):",
            "        z = left_edge - pad_w + j",
            "        inside = in_rows and z >= 0 and z < in_w",
            f"        places[i * {side} + j] = image * x_image + y * x_h + z * x_w if inside else -1",
            f"{call}, {self.m}, {lanes})",
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
        m = self.m
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
