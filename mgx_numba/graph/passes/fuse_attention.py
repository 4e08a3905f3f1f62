"""Fuse scaled dot-product attention into one operator (Vaswani et al., "Attention Is All You Need", 2017, section
3.2.1).

Matched from the softmax outward: below it a chain of scalings and masks over ``dot(q, k^T)``, above it ``dot(., v)``.
Queries, keys or scores may carry the scale; masks may be added or chosen by ``where``. Scores may be reshaped in
between for masks of windows or heads. 16-bit products may have a float32 softmax between them, like the operator. The
operator rounds its weights for the second product as a conversion there does, but before dividing by their sum. A row
masked completely by -infinity gives NaN like softmax, or zeros if the weights are guarded.
"""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np

from ...core.dim import known_equal, known_less_equal, known_same
from ...core.types import Type
from ...dataclass import dataclass
from ...ops.attention import Attention
from ...ops.dot import Dot
from ..constants import is_constant, uniform_value
from ..instruction import Instruction
from .attention_masks import (
    LARGE,
    MaskStep,
    before_broadcast,
    fitted,
    read_masks,
    repeated,
    truth_values,
    without_causal_masks,
)
from .base import Options
from .build import RewriteBuilder
from .causal_masks import is_causal_mask, leaves
from .match import Match, either, op, rule, some
from .rewriter import rule_pass
from .storage_types import STORAGE, widens

Lens = tuple[int, ...]

VIEWS = frozenset({"transpose", "reshape", "squeeze", "unsqueeze", "slice", "contiguous"})
BROADCASTS = frozenset({"multibroadcast", "broadcast"})
RESHAPES = frozenset({"reshape", "squeeze", "unsqueeze"})


@dataclass
class Scores:
    """The chain between dot and softmax: ``scale * factors * dot``, then the masks of ``steps``.

    Attributes:
        top: the softmax's operand, in the element type in which masks are added.
        lens: shapes of the scores on the way, outermost first.
        factors: per-row factors of the products, and the shape of the scores there.
        steps: masks, innermost first.
    """

    top: Instruction
    dot: Instruction
    lens: list[Lens]
    scale: float = 1.0
    factors: tuple[Instruction, Lens] | None = None
    steps: list[MaskStep] = field(default_factory=list)


def _uniform(ins: Instruction) -> float | None:
    value = uniform_value(ins)
    return None if value is None or not np.isfinite(float(value)) else float(value)


def _scaled(ins: Instruction) -> tuple[Instruction, float] | None:
    """Return ``x`` and ``c`` if an instruction is ``x * c`` or ``x / c`` with a finite non-zero constant."""
    if ins.name not in ("mul", "div"):
        return None
    x, c = ins.inputs
    value = _uniform(c)
    if value is None and ins.name == "mul":
        x, value = c, _uniform(x)
    if not value:
        return None
    if ins.name == "mul":
        return x, value
    with np.errstate(over="ignore"):
        return (x, 1 / value) if np.isfinite(np.float32(1 / value)) else None


def read_scores(top: Instruction) -> Scores | str:
    """Follow the chain below a softmax to its dot; return the reason if it is not attention."""
    scores = Scores(top, top, [top.shape.lens])
    current, factor = top, 1.0
    while current.name != "dot":
        if len(current.users) > 1:
            return "the scores are used elsewhere too"
        lens = current.shape.lens
        scaled = _scaled(current)
        if current.name in RESHAPES:
            current = current.inputs[0]
            scores.lens.append(current.shape.lens)
        elif widens(current):
            current = current.inputs[0]
        elif scaled is not None:
            current, factor = scaled[0], factor * scaled[1]
        elif scores.factors is not None:
            return "a mask or a second factor below a factor of each row"
        elif current.name in ("add", "mul"):
            # the side that leads to the dot is the one of the scores
            side = next((k for k in (0, 1) if _leads_to_dot(current.inputs[k])), None)
            if side is None:
                return f"no dot below the {'addition of a mask' if current.name == 'add' else 'mul'}"
            other = current.inputs[1 - side]
            if current.name == "add":
                scores.steps.insert(0, MaskStep(other, lens, factor))
            elif known_same(before_broadcast(other).shape.lens[-1:], (1,)):
                scores.factors = before_broadcast(other), lens
            else:
                return "mul between dot and softmax"
            current = current.inputs[side]
        elif current.name == "where":
            condition, a, c = current.inputs
            fill_first = _fill(a) is not None
            fill = _fill(a) if fill_first else _fill(c)
            if fill is None:
                return "the other branch of where is not a constant"
            scores.steps.insert(0, MaskStep(condition, lens, factor, fill, fill_first))
            current = c if fill_first else a
        else:
            return f"{current.name} between dot and softmax"
    if len(current.users) > 1:
        return "the scores are used elsewhere too"
    scores.dot, scores.scale = current, factor
    return scores


