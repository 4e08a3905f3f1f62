"""Translate a kernel's text, which says what one thread does, to a coroutine of threads that run together.

Assignments, branches and loops are rewritten to calls of `lanes.Lanes`, which keeps the mask of active threads:

    if a:                  k = lanes.split(a)
        x = f(y)           if k.then is not nobody:
                               lanes.mask = home = k.then
                               x = lanes.blend(f(y), x, home_of_x)
                           lanes.rejoin(k.before)

Only variables that outlive the branch or loop in which they are assigned are blended. A function at which threads
wait is a ``yield`` of its name, its line and its operands.
"""

from __future__ import annotations

import ast
import functools
import marshal
import types as python_types
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

from mgx_numba.codegen.toolchain import assignment, nodes
from mgx_numba.codegen.toolchain.assignment import Unassigned, check_assignments
from mgx_numba.digest import text_digest
from mgx_numba.errors import CompileError

from ..caches import stored

__all__ = ["WAITING", "translated"]

WAITING = frozenset(("barrier", "cluster_barrier", "cluster_wait", "grid_barrier", "mbarrier_wait", "tagged_load4"))
"""Functions at which threads wait for others."""
_Region = tuple[ast.stmt, ...]
"""The branches and loops around a statement, the outermost first."""
_REGIONS = (ast.If, ast.While, ast.For)


@functools.lru_cache(maxsize=2048)
def translated(text: str, filename: str) -> python_types.CodeType:
    """Return the code of a kernel's text; it defines ``kernel(args)``, a generator, over ``lanes``, ``nobody`` and the
    names of the vocabulary. Later runs of the tests find it in their cache folder.

    Raises:
        CompileError: the text reads a variable that may have no value, or has statements that are not of the language.
    """
    key = text_digest("\n".join((_meaning(), filename, text)))
    made: python_types.CodeType = marshal.loads(
        stored(f"interpreted/{key}", lambda: marshal.dumps(_translate(text, filename)))
    )
    return made


@functools.cache
def _meaning() -> str:
    """Return the digest of what code depends on besides a kernel's text: Python's version, and the translation."""
    files = (Path(found.__file__) for found in (assignment, nodes))
    return text_digest(MAGIC_NUMBER.hex() + "".join(path.read_text() for path in (Path(__file__), *files)))


def _translate(text: str, filename: str) -> python_types.CodeType:
    tree = ast.parse(text, filename)
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    try:
        check_assignments(function)  # as the compiler does: a thread need not come to the place that has no value
    except Unassigned as error:
        raise CompileError(f"{filename}: {error}") from None
    writer = _Writer(function)
    at = _Nodes(function.lineno)
    first: list[ast.stmt] = [at.assigned(name, at.constant(None)) for name in [*writer.variables(), "_h0"]]
    first.append(at.branch(at.constant(False), [at.statement(at.waiting(None))]))  # where no thread waits: a generator
    function.body = [*first, *writer.body(function.body, (), None)]
    tree.body = [*writer.constants, *tree.body]
    return compile(tree, filename, "exec")


