"""The kernel that packs weights into 17 bits (`int16_weights`), reading each weight from memory once.

A task is a block of `BLOCK` rows of a stripe of panels. Its weights are copied to scratch memory, panel by panel and
row-major in any case, and stay in the core's own cache. Each panel is then scanned for its largest weights, and once
more to write the words.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from ....parallel import allowed_cpus, on_threads
from ...arguments import Arguments
from ...backend import LoadKernels
from ...kernel import KernelSource
from ...launch import Operand
from ...statements import indent, kernel_text
from ..kernel import cpu_kernel
from .int16_weights import (
    BLOCK,
    BLOCK_WORDS,
    DOWN,
    FEW,
    GROUP,
    SHARING,
    SMALLEST_STEP,
    block_count,
    largest_integer,
    least_mean,
    refuse_unsuited,
)  # fmt: skip

STRIPE = 256
"""Columns of a stripe, of which a block takes a quarter of an L2 cache (measured: 64 to 512 differ by a tenth)."""
ROUNDING = 1.5 * 2.0**23
"""Added to a small number, leaves the nearest integer (ties to even) in the low bits of a float32."""
PART_BLOCKS = 32
"""Blocks of a stripe that one thread packs at a time, some 2 MiB of weights."""


def pack_by_kernel(weights: np.ndarray, out: np.ndarray, lanes: int, load: LoadKernels) -> None:
    """Pack weights with contiguous rows or columns as `int16_weights.pack_words` does with the lowest bits."""
    depth, columns = weights.shape
    panels, size, pairs = out.shape
    by_columns = _by_columns(weights)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        load([kernel_for(weights, out.shape, lanes)])[0]
    )
    blocks, together = block_count(depth), max(1, STRIPE // (2 * pairs))
    stride = weights.strides[by_columns] // weights.itemsize
    exceeds = np.zeros((blocks, panels * 2 * pairs), np.float32)

    def pack(part: tuple[int, int]) -> None:
        panel, block = part
        count = min(together, panels - panel)
        scratch = np.empty(count * BLOCK * 2 * pairs + lanes, np.float32)
        aligned = scratch.ctypes.data + -scratch.ctypes.data % (4 * lanes)
        places = {
            Operand("w"): weights.ctypes.data,
            Operand("out"): out.ctypes.data,
            Operand("scratch"): aligned,
            Operand("exceeds"): exceeds.ctypes.data,
        }
        words = _arguments(depth, columns, stride, panels, size, panel, count).values
        arguments = np.array([places[w] if isinstance(w, Operand) else w for w in words], np.int64)
        run(arguments.ctypes.data, block, min(block + PART_BLOCKS, blocks))

    parts = [(panel, block) for panel in range(0, panels, together) for block in range(0, blocks, PART_BLOCKS)]
    on_threads(pack, parts, allowed_cpus())
    refuse_unsuited(exceeds.sum(0, np.float64))


def _by_columns(weights: np.ndarray) -> bool:
    return weights.strides[1] != weights.itemsize


def kernel_for(weights: np.ndarray, lens: Sequence[int], lanes: int) -> KernelSource:
    """Return the kernel that packs ``weights[k, n]`` into words of the lengths ``lens``."""
    return packing_kernel(_by_columns(weights), 2 * lens[2] // lanes, lanes)


def packing_kernel(by_columns: bool, vectors: int, lanes: int) -> KernelSource:
    """Return the packing kernel for panels of ``vectors`` vectors.

    Args:
        by_columns: the weights' columns are contiguous, not the rows.
    """
    wide = vectors * lanes
    task = [
        f"first = block * {BLOCK}",
        f"rows = imin(depth - first, {BLOCK})",
        "for p in range(count):",
        f"    column = (panel + p) * {wide}",
        f"    part = offset(scratch, p * {BLOCK * wide})",
        *indent(_loaded_columns(vectors, lanes) if by_columns else _loaded_rows(vectors, lanes)),
        "for p in range(count):",
        f"    column = (panel + p) * {wide}",
        f"    part = offset(scratch, p * {BLOCK * wide})",
        f"    place = ((panel + p) * size + block * {BLOCK_WORDS}) * {wide // 2}",
        *indent(_steps(vectors, lanes)),
        f"    place += {wide // 2}",
        f"    for head in range(0, rows, {GROUP}):",
        *indent(_words(vectors, lanes), 2),
        f"        place += {(GROUP + 1) * wide // 2}",
    ]
    lines = [*_arguments().bind(), "for block in range(begin, end):", *indent(task)]
    return cpu_kernel(f"int16_pack_{'columns' if by_columns else 'rows'}_kernel", kernel_text(lines))


def _arguments(
    depth: int = 0, columns: int = 0, stride: int = 0, panels: int = 0, size: int = 0, panel: int = 0, count: int = 0
) -> Arguments:
    """Return the kernel's argument block; each pointer is an operand of its name."""
    arguments = Arguments()
    for name, dtype in (("w", "float32"), ("out", "int32"), ("scratch", "float32"), ("exceeds", "float32")):
        arguments.pointer(name, name, dtype)
    arguments.integers(depth=depth, columns=columns, stride=stride, panels=panels, size=size, panel=panel, count=count)
    return arguments


