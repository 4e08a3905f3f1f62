"""Contraction prologues: pointwise operations before a 1x1 convolution, computed as it reads its rows."""

from __future__ import annotations

from typing import Any

from ...core.dim import hint, known_equal, known_same
from ...core.shape import Lens, Shape
from ...ops.dot import FP8
from ..instruction import Instruction
from .regions import Note, Refuses, absorb_producers, unfusable

MOST_COLUMNS = 256
"""Most output channels; the prologue is recomputed for each block of them. No figures kept."""
MOST_WEIGHTS = 98304
"""Most weights (outputs times inputs) of one task; beyond, several tasks would repeat the prologue."""
PLAIN_SOURCES = frozenset({"concat", "layout", "pooling", "reshape", "slice", "transpose", "@param"})
"""Producers of a prologue's input that could not fuse the operations themselves."""


def varies_over_pixels(shape: Shape) -> bool:
    """Return whether a tensor ``[image, channel, *spatial]`` varies over pixels."""
    return any(not known_equal(s, 0) and hint(n) > 1 for n, s in zip(shape.lens[2:], shape.strides[2:]))


def pointwise_over(lens: Lens) -> Refuses:
    """Return a predicate that refuses everything but pointwise operations of this shape."""

    def refuses(ins: Instruction) -> str | None:
        if not ins.op.pointwise or ins.module_args:
            return "it is no pointwise operation"
        return unfusable(ins) if known_same(ins.shape.lens, lens) else f"its lengths are not {list(lens)}"

    return refuses


def prologue_of(convolution: Instruction, order: dict[Instruction, int], note: Note) -> list[Instruction]:
    """Return the operations, in program order, that compute a convolution's input and have no other users; maybe none.

    The convolution is a matrix product over pixels. The operations have the input's shape and read one tensor of the
    convolution's type that varies over pixels; all others repeat over pixels. None rounds to float8 and back, because a
    separate kernel does that faster (AVX2: efficientnet_b0 takes 7% longer than in float32, with a prologue 11%).
    """
    if convolution.name != "convolution" or not convolution.inputs[0].op.pointwise:
        return []
    source = convolution.inputs[0].shape
    reason = _no_product(convolution)
    if reason is not None:
        note(convolution, f"no prologue: {reason}")
        return []
    found = absorb_producers([convolution], order, pointwise_over(source.lens), note)
    members = [i for i in found if i is not convolution]
    if source.type not in FP8 and any(i.shape.type in FP8 or i.name == "nearest_float8" for i in members):
        note(convolution, "no prologue: its operations round to float8 and back")
        return []
    inside = set(members)
    inputs = dict.fromkeys(i for ins in members for i in ins.inputs if i not in inside)
    varying = [i for i in inputs if varies_over_pixels(i.shape)]
    if members and (len(varying) != 1 or varying[0].shape.type is not source.type):
        note(convolution, "no prologue: its operations read other tensors than one, of its type, that vary over pixels")
        return []
    if members and varying[0].name not in PLAIN_SOURCES and all(user in inside for user in varying[0].users):
        note(convolution, f"no prologue: {varying[0].name} can take its operations itself")
        return []
    return members


def _no_product(convolution: Instruction) -> str | None:
    """Return the reason why a convolution is no matrix product over pixels whose weights fit one task."""
    op: Any = convolution.op
    x, weights = (i.shape for i in convolution.inputs)
    if any(known_equal(n, 0) for n in (*x.lens, *weights.lens)) or weights.type is not x.type:
        return "there are no elements, or weights of another type"
    if any(n != 1 for n in weights.lens[2:]) or op.group != 1 or any(op.padding) or any(s != 1 for s in op.stride):
        return "the convolution is not 1x1 with stride 1"
    if weights.elements > MOST_WEIGHTS or weights.lens[0] > MOST_COLUMNS:
        return f"more than {MOST_COLUMNS} output channels or {MOST_WEIGHTS} weights"
    return None
