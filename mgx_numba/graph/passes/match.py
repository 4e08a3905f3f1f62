"""Patterns over instructions, and rules: a pattern, a check that may refuse with a reason, and a rewrite.

Patterns are built by the functions ``op``, ``some``, ``constant``, ``scalar`` and ``spread`` and read like the
expression they match. A pattern says what did not match, so that "why was this not rewritten?" has an answer:
see ``explain``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...dataclass import dataclass
from ..constants import is_constant, uniform_value
from ..instruction import Instruction
from .build import RewriteBuilder

if TYPE_CHECKING:
    from .base import Options

__all__ = [
    "Match",
    "Operation",
    "Pattern",
    "RewriteRule",
    "constant",
    "either",
    "explain",
    "op",
    "rule",
    "scalar",
    "some",
    "spread",
]

Bound = dict[str, Instruction]
Miss = tuple["Pattern", Instruction]


class Pattern:
    """Something that an instruction may match."""

    __slots__ = ("bind",)

    def __init__(self, bind: str | None = None) -> None:
        self.bind = bind

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        """``None`` when it matches (names are bound then), else the part that does not and the instruction there."""
        if self.bind is not None and bound.setdefault(self.bind, ins) is not ins:
            return (self, ins)
        return None

    def describe(self) -> str:
        """What is wanted, for messages."""
        return f"the same value as {self.bind!r}" if self.bind else "anything"


class Operation(Pattern):
    """An instruction with one of some operator names whose inputs match."""

    __slots__ = ("inputs", "names", "once")

    def __init__(self, names: str, inputs: Sequence[Pattern], bind: str | None, once: bool) -> None:
        super().__init__(bind)
        self.names = frozenset(names.split())
        self.inputs = tuple(inputs)
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

    def describe(self) -> str:
        return " or ".join(sorted(self.names)) + (" with a single user" if self.once else "")


class Constant(Pattern):
    """A literal, directly or through views."""

    __slots__ = ()

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        return super().match(ins, bound) if is_constant(ins) else (self, ins)

    def describe(self) -> str:
        return "a constant"


class ScalarValue(Pattern):
    """A constant whose elements are all equal, and near ``value`` if that is given."""

    __slots__ = ("narrow", "tolerance", "value")

    def __init__(self, value: float | None, bind: str | None, tolerance: float, narrow: float) -> None:
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

    def describe(self) -> str:
        return "a constant with equal elements" + ("" if self.value is None else f" {self.value:g}")


class Spread(Pattern):
    """A value that matches, directly or broadcast; ``bind`` names the value as it is used (after broadcasting)."""

    __slots__ = ("inner",)

    def __init__(self, inner: Pattern, bind: str | None) -> None:
        super().__init__(bind)
        self.inner = inner

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        outer = ins
        while ins.op.name in ("multibroadcast", "broadcast") and len(ins.inputs) == 1:
            ins = ins.inputs[0]
        return self.inner.match(ins, bound) or super().match(outer, bound)


class Either(Pattern):
    """The first of several patterns that matches."""

    __slots__ = ("choices",)

    def __init__(self, choices: Sequence[Pattern]) -> None:
        super().__init__(None)
        self.choices = tuple(choices)

    def match(self, ins: Instruction, bound: Bound) -> Miss | None:
        miss: Miss | None = None
        for choice in self.choices:
            attempt = dict(bound)
            miss = choice.match(ins, attempt)
            if miss is None:
                bound.update(attempt)
                return None
        return miss


def op(names: str, *inputs: Pattern, bind: str | None = None, once: bool = False) -> Operation:
    """An instruction named by one of the space-separated ``names``; without ``inputs`` these are not looked at."""
    return Operation(names, inputs, bind, once)


def some(bind: str | None = None) -> Pattern:
    """Any instruction; the same name twice must be the same instruction."""
    return Pattern(bind)


def constant(bind: str | None = None) -> Pattern:
    """A literal, directly or through views."""
    return Constant(bind)


def scalar(value: float | None = None, bind: str | None = None, tolerance: float = 0.0, narrow: float = 0.0) -> Pattern:
    """A constant with all elements equal, within a relative ``tolerance`` of ``value``, or ``narrow`` if that is larger
    and the type is one of fewer than 32 bits."""
    return ScalarValue(value, bind, tolerance, narrow)


def spread(inner: Pattern, bind: str | None = None) -> Pattern:
    """A value directly or through broadcasts."""
    return Spread(inner, bind)


def either(*choices: Pattern) -> Pattern:
    """Any of several patterns, tried in order."""
    return Either(choices)


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
    """One identity of the IR.

    Attributes:
        name: for traces and ``explain``.
        pattern: what its root instruction must look like; the root's operator names select candidates.
        rewrite: builds the new value and returns it, or a dict from old to new instructions. It declines by returning
            the reason (a string), or ``None`` where the instruction is not what the rule is about.
        exact: whether the result is the same for every input; see below.
        check: returns why the rewrite must not be done here, or ``None``.

    An exact rule keeps every bit: signed zeros, infinities and NaN, and the rounding of each operation of its pattern.
    Only the order in which a contraction or a reduction adds, and how wide its sums are, is free. An exact rule never
    sees ``fast_math``.

    A rule that is not exact applies under ``fast_math`` alone, or where all values are integers, whose sums and
    products do not depend on their order. `rules.merging` has the bound that such a rule keeps.
    """

    name: str
    pattern: Operation
    rewrite: Rewrite
    exact: bool
    check: Check | None = None

    def find(self, ins: Instruction, options: Options) -> Match | None:
        """Match at an instruction, ``None`` if the pattern does not fit."""
        bound: Bound = {}
        return None if self.pattern.match(ins, bound) else self.matched(ins, bound, options)

    def matched(self, ins: Instruction, bound: Bound, options: Options) -> Match:
        """Return the match with the names ``bound``; an exact rule gets options with ``fast_math=False``."""
        return Match(ins, bound, options.exact if self.exact else options)

    def refusal(self, match: Match) -> str | None:
        """Return why the rule must not be applied to the match; None if it may."""
        if not (self.exact or match.options.fast_math or _integers_alone(match.ins)):
            return "it changes rounding, and fast_math is off"
        return self.check(match) if self.check is not None else None


def _integers_alone(ins: Instruction) -> bool:
    return not any(i.shape.type.is_floating for i in (ins, *ins.inputs))


def rule(name: str, pattern: Operation, check: Check | None = None, *, exact: bool) -> Callable[[Rewrite], RewriteRule]:
    """Decorator: turn a rewrite function into a rule; see `RewriteRule` for the arguments."""

    def make(rewrite: Rewrite) -> RewriteRule:
        return RewriteRule(name, pattern, rewrite, exact, check)

    return make


def explain(rules: Iterable[RewriteRule], ins: Instruction, options: Options) -> dict[str, str]:
    """For each rule that could start at this instruction: why it does not apply, or ``"applies"``."""
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
    """Rewrite without effect: what is built is discarded."""
    if match.ins.module is None:
        return "was removed"
    builder = RewriteBuilder(match.ins.module, match.ins)
    result = candidate.rewrite(match, builder)
    builder.discard()
    return result if isinstance(result, str) else ("does not fit" if result is None else "applies")
