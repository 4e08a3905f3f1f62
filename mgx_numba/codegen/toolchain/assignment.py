"""Definite assignment: every variable that a kernel's text reads has a value on every path to the read.

A variable without a value is undefined in LLVM IR, and LLVM removes code that depends on it. Without this check such a
kernel would compile without a message and compute wrong results.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import field

from ...dataclass import dataclass
from .nodes import nodes_in

__all__ = ["Unassigned", "check_assignments"]

Names = frozenset[str]
"""Variables that have a value."""


class Unassigned(Exception):
    """A variable is read where it may have no value; the text names the variable, the line and the path."""


@dataclass
class _LoopExits:
    """Variables with a value at each `continue` (``again``) and each `break` (``after``) of a loop."""

    again: list[Names] = field(default_factory=list)
    after: list[Names] = field(default_factory=list)


def check_assignments(function: ast.FunctionDef) -> None:
    """Check that a kernel's function assigns each variable before reading it, on every path.

    A loop may run zero times unless its bounds are literals of a range that is not empty. Conditions are not compared:
    a variable that is assigned under a condition and later read under the same condition is refused.

    Raises:
        Unassigned: a variable may have no value where it is read.
    """
    _Walk(function).run()


class _Walk:
    """Data-flow analysis of one function.

    Each step takes the variables that have a value before a statement and returns the variables that have a value after
    it; None means that no path leaves the statement.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self.function = function
        self.arguments = frozenset(argument.arg for argument in function.args.args)
        self.first: dict[str, int] = {}  # line of each variable's first assignment
        for found in nodes_in(function):
            if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Store):
                self.first[found.id] = min(found.lineno, self.first.get(found.id, found.lineno))
        self.reasons: dict[str, str] = {}
        self.loops: list[_LoopExits] = []

    def run(self) -> None:
        """Analyse all statements."""
        self._body(self.function.body, self.arguments)

    def _body(self, body: Sequence[ast.stmt], known: Names) -> Names | None:
        found: Names | None = known
        for statement in body:
            if found is None:  # no path leads here
                return None
            found = self._statement(statement, found)
        return found

    def _statement(self, node: ast.stmt, known: Names) -> Names | None:
        if isinstance(node, ast.If):
            return self._branch(node, known)
        if isinstance(node, (ast.For, ast.While)):
            return self._loop(node, known)
        self._read(node, known)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._require(node.target, known)
        if isinstance(node, (ast.Break, ast.Continue)) and self.loops:
            loop = self.loops[-1]
            (loop.after if isinstance(node, ast.Break) else loop.again).append(known)
            return None
        return None if isinstance(node, ast.Return) else self._stored(node, known)

    def _branch(self, node: ast.If, known: Names) -> Names | None:
        self._read(node.test, known)
        then, otherwise = self._body(node.body, known), self._body(node.orelse, known)
        if isinstance(node.test, ast.Constant):
            return then if node.test.value else otherwise
        test = f"`{ast.unparse(node.test)}` of line {node.lineno} is"
        ways = [(f"if {test} {truth}", way) for truth, way in (("true", then), ("false", otherwise)) if way is not None]
        return self._meet(ways)

    def _loop(self, node: ast.For | ast.While, known: Names) -> Names | None:
        inside, endless, runs = known, False, False
        if isinstance(node, ast.For):
            self._read(node.iter, known)
            inside, runs = self._stored(node, known), _runs(node.iter)
        else:
            self._read(node.test, known)
            endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        loop = _LoopExits()
        self.loops.append(loop)
        end = self._body(node.body, inside)
        self.loops.pop()
        broken = [(f"if the loop of line {node.lineno} is left by break", way) for way in loop.after]
        last = [way for way in (end, *loop.again) if way is not None]
        if endless:
            return self._meet(broken, last)
        if not runs:
            return self._meet([(f"if the loop of line {node.lineno} runs zero times", known), *broken], last)
        return self._meet([*((f"if the loop of line {node.lineno} has a continue", way) for way in last), *broken])

    def _meet(self, ways: Sequence[tuple[str, Names]], others: Sequence[Names] = ()) -> Names | None:
        """Return the variables that have a value on all paths ``ways``; record a path for each variable that lacks one.

        Args:
            ways: for each path, its description for error messages and its variables with a value.
            others: variables with a value on further paths, which only add names to record.
        """
        if not ways:
            return None
        some: Names = frozenset().union(*(way for _, way in ways), *others)
        for reason, way in ways:
            for name in some - way:
                self.reasons.setdefault(name, reason)
        return some.intersection(*(way for _, way in ways))

    def _stored(self, node: ast.stmt, known: Names) -> Names:
        """Return ``known`` and the variables that the statement assigns, without statements nested in it."""
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        nodes = (n for target in targets if target is not None for n in nodes_in(target))
        names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for name in names:
            self.reasons.pop(name, None)
        return known if names <= known else known | names

    def _read(self, node: ast.AST, known: Names) -> None:
        for found in nodes_in(node):
            if type(found) is ast.Name and type(found.ctx) is ast.Load:
                self._require(found, known)

    def _require(self, node: ast.Name, known: Names) -> None:
        name = node.id
        if name in self.first and name not in known:
            early = node.lineno <= self.first[name]
            why = "before its first assignment" if early else self.reasons.get(name, "on some path")
            raise Unassigned(f"line {node.lineno}: variable {name} is read here, but has no value {why}")


def _runs(bounds: ast.expr) -> bool:
    """Return whether ``bounds`` is a ``range`` of literals that is not empty."""
    if not isinstance(bounds, ast.Call):
        return False
    try:
        return len(range(*map(ast.literal_eval, bounds.args))) > 0
    except (ValueError, TypeError):
        return False
