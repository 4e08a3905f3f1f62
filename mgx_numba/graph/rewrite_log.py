"""Log of the rewrites applied to a program on its way to kernels, and of refused rewrites with reasons."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..core.shape import Shape
from ..dataclass import dataclass
from ..environment import environment_flag, environment_words
from ..messages import TRACE, tell
from ..ops.base import Operator

if TYPE_CHECKING:
    from .instruction import Instruction


@dataclass(frozen=True)
class Refusal:
    """A rewrite, fusion or kernel that matched and was refused.

    Attributes:
        rule: the rewrite rule, pass, or lowering rule (``lower_gather``) that refused.
        op, shape: the instruction's. The instruction itself and its values are not kept alive.
        reason: why.
        nodes: names of the model's nodes that the instruction came from, if known (debug symbols).
    """

    rule: str
    op: Operator
    shape: Shape
    reason: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule} at {self.op} -> {self.shape}: {self.reason}"


class RewriteLog:
    """Applied rewrites, counted by rule, and refusals, one for each rule and instruction.

    ``MIGRAPHX_TRACE_MATCHES`` prints entries as they are added. ``MIGRAPHX_TRACE_MATCHES_FOR`` prints the entries of
    rules whose name contains one of its words.

    Attributes:
        applied: number of applications by rule or pass.
        exhausted: whether rules were stopped because they did not reach a fixed point.
        parent: another log that receives every entry too: a pass's log has the program's log as parent.
    """

    def __init__(self, parent: RewriteLog | None = None) -> None:
        self.applied: dict[str, int] = {}
        self.exhausted = False
        self.parent = parent
        self._closed: list[Refusal] = []
        self._open: dict[tuple[str, int], Refusal] = {}

    def apply(self, rule: str, ins: Instruction, forget: bool = False) -> None:
        """Record that a rule was applied at an instruction; with ``forget``, drop the rule's earlier refusal there."""
        self.applied[rule] = self.applied.get(rule, 0) + 1
        if forget:
            self._open.pop((rule, id(ins)), None)
        if self.parent is not None:
            self.parent.apply(rule, ins, forget)
        else:
            self._tell(rule, "%s matched %s -> %s", rule, ins.op, ins.shape)

    def refuse(self, rule: str, ins: Instruction, reason: str) -> None:
        """Record that a rule matched at an instruction and was not applied; the last reason is kept."""
        known = self._open.get((rule, id(ins)))
        if known is not None and known.reason == reason:
            return
        self._open[rule, id(ins)] = refusal = Refusal(rule, ins.op, ins.shape, reason, ins.debug_symbols)
        if self.parent is not None:
            self.parent.refuse(rule, ins, reason)
        else:
            self._tell(rule, "refused %s", refusal)

    def close(self) -> None:
        """Detach refusals from instruction identities: a new instruction may get the ``id`` of a deleted one."""
        self._closed += self._open.values()
        self._open.clear()

    def include(self, other: RewriteLog) -> None:
        """Add all entries of another log."""
        for rule, count in other.applied.items():
            self.applied[rule] = self.applied.get(rule, 0) + count
        self.exhausted |= other.exhausted
        self._closed += other.refusals()

    def refusals(self, rule: str | None = None) -> list[Refusal]:
        """Return a rule's refusals, or all refusals, in order."""
        return [r for r in (*self._closed, *self._open.values()) if rule is None or r.rule == rule]

    @functools.cached_property
    def _asked(self) -> tuple[list[str], bool]:
        """Words that select the rules to print, and whether all rules are printed if there are no words; read once."""
        return environment_words("MIGRAPHX_TRACE_MATCHES_FOR"), environment_flag("MIGRAPHX_TRACE_MATCHES")

    def _tell(self, rule: str, text: str, *values: object) -> None:
        """Print ``text % values`` if the rule is selected by the environment, and log it."""
        words, all_rules = self._asked
        if any(word in rule for word in words) if words else all_rules:
            print(text % values)
        tell("graph", TRACE, text, *values)
