"""Select instructions for a quantisation pass by ``ins_names``: operator names or source node names."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ...errors import OptionError
from ...nearest import did_you_mean
from ...ops.base import known_operators
from ..instruction import Instruction
from ..program import Program

ALL = "all"
EXCEPT = "~"
_WILD = frozenset("*?[")
_PRODUCTS = frozenset({"rnn", "gru", "lstm", "recurrent", "recurrent_steps"})
"""Operators whose products ``dot`` may select, too; ``recurrent_steps`` also has the name of its cell."""


class Selection:
    """Instructions selected by names.

    A name is ``all``, an operator, a source node (debug symbol), or a pattern of either with shell wildcards. A name
    with prefix ``~`` excludes; if all names do, everything else is selected. ``dot`` also selects recurrent layers,
    unless the whole layer would change and not only its products.
    """

    def __init__(self, names: Iterable[str], whole_layers: bool = False) -> None:
        """Parse the names.

        Args:
            whole_layers: whether selected instructions change as a whole.

        Raises:
            OptionError: ``names`` is a string, is empty, or contains non-strings.
        """
        if isinstance(names, str):
            raise OptionError(f"ins_names must be a sequence of names, got the string {names!r}")
        given = list(names)
        if not given or not all(isinstance(name, str) and name.removeprefix(EXCEPT) for name in given):
            raise OptionError(f"ins_names must be operator or node names, got {given!r}")
        self._without = [name.removeprefix(EXCEPT) for name in given if name.startswith(EXCEPT)]
        self._with = [name for name in given if not name.startswith(EXCEPT)] or [ALL]
        self._whole_layers = whole_layers

    @property
    def everything(self) -> bool:
        """Return whether ``all`` is among the names."""
        return ALL in self._with

    def named(self, ins: Instruction) -> bool:
        """Return whether an explicit name (not ``all``) selects the instruction."""
        return self._chosen(ins, [name for name in self._with if name != ALL])

    def __contains__(self, ins: Instruction) -> bool:
        return self._chosen(ins, self._with) and not self._chosen(ins, self._without)

    def _chosen(self, ins: Instruction, names: Iterable[str]) -> bool:
        known = [ins.name, *ins.debug_symbols]
        if ins.name in _PRODUCTS:
            known += [] if self._whole_layers else ["dot"]
            known += [ins.op.attributes()["cell"]] if ins.name.startswith("recurrent") else []
        return any(name == ALL or any(_fits(one, name) for one in known) for name in names)

    def check(self, program: Program) -> None:
        """Check that each name is an operator or occurs in the program.

        Raises:
            OptionError: a name is unknown; close names are listed.
        """
        instructions = [ins for module in program.reachable_modules() for ins in module]
        operators = known_operators()
        for name in (*self._with, *self._without):
            if name == ALL or name in operators or any(self._chosen(ins, [name]) for ins in instructions):
                continue
            nodes = {symbol for ins in instructions for symbol in ins.debug_symbols}
            hint = did_you_mean(name, [*operators, *nodes])
            told = "" if nodes else " (nodes have names after parse_onnx(..., use_debug_symbols=True))"
            raise OptionError(f"ins_names: {name!r} names no operator and no node of the program{told}{hint}")


def _fits(known: str, name: str) -> bool:
    return known == name or (not _WILD.isdisjoint(name) and fnmatchcase(known, name))