def _leads_to_dot(ins: Instruction) -> bool:
    for _ in range(8):
        if ins.name == "dot":
            return True
        if ins.name in RESHAPES or widens(ins):
            ins = ins.inputs[0]
        elif ins.name in ("mul", "div", "add"):
            ins = ins.inputs[0] if not is_constant(ins.inputs[0]) else ins.inputs[1]
        elif ins.name == "where":
            ins = ins.inputs[2] if is_constant(ins.inputs[1]) else ins.inputs[1]
        else:
            return False
    return False


def _fill(ins: Instruction) -> float | None:
    value = uniform_value(ins)
    return None if value is None else float(value)


def without_scale(ins: Instruction, b: RewriteBuilder) -> tuple[Instruction, float]:
    """Return an operand without a constant factor, which may lie below views, and the factor."""
    views: list[Instruction] = []
    current = ins
    while current.name in VIEWS and len(current.inputs) == 1:
        views.append(current)
        current = current.inputs[0]
    scaled = _scaled(current)
    if scaled is None:
        return ins, 1.0
    inner, factor = without_scale(scaled[0], b)
    for view in reversed(views):
        inner = b.op(view.op, inner)
    return inner, factor * scaled[1]


def swapped(b: RewriteBuilder, ins: Instruction) -> Instruction:
    """Return the value with its last two axes exchanged, merged with an existing transpose."""
    if ins.name != "transpose":
        return b.swap_last(ins)
    *outer, row, column = ins.op.attributes()["permutation"]
    return b.transpose(ins.inputs[0], [*outer, column, row])


def unrepeated(b: RewriteBuilder, ins: Instruction) -> Instruction:
    """Return key or value heads [b, h, t, d] before they were repeated for groups of query heads; the value itself if
    they were not. A conversion may follow.

    Exporters write grouped-query attention (Ainslie et al., 2023) as unsqueeze to [b, h, 1, t, d], broadcast, reshape.
    """
    if ins.name == "convert":
        source = unrepeated(b, ins.inputs[0])
        return ins if source is ins.inputs[0] else b.op(ins.op, source)
    if ins.name != "reshape" or ins.shape.ndim != 4 or ins.inputs[0].name not in BROADCASTS:
        return ins
    wide = ins.inputs[0]
    narrow = wide.inputs[0]
    if wide.shape.ndim != 5 or narrow.shape.ndim != 5 or len(wide.inputs) != 1:
        return ins
    n, h, g, t, d = wide.shape.lens
    if not known_same(narrow.shape.lens, (n, h, 1, t, d)) or not known_same(ins.shape.lens, (n, h * g, t, d)):
        return ins
    source = narrow.inputs[0] if narrow.name in RESHAPES else narrow
    return source if known_same(source.shape.lens, (n, h, t, d)) else b.reshape(narrow, (n, h, t, d))


def _target(scores: Scores) -> Lens:
    """Return the scores' shape [batch, heads, queries, keys]: a shape on the way, or with leading axes merged."""
    *lead, queries, keys = scores.dot.shape.lens
    for lens in (scores.dot.shape.lens, *scores.lens):
        if len(lens) == 4 and known_same(lens[2:], (queries, keys)):
            return lens
    return (math.prod(lead[:-1]), lead[-1], queries, keys)


