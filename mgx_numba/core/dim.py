"""Symbolic lengths: integer expressions over symbols, such as ``batch*seq`` or ``past + 1``.

A `Dim` is a sum of products of *atoms*, with integer coefficients. An atom is a symbol, or an operation that sums and
products do not express: floor division, remainder, minimum, maximum, a choice, or a condition (1 if it holds, else 0).
Expressions have one canonical form and are interned: equal expressions are the same object. An expression with a single
value is never a `Dim` but a plain ``int``.

A `Dim` is no ``int``, and Python cannot use it as one by accident: ``int(dim)``, ``range(dim)`` and NumPy raise
`SymbolicLengthError`. A comparison is answered if the ranges of the symbols decide it. Any other comparison is a
*guard*: it is answered for the example lengths (hints) of the symbols' `Scope`, which records the question, the answer
and the caller. The result is valid for all lengths that give every guard the same answer.

Code that is valid for all lengths records no guards. It uses `minimum`, `maximum`, `select`, `ceil_div` and conditions
(`less`, `equal`), which map plain integers to plain integers. `preferred` answers a question that chooses between two
correct alternatives; `permitted` answers it if only one alternative is correct for all lengths.
"""

from __future__ import annotations

from ..structural import same
from .conditions import (
    all_of,
    any_of,
    chosen_where,
    equal,
    known_equal,
    known_in,
    known_less,
    known_less_equal,
    known_same,
    known_stretched,
    less,
    less_equal,
    maximum,
    minimum,
    negate,
    permitted,
    preferred,
    select,
)
from .expressions import SampleValues, evaluate, hint, of_operation, operand_count, substitute, symbols_of, typical
from .polynomials import (
    Atom,
    Dim,
    Length,
    SharedLength,
    SymbolicLengthError,
    UnfollowedLengthError,
    common_divisor,
    is_symbolic,
    range_of,
)
from .quotients import ceil_div, exact_quotient
from .scope import ExpressionSpace, Guard, Scope, forget_expressions, shared_space

__all__ = [
    "Atom",
    "Dim",
    "ExpressionSpace",
    "Guard",
    "Length",
    "SampleValues",
    "Scope",
    "SharedLength",
    "SymbolicLengthError",
    "UnfollowedLengthError",
    "all_of",
    "any_of",
    "ceil_div",
    "chosen_where",
    "common_divisor",
    "equal",
    "evaluate",
    "exact_quotient",
    "forget_expressions",
    "hint",
    "is_symbolic",
    "known_equal",
    "known_in",
    "known_less",
    "known_less_equal",
    "known_same",
    "known_stretched",
    "less",
    "less_equal",
    "maximum",
    "minimum",
    "negate",
    "of_operation",
    "operand_count",
    "permitted",
    "preferred",
    "range_of",
    "same",
    "select",
    "shared_space",
    "substitute",
    "symbols_of",
    "typical",
]