class _Writer(ast.NodeTransformer):
    """Rewrites a function's statements.

    Attributes:
        constants: statements that compute, once for all threads, the constants in whose place names stand.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self.constants: list[ast.stmt] = []
        self._homes: dict[str, _Region] = {}  # for each name the innermost branch or loop with all its uses
        self._assigned: set[str] = set()
        self._numbers: dict[ast.AST, int] = {}
        self._left: set[ast.AST] = set()  # loops with a `break`
        self._at = _Nodes(function.lineno)
        for statement in function.body:
            self._find_uses(statement, ())

    def variables(self) -> list[str]:
        """Return the names that the function assigns."""
        return sorted(self._assigned)

    def _find_uses(self, node: Any, region: _Region) -> None:
        kind = type(node)
        if kind is ast.Name:
            home = self._homes.setdefault(node.id, region)
            if type(node.ctx) is ast.Store:
                self._assigned.add(node.id)
            if home is not region:
                self._homes[node.id] = _common(home, region)
            return
        if kind is ast.Constant:
            return
        if kind in _REGIONS:
            region = (*region, node)
            self._numbers[node] = len(self._numbers) + 1
        elif kind is ast.Break:
            self._left.add(next(around for around in reversed(region) if not isinstance(around, ast.If)))
        for name in node._fields:
            child = getattr(node, name)
            if isinstance(child, list):
                for each in child:
                    self._find_uses(each, region)
            elif isinstance(child, ast.AST) and not (kind is ast.Call and name == "func"):
                self._find_uses(child, region)

    def body(self, statements: Sequence[ast.stmt], region: _Region, loop: str | None) -> list[ast.stmt]:
        """Return the rewritten statements of a branch; ``loop`` is the variable of the loop that a ``break`` leaves."""
        return [made for statement in statements for made in self._statement(statement, region, loop)]

    def _statement(self, node: ast.stmt, region: _Region, loop: str | None) -> list[ast.stmt]:
        at = self._at = _Nodes(node.lineno)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return [self._assignment(node.targets[0].id, self.visit(node.value), region)]
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            return [
                self._assignment(node.target.id, at.joined(node.target.id, node.op, self.visit(node.value)), region)
            ]
        if isinstance(node, ast.Expr):
            return [at.statement(self.visit(node.value))]
        if isinstance(node, ast.Pass):
            return [node]
        if isinstance(node, ast.Break) and loop is not None:
            leaves = at.branch(at.call("leave", at.name(loop)), [node])
            return [leaves, at.masked(at.part("lanes", "nothing"))]
        if isinstance(node, ast.If):
            return self._branches(node, region, loop)
        if isinstance(node, (ast.While, ast.For)) and not node.orelse:
            return self._loop(node, region)
        raise CompileError(f"line {node.lineno}: {type(node).__name__} is not of the kernel language")

    def _assignment(self, name: str, value: ast.expr, region: _Region) -> ast.stmt:
        home, at = self._homes[name], self._at
        if len(home) < len(region):
            number = self._numbers[home[-1]] if home else 0
            value = at.call("blend", value, at.name(name), at.name(f"_h{number}"))
        return at.assigned(name, value)

    def _branches(self, node: ast.If, region: _Region, loop: str | None) -> list[ast.stmt]:
        n, at = self._numbers[node], self._at
        masks = f"_k{n}"
        made: list[ast.stmt] = [at.assigned(masks, at.call("split", self.visit(node.test)))]
        for name, statements in (("then", node.body), ("otherwise", node.orelse)):
            if statements:
                some = at.differs(at.part(masks, name), "nobody")
                narrows = at.masked(at.part(masks, name), f"_h{n}")
                made.append(at.branch(some, [narrows, *self.body(statements, (*region, node), loop)]))
        around = [] if loop is None else [at.name(loop)]
        return [*made, at.statement(at.call("rejoin", at.part(masks, "before"), *around))]

    def _loop(self, node: ast.While | ast.For, region: _Region) -> list[ast.stmt]:
        n, inside, at = self._numbers[node], (*region, node), self._at
        masks = f"_k{n}"
        start: list[ast.stmt] = [at.assigned(f"_h{n}", at.part("lanes", "mask"))]
        if isinstance(node, ast.For):
            ranged = node.iter
            if not (isinstance(ranged, ast.Call) and isinstance(ranged.func, ast.Name) and ranged.func.id == "range"):
                raise CompileError(f"line {node.lineno}: a loop over something other than a range")
            assert isinstance(node.target, ast.Name)
            start.append(self._assignment(node.target.id, at.name(f"_i{n}"), inside))
            bounds = at.call("counted", *[self.visit(bound) for bound in ranged.args])
        else:
            bounds = at.call("stays", self.visit(node.test))
        body = [*start, *self.body(node.body, inside, masks if node in self._left else None)]
        loop = at.loop(bounds, body, f"_i{n}" if isinstance(node, ast.For) else None)
        end = at.statement(at.call("rejoin", at.part(masks, "before")))
        return [at.assigned(masks, at.call("loop")), loop, end]

    # Expressions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Yield a call at which threads wait; name a constant of literals; number the line of shared memory."""
        assert isinstance(node.func, ast.Name)
        name, at = node.func.id, self._at
        if name.startswith("const_") and all(map(_is_literal, node.args)):
            constant = f"_constant{len(self.constants)}"
            self.constants.append(at.assigned(constant, node))
            return at.name(constant)
        node.args = [self.visit(operand) for operand in node.args]
        if name in WAITING:
            return at.waiting(at.tuple(at.constant(name), at.constant(node.lineno), at.tuple(*node.args)))
        if name.startswith("shared_"):
            node.args.append(at.constant(node.lineno))
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Return the node."""
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Return the node."""
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Return the call of `lanes.Lanes.either` or `lanes.Lanes.both`."""
        self.generic_visit(node)
        return self._lazily("either" if isinstance(node.op, ast.Or) else "both", [], node.values)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Return the call of `lanes.Lanes.choose`."""
        self.generic_visit(node)
        return self._lazily("choose", [node.test], [node.body, node.orelse])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Return the call of `lanes.Lanes.negated` for ``not``."""
        self.generic_visit(node)
        return self._at.call("negated", node.operand) if isinstance(node.op, ast.Not) else node

    def _lazily(self, name: str, first: Sequence[ast.expr], rest: Sequence[ast.expr]) -> ast.AST:
        if any(isinstance(found, ast.Yield) for operand in rest for found in ast.walk(operand)):
            raise CompileError("threads wait under the condition of an expression")
        return self._at.call(name, *first, *map(self._at.function, rest))


class _Nodes:
    """Makes nodes of one line."""

    def __init__(self, line: int) -> None:
        self._at: Any = {"lineno": line, "col_offset": 0}

    def name(self, name: str) -> ast.expr:
        return ast.Name(name, ast.Load(), **self._at)

    def constant(self, value: Any) -> ast.expr:
        return ast.Constant(value, **self._at)

    def tuple(self, *parts: ast.expr) -> ast.expr:
        return ast.Tuple([*parts], ast.Load(), **self._at)

    def part(self, name: str, part: str) -> ast.expr:
        return ast.Attribute(self.name(name), part, ast.Load(), **self._at)

    def call(self, name: str, *operands: ast.expr) -> ast.expr:
        """Return the call of a function of `lanes.Lanes`."""
        return ast.Call(self.part("lanes", name), [*operands], [], **self._at)

    def function(self, value: ast.expr) -> ast.expr:
        return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value, **self._at)

    def waiting(self, value: ast.expr | None) -> ast.expr:
        return ast.Yield(value, **self._at)

    def joined(self, name: str, operator: ast.operator, value: ast.expr) -> ast.expr:
        return ast.BinOp(self.name(name), operator, value, **self._at)

    def differs(self, value: ast.expr, name: str) -> ast.expr:
        return ast.Compare(value, [ast.IsNot()], [self.name(name)], **self._at)

    def statement(self, value: ast.expr) -> ast.stmt:
        return ast.Expr(value, **self._at)

    def assigned(self, name: str, value: ast.expr) -> ast.stmt:
        return ast.Assign([ast.Name(name, ast.Store(), **self._at)], value, **self._at)

    def masked(self, value: ast.expr, *names: str) -> ast.stmt:
        """Return the assignment of a mask to the threads, and to variables."""
        mask = ast.Attribute(self.name("lanes"), "mask", ast.Store(), **self._at)
        return ast.Assign([mask, *(ast.Name(name, ast.Store(), **self._at) for name in names)], value, **self._at)

    def branch(self, condition: ast.expr, body: list[ast.stmt]) -> ast.stmt:
        return ast.If(condition, body, [], **self._at)

    def loop(self, bounds: ast.expr, body: list[ast.stmt], number: str | None) -> ast.stmt:
        if number is None:
            return ast.While(bounds, body, [], **self._at)
        return ast.For(ast.Name(number, ast.Store(), **self._at), bounds, body, [], **self._at)


def _common(home: _Region, region: _Region) -> _Region:
    """Return the branches and loops that two places share."""
    for n, (a, b) in enumerate(zip(home, region)):
        if a is not b:
            return home[:n]
    return min(home, region, key=len)


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in ("INF", "NAN"))