def _heads(b: RewriteBuilder, x: Instruction, target: Lens) -> Instruction:
    """Return rows of features for scores of shape ``target``, without a reshape before them."""
    lens = (*target[:2], *x.shape.lens[-2:])
    if not known_same(x.shape.lens, lens) and x.name in RESHAPES and known_same(x.inputs[0].shape.lens, lens):
        return x.inputs[0]
    return b.reshape(x, lens)


SOFTMAX = op("softmax", some("scores"), bind="softmax")
GUARDED = op("where", op("isnan", SOFTMAX), some("zero"), SOFTMAX, bind="guard")
"""PyTorch's exporter replaces the NaN of fully masked rows by 0, like ``attention``."""
PLAIN = either(SOFTMAX, GUARDED)
ROUNDED = either(PLAIN, op("convert", PLAIN, bind="rounded", once=True))
WEIGHTS = either(ROUNDED, op(" ".join(RESHAPES), ROUNDED, once=True))


def _check(m: Match) -> str | None:
    top = m.softmax
    if int(top.op.attributes()["axis"]) % top.shape.ndim != top.shape.ndim - 1:
        return "the softmax is not over keys"
    if m.ins.shape.ndim < 3 or top.shape.ndim < 3:
        return "scores have less than 3 axes"
    if not known_same(m.ins.inputs[0].shape.lens[-2:], top.shape.lens[-2:]):
        return "the weights have other rows than the softmax"
    if "guard" in m.bound:
        if _uniform(m.zero) != 0 or len(m.guard.users) > 1 or len(top.users) > 2:
            return "the weights are used elsewhere too"
    elif len(top.users) > 1:
        return "the weights are used elsewhere too"
    if "rounded" in m.bound and not (m.rounded.shape.type in STORAGE and top.shape.type is Type.float_type):
        return f"weights of {top.shape.type.name} are rounded to {m.rounded.shape.type.name}"
    return None


def _attention(m: Match, b: RewriteBuilder) -> object:
    """``dot(softmax(dot(q, k^T) * scale + mask), v) -> attention(q, k, v, mask)``."""
    scores = read_scores(m.scores)
    if isinstance(scores, str):
        return scores
    if not known_same(scores.dot.shape.lens[-2:], m.softmax.shape.lens[-2:]):
        return "the softmax has other rows than the scores"
    if scores.dot.shape.type is not m.ins.shape.type:
        return f"products of {scores.dot.shape.type.name} and of {m.ins.shape.type.name}"
    features = scores.dot.inputs[0].shape.lens[-1], m.ins.shape.lens[-1]
    reason = m.options.attention_refusal(m.ins.shape.type, *features) if m.options.attention_refusal else ""
    if reason:
        return f"no kernel computes attention of {m.ins.shape.type.name}: {reason}"
    if _reads_positions(scores.dot, m.options):
        return "few queries read positions that are contiguous in the keys"
    target = _target(scores)
    empty = any(known_equal(n, 0) for n in target)
    if empty and not all(known_same(lens, target) for lens in scores.lens):
        return "scores without elements are reshaped"
    q, q_scale = without_scale(scores.dot.inputs[0], b)
    kt, k_scale = without_scale(scores.dot.inputs[1], b)
    masks = read_masks(b, scores.steps, scores.top.shape.type, target, m.options.fast_math)
    if isinstance(masks, str):
        return masks
    if kt.name in RESHAPES:
        kt = _heads(b, kt, target)
    q, k, v = (_heads(b, x, target) for x in (q, swapped(b, kt), m.v))
    if scores.factors is not None:
        if scores.factors[0].shape.type is not q.shape.type:
            return f"products of {q.shape.type.name} have a factor of {scores.factors[0].shape.type.name} for each row"
        factors = repeated(b, fitted(b, *scores.factors, target), target[0])
        q = b.op("mul", q, b.broadcast(factors, q.shape.lens))
    attributes = {
        "scale": scores.scale * q_scale * k_scale,
        "causal": masks.causal,
        "fill": masks.fill,
        "nan_rows": "guard" not in m.bound,
        "bfloat16_products": all(isinstance(i.op, Dot) and i.op.bfloat16_products for i in (m.ins, scores.dot)),
    }
    result = b.op("attention", q, k, v, *masks.operands, **attributes)
    lens = result.shape.lens
    regrouped = [user for user in m.ins.users if user.name in RESHAPES and known_same(user.shape.lens, lens)]
    if not known_same(m.ins.shape.lens, lens) and len(regrouped) == len(m.ins.users):
        return dict.fromkeys(regrouped, result)
    return b.reshape(result, m.ins.shape.lens)


