"""Index of rules by the names of an instruction's operator and of its inputs' operators."""

from __future__ import annotations

from collections.abc import Iterable

from ..instruction import Instruction
from .match import RewriteRule


class RuleIndex:
    """Rules by what they may match at.

    Attributes:
        roots: names of the operators at which any rule starts.
    """

    def __init__(self, rules: Iterable[RewriteRule]) -> None:
        self._rules = tuple(rules)
        self.roots = frozenset(name for rule in self._rules for name in rule.pattern.names)
        self._found: dict[tuple[str, ...], tuple[RewriteRule, ...]] = {}

    def candidates(self, ins: Instruction) -> tuple[RewriteRule, ...]:
        """Return the rules whose patterns the names of an instruction and of its inputs do not rule out, in order."""
        names = (ins.op.name, *[value.op.name for value in ins.inputs])
        found = self._found.get(names)
        if found is None:
            found = tuple([rule for rule in self._rules if rule.may_match(*names)])
            self._found[names] = found
        return found
