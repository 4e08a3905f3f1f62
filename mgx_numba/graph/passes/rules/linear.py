"""Additions and multiplications by constants: gathered, distributed, and computed before broadcasting."""

from __future__ import annotations

from ....core.dim import known_equal, known_less_equal
from ....core.shape import Shape
from ...constants import is_constant, uniform_value
from ...instruction import Instruction
from ..base import CONTRACTIONS
from ..build import RewriteBuilder
from ..match import CONSTANTS, Match, Operation, constant, op, rule, some
from .merging import all_finite, follows_contraction, has_zero, merged_product, merged_sum, rounds_next, small_offset

BROADCASTS = frozenset({"multibroadcast"})


def _inner_check(m: Match) -> str | None:
    if is_constant(m.x):
        return "everything is constant"
    return "the inner value is used elsewhere too" if len(m.inner.users) > 1 else None


def _merge_check(m: Match) -> str | None:
    return _inner_check(m) or ("the result is rounded to integers" if rounds_next(m.ins) else None)


def _nested(name: str) -> Operation:
    return op(name, op(name, some("x"), constant("c"), bind="inner"), constant("d"))


@rule("double_add_lit", _nested("mul"), _merge_check, exact=False)
def merge_factors(m: Match, b: RewriteBuilder) -> object:
    factor = merged_product(b, m.c, m.d)
    return factor if isinstance(factor, str) else b.op("mul", m.x, factor)  # (x * c) * d -> x * (c * d)


@rule("double_add_lit", _nested("add"), _merge_check, exact=False)
def merge_offsets(m: Match, b: RewriteBuilder) -> object:
    offset = merged_sum(b, m.x, m.c, m.d)
    return offset if isinstance(offset, str) else b.op("add", m.x, offset)  # (x + c) + d -> x + (c + d)


@rule(
    "double_add_lit",
    op("max min", op("max min", some("x"), constant("c"), bind="inner"), constant("d")),
    _inner_check,
    exact=True,
)
def merge_limits(m: Match, b: RewriteBuilder) -> object:
    if m.inner.name != m.ins.name:
        return "a limit from below and one from above"
    if m.ins.shape.type.is_floating and (has_zero(m.c) or has_zero(m.d)):
        return "the greater one of 0 and -0 may be either"
    return b.op(m.ins.op, m.x, b.op(m.ins.op, m.c, m.d))  # max(max(x, c), d) -> max(x, max(c, d)); likewise min


def _merge_sides_check(m: Match) -> str | None:
    if len(m.left.users) > 1 or len(m.right.users) > 1:
        return "a sum is used elsewhere too"
    if m.ins.shape.type.is_floating:
        if not (follows_contraction(m.x) and follows_contraction(m.y)):
            return "the terms are no sums of products, which are rounded by more"
        if not (small_offset(m.c) and small_offset(m.d)):
            return "an offset is large, or would be rounded once more"
    return "everything is constant" if is_constant(m.x) or is_constant(m.y) else None


@rule(
    "double_add_lit_broadcast",
    op("add", op("add", some("x"), constant("c"), bind="left"), op("add", some("y"), constant("d"), bind="right")),
    _merge_sides_check,
    exact=False,
)
def add_sums(m: Match, b: RewriteBuilder) -> object:
    return b.op("add", b.op("add", m.x, m.y), b.op("add", m.c, m.d))  # (x + c) + (y + d) -> (x + y) + (c + d)


def _distribute_check(m: Match) -> str | None:
    if m.ins.shape.type.is_floating and not follows_contraction(m.x):
        return "no weights could take the factor in"
    return _merge_check(m)


@rule(
    "mul_add", op("mul", op("add", some("x"), constant("c"), bind="inner"), constant("d")), _distribute_check,
    exact=False,
)  # fmt: skip
def distribute(m: Match, b: RewriteBuilder) -> object:
    offset = b.op("mul", m.c, m.d)
    if m.ins.shape.type.is_floating and not (small_offset(m.c) and small_offset(offset) and all_finite(m.d)):
        return "the offset is large, or would be rounded once more"
    return b.op("add", b.op("mul", m.x, m.d), offset)  # (x + c) * d -> x * d + c * d


POINTWISE = (
    "abs add acos acosh asin asinh atan atanh bitwise_and bitwise_or bitwise_xor ceil clip convert cos cosh div elu"
    " equal erf exp floor fmod gelu_erf gelu_tanh greater greater_or_equal isinf isnan leaky_relu less less_or_equal"
    " log log2 logical_and logical_or logical_xor max min mish mod mul nearbyint neg not pow prelu recip relu rsqrt"
    " sigmoid sign silu sin sinh softplus sqdiff sqrt sub tan tanh where"
)


