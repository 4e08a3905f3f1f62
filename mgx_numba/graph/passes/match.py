"""Patterns over instructions, and rewrite rules: pattern, check with a reason for refusal, and rewrite.

Patterns are built by ``op``, ``some``, ``constant``, ``scalar`` and ``spread``, and read like the expression they
match. A failed match names the part that did not match, see ``explain``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...dataclass import dataclass
from ..constants import CONSTANT_VIEWS, is_constant, uniform_value
from ..instruction import Instruction, Literal
from .base import Options
from .build import RewriteBuilder

BROADCASTS = ("multibroadcast", "broadcast")
CONSTANTS = CONSTANT_VIEWS | {Literal.name}
"""Operators of instructions that may be constant."""

Bound = dict[str, Instruction]
Miss = tuple["Pattern", Instruction]


class Pattern:
    """A predicate on instructions that binds names: any instruction; equal names must match the same instruction."""

    __slots__ = ("bind",)

    def __init__(self, bind: str | None = None) -> None:
        self.bind = bind

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        """Return None on a match (names are bound), else the failing part and the instruction there."""
        if self.bind is not None and bound.setdefault(self.bind, ins) is not ins:
            return (self, ins)
        return None

    def may_match(self, name: str, *inputs: str) -> bool:
        """Return whether an instruction with operator ``name`` and inputs with operators ``inputs`` may match; without
        ``inputs``, with any inputs."""
        return True

    def describe(self) -> str:
        """Return a description for messages."""
        return f"the same value as {self.bind!r}" if self.bind else "anything"


class Operation(Pattern):
    """Matches an instruction with one of the operators ``names`` (space-separated) and matching inputs.

    Without ``inputs`` the inputs are not examined.
    """

    __slots__ = ("inputs", "names", "once")

    def __init__(self, names: str, *inputs: Pattern, bind: str | None = None, once: bool = False) -> None:
        super().__init__(bind)
        self.names = frozenset(names.split())
        self.inputs = inputs
        self.once = once

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        if ins.op.name not in self.names or (self.once and len(ins.users) > 1):
            return (self, ins)
        if self.bind is not None and bound.setdefault(self.bind, ins) is not ins:
            return (self, ins)
        wanted, found = self.inputs, ins.inputs
        if not wanted:
            return None
        if len(wanted) != len(found):
            return (self, ins)
        if len(wanted) == 2 and ins.op.commutative:
            attempt = dict(bound)
            miss = wanted[0].match(found[0], attempt) or wanted[1].match(found[1], attempt)
            if miss is None:
                bound.update(attempt)
                return None
            return wanted[0].match(found[1], bound) or wanted[1].match(found[0], bound)
        for pattern, value in zip(wanted, found):
            miss = pattern.match(value, bound)
            if miss is not None:
                return miss
        return None

    def may_match(self, name: str, *inputs: str) -> bool:
        if name not in self.names:
            return False
        wanted = self.inputs
        if not (wanted and inputs):
            return True
        if len(wanted) != len(inputs):
            return False
        orders = (inputs, inputs[::-1]) if len(inputs) == 2 else (inputs,)
        return any(all(p.may_match(name) for p, name in zip(wanted, order)) for order in orders)

    def describe(self) -> str:
        return " or ".join(sorted(self.names)) + (" with a single user" if self.once else "")


class Constant(Pattern):
    """Matches a literal, directly or through views."""

    __slots__ = ()

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        return super().match(ins, bound) if is_constant(ins) else (self, ins)

    def may_match(self, name: str, *inputs: str) -> bool:
        return name in CONSTANTS

    def describe(self) -> str:
        return "a constant"


class ScalarValue(Pattern):
    """Matches a constant with equal elements, within a relative ``tolerance`` of ``value`` if given (``narrow``, if
    larger, for types of fewer than 32 bits)."""

    __slots__ = ("narrow", "tolerance", "value")

    def __init__(
        self, value: float | None = None, bind: str | None = None, tolerance: float = 0.0, narrow: float = 0.0
    ) -> None:
        super().__init__(bind)
        self.value = value
        self.tolerance = tolerance
        self.narrow = max(narrow, tolerance)

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        found = uniform_value(ins)
        if found is None:
            return (self, ins)
        if self.value is not None:
            tolerance = self.narrow if ins.shape.type.size < 4 else self.tolerance
            if not abs(float(found) - self.value) <= tolerance * abs(self.value):
                return (self, ins)
        return super().match(ins, bound)

    def may_match(self, name: str, *inputs: str) -> bool:
        return name in CONSTANTS

    def describe(self) -> str:
        return "a constant with equal elements" + ("" if self.value is None else f" {self.value:g}")


class Spread(Pattern):
    """Matches a value directly or broadcast; ``bind`` names the broadcast value."""

    __slots__ = ("inner",)

    def __init__(self, inner: Pattern, bind: str | None = None) -> None:
        super().__init__(bind)
        self.inner = inner

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        outer = ins
        while ins.op.name in BROADCASTS and len(ins.inputs) == 1:
            ins = ins.inputs[0]
        return self.inner.match(ins, bound) or super().match(outer, bound)

    def may_match(self, name: str, *inputs: str) -> bool:
        return name in BROADCASTS or self.inner.may_match(name)


class Loose(Pattern):
    """Matches a value directly or through conversions between floats that the compiler added."""

    __slots__ = ("inner",)

    def __init__(self, inner: Pattern) -> None:
        super().__init__(None)
        self.inner = inner

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        while ins.name == "convert" and ins.op.elidable:  # type: ignore[attr-defined]
            ins = ins.inputs[0]
        return self.inner.match(ins, bound)

    def may_match(self, name: str, *inputs: str) -> bool:
        return name == "convert" or self.inner.may_match(name, *inputs)


class Either(Pattern):
    """Matches the first matching of several patterns."""

    __slots__ = ("choices",)

    def __init__(self, *choices: Pattern) -> None:
        super().__init__(None)
        self.choices = choices

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        miss: Miss | None = None
        for choice in self.choices:
            attempt = dict(bound)
            miss = choice.match(ins, attempt)
            if miss is None:
                bound.update(attempt)
                return None
        return miss

    def may_match(self, name: str, *inputs: str) -> bool:
        return any(choice.may_match(name) for choice in self.choices)


op, some, constant, scalar, spread, either = Operation, Pattern, Constant, ScalarValue, Spread, Either
"""The names of patterns in rules."""


def loosened(pattern: Operation) -> Operation:
    """Return a pattern whose operands may be converted between floats, where no author asked for it: PyTorch computes
    16-bit tensors times numbers in float32."""

    def operand(inner: Pattern) -> Pattern:
        if isinstance(inner, Either):
            return Either(*map(operand, inner.choices))
        return Loose(loosened(inner) if isinstance(inner, Operation) else inner)

    operands = map(operand, pattern.inputs)
    return Operation(" ".join(pattern.names), *operands, bind=pattern.bind, once=pattern.once)


class Match:
    """A successful match: ``ins`` is the root, other attributes are the bound names."""

    __slots__ = ("bound", "ins", "options")

    def __init__(self, ins: Instruction, bound: Bound, options: Options) -> None:
        self.ins = ins
        self.bound = bound
        self.options = options

    def __getattr__(self, name: str) -> Instruction:
        try:
            return self.bound[name]
        except KeyError:
            raise AttributeError(name) from None


Rewrite = Callable[[Match, RewriteBuilder], Any]
Check = Callable[[Match], "str | None"]


@dataclass(frozen=True)
class RewriteRule:
    """A rewrite rule of the IR.

    Attributes:
        name: for traces and ``explain``.
        pattern: pattern of the root instruction; its operator names select candidates.
        rewrite: builds and returns the new value, or a dict from old to new instructions. Returns a string, the reason,
            to refuse, or None if the rule does not concern the instruction.
        exact: whether the result is the same for every input; see below.
        check: returns the reason to refuse, or None.
        reads: operators of which at least one input must be one, if any are named; ``rewrite`` refuses all others.

    An exact rule keeps every bit: signed zeros, infinities and NaN, and the rounding of each operation of its pattern.
    Only the order and width of accumulation in contractions and reductions is free. An exact rule never sees
    ``fast_math``.

    An inexact rule applies only under ``fast_math``, or where all values are integers, whose sums and products are
    associative. `rules.merging` states the error bound of such rules.
    """

    name: str
    pattern: Operation
    rewrite: Rewrite
    exact: bool
    check: Check | None = None
    reads: frozenset[str] = frozenset()

    def may_match(self, name: str, *inputs: str) -> bool:
        """Whether the rule may apply to an operator of this name whose inputs' operators have those names."""
        return self.pattern.may_match(name, *inputs) and not (self.reads and self.reads.isdisjoint(inputs))

    def find(self, ins: Instruction, options: Options) -> Match | None:
        """Return the match at an instruction, None if the pattern does not fit."""
        bound: Bound = {}
        return None if self.pattern.match(ins, bound) else self.matched(ins, bound, options)

    def matched(self, ins: Instruction, bound: Bound, options: Options) -> Match:
        """Return the match with the names ``bound``; an exact rule gets options with ``fast_math=False``."""
        return Match(ins, bound, options.exact if self.exact else options)

    def refusal(self, match: Match) -> str | None:
        """Return why the rule must not be applied to the match; None if it may."""
        if not (self.exact or match.options.fast_math or _integers_alone(match.ins)):
            return "it changes rounding, and fast_math is off"
        for value in match.bound.values():
            if value.shape.dyn_dims:
                return f"the lengths of {value.name} are known at run time only"
        return self.check(match) if self.check is not None else None


