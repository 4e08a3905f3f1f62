"""Weights of 4 or 8 bits in blocks as floats, for products of many rows."""

from __future__ import annotations

from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import BlockFormat
from ..contraction.nbits import codes_of_vector
from ..kernel import gpu_grid, gpu_kernel

__all__ = ["unpacked_weights_launch"]

THREADS = 256
"""Threads of a block. No figures kept."""


def unpacked_weights_launch(form: BlockFormat, columns: int, blocks: int, dtype: str, origin: str) -> Launch:
    """``(code - zero point) * scale`` of ``codes``, as `contraction.nbits.pack_codes` makes them, ``scales`` and
    ``points`` to ``out`` [columns, blocks * form.size] of a float ``dtype``; each thread makes those of a vector."""
    count = codes_of_vector(form)
    lanes = count * form.bits // 32
    arguments, buffer = Arguments(), CodeBuffer()
    arguments.pointer("p_codes", "codes", "int32")
    arguments.pointer("p_scales", "scales", "float32")
    if form.zero_points:
        arguments.pointer("p_points", "points", "uint8")
    arguments.pointer("p_out", "out", dtype)
    items = columns * blocks * (form.size // count)
    arguments.integer("items", items)
    for line in (*arguments.bind(), f"item = block_index(0) * {THREADS} + thread_index(0)"):
        buffer.line(line)
    with buffer.block("if item < items:"):
        buffer.line(f"words = load_aligned(p_codes, item * {lanes}, {lanes})")
        buffer.line(f"block = idiv(item, {form.size // count})")
        buffer.line(f"scale = load_splat(p_scales, block, {lanes})")
        point = f"load_splat(p_points, block, {lanes})" if form.zero_points else f"const_uint8({form.middle}, {lanes})"
        buffer.line(f"point = cast_int32({point})")
        for step in range(count // lanes):
            shifted = f"shift_right(words, const_int32({step * form.bits}, {lanes}))"
            code = f"sub(bitwise_and({shifted}, const_int32({(1 << form.bits) - 1}, {lanes})), point)"
            value = f"cast_{dtype}(mul(cast_float32({code}), scale))"
            buffer.line(f"store_aligned(p_out, item * {count} + {step * lanes}, {value})")
    values = arguments.values
    kernel = gpu_kernel(f"unpack_{form.bits}bits_{dtype}_kernel", buffer.lines, THREADS, len(values), origin)
    moved = items * (count * form.bits // 8 + count * ITEMSIZE[dtype]) + columns * blocks * ITEMSIZE["float32"]
    return Launch(kernel, values, gpu_grid(-(-items // THREADS), THREADS), 0, moved)
