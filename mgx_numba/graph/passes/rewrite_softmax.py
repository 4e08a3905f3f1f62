"""Recognise softmax and log-softmax written in primitive operations."""

from __future__ import annotations

from .build import RewriteBuilder
from .match import Match, either, op, rule, some, spread
from .rewriter import rule_pass

X = some("x")
SHIFTED = op("sub", X, spread(op("reduce_max", X, bind="max")), bind="shifted")
EXP = op("exp", SHIFTED, bind="exp")
SUM = op("reduce_sum", EXP, bind="sum")


def _one_axis(m: Match) -> str | None:
    axes = {m.bound[n].op.attributes()["axes"] for n in ("max", "sum") if n in m.bound}
    if len(axes) != 1 or len(next(iter(axes))) != 1:
        return "maximum and sum are not over one common axis"
    return None


def _axis(m: Match) -> int:
    (axis,) = m.sum.op.attributes()["axes"]
    return int(axis) % m.ins.shape.ndim


def _softmax(m: Match, b: RewriteBuilder) -> object:
    return b.op("softmax", m.x, axis=_axis(m))


QUOTIENTS = (
    op("div", EXP, spread(SUM)),
    op("mul", EXP, either(spread(op("recip", SUM)), op("recip", spread(SUM)))),
    op("div", op("exp", X, bind="exp"), spread(op("reduce_sum", op("exp", X, bind="exp"), bind="sum"))),
)
"""exp(x - max) / sum(exp(x - max)), also by a reciprocal, and exp(x) / sum(exp(x)), which softmax(x) computes without
overflow."""


@rule("find_logsoftmax", op("sub", SHIFTED, spread(op("log", SUM))), _one_axis, exact=False)
def log_softmax_difference(m: Match, b: RewriteBuilder) -> object:
    return b.op("logsoftmax", m.x, axis=_axis(m))  # (x - max) - log(sum(exp(x - max))) -> logsoftmax(x)


@rule("find_logsoftmax", op("log", op("softmax", X, bind="inner")), exact=False)
def log_of_softmax(m: Match, b: RewriteBuilder) -> object:
    return b.op("logsoftmax", m.x, **m.inner.op.attributes())  # log(softmax(x)) -> logsoftmax(x), exact where that is 0


RewriteSoftmax = rule_pass(
    "rewrite_softmax",
    *(rule("find_softmax", quotient, _one_axis, exact=False)(_softmax) for quotient in QUOTIENTS),
    log_softmax_difference,
    log_of_softmax,
)