def _integers_alone(ins: Instruction) -> bool:
    return not any(i.shape.type.is_floating for i in (ins, *ins.inputs))


def rule(
    name: str, pattern: Operation, check: Check | None = None, *, exact: bool, reads: Iterable[str] = ()
) -> Callable[[Rewrite], RewriteRule]:
    """Decorate a rewrite function to make it a rule; see `RewriteRule` for the arguments."""

    def make(rewrite: Rewrite) -> RewriteRule:
        return RewriteRule(name, pattern, rewrite, exact, check, frozenset(reads))

    return make


def becomes(name: str, pattern: Operation, result: Pattern, check: Check | None = None, *, exact: bool) -> RewriteRule:
    """Return the rule that replaces a match by ``result``, an expression of the names that ``pattern`` binds.

    ``scalar`` and ``spread`` in the result have the lengths of the replaced instruction.
    """
    return RewriteRule(name, pattern, lambda m, b: _built(result, m, b), exact, check)


def _built(result: Pattern, m: Match, b: RewriteBuilder) -> Instruction:
    if isinstance(result, Operation):
        (name,) = result.names
        return b.op(name, *(_built(part, m, b) for part in result.inputs))
    if isinstance(result, ScalarValue):
        return b.scalar(result.value, m.ins)
    if isinstance(result, Spread):
        return b.broadcast(_built(result.inner, m, b), m.ins.shape.lens)
    assert result.bind is not None
    return m.bound[result.bind]


def explain(rules: Iterable[RewriteRule], ins: Instruction, options: Options) -> dict[str, str]:
    """Return, for each rule that could start at this instruction, the reason why it does not apply, or
    ``"applies"``."""
    answers: dict[str, str] = {}
    for candidate in rules:
        if ins.name not in candidate.pattern.names:
            continue
        bound: Bound = {}
        miss = candidate.pattern.match(ins, bound)
        if miss is not None:
            answers[candidate.name] = f"{miss[1].op} is not {miss[0].describe()}"
            continue
        match = candidate.matched(ins, bound, options)
        answers[candidate.name] = candidate.refusal(match) or _try(candidate, match)
    return answers


def _try(candidate: RewriteRule, match: Match) -> str:
    """Run a rewrite, discard the instructions it builds, and return the outcome."""
    if match.ins.module is None:
        return "was removed"
    builder = RewriteBuilder(match.ins.module, match.ins)
    result = candidate.rewrite(match, builder)
    builder.discard()
    return result if isinstance(result, str) else ("does not fit" if result is None else "applies")
