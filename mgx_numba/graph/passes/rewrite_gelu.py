"""Recognise activations written in primitive operations.

Sources: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), exact and with tanh; Ramachandran et al.,
"Searching for Activation Functions" (2017) for SiLU; Misra, "Mish" (2019).
"""

from __future__ import annotations

from .build import RewriteBuilder
from .match import Match, Operation, Pattern, RewriteRule, either, loosened, op, scalar, some
from .rewriter import rule_pass

NEAR = 2e-5
"""Relative tolerance of constants, which models round to five digits; results differ by at most 6e-6."""
NEAR_NARROW = 2e-3
"""The same for 16-bit floats, which round constants themselves."""

X = some("x")
HALF = scalar(0.5)
ONE = scalar(1.0)
ROOT_HALF = scalar(0.7071067811865476, tolerance=NEAR, narrow=NEAR_NARROW)
ROOT_2 = scalar(1.4142135623730951, tolerance=NEAR, narrow=NEAR_NARROW)
ROOT_2_PI = scalar(0.7978845608028654, tolerance=NEAR, narrow=NEAR_NARROW)
CUBIC = scalar(0.044715, tolerance=NEAR, narrow=NEAR_NARROW)
CUBIC_ROOT_2_PI = scalar(0.035677408136300125, tolerance=NEAR, narrow=NEAR_NARROW)


def _gate(shifted: Pattern, plain: Pattern) -> tuple[Operation, ...]:
    """``x * 0.5 * (1 + plain)`` in each order of the factors; ``shifted`` is ``1 + plain``."""
    return (
        op("mul", op("mul", X, shifted), HALF),
        op("mul", op("mul", X, HALF), shifted),
        op("mul", X, op("mul", shifted, HALF)),
        op("mul", X, op("add", op("mul", plain, HALF), HALF)),
    )


ERF = op("erf", either(op("mul", X, ROOT_HALF), op("div", X, ROOT_2)))
SQUARE = either(op("mul", X, X), op("pow", X, scalar(2.0)))
CUBE = either(op("mul", SQUARE, X), op("pow", X, scalar(3.0)))
INNER = either(
    op("mul", op("add", X, op("mul", CUBE, CUBIC)), ROOT_2_PI),
    op("mul", op("mul", X, ROOT_2_PI), op("add", op("mul", SQUARE, CUBIC), ONE)),
    op("mul", op("mul", X, ROOT_2_PI), op("add", op("mul", X, op("mul", X, CUBIC)), ONE)),
    op("mul", X, op("add", op("mul", SQUARE, CUBIC_ROOT_2_PI), ROOT_2_PI)),
    op("mul", X, op("mul", op("add", op("mul", SQUARE, CUBIC), ONE), ROOT_2_PI)),
    op("add", op("mul", X, ROOT_2_PI), op("mul", CUBE, CUBIC_ROOT_2_PI)),
)
TANH = op("tanh", INNER)
LOGISTIC = op("add", op("exp", op("neg", X)), ONE)


def _becomes(name: str, pattern: Operation) -> RewriteRule:
    """Return the rule that replaces a match by the function ``name``, computed in the type of the match."""

    def rewrite(m: Match, b: RewriteBuilder) -> object:
        return b.op(name, b.convert(m.x, m.ins.shape.type))

    return RewriteRule(f"find_{name}", loosened(pattern), rewrite, False, None)


RewriteGelu = rule_pass(
    "rewrite_gelu",
    *(
        _becomes(name, pattern)
        for name, patterns in (
            ("gelu_erf", _gate(op("add", ERF, ONE), ERF)),
            ("gelu_tanh", _gate(op("add", TANH, ONE), TANH)),
            ("sigmoid", (op("div", ONE, LOGISTIC), op("recip", LOGISTIC))),
            ("silu", (op("mul", X, op("sigmoid", X)), op("div", X, LOGISTIC))),
            ("softplus", (op("log", op("add", op("exp", X), ONE)),)),
            ("mish", (op("mul", X, op("tanh", op("softplus", X))),)),
        )
        for pattern in patterns
    ),
)
