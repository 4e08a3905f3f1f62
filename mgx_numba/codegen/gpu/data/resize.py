"""Resizing by interpolation: weighted sums of neighbours along each axis, from tables of positions and weights.

Where lengths are symbolic, a launch fills the tables on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod

import numpy as np

from ....core.dim import ceil_div, typical
from ....core.types import Type
from ....ops.resize import Resize, interpolation_taps
from ...arguments import Arguments
from ...launch import Launch
from ...printer import VectorValue
from ...problems.cluster import Tensor
from ...resampling import Resampled, clipped, coordinates, nearest
from ...resampling import taps as taps_text
from ...statements import cast_text, indent
from ..cluster.flat_index import contiguous_lanes
from ..kernel import gpu_launch
from ..printer import ThreadPrinter, dtype_name, most_lanes
from .elements import ElementText


def interpolation_tables(op: Resize, x: Tensor) -> tuple[list[int], dict[str, np.ndarray]]:
    """Return the axes that are resampled, and the tables that `interpolation_launch` reads."""
    samples, tables = op.samples(x.lens), dict[str, np.ndarray]()
    for axis, coordinate in samples:
        pairs = interpolation_taps(op.mode, coordinate, x.lens[axis], op.cubic_coeff_a)
        tables[f"index{axis}"] = np.stack([at for at, _ in pairs], 1).astype(np.int64) * x.strides[axis]
        tables[f"weight{axis}"] = np.stack([weight for _, weight in pairs], 1).astype(x.type.compute.numpy)
    return [axis for axis, _ in samples], tables


def window_sum_tables(axis: int, positions: np.ndarray, weights: np.ndarray, x: Tensor) -> dict[str, np.ndarray]:
    """Return the tables that `interpolation_launch` reads for ``window_sum`` with constants [out, taps]."""
    return {f"index{axis}": positions * x.strides[axis], f"weight{axis}": weights.astype(x.type.compute.numpy)}


def interpolation_launch(name: str, taps: int, axes: Sequence[int], x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of the kernel ``name`` that resamples floats by weighted sums of ``taps`` elements along each
    of some axes.

    Its operands are ``x``, ``out``, and for each axis ``index<axis>`` and ``weight<axis>``: for each position the
    offsets of its taps in ``x``, and their weights in the compute type. 16-bit floats are accumulated in float32.
    Vectors lie along an axis that is not resampled, if that is contiguous.
    """
    compute = x.type.compute
    order = sorted(range(len(out.lens)), key=lambda a: -typical(out.strides[a]))
    lens = [out.lens[a] for a in order]
    linear = [0 if a in axes else x.strides[a] for a in order]
    strides = [linear, [out.strides[a] for a in order]]
    moving = [((*(x.strides[a] for a in axes), *linear), x.offset), (strides[1], out.offset)]
    lanes = contiguous_lanes(most_lanes(x.type.size), lens[-1], moving) if order[-1] not in axes else 1
    text = ElementText([("x", x), ("out", out)], lens, strides, lanes)
    buffer = text.buffer
    for axis in axes:
        text.arguments.pointer(f"p_index{axis}", f"index{axis}", dtype_name(Type.int64_type))
        text.arguments.pointer(f"p_weight{axis}", f"weight{axis}", dtype_name(compute))
    text.begin()
    printer = ThreadPrinter(buffer, lanes)
    buffer.line(f"total = {printer.const(0, compute).name}")
    place, weight = text.place(0), ""
    load = "load" if lanes == 1 else "load_aligned" if linear[-1] else "load_splat"
    firsts = {axis: buffer.emit(f"{text.places[order.index(axis)]} * {taps}") for axis in axes}
    with ExitStack() as loops:
        for axis in axes:
            loops.enter_context(buffer.block(f"for j{axis} in range({taps}):"))
            place = buffer.emit(f"{place} + load_scalar(p_index{axis}, {firsts[axis]} + j{axis})")
            own = buffer.emit(f"load_scalar(p_weight{axis}, {firsts[axis]} + j{axis})")
            weight = buffer.emit(f"mul({weight}, {own})") if weight else own
        value = printer.register(printer.loaded(f"{load}(p_x, {place}, {lanes})", x.type))
        buffer.line(f"total = fma({value}, splat({weight}, {lanes}), total)")
    text.store(printer.stored(VectorValue("total", compute), x.type))
    moved, terms = x.footprint + out.footprint, taps ** len(axes)
    return text.launch(name, origin, moved, 2 * prod(out.lens) * terms)


THREADS = 128
"""Threads of a block, each of which computes the entries of one position."""


def nearest_positions(op: Resize, axis: Resampled, origin: str = "") -> Launch:
    """Return a launch that fills the operand ``index`` with the position nearest to each coordinate."""
    return _table("nearest_positions_kernel", op, axis, "", [clipped(nearest(op, 0)), _stored(0, 1)], origin)


def tap_positions(op: Resize, axis: Resampled, dtype: str, origin: str = "") -> Launch:
    """Return a launch that fills the operands ``index`` and ``weight`` (of type ``dtype``), position by position."""
    lines, positions = taps_text(op, 0)
    for k, position in enumerate(positions):
        weight = cast_text(f"w{k}", "float32", dtype)
        lines += [clipped(position), _stored(k, len(positions))]
        lines.append(f"store_scalar(p_weight, i * {len(positions)} + {k}, {weight})")
    return _table("tap_positions_kernel", op, axis, dtype, lines, origin)


def _stored(part: int, parts: int) -> str:
    """Return the line that stores ``at`` as an offset in the source."""
    return f"store_scalar(p_index, i * {parts} + {part}, at * step)"


def _table(name: str, op: Resize, axis: Resampled, weight: str, lines: list[str], origin: str) -> Launch:
    arguments = Arguments()
    arguments.pointer("p_index", "index", "int64")
    if weight:
        arguments.pointer("p_weight", "weight", weight)
    arguments.integers(count=axis.count, length=axis.length, step=axis.step)
    text = [
        *arguments.bind(),
        f"i = block_index(0) * {THREADS} + thread_index(0)",
        "if i < count:",
        *indent([*coordinates(op, axis.factor, 0), *lines]),
    ]
    return gpu_launch(name, text, arguments, ceil_div(axis.count, THREADS), THREADS, origin=origin)
