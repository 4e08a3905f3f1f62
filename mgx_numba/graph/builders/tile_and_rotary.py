"""Rearrangements: ``tile`` and ``rotary_embedding``."""

from __future__ import annotations

from ..instruction import Instruction
from .base import MacroBuilder, macro


@macro("tile", inputs=(1, 1), repeats=())
def tile(e: MacroBuilder, x: Instruction, repeats: tuple[int, ...]) -> Instruction:
    """``x`` repeated ``repeats[k]`` times along axis ``k`` (ONNX Tile)."""
    lens = e.lens(x)
    if len(repeats) != len(lens) or any(n < 0 for n in repeats):
        raise e.fail(f"repeats are {list(repeats)}, expected {len(lens)} numbers that are not negative")
    if all(n == 1 for n in repeats):
        return x
    split = e.unsqueeze(x, [2 * k for k in range(len(lens))])
    wide = e.broadcast(split, [n for pair in zip(repeats, lens) for n in pair])
    return e.reshape(wide, [n * k for n, k in zip(repeats, lens)])


@macro("rotary_embedding", inputs=(3, 3), interleaved=False)
def rotary_embedding(
    e: MacroBuilder, x: Instruction, cos: Instruction, sin: Instruction, interleaved: bool
) -> Instruction:
    """Rotary position embedding of the last axis (Su et al. 2021, RoFormer).

    ``cos`` and ``sin`` broadcast to ``x``, with half of its last length or all of it. Element ``k`` is
    rotated with element ``k + half``, or with its neighbour when ``interleaved``.
    """
    lens = e.lens(x)
    half = lens[-1] // 2
    if lens[-1] % 2:
        raise e.fail(f"the last axis has odd length {lens[-1]}")
    axis = len(lens) - 1
    first, second = _halves(e, x, axis, half, interleaved)
    angles = []
    for values in (cos, sin):
        if e.lens(values)[-1] not in (half, lens[-1]):
            raise e.fail(f"cos and sin have {e.lens(values)[-1]} values for a last axis of {lens[-1]}")
        whole = e.lens(values)[-1] == lens[-1]
        last = values.shape.ndim - 1
        angles.append(_halves(e, values, last, half, interleaved)[0] if whole else values)
    cosine, sine = angles
    left = e.op("sub", *e.common(e.pointwise("mul", first, cosine), e.pointwise("mul", second, sine)))
    right = e.op("add", *e.common(e.pointwise("mul", second, cosine), e.pointwise("mul", first, sine)))
    if not interleaved:
        return e.op("concat", left, right, axis=axis)
    pairs = [e.unsqueeze(v, [axis + 1]) for v in (left, right)]
    return e.reshape(e.op("concat", *pairs, axis=axis + 1), lens)


def _halves(
    e: MacroBuilder, x: Instruction, axis: int, half: int, interleaved: bool
) -> tuple[Instruction, Instruction]:
    """The elements that are rotated with each other: even and odd ones, or the first and the second half."""
    if not interleaved:
        left, right = e.split(x, axis, [half, half])
        return left, right
    pairs = e.reshape(x, [*e.lens(x)[:-1], half, 2])
    left, right = (e.squeeze(member, [axis + 1]) for member in e.split(pairs, axis + 1, [1, 1]))
    return left, right