def _loaded_rows(vectors: int, lanes: int) -> list[str]:
    wide = vectors * lanes
    tail = f"load_tail(w, source + v, imin(imax(columns - column - v, 0), {lanes}), 0, {lanes})"
    return [
        "for k in range(rows):",
        "    source = (first + k) * stride + column",
        f"    if column + {wide} <= columns:",
        *(f"        store(part, k * {wide} + {v}, load(w, source + {v}, {lanes}))" for v in range(0, wide, lanes)),
        "    else:",
        f"        for v in range(0, {wide}, {lanes}):",
        f"            store(part, k * {wide} + v, {tail})",
    ]


def _loaded_columns(vectors: int, lanes: int) -> list[str]:
    wide = vectors * lanes
    return [
        f"here = imin(columns - column, {wide})",
        f"whole = rows - imod(rows, {lanes}) if here > 0 else 0",
        f"for v in range(0, {wide}, {lanes}):",
        "    if v < here:",
        f"        for k in range(0, whole, {lanes}):",
        "            source = offset(w, (column + v) * stride + first + k)",
        f"            transpose_block(source, stride, here - v, offset(part, k * {wide} + v), {wide}, {lanes})",
        "        for k in range(whole, rows):",
        f"            for c in range(v, imin(here, v + {lanes})):",
        f"                store_scalar(part, k * {wide} + c, load_scalar(w, (column + c) * stride + first + k))",
        f"    if here < v + {lanes}:",
        f"        shown = lane_mask(imax(here - v, 0), {lanes})",
        "        for k in range(rows):",
        f"            known = load(part, k * {wide} + v, {lanes})",
        f"            store(part, k * {wide} + v, where(shown, known, const_float32(0, {lanes})))",
    ]


def _steps(vectors: int, lanes: int) -> list[str]:
    """Return statements that compute each column's step and scale, and by how much the sums exceed the least mean."""
    zero = f"const_float32(0, {lanes})"
    each = range(vectors)
    return [
        *(f"{name}{v} = {zero}" for v in each for name in ("largest", "total", "some")),
        "for k in range(rows):",
        *(
            f"    {line}"
            for v in each
            for line in (
                f"x = abs(load(part, k * {vectors * lanes} + {v * lanes}, {lanes}))",
                f"largest{v} = first_greater(x, largest{v})",
                f"total{v} = add(total{v}, x)",
                f"some{v} = add(some{v}, where(ne(x, 0), const_float32(1, {lanes}), {zero}))",
            )
        ),
        *(
            line
            for v in each
            for line in (
                f"step{v} = max(div(largest{v}, {largest_integer(True)}), {float(SMALLEST_STEP)!r})",
                f"bits = add(bits_int32(mul(step{v}, {2.0**-15 / DOWN!r})), {0xFFFF})",
                f"bits{v} = bitwise_and(bits, const_int32({-1 << 16}, {lanes}))",
                f"step{v} = mul(bits_float32(bits{v}), {DOWN / 2.0**-15!r})",
                f"needed = mul(max(sub(some{v}, {FEW}), 0), mul(step{v}, {least_mean(True)!r}))",
                f"more = sub(sub(total{v}, largest{v}), needed)",
                f"more = where(logical_or(gt(step{v}, {float(SMALLEST_STEP)!r}), isnan(total{v})), more, {zero})",
                f"more = where(lt(bits_float32(bits{v}), INF), more, NAN)",
                f"store(exceeds, block * panels * {vectors * lanes} + column + {v * lanes}, more)",
            )
        ),
        *(
            line
            for v in range(0, vectors, 2)
            for line in (
                f"low = bitwise_and(shift_right(bits{v}, const_int32(16, {lanes})), const_int32(65535, {lanes}))",
                f"store(out, place + {v // 2 * lanes}, bitwise_or(low, bits{v + 1}))",
            )
        ),
    ]


def _words(vectors: int, lanes: int) -> list[str]:
    """Return statements that write the words of a panel's rows from ``head``, after the words of their lowest bits at
    ``place``.

    Nonzero weights stay nonzero.
    """
    wide = vectors * lanes
    each = range(vectors)
    lines = []
    for v in each:
        lines += [
            f"x{v} = load(part, (head + k) * {wide} + {v * lanes}, {lanes})",
            f"q{v} = add(div(x{v}, step{v}), {ROUNDING!r})",
        ]
    lines += [
        f"zero = eq(q0, {ROUNDING!r})",
        *(f"zero = logical_or(zero, eq(q{v}, {ROUNDING!r}))" for v in each[1:]),
        "if reduce_or(zero):",
        *(f"    q{v} = where(eq(q{v}, {ROUNDING!r}), add(sign(x{v}), {ROUNDING!r}), q{v})" for v in each),
        f"up = splat(cast_int32(2 * ({SHARING - 1} - imod(k, {SHARING}) + {SHARING} * idiv(k, {SHARING}))), {lanes})",
    ]
    for v in range(0, vectors, 2):
        lines += [
            f"low = bits_int32(q{v})",
            f"last{v} = bitwise_or(last{v}, shift_left(bitwise_and(low, const_int32(3, {lanes})), up))",
            f"low = bitwise_and(shift_right(low, const_int32(2, {lanes})), const_int32({0x7FFF}, {lanes}))",
            f"high = shift_left(bits_int32(q{v + 1}), const_int32(15, {lanes}))",
            f"store(out, place + (k + 1) * {wide // 2} + {v // 2 * lanes}, bitwise_or(low, high))",
        ]
    pairs = range(0, vectors, 2)
    return [
        *(f"last{v} = const_int32(0, {lanes})" for v in pairs),
        f"for k in range(imin(rows - head, {GROUP})):",
        *indent(lines),
        *(f"store(out, place + {v // 2 * lanes}, last{v})" for v in pairs),
    ]
