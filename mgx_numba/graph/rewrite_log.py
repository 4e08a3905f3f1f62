"""What was done to a program on its way to kernels, and what was refused, with the reasons."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.shape import Shape
from ..dataclass import dataclass
from ..environment import environment_flag, environment_words
from ..messages import TRACE, tell
from ..ops.base import Operator

if TYPE_CHECKING:
    from .instruction import Instruction

__all__ = ["Refusal", "RewriteLog"]


@dataclass(frozen=True)
class Refusal:
    """A rewrite, a fusion or a kernel that could have been and was not.

    Attributes:
        rule: what refused: a rewrite rule, a pass, or a lowering rule (``lower_gather``).
        op, shape: the instruction's; it is not held itself, nor are its values.
        reason: why.
        nodes: names of the model's nodes that it is of, if the program has them (debug symbols).
    """

    rule: str
    op: Operator
    shape: Shape
    reason: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule} at {self.op} -> {self.shape}: {self.reason}"


class RewriteLog:
    """Rewrites that were applied, counted by rule, and those that were refused, once for a rule and an instruction.

    ``MIGRAPHX_TRACE_MATCHES`` has them printed as they come, ``MIGRAPHX_TRACE_MATCHES_FOR`` those of rules with one of
    some words in their names.

    Attributes:
        applied: how often each rule, or pass, was.
        exhausted: whether rules were stopped because they did not come to an end.
        parent: another log that takes everything too, such as the program's of a pass.
    """

    def __init__(self, parent: RewriteLog | None = None) -> None:
        self.applied: dict[str, int] = {}
        self.exhausted = False
        self.parent = parent
        self._closed: list[Refusal] = []
        self._open: dict[tuple[str, int], Refusal] = {}

    def apply(self, rule: str, ins: Instruction, forget: bool = False) -> None:
        """A rule was applied at an instruction; with ``forget``, what it refused there before is forgotten."""
        self.applied[rule] = self.applied.get(rule, 0) + 1
        if forget:
            self._open.pop((rule, id(ins)), None)
        if self.parent is not None:
            self.parent.apply(rule, ins, forget)
        else:
            self._tell(rule, "%s matched %s -> %s", rule, ins.op, ins.shape)

    def refuse(self, rule: str, ins: Instruction, reason: str) -> None:
        """A rule matched at an instruction and was not applied; of several reasons the last is kept."""
        known = self._open.get((rule, id(ins)))
        if known is not None and known.reason == reason:
            return
        self._open[rule, id(ins)] = refusal = Refusal(rule, ins.op, ins.shape, reason, ins.debug_symbols)
        if self.parent is not None:
            self.parent.refuse(rule, ins, reason)
        else:
            self._tell(rule, "refused %s", refusal)

    def close(self) -> None:
        """What follows is of other instructions: one of them may come to have the identity of one that is gone."""
        self._closed += self._open.values()
        self._open.clear()

    def include(self, other: RewriteLog) -> None:
        """Take over what another log has."""
        for rule, count in other.applied.items():
            self.applied[rule] = self.applied.get(rule, 0) + count
        self.exhausted |= other.exhausted
        self._closed += other.refusals()

    def converted(self, function: Callable[[Refusal], Refusal]) -> RewriteLog:
        """A log of the same whose refusals are what a function makes of these."""
        log = RewriteLog()
        log.include(self)
        log._closed = [function(refusal) for refusal in log._closed]
        return log

    def refusals(self, rule: str | None = None) -> list[Refusal]:
        """Refusals, of one rule or of all, in order."""
        return [r for r in (*self._closed, *self._open.values()) if rule is None or r.rule == rule]

    @functools.cached_property
    def _asked(self) -> tuple[list[str], bool]:
        """Words in the names of rules that are printed, and whether all are if there is none; read once."""
        return environment_words("MIGRAPHX_TRACE_MATCHES_FOR"), environment_flag("MIGRAPHX_TRACE_MATCHES")

    def _tell(self, rule: str, text: str, *values: object) -> None:
        """Print and log ``text % values``, as far as it is asked for."""
        words, all_rules = self._asked
        if any(word in rule for word in words) if words else all_rules:
            print(text % values)
        tell("graph", TRACE, text, *values)
