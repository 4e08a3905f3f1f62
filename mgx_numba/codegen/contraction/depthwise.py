"""Depthwise convolution: every channel is a group of its own and has one output channel.

The rows of a tile are output pixels, its columns channels; weights are packed ``[panel][tap][column]``.
"""

from __future__ import annotations

import numpy as np

from ..cpu.tile_table import tile_for
from ..launch import Launch, Operand
from .blocking import Blocking, cut_channels
from .pack import aligned_zeros, pack_panels, panel_count
from .places import call_places, place_locals, spatial_arguments
from .problem import ITEMSIZE, ConvProblem, Epilogue
from .roofline import seconds
from .rows import image_strides, pixel_rows, stride_arguments
from .skeleton import Skeleton
from .solver import NO_EPILOGUE, Plan, Strides
from .tile_source import depthwise_source

__all__ = ["ConvDepthwise"]


class ConvDepthwise:
    """Depthwise convolution, any size, stride, dilation and padding."""

    name = "conv_depthwise"

    def refusal(self, problem: ConvProblem) -> str | None:
        if problem.transposed:
            return "the convolution is transposed"
        if problem.group_in != 1 or problem.group_out != 1:
            return "a group has more than one channel"
        return None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Panels of channels, then one of zeros."""
        tile = tile_for(problem.dtype)
        return (panel_count(tile, problem.out_channels) * problem.taps * tile.columns + tile.columns,)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        tile = tile_for(problem.dtype)
        out = aligned_zeros(self.packed_lens(problem), problem.dtype)
        panels = out[: -tile.columns].reshape(-1, problem.taps, tile.columns)
        for tap, index in enumerate(np.ndindex(*problem.kernel)):
            pack_panels(tile, weights[(slice(None), 0, *index)][None], panels[:, tap : tap + 1])
        return out

    def plan(
        self,
        problem: ConvProblem,
        epilogue: Epilogue = NO_EPILOGUE,
        strides: Strides = (),
        threads: int = 1,
        blocking: Blocking | None = None,
    ) -> Plan:
        table = image_strides(problem, epilogue, strides)
        return Plan((_launch(problem.volume(), epilogue, table, threads, blocking),))

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_for(problem.dtype)
        rows = problem.batch * problem.out_pixels
        moved = problem.itemsize * (problem.batch * problem.in_pixels + rows) * problem.out_channels
        columns = panel_count(tile, problem.out_channels) * tile.columns
        return seconds(tile, 4.0 * rows * columns * problem.taps + rows * problem.taps * 40.0, moved, threads)


def _launch(
    problem: ConvProblem,
    epilogue: Epilogue,
    strides: dict[str, tuple[int, int]],
    threads: int,
    given: Blocking | None,
) -> Launch:
    """``problem`` has three spatial dimensions."""
    tile = tile_for(problem.dtype)
    channels = problem.out_channels
    panels = panel_count(tile, channels)
    rows = problem.batch * problem.out_pixels
    blocking = cut_channels(tile, rows, channels, problem.taps, threads, given)
    skeleton = Skeleton("depthwise", problem.dtype, tile, epilogue, several_taps=True, inner=depthwise_source(tile))
    arguments = skeleton.arguments
    _, places = spatial_arguments(arguments, problem, tile)
    zeros = panels * problem.taps * tile.columns
    arguments.pointer("x", "x", problem.dtype)
    arguments.pointer("w", "w", problem.dtype)
    arguments.pointer("zero", Operand("w", zeros * problem.itemsize), problem.dtype)
    skeleton.rows.pointers(arguments)
    skeleton.sizes(blocking, rows, channels, panels, 1, problem.taps)
    arguments.integers(x_step=1, w_step=tile.columns, w_panel=problem.taps * tile.columns)
    stride_arguments(arguments, strides)
    skeleton.setup = place_locals()
    skeleton.decode = ["w0 = 0", "column0 = 0"]
    skeleton.table = [*call_places(places), "put_pointer(block, 0, offset(x, n0 + anchor))"]
    skeleton.before_rows, skeleton.row = pixel_rows(epilogue)
    size = problem.itemsize
    moved = size * (problem.batch * problem.in_pixels * channels + zeros)
    moved += ITEMSIZE[epilogue.out_dtype(problem.dtype)] * rows * channels
    tasks = blocking.tasks(rows, panels, 1)
    return Launch(skeleton.source(), tuple(arguments.values), tasks, 1, problem.flops, moved)