_SPREAD_OR_CONSTANT = CONSTANTS.union(BROADCASTS)


@rule("inner_broadcast", op(POINTWISE), exact=True, reads=BROADCASTS)
def inner_broadcast(m: Match, b: RewriteBuilder) -> object:
    """``f(spread(x), spread(y)) -> spread(f(x, y))`` along the axes on which every operand repeats."""
    ins = m.ins
    if any(i.op.name not in _SPREAD_OR_CONSTANT for i in ins.inputs):
        return None
    out = ins.shape.lens
    sources: list[Instruction] = []
    repeated = [not known_less_equal(n, 1) for n in out]
    variable = False
    for i in ins.inputs:
        if uniform_value(i) is not None:
            sources.append(i)
            continue
        if i.name not in BROADCASTS or len(i.inputs) != 1:
            return None
        source = i.inputs[0]
        missing = len(out) - source.shape.ndim
        for axis in range(missing, len(out)):
            if not known_equal(source.shape.lens[axis - missing], 1):
                repeated[axis] = False
        variable = variable or not is_constant(source)
        sources.append(source)
    if not variable or not any(repeated):
        return None
    lens = tuple(1 if r else n for r, n in zip(repeated, out))
    operands = []
    for i, source in zip(ins.inputs, sources):
        if source is i:
            operands.append(b.scalar(uniform_value(i), Shape(i.shape.type, lens)))
        else:
            operands.append(b.broadcast(source, lens))
    return b.broadcast(b.op(ins.op, *operands), out)


LARGEST_EXPONENT = 32
"""Of a scale that weights take in: a quarter of float32's 126, so that with two of them weights above 2**-62 stay
normal."""
MOVES = frozenset("transpose reshape squeeze unsqueeze flatten contiguous slice".split())


@rule("float8_scale_in_weights", op("nearest_float8"), exact=False)
def scale_in_weights(m: Match, b: RewriteBuilder) -> object:
    """``nearest_float8(relu(x)) -> nearest_float8(relu(x * 2**-exponent)) * 2**exponent`` with an exponent of 0, where
    contractions with constant weights are all that makes x and all that reads the result: these take the factors, which
    are exact, and kernels are shared by layers. Of ``clip`` the limits take them, too."""
    exponent = m.ins.op.attributes()["exponent"]
    if not 0 < abs(exponent) <= LARGEST_EXPONENT:
        return None
    (limited,) = m.ins.inputs
    within = limited.name in ("relu", "leaky_relu", "clip") and all(map(is_constant, limited.inputs[1:]))
    made = x = limited.inputs[0] if within else limited
    while made.name in ("add", "mul") and len(made.users) == 1 and sum(map(is_constant, made.inputs)) == 1:
        made = next(i for i in made.inputs if not is_constant(i))
    if len(limited.users) > 1 or not _has_weights(made) or len(made.users) > 1 or len(x.users) > 1:
        return "what makes the values has no constant weights, or something else reads them"
    seen = _seen(m.ins)
    read = [v for v in seen if any(user not in seen for user in v.users)]
    if any(not _has_weights(user) or user.inputs[1] is v for v in read for user in v.users if user not in seen):
        return "something without constant weights reads the result"
    scale = 2.0**exponent
    value, *ends = (b.op("mul", i, b.scalar(1 / scale, i)) for i in (x, *(limited.inputs[1:] if within else ())))
    near = {m.ins: b.op(m.ins.op.with_attributes(exponent=0), b.op(limited.op, value, *ends) if within else value)}
    for v in seen[1:]:
        near[v] = b.op(v.op, near[v.inputs[0]])
    return {v: b.op("mul", near[v], b.scalar(scale, near[v])) for v in read}


def _seen(value: Instruction) -> list[Instruction]:
    """Return a value and its views; each view follows its source."""
    found = [value]
    for v in found:
        found += [user for user in v.users if len(user.inputs) == 1 and user.name in MOVES]
    return found


def _has_weights(ins: Instruction) -> bool:
    return ins.name in CONTRACTIONS and is_constant(ins.inputs[1])


LINEAR_RULES = (
    merge_factors, merge_offsets, merge_limits, add_sums, distribute,
    inner_broadcast, scale_in_weights,
)  # fmt: skip
