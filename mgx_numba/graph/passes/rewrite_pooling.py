"""Replace poolings that are reductions, or identities."""

from __future__ import annotations

from ...core.dim import known_equal, known_same
from ...ops.pooling import PoolingMode
from .build import RewriteBuilder
from .match import Match, op, rule, some
from .rewriter import rule_pass

REDUCTION = {PoolingMode.average: "reduce_mean", PoolingMode.max: "reduce_max"}


@rule("global_pooling", op("pooling", some("x")), exact=True)
def global_pooling(m: Match, b: RewriteBuilder) -> object:
    attributes = m.ins.op.attributes()
    if not all(known_equal(n, 1) for n in m.ins.shape.lens[2:]) or any(attributes["padding"]):
        return "more than one window, or padding"
    if not attributes["dyn_global"] and not known_same(attributes["lengths"], m.x.shape.lens[2:]):
        return "the window is not the whole image"
    if attributes["mode"] not in REDUCTION or not m.x.shape.type.is_floating:
        return "not a mean or maximum of floats"
    axes = tuple(range(2, m.x.shape.ndim))
    return b.op(REDUCTION[attributes["mode"]], m.x, axes=axes)  # pooling of the whole image -> reduction


@rule("single_pooling", op("pooling", some("x")), exact=True)
def single_pooling(m: Match, b: RewriteBuilder) -> object:
    attributes = m.ins.op.attributes()
    if attributes["mode"] not in REDUCTION or any(attributes["padding"]) or attributes["dyn_global"]:
        return "not the mean or maximum of one element"
    if not all(known_equal(n, 1) for n in attributes["lengths"]) or any(s != 1 for s in attributes["stride"]):
        return "windows have more than one element"
    return m.x  # pooling of single elements -> x


RewritePooling = rule_pass("rewrite_pooling", single_pooling, global_pooling)
