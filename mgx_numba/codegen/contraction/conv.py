"""Convolution as an implicit matrix product: each output pixel is a row, whose terms are read from the input in place.

Every row of the register tile has its own place in the input for every kernel position (tap); a tap that falls into
the padding reads a row of zeros. One kernel serves every size, stride, dilation, padding and number of groups.
"""

from __future__ import annotations

import math

import numpy as np

from ..cpu.tile_table import RegisterTile, tile_for
from ..launch import Launch, Operand
from .blocking import cut
from .gemm import GemmPacked
from .pack import aligned_zeros, pack_panels, panel_count
from .problem import ITEMSIZE, ConvProblem, Epilogue, GemmProblem
from .roofline import seconds
from .skeleton import TABLE_ROWS, Skeleton
from .solver import NO_EPILOGUE, Plan, Strides

__all__ = ["ConvDirect", "ConvPointwise", "image_strides", "pixel_rows", "tap_matrices"]


class ConvPointwise:
    """A 1x1 convolution over pixels that lie evenly spaced: a matrix product."""

    name = "conv_1x1"
    _gemm = GemmPacked()

    def refusal(self, problem: ConvProblem) -> str | None:
        if problem.transposed:
            return "the convolution is transposed"
        if problem.groups > 1:
            return "the convolution is grouped"
        if problem.taps > 1 or max(problem.stride) > 1:
            return "the kernel or a stride is larger than 1"
        if any(problem.pads_begin) or any(problem.pads_end):
            return "the input is padded or cropped"
        inner = problem.x_strides[-1]
        for length, stride in zip(reversed(problem.in_lens), reversed(problem.x_strides[1:])):
            if length > 1 and stride != inner:
                return "the input's pixels are not evenly spaced"
            inner = inner * length
        return None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        return self._gemm.packed_lens(self._product(problem))

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        matrix = weights[(slice(None), slice(None), *(0 for _ in problem.kernel))].T
        return self._gemm.pack_weights(self._product(problem), np.broadcast_to(matrix, (problem.batch, *matrix.shape)))

    def plan(self, problem: ConvProblem, epilogue: Epilogue = NO_EPILOGUE, strides: Strides = (), threads: int = 1) -> Plan:
        return self._gemm.plan(self._product(problem), epilogue, strides, threads)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        return self._gemm.estimate(self._product(problem), threads)

    @staticmethod
    def _product(problem: ConvProblem) -> GemmProblem:
        pixel = problem.x_strides[-1]
        if problem.in_lens[-1] == 1:
            pixel = next((s for n, s in zip(problem.in_lens[::-1], problem.x_strides[:0:-1]) if n > 1), pixel)
        return GemmProblem(
            problem.out_pixels,
            problem.out_channels,
            problem.in_channels,
            (problem.batch,),
            (problem.x_strides[0], pixel, 1),
            (0, problem.out_channels, 1),
            problem.out_strides,
            problem.dtype,
        )


