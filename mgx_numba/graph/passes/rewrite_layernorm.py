"""Bring layer, instance and group normalisation to one form, the only one that reduction fusion meets.

The form is ``d = x - mean(x); d * rsqrt(mean(d * d) + epsilon)`` (Ba et al., "Layer Normalization", 2016): one
difference, and the square root on reduced values.
"""

from __future__ import annotations

from .build import RewriteBuilder
from .match import Match, op, rule, some, spread
from .rewriter import rule_pass
from .rules.units import divide_by_root, reciprocal_of_root, square


@rule("squared_difference", op("sqdiff", some("x"), spread(op("reduce_mean", some("x")), bind="mean")), exact=True)
def squared_difference(m: Match, b: RewriteBuilder) -> object:
    difference = b.op("sub", m.x, m.mean)
    return b.op("mul", difference, difference)  # sqdiff(x, mean) -> (x - mean) * (x - mean)


RewriteLayernorm = rule_pass("rewrite_layernorm", squared_difference, square, divide_by_root, reciprocal_of_root)
