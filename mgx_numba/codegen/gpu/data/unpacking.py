"""Dequantise block-quantised weights of 4 or 8 bits to floats, for products of many rows."""

from __future__ import annotations

from collections.abc import Sequence

from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import BlockFormat
from ..contraction.block_quant import codes_of_vector
from ..contraction.block_quant_mma import CHUNK, CODE_WORDS, COLUMNS, chunk_words, scale_type, scales_of_chunk
from ..kernel import gpu_grid, gpu_kernel

THREADS = 256
"""Threads per block. No figures kept."""


def unpacked_weights_launch(form: BlockFormat, columns: int, blocks: int, dtype: str, origin: str) -> Launch:
    """Return the launch of ``out = (code - zero point) * scale + offset``, one vector per thread.

    Operands: ``codes`` from `contraction.block_quant.pack_codes`, ``scales``, ``points`` or ``offsets``, ``out``
    [columns, blocks * form.size] of float type ``dtype``.
    """
    count = codes_of_vector(form)
    lanes = count * form.bits // 32
    items = columns * blocks * (form.size // count)
    lines = [
        f"words = load_aligned(p_codes, item * {lanes}, {lanes})",
        f"block = idiv(item, {form.size // count})",
        *_of_block(form, lanes),
    ]
    for step in range(count // lanes):
        shifted = f"shift_right(words, const_int32({step * form.bits}, {lanes}))"
        lines += _stored(form, dtype, lanes, shifted, f"item * {count} + {step * lanes}")
    return _launch(form, columns, blocks, dtype, origin, items, lines, apart=True)


def unpacked_chunks_launch(form: BlockFormat, columns: int, blocks: int, dtype: str, origin: str) -> Launch:
    """Return the same launch for ``codes`` from `contraction.block_quant_mma.pack_chunks`, which include scales, zero
    points and offsets; one word per thread."""
    items, words, inside = columns * blocks * form.size // 8, chunk_words(form), scales_of_chunk(form)
    per_word = 4 // ITEMSIZE[scale_type(form)]
    scales = CODE_WORDS + COLUMNS * inside // per_word
    lines = [
        "word = imod(item, 16)",  # of a chunk's words: four of a thread, one for each part
        "chunk = idiv(item, 16)",
        "column = idiv(chunk, chunks)",
        f"tile = idiv(column, {COLUMNS})",
        "line = column - tile * 16",
        f"first = (tile * chunks + chunk - column * chunks) * {words}",
        "part = imod(word, 4)",
        "place = (item - word) * 8 + part * 32 + idiv(word, 4) * 8",
        f"block = line * {inside} + idiv(part * {inside}, 4)",
        f"scale = cast_float32(load_splat(p_scales, (first + {CODE_WORDS}) * {per_word} + block, 8))",
    ]
    if form.zero_points:
        lines += [
            f"point = load_splat(p_codes, first + {scales} + idiv(block, 4), 8)",
            "point = bitwise_and(shift_right(point, splat(cast_int32(imod(block, 4) * 8), 8)), const_int32(255, 8))",
        ]
    else:
        lines.append(f"point = const_int32({form.middle}, 8)")
    if form.offsets:
        lines.append(f"moved = cast_float32(load_splat(p_scales, (first + {scales}) * {per_word} + block, 8))")
    lines += [
        "order = iota_int32(8)",
        "odd = bitwise_and(order, const_int32(1, 8))",
        "shifts = add(mul(odd, const_int32(16, 8)), mul(shift_right(order, const_int32(1, 8)), const_int32(4, 8)))",
        "words = load_splat(p_codes, first + line * 16 + word, 8)",
        *_stored(form, dtype, 8, "shift_right(words, shifts)", "place"),
    ]
    return _launch(form, columns, blocks, dtype, origin, items, lines, apart=False)


def _of_block(form: BlockFormat, lanes: int) -> list[str]:
    """Return statements that load the scale, the zero point and the offset of ``block``."""
    point = f"load_splat(p_points, block, {lanes})" if form.zero_points else f"const_uint8({form.middle}, {lanes})"
    moved = [f"moved = load_splat(p_offsets, block, {lanes})"] if form.offsets else []
    return [f"scale = load_splat(p_scales, block, {lanes})", f"point = cast_int32({point})", *moved]


def _stored(form: BlockFormat, dtype: str, lanes: int, shifted: str, place: str) -> list[str]:
    """Return statements that store the weights whose codes are the lowest bits of ``shifted``."""
    code = f"sub(bitwise_and({shifted}, const_int32({(1 << form.bits) - 1}, {lanes})), point)"
    weight = f"mul(cast_float32({code}), scale)"
    weight = f"add({weight}, moved)" if form.offsets else weight
    return [f"store_aligned(p_out, {place}, cast_{dtype}({weight}))"]


def _launch(
    form: BlockFormat, columns: int, blocks: int, dtype: str, origin: str, items: int, lines: Sequence[str],
    apart: bool,
) -> Launch:  # fmt: skip
    """Return the launch of a kernel whose statements compute one ``item``; ``apart``: scales, zero points
    and offsets are separate operands."""
    arguments, buffer = Arguments(), CodeBuffer()
    arguments.pointer("p_codes", "codes", "int32")
    arguments.pointer("p_scales", "scales" if apart else "codes", "float32" if apart else scale_type(form))
    if apart and form.zero_points:
        arguments.pointer("p_points", "points", "uint8")
    if apart and form.offsets:
        arguments.pointer("p_offsets", "offsets", "float32")
    arguments.pointer("p_out", "out", dtype)
    arguments.integers(items=items, chunks=blocks * form.size // CHUNK)
    buffer.line(*arguments.bind(), f"item = block_index(0) * {THREADS} + thread_index(0)")
    with buffer.block("if item < items:"):
        buffer.line(*lines)
    values = arguments.values
    kernel = gpu_kernel(f"unpack_{form.bits}bits_{dtype}_kernel", buffer.lines, THREADS, len(values), origin)
    weights = columns * blocks * form.size
    moved = weights * form.bits // 8 + weights * ITEMSIZE[dtype] + columns * blocks * ITEMSIZE["float32"]
    return Launch(kernel, values, gpu_grid(-(-items // THREADS), THREADS), 0, moved)