class ConvDirect:
    """Any convolution that is not transposed."""

    name = "conv_direct"

    def refusal(self, problem: ConvProblem) -> str | None:
        return "the convolution is transposed" if problem.transposed else None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Panels of all groups, then a row of zeros."""
        panels = _panel_lens(problem, tile_for(problem.dtype))
        return (math.prod(panels) + problem.group_in,)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        tile = tile_for(problem.dtype)
        lens = _panel_lens(problem, tile)
        out = aligned_zeros(self.packed_lens(problem), problem.dtype)
        panels = out[: math.prod(lens)].reshape(lens)
        for tap, matrices in enumerate(tap_matrices(problem, weights)):
            pack_panels(tile, matrices, panels[:, :, tap])
        return out

    def plan(self, problem: ConvProblem, epilogue: Epilogue = NO_EPILOGUE, strides: Strides = (), threads: int = 1) -> Plan:
        return Plan((_launch(problem.volume(), epilogue, image_strides(problem, epilogue, strides), threads),))

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_for(problem.dtype)
        columns = panel_count(tile, problem.group_out) * tile.columns
        rows = problem.batch * problem.out_pixels
        terms = problem.taps * problem.group_in
        size = problem.itemsize
        moved = size * (
            problem.batch * problem.in_pixels * problem.in_channels
            + rows * problem.out_channels
            + problem.groups * terms * columns
        )
        table = rows * problem.groups * problem.taps * 40.0
        return seconds(tile, 2 * rows * problem.groups * columns * terms + table, moved, threads)


def tap_matrices(problem: ConvProblem, weights: np.ndarray) -> list[np.ndarray]:
    """For each tap in row-major order the view ``[group, group_in, group_out]`` of the weights."""
    grouped = _split_groups(weights, problem.groups)
    views = [grouped[(Ellipsis, *index)] for index in np.ndindex(*problem.kernel)]
    return [view if problem.transposed else view.swapaxes(1, 2) for view in views]


def _split_groups(weights: np.ndarray, groups: int) -> np.ndarray:
    """View of the weights with their first dimension split into groups and the rest."""
    first, *rest = weights.strides
    lens = (groups, weights.shape[0] // groups, *weights.shape[1:])
    strides = (first * lens[1], first, *rest)
    return np.lib.stride_tricks.as_strided(weights, lens, strides, writeable=False)


def image_strides(problem: ConvProblem, epilogue: Epilogue, strides: Strides) -> dict[str, tuple[int, int]]:
    """Strides of the image and the pixel, of the output and of the epilogue operands that vary over rows, by name."""
    table = {"out": (problem.out_strides[0], problem.out_strides[1])}
    for k, operand in enumerate(epilogue.operands):
        if operand.access in ("full", "per_m"):
            pixel = problem.out_channels if operand.access == "full" else 1
            given = tuple(strides[k]) if k < len(strides) else ()
            table[f"e{k}"] = (given[0], given[1]) if given else (pixel * problem.out_pixels, pixel)
    return table


def pixel_rows(epilogue: Epilogue) -> tuple[list[str], list[str]]:
    """Statements that find ``image`` and ``pixel`` of ``row``, and those that place one row and step to the next."""
    names = ["out", *(f"e{k}" for k, o in enumerate(epilogue.operands) if o.access in ("full", "per_m"))]
    per_row = {f"e{k}" for k, o in enumerate(epilogue.operands) if o.access == "per_m"}
    lines = [
        f"{name}_row = image * {name}_image + pixel * {name}_pixel{'' if name in per_row else ' + n0'}" for name in names
    ]
    step = ["pixel += 1", "if pixel == pixels:", "    pixel = 0", "    image += 1"]
    return ["image = idiv(row, pixels)", "pixel = row - image * pixels"], [*lines, *step]


def _panel_lens(problem: ConvProblem, tile: RegisterTile) -> tuple[int, ...]:
    return problem.groups, panel_count(tile, problem.group_out), problem.taps, problem.group_in, tile.columns


def _launch(problem: ConvProblem, epilogue: Epilogue, strides: dict[str, tuple[int, int]], threads: int) -> Launch:
    """``problem`` has three spatial dimensions."""
    tile = tile_for(problem.dtype)
    lens = _panel_lens(problem, tile)
    groups, panels, taps, depth, columns = lens
    rows = problem.batch * problem.out_pixels
    blocking = cut(tile, rows, problem.group_out, depth, taps, groups, threads)
    skeleton = Skeleton("conv", problem.dtype, tile, epilogue, several_taps=True)
    arguments = skeleton.arguments
    arguments.pointer("x", "x", problem.dtype)
    arguments.pointer("w", "w", problem.dtype)
    arguments.pointer("zero", Operand("w", math.prod(lens) * problem.itemsize), problem.dtype)
    skeleton.rows.pointers(arguments)
    arguments.integers(
        m=rows, n=problem.group_out, depth=depth, taps=taps, panels=panels,
        m_block=blocking.rows, p_block=blocking.panels, k_block=blocking.depth, tap_block=blocking.taps,
        m_blocks=-(-rows // blocking.rows), p_blocks=-(-panels // blocking.panels),
        keep=int(blocking.depth < depth or blocking.taps < taps),
        x_step=1, w_step=columns, w_panel=taps * depth * columns, pixels=problem.out_pixels, x_image=problem.x_strides[0],
    )  # fmt: skip
    flat = problem.in_lens[0] == problem.kernel[0] == problem.out_lens[0] == 1 and problem.pads_begin[0] == 0
    axes = ("h", "w") if flat else ("d", "h", "w")
    for axis, name in enumerate("dhw"):
        if name in axes:
            arguments.integers(**{
                f"x_{name}": problem.x_strides[axis + 1], f"in_{name}": problem.in_lens[axis],
                f"out_{name}": problem.out_lens[axis], f"kernel_{name}": problem.kernel[axis],
                f"stride_{name}": problem.stride[axis], f"dilation_{name}": problem.dilation[axis],
                f"pad_{name}": problem.pads_begin[axis],
            })  # fmt: skip
    for name, (image, pixel) in strides.items():
        arguments.integers(**{f"{name}_image": image, f"{name}_pixel": pixel})
    lanes = 1 << (tile.rows - 1).bit_length()
    skeleton.setup = [f"{name} = local_int64({TABLE_ROWS})" for name in ("base", *(f"at_{axis}" for axis in axes))]
    skeleton.decode = [
        "x0 = group * depth",
        "w0 = group * panels * w_panel",
        "column0 = group * n",
    ]
    skeleton.table = [*_row_places(axes, tile.rows), *_tap_places(axes, lanes), "put_pointer(block, 0, offset(x, x0 + k0))"]
    skeleton.before_rows, skeleton.row = pixel_rows(epilogue)
    size = problem.itemsize
    moved = size * (problem.batch * problem.in_pixels * problem.in_channels + math.prod(lens))
    moved += ITEMSIZE[epilogue.out_dtype(problem.dtype)] * rows * problem.out_channels
    tasks = blocking.tasks(rows, panels, groups)
    return Launch(skeleton.source(), tuple(arguments.values), tasks, 1, problem.flops, moved)


def _row_places(axes: tuple[str, ...], rows: int) -> list[str]:
    """Statements: for each tile row the input position of its first tap, as coordinates and as an offset.

    Rows beyond the last one repeat it.
    """
    lines = ["image = idiv(row, pixels)", "pixel = row - image * pixels"]
    for k, axis in enumerate(axes[:-1]):
        inner = " * ".join(f"out_{name}" for name in axes[k + 1 :])
        lines += [f"o_{axis} = idiv(pixel, {inner})", f"pixel -= o_{axis} * ({inner})"]
    lines += ["o_w = pixel", f"for i in range({rows}):"]
    body = []
    for axis in axes:
        body += [f"i_{axis} = o_{axis} * stride_{axis} - pad_{axis}", f"at_{axis}[i] = i_{axis}"]
    body.append("base[i] = image * x_image + " + " + ".join(f"i_{axis} * x_{axis}" for axis in axes))
    body.append("if i + 1 < left:")
    pad = "    "
    for axis in reversed(axes):
        body += [f"{pad}o_{axis} += 1", f"{pad}if o_{axis} == out_{axis}:", f"{pad}    o_{axis} = 0"]
        pad += "    "
    body.append(f"{pad}image += 1")
    return lines + ["    " + line for line in body]


def _tap_places(axes: tuple[str, ...], lanes: int) -> list[str]:
    """Statements: the table of offsets of all rows for the taps of this step, negative where the input ends."""
    lines = [f"bases = load(base, 0, {lanes})", *(f"first_{a} = load(at_{a}, 0, {lanes})" for a in axes), "rest = t0"]
    for axis in reversed(axes[1:]):
        lines += [f"k_{axis} = imod(rest, kernel_{axis})", f"rest = idiv(rest, kernel_{axis})"]
    lines += [f"k_{axes[0]} = rest", "for t in range(taps_now):"]
    body = []
    for axis in axes:
        body += [
            f"place_{axis} = add(first_{axis}, k_{axis} * dilation_{axis})",
            f"in_{axis}_range = logical_and(ge(place_{axis}, 0), lt(place_{axis}, in_{axis}))",
        ]
    body.append(f"inside = in_{axes[0]}_range")
    body += [f"inside = logical_and(inside, in_{axis}_range)" for axis in axes[1:]]
    shift = " + ".join(f"k_{axis} * dilation_{axis} * x_{axis}" for axis in axes)
    body += [f"places = add(bases, {shift})", f"store(table, t * {TABLE_ROWS}, where(inside, places, -1))"]
    pad = ""
    for axis in reversed(axes):
        body.append(f"{pad}k_{axis} += 1")
        if axis != axes[0]:
            body += [f"{pad}if k_{axis} == kernel_{axis}:", f"{pad}    k_{axis} = 0"]
            pad += "    "
    return lines + ["    " + line for line in body]