def _reads_positions(dot: Instruction, options: Options) -> bool:
    """Return whether scores are fastest as a product: of few queries with keys whose positions are contiguous."""
    few = options.capabilities.queries_of_products if options.capabilities else 0
    (*_, queries, _), keys = dot.shape.lens, dot.inputs[1].shape
    apart = known_equal(keys.strides[-1], 1) and not known_equal(keys.strides[-2], 1)
    return apart and known_less_equal(queries, few)


@rule("shared_heads", op("attention"), exact=True)
def share_heads(m: Match, b: RewriteBuilder) -> object:
    """``attention(q, repeated(k), repeated(v)) -> attention(q, k, v)``, which shares heads among groups of queries."""
    q, k, v, *masks = m.ins.inputs
    own_k, own_v = unrepeated(b, k), unrepeated(b, v)
    if own_k is k or own_v is v:
        return "heads of keys or values are not repeated"
    if not known_same(own_k.shape.lens[:3], own_v.shape.lens[:3]):
        return "keys and values have other heads"
    return b.op(m.ins.op, q, own_k, own_v, *masks)


def _scores(attention: Instruction) -> Lens:
    """Return the numbers of queries and keys."""
    q, k = attention.inputs[:2]
    return q.shape.lens[2], k.shape.lens[2]


def _has_mask(m: Match) -> str | None:
    if len(m.ins.inputs) < 4:
        return "there is no mask"
    mask = m.ins.inputs[3]
    if mask.shape.type is not Type.bool_type:
        return None
    if m.ins.operator(Attention).fill != -math.inf:
        return "hidden scores are finite"
    hides = any(is_causal_mask(leaf, _scores(m.ins)) or uniform_value(leaf) for leaf in leaves(mask))
    return None if hides else "no part of the mask hides later keys or keeps all"


@rule("simplify_mask", op("attention"), _has_mask, exact=False)
def simplify_low_mask(m: Match, b: RewriteBuilder) -> object:
    """As `simplify_mask`, for masks with numbers below -1e4, too.

    A row that sees no key gets the mean of the values; the program weights them by its scores, rounded to 1/128.
    """
    return _with_simpler_mask(m, b, -LARGE)


@rule("simplify_mask", op("attention"), _has_mask, exact=True)
def simplify_mask(m: Match, b: RewriteBuilder) -> object:
    """``attention(q, k, v, where(key <= query and mask, 0, -inf)) -> attention(q, k, v, mask, causal=True)``."""
    return _with_simpler_mask(m, b, -math.inf)


def _with_simpler_mask(m: Match, b: RewriteBuilder, least: float) -> object:
    *given, mask = m.ins.inputs
    found = truth_values(b, mask, least)
    if found is None:
        return "the mask has other numbers than zeros and one that hides keys"
    keep, fill = found
    masks = without_causal_masks(b, keep, _scores(m.ins))
    if fill > -math.inf:
        if masks.causal and not known_less_equal(*_scores(m.ins)):
            return "there are queries before the first key"
        if not masks.causal and (keep.shape.ndim < 2 or known_equal(keep.shape.lens[-2], 1)):
            return "a number for each key is added as quickly"
    attributes: dict[str, object] = {"causal": masks.causal or m.ins.operator(Attention).causal}
    if masks.operands:
        attributes["fill"] = fill
    return b.op(m.ins.op.with_attributes(**attributes), *given, *masks.operands)


# Not exact: fills that hide a key for want of precision.
FOUND = (
    rule("find_attention", op("dot", WEIGHTS, some("v")), _check, exact=exact)(_attention) for exact in (False, True)
)

FuseAttention = rule_pass("fuse_attention", *FOUND, share_heads, simplify_low_mask, simplify_mask)
