"""Convert attention masks, wherever an exporter adds them, to the form that the operator takes.

Between the product with the keys and the softmax the scores may be reshaped: windows of an image share a mask among
heads (Liu et al., "Swin Transformer", 2021), heads are split from the batch, positions are rows and columns of an
image. A mask is added to scores of one shape; attention has a shape of its own.

A mask chosen by ``where`` replaces scores: hidden keys have equal scores, whatever the products are, so a row that
hides every key gives the mean of all values. Adding the fill value is equivalent only if it is `HUGE`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...core.dim import hint, is_symbolic, known_equal, known_less_equal, known_same
from ...core.shape import Shape, common_lens
from ...core.types import Type
from ...dataclass import dataclass
from ..constants import compact, constant_array, is_causal, uniform_value
from ..instruction import Instruction
from .build import RewriteBuilder
from .causal_masks import is_causal_mask, leaves

Lens = tuple[int, ...]

HUGE = 1e30
"""Mask values beyond this absorb every score: float32 has 24 bits, so all scores below 1e22."""
LARGE = 1e4
"""With ``fast_math``, keys with a mask below minus this have no weight beside a visible key. Exact for scores above
-9,896, since exp(-104) is 0 in float32. Exporters of BERT and GPT-2 write -10,000."""

FOLDED_BYTES = 16 << 20
"""Largest sum of constant masks (bytes) that is folded; a larger one is computed at every run into memory that all
layers share. A window mask plus a bias per head takes 1.8 MB in Swin-T's first layers."""


def _groups(source: Lens, target: Lens) -> Iterator[tuple[slice, slice]]:
    """Yield the shortest runs of axes that hold the same elements before and after a reshape."""
    i = j = 0
    while i < len(source) and j < len(target):
        k, m = i + 1, j + 1
        while not known_equal(before := math.prod(source[i:k]), after := math.prod(target[j:m])):
            if k == len(source) and m == len(target):
                break  # equal, but not as expressions
            if m == len(target) or (hint(before) < hint(after) and k < len(source)):
                k += 1
            else:
                m += 1
        if k == len(source) or m == len(target):
            # what follows has length 1
            k, m = len(source), len(target)
        yield slice(i, k), slice(j, m)
        i, j = k, m


def fitted(b: RewriteBuilder, mask: Instruction, lens: Lens, target: Lens) -> Instruction:
    """Return a mask that broadcasts to scores of ``lens``, reshaped for scores of ``target``.

    Broadcast axes stay broadcast unless they are merged with others. Where the first axis of ``target`` merges
    broadcast axes with following ones, the mask has the length of the following ones and repeats.
    """
    if known_same(lens, target):
        return mask
    small = (1,) * (len(lens) - mask.shape.ndim) + mask.shape.lens
    wide: list[int] = []
    result: list[int] = []
    for before, after in _groups(lens, target):
        part, full = small[before], lens[before]
        own = next((k for k, n in enumerate(part) if not known_less_equal(n, 1)), len(part))
        if own == len(part):
            wide += part
            result += [1] * len(target[after])
        elif after == slice(0, 1) and known_same(part[own:], full[own:]):
            wide += part
            result += [math.prod(part)]
        else:
            wide += full
            result += target[after]
    return b.reshape(b.broadcast(mask, wide), result)


