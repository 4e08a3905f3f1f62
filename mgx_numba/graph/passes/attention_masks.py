"""Masks of attention brought into the form that the operator takes, from wherever an exporter adds them.

Between the product with the keys and the softmax the scores may be reshaped: windows of one image share a mask among
its heads (Liu et al., "Swin Transformer", 2021), heads are split from the batch, positions are rows and columns of an
image. A mask is added to scores of some lengths; attention has lengths of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...core.shape import common_lens
from ..constants import constant_array
from ..instruction import Instruction
from .build import RewriteBuilder

__all__ = ["fitted", "repeated", "sum_masks"]

Lens = tuple[int, ...]

FOLDED_BYTES = 16 << 20
"""Largest sum of constant masks that is kept as a constant; memory in which a larger one is made at every run is shared
by all layers. A window mask and a bias for each head take 1.8 MB in the first layers of Swin-T."""


def _groups(source: Lens, target: Lens) -> Iterator[tuple[slice, slice]]:
    """The shortest runs of axes that hold the same elements before and after a reshape."""
    i = j = 0
    while i < len(source) and j < len(target):
        k, m = i + 1, j + 1
        while (before := math.prod(source[i:k])) != (after := math.prod(target[j:m])):
            if m == len(target) or (before < after and k < len(source)):
                k += 1
            else:
                m += 1
        if k == len(source) or m == len(target):
            # what follows has length 1
            k, m = len(source), len(target)
        yield slice(i, k), slice(j, m)
        i, j = k, m


def fitted(b: RewriteBuilder, mask: Instruction, lens: Lens, target: Lens) -> Instruction:
    """A mask that is broadcast to scores of ``lens``, for the same scores reshaped to ``target``.

    Axes along which it is broadcast stay so where they are not merged with others. Where the first axis of ``target``
    merges such axes with others that follow, the mask has the length of these alone: it repeats.
    """
    if lens == target:
        return mask
    small = (1,) * (len(lens) - mask.shape.ndim) + mask.shape.lens
    wide: list[int] = []
    result: list[int] = []
    for before, after in _groups(lens, target):
        part, full = small[before], lens[before]
        own = next((k for k, n in enumerate(part) if n > 1), len(part))
        if own == len(part):
            wide += part
            result += [1] * len(target[after])
        elif after == slice(0, 1) and part[own:] == full[own:]:
            wide += part
            result += [math.prod(part)]
        else:
            wide += full
            result += target[after]
    return b.reshape(b.broadcast(mask, wide), result)


def repeated(b: RewriteBuilder, mask: Instruction, batch: int) -> Instruction:
    """A mask whose first of 4 axes has length ``batch`` or 1, from one whose masks repeat within the batch."""
    if mask.shape.ndim < 4 or mask.shape.lens[0] in (1, batch):
        return mask
    period, *rest = mask.shape.lens
    wide = b.broadcast(b.reshape(mask, (1, period, *rest)), (batch // period, period, *rest))
    return b.reshape(wide, (batch, *rest))


def sum_masks(b: RewriteBuilder, masks: Sequence[tuple[Instruction, Lens]], target: Lens) -> Instruction:
    """The sum of masks, each added to scores of some lengths, for scores of lengths ``target``."""
    sums: dict[Lens, Instruction] = {}
    for mask, lens in masks:
        sums[lens] = _add(b, sums[lens], mask) if lens in sums else mask
    first, *others = (fitted(b, mask, lens, target) for lens, mask in sums.items())
    for mask in others:
        batches = {m.shape.lens[0] for m in (first, mask) if m.shape.ndim == 4} - {1}
        if len(batches) > 1:
            first, mask = (repeated(b, m, target[0]) for m in (first, mask))
        first = _add(b, first, mask)
    return first


def _add(b: RewriteBuilder, x: Instruction, y: Instruction) -> Instruction:
    lens = common_lens(x.shape.lens, y.shape.lens)
    arrays = [constant_array(x), constant_array(y)]
    if math.prod(lens) * x.shape.type.size <= FOLDED_BYTES and arrays[0] is not None and arrays[1] is not None:
        with np.errstate(all="ignore"):
            return b.literal(np.add(arrays[0], arrays[1]))
    return b.op("add", b.broadcast(x, lens), b.broadcast(y, lens))