def repeated(b: RewriteBuilder, mask: Instruction, batch: int) -> Instruction:
    """Return a 4-axis mask whose first axis has length ``batch`` or 1, from a mask that repeats within the batch."""
    if mask.shape.ndim < 4 or known_equal(mask.shape.lens[0], 1) or known_equal(mask.shape.lens[0], batch):
        return mask
    period, *rest = mask.shape.lens
    wide = b.broadcast(b.reshape(mask, (1, period, *rest)), (batch // period, period, *rest))
    return b.reshape(wide, (batch, *rest))


@dataclass(frozen=True)
class MaskStep:
    """A mask between product and softmax: ``value`` is added, or (with ``fill``) selects between the scores and
    ``fill``.

    Attributes:
        value: the added mask, or the condition.
        lens: shape of the scores.
        factor: scale of this mask and of everything below it.
        fill: the other branch of ``where``.
        fill_first: whether scores are kept where the condition is false.
    """

    value: Instruction
    lens: Lens
    factor: float
    fill: float | None = None
    fill_first: bool = False


@dataclass(frozen=True)
class Masks:
    """The mask operand of ``attention``, if any, and its attributes."""

    operands: tuple[Instruction, ...] = ()
    causal: bool = False
    fill: float = -math.inf


def read_masks(b: RewriteBuilder, steps: Sequence[MaskStep], type: Type, target: Lens, fast_math: bool) -> Masks | str:
    """Return the mask that is the same as ``steps``, innermost first, for scores of lengths ``target``.

    Args:
        type: element type of the scores that the softmax takes.

    Returns:
        the mask, or why ``attention`` cannot express the steps.
    """
    fills = [_fill_of(step, type) for step in steps]
    strange = [fill for fill in fills if fill is not None and not fill <= 0]
    if strange:
        return f"where puts {strange[0]:g} in the place of scores, which is no mask"
    known = _constant_keep(steps, target)
    if known is not None and _hides(known, fills[0], fast_math):
        if is_causal(known):
            return Masks(causal=True)
        if fills[0] is not None:
            return Masks((fitted(b, _keeps(b, steps[0]), steps[0].lens, target),))
    elif len(steps) == 1 and _is_causal_step(b, steps[0], fills[0], target, fast_math):
        return Masks(causal=True)
    if None not in fills and len({*fills}) == 1:
        kept = [(_keeps(b, step), step.lens) for step in steps]
        return Masks((_joined(b, "logical_and", kept, target),), fill=float(fills[0] or 0))
    if any(fill is not None and fill > -HUGE for fill in fills):
        return "a masking value that leaves something of scores that it is added to is combined with other masks"
    added: list[tuple[Instruction, Lens]] = []
    for step, fill in zip(steps, fills):
        if fill is None:
            added.append((_added(b, step, type), step.lens))
        else:
            keep = fitted(b, _keeps(b, step), step.lens, target)
            below = _joined(b, "add", added, target) if added else b.scalar(0, Shape(type, keep.shape.lens))
            added = [(_where(b, keep, below, fill, target), target)]
    return Masks((_joined(b, "add", added, target),) if added else ())


def truth_values(b: RewriteBuilder, mask: Instruction, least: float) -> tuple[Instruction, float] | None:
    """Return the bool mask for which a mask of zeros and of one low number is added, and that number; None for other
    masks.

    PyTorch's decompositions of attention convert masks so, for cuDNN with -65504.

    Args:
        least: the largest number that hides a key.
    """
    mask = before_broadcast(mask)
    if mask.shape.type is Type.bool_type:
        return mask, -math.inf
    inner = mask
    types: list[Type] = [mask.shape.type]
    while inner.name == "convert" and inner.shape.type.is_floating:
        inner = before_broadcast(inner.inputs[0])
        types.append(inner.shape.type)
    array = constant_array(inner)
    if array is not None and inner.shape.type.is_floating:
        array = compact(_converted(array, types))
        keep = array == 0
        low = float(array.min(initial=0))
        return (b.literal(keep), low) if low <= least and (keep | (array == low)).all() else None
    if inner.name != "where":
        return None
    values = [uniform_value(i) for i in inner.inputs[1:]]
    if None in values:
        return None
    first, second = (float(_converted(np.asarray(value), types)) for value in values)
    keep = before_broadcast(inner.inputs[0])
    if first <= least and second == 0:
        keep = before_broadcast(keep.inputs[0]) if keep.name == "not" else b.op("not", keep)
    elif first != 0 or not second <= least:
        return None
    return keep, min(first, second)


def _converted(array: np.ndarray, types: Sequence[Type]) -> np.ndarray:
    """Return an array after conversions to each of ``types``, from the last to the first."""
    with np.errstate(over="ignore"):
        for type in reversed(types):
            array = array.astype(type.numpy)
    return array


def without_causal_masks(b: RewriteBuilder, mask: Instruction, scores: Lens) -> Masks:
    """Split a bool mask for scores [..., s, t], a conjunction, into the attribute ``causal`` and one other mask.

    Masks that keep every key are left out.
    """
    others: list[Instruction] = []
    causal = False
    for leaf in leaves(mask):
        if is_causal_mask(leaf, scores):
            causal = True
        elif uniform_value(leaf) is None or not uniform_value(leaf):
            others.append(before_broadcast(leaf))
    if not others:
        return Masks(causal=causal)
    joined = others[0]
    for other in others[1:]:
        joined = _join(b, "logical_and", joined, other, joined.shape.lens)
    return Masks((joined,), causal)


def before_broadcast(ins: Instruction) -> Instruction:
    """Return the value before broadcasting."""
    while ins.name == "multibroadcast" and len(ins.inputs) == 1:
        ins = ins.inputs[0]
    return ins


def _fill_of(step: MaskStep, type: Type) -> float | None:
    """Return the score of keys that a step hides, as the steps outside of it leave it; None if the step adds."""
    if step.fill is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return float(type.numpy.type(step.fill * step.factor))


def _constant_keep(steps: Sequence[MaskStep], target: Lens) -> np.ndarray | None:
    """Return which keys the only step keeps, if that is known and the step masks scores of queries and keys."""
    if len(steps) != 1 or any(map(is_symbolic, target[-2:])) or not known_same(steps[0].lens[-2:], target[-2:]):
        return None
    (step,) = steps
    array = constant_array(step.value)
    if array is None:
        return None
    array = compact(array)
    if step.fill is not None:
        return array.astype(bool) != step.fill_first
    hides = step.factor == 1 and bool(((array == 0) | (array <= -HUGE)).all())
    return array == 0 if hides else None


def _is_causal_step(b: RewriteBuilder, step: MaskStep, fill: float | None, target: Lens, fast_math: bool) -> bool:
    """Return whether the only step hides later keys: a comparison of positions that selects scores, or a number beyond
    `HUGE` to add to them."""
    if not known_same(step.lens[-2:], target[-2:]):
        return False
    if step.fill is not None:
        keep = before_broadcast(step.value)
        return _alone_hides(fill, target, fast_math) and is_causal_mask(keep, target, not step.fill_first)
    found = truth_values(b, step.value, -HUGE) if step.factor == 1 and step.value.shape.type.is_floating else None
    return found is not None and _alone_hides(found[1], target, False) and is_causal_mask(found[0], target)


def _alone_hides(fill: float | None, target: Lens, fast_math: bool) -> bool:
    """Return whether later keys have no weight if their scores become, or are lowered by, ``fill``."""
    sees_one = known_less_equal(target[-2], target[-1])
    return fill == -math.inf or (fill is not None and sees_one and fill <= (-LARGE if fast_math else -HUGE))


def _hides(keep: np.ndarray, fill: float | None, fast_math: bool) -> bool:
    """Return whether keys that are not kept have no weight; ``fill`` None: numbers beyond `HUGE` are added."""
    if fill == -math.inf:
        return True
    return bool(keep.any(-1).all()) and (fill is None or fill <= (-LARGE if fast_math else -HUGE))


def _keeps(b: RewriteBuilder, step: MaskStep) -> Instruction:
    small = before_broadcast(step.value)
    return b.op("not", small) if step.fill_first else small


def _added(b: RewriteBuilder, step: MaskStep, type: Type) -> Instruction:
    small = before_broadcast(step.value)
    small = small if small.shape.type is type else b.op("convert", small, target_type=type)
    return small if step.factor == 1 else b.op("mul", small, b.scalar(step.factor, small))


def _where(b: RewriteBuilder, keep: Instruction, mask: Instruction, fill: float, target: Lens) -> Instruction:
    """Return ``where(keep, mask, fill)``, no larger than ``keep`` and ``mask`` need."""
    keep, mask = _alike(b, keep, mask, target)
    return b.op("where", keep, mask, b.scalar(fill, mask.shape))


def _joined(b: RewriteBuilder, op: str, masks: Sequence[tuple[Instruction, Lens]], target: Lens) -> Instruction:
    """Return the ``add`` or ``logical_and`` of masks, each of scores of some lengths, for lengths ``target``."""
    parts: dict[Lens, Instruction] = {}
    for mask, lens in masks:
        parts[lens] = _join(b, op, parts[lens], mask, lens) if lens in parts else mask
    first, *others = (fitted(b, mask, lens, target) for lens, mask in parts.items())
    for mask in others:
        first = _join(b, op, first, mask, target)
    return first


def _join(b: RewriteBuilder, op: str, x: Instruction, y: Instruction, target: Lens) -> Instruction:
    x, y = _alike(b, x, y, target)
    one, other = constant_array(x), constant_array(y)
    few = known_less_equal(x.shape.elements * x.shape.type.size, FOLDED_BYTES)
    if few and one is not None and other is not None:
        with np.errstate(all="ignore"):
            return b.literal(np.add(one, other) if op == "add" else np.logical_and(one, other))
    return b.op(op, x, y)


def _alike(b: RewriteBuilder, x: Instruction, y: Instruction, target: Lens) -> tuple[Instruction, Instruction]:
    """Return two masks of scores of lengths ``target`` broadcast to each other."""
    batches = {m.shape.lens[0] for m in (x, y) if m.shape.ndim == 4 == len(target)} - {1}
    if len(batches) > 1:
        x, y = (repeated(b, m, target[0]) for m in (x, y))
    lens = common_lens(x.shape.lens, y.shape.lens)
    return b.broadcast(x, lens), b.broadcast(y, lens)
