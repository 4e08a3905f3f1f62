"""Type inference of a kernel's variables and expressions from the types of its parameters.

The language has assignments, loops, branches and calls of given names; a variable may change its type from one
assignment to the next. So types flow through the statements in order, through loops until a fixed point.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ...dataclass import dataclass
from . import overloads
from .numba_core import NumbaError, types

__all__ = ["Inference", "Refused", "Way", "folded", "variables"]

Environment = dict[str, types.Type]
"""Types of the variables that have a value at one program point."""
Way = tuple[ast.AST, str]
"""A control-flow edge: a statement and an edge name. Branch: "then", "else". Loop: "before" (into the loop), "head",
"end" (of the body), "behind" (past the loop). Break or continue: "leave"."""


class Refused(Exception):
    """A kernel does not type or does not lower; the text states the reason and the line."""

    def __init__(self, node: ast.AST, message: str) -> None:
        super().__init__(f"line {getattr(node, 'lineno', '?')}: {message}\n{ast.unparse(node)}")


def folded(node: ast.expr) -> int | float | bool | str | None:
    """Return the value of a constant expression; None for any other expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float, str)) else None
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
        value = folded(node.operand)
        return None if value is None or isinstance(value, str) else overloads.UNARY[type(node.op)](value)
    if isinstance(node, ast.BinOp) and type(node.op) in overloads.BINARY:
        left, right = folded(node.left), folded(node.right)
        numbers = left is not None and right is not None and not isinstance(left, str) and not isinstance(right, str)
        if numbers and not isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)):
            return overloads.BINARY[type(node.op)](left, right)
    return None


def variables(target: ast.expr) -> list[ast.expr]:
    """Return the targets of an assignment: the target itself, or the elements of a tuple."""
    return list(target.elts) if isinstance(target, ast.Tuple) else [target]


@dataclass
class _Loop:
    """Types at the exits of a loop's body, by edge: for the next iteration, and for the code after the loop."""

    again: list[tuple[Way, Environment]] = field(default_factory=list)
    after: list[tuple[Way, Environment]] = field(default_factory=list)


@dataclass
class Inference:
    """Results of type inference, after `run`.

    Attributes:
        namespace: names that the text may use.
        returned: the return type.
        kinds: types of expressions, by node.
        constants: values of expressions that are known at compile time.
        calls: function and signature of each call, operator and subscript, by node.
        stores: function and signature of each assigned subscript, by node.
        conversions: by edge, variables whose type changes on it: name, old type, new type.
        many: variables that need a stack slot: assigned in several places, or read where their single assignment may
            not have run.
    """

    namespace: Mapping[str, Any]
    returned: types.Type
    kinds: dict[ast.AST, types.Type] = field(default_factory=dict)
    constants: dict[ast.AST, int | float | bool | str] = field(default_factory=dict)
    calls: dict[ast.AST, tuple[Any, Any]] = field(default_factory=dict)
    stores: dict[ast.AST, tuple[Any, Any]] = field(default_factory=dict)
    conversions: dict[Way, list[tuple[str, types.Type, types.Type]]] = field(default_factory=dict)
    many: set[str] = field(default_factory=set)
    _places: dict[str, tuple[ast.AST, tuple[int, ...]]] = field(default_factory=dict)
    _block: tuple[int, ...] = ()
    _loops: list[_Loop] = field(default_factory=list)
    _assigned: dict[ast.stmt, set[str]] = field(default_factory=dict)

    def run(self, function: ast.FunctionDef, arguments: Sequence[types.Type]) -> None:
        """Infer the types of a function with these argument types.

        Raises:
            Refused: the function does not type, or contains a construct that no kernel may contain.
        """
        names = [argument.arg for argument in function.args.args]
        if len(names) != len(arguments):
            raise Refused(function, f"a kernel has {len(arguments)} arguments, this one {len(names)}")
        for name in names:
            self._places[name] = function, ()
        self._body(function.body, dict(zip(names, arguments, strict=True)))

    # Statements: each takes the types before it and gives those after it, or None if nothing gets there

    def _body(self, body: Sequence[ast.stmt], known: Environment) -> Environment | None:
        outer, self._block = self._block, (*self._block, id(body))
        found: Environment | None = known
        for statement in body:
            if found is None:
                break
            handler = _STATEMENTS.get(type(statement))
            if handler is None:
                raise Refused(statement, f"a kernel cannot contain {type(statement).__name__}")
            found = handler(self, statement, found)
        self._block = outer
        return found

    def _assign(self, node: ast.Assign, known: Environment) -> Environment:
        values = variables(node.value)
        kinds = [self.expression(value, known) for value in values]
        for target in node.targets:
            names = variables(target)
            if isinstance(target, ast.Tuple) != isinstance(node.value, ast.Tuple) or len(names) != len(values):
                raise Refused(node, "a tuple is assigned from a tuple of as many values")
            for name, kind in zip(names, kinds, strict=True):
                self._store(node, name, kind, known)
        return known

    def _augmented(self, node: ast.AugAssign, known: Environment) -> Environment:
        kinds = (self.expression(node.target, known), self.expression(node.value, known))
        result = self._called(node, self._operator(node, overloads.BINARY, node.op), kinds)
        self._store(node, node.target, result, known)
        return known

    def _store(self, node: ast.stmt, target: ast.expr, kind: types.Type, known: Environment) -> None:
        if isinstance(target, ast.Name):
            if kind == types.none:
                raise Refused(node, f"{target.id} is given the result of what has none")
            if self._places.setdefault(target.id, (node, self._block))[0] is not node:
                self.many.add(target.id)
            known[target.id] = kind
        elif isinstance(target, ast.Subscript):
            place = self.expression(target.value, known), self.expression(target.slice, known)
            self._called(target, operator.setitem, (*place, kind), self.stores)
        else:
            raise Refused(node, f"a kernel cannot assign to {type(target).__name__}")

    def _effect(self, node: ast.Expr, known: Environment) -> Environment:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.expression(node.value, known)
        return known

    def _branch(self, node: ast.If, known: Environment) -> Environment | None:
        self._condition(node.test, known)
        ends = (("then", self._body(node.body, dict(known))), ("else", self._body(node.orelse, dict(known))))
        return self._merge([((node, way), end) for way, end in ends if end is not None])

    def _while(self, node: ast.While, known: Environment) -> Environment | None:
        endless = bool(folded(node.test))
        return self._loop(node, known, lambda head: None if endless else self._condition(node.test, head), endless)

    def _for(self, node: ast.For, known: Environment) -> Environment | None:
        call = node.iter
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "range":
            raise Refused(node, "a kernel's for loops go over a range")
        bounds = tuple(self.expression(bound, known) for bound in call.args)
        counted = self._called(call, range, bounds).dtype
        return self._loop(node, known, lambda head: self._store(node, node.target, counted, head), False)

    def _loop(
        self, node: ast.For | ast.While, known: Environment, begin: Callable[[Environment], None], endless: bool
    ) -> Environment | None:
        if node.orelse:
            raise Refused(node, "a kernel's loops have no else")
        own = self.names_assigned(node)
        # What it assigns is no constant in it, as a rule: so one pass is enough.
        head = {name: types.unliteral(kind) if name in own else kind for name, kind in known.items()}
        while True:
            loop, here = _Loop(), dict(head)
            outer, self._block = self._block, (*self._block, id(node.body))  # what a head assigns is its body's
            self._loops.append(loop)
            begin(here)
            at_end = self._body(node.body, dict(here))
            self._loops.pop()
            self._block = outer
            ends = [] if at_end is None else [((node, "end"), at_end)]
            again = self._merge([((node, "before"), known), ((node, "head"), head), *loop.again, *ends])
            assert again is not None
            if all(again[name] == head[name] for name in own if name in again and name in head):
                break
            head = {name: again[name] for name in head if name in again}
        return self._merge([*loop.after, *([] if endless else [((node, "behind"), again)])])

    def names_assigned(self, node: ast.stmt) -> set[str]:
        """Return the variables that a statement or its nested statements assign."""
        if node not in self._assigned:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = {name.id for target in targets for name in variables(target) if isinstance(name, ast.Name)}
            inside = (*getattr(node, "body", ()), *getattr(node, "orelse", ()))
            self._assigned[node] = names.union(*map(self.names_assigned, inside))
        return self._assigned[node]

    def _leave(self, node: ast.Break | ast.Continue, known: Environment) -> None:
        loop = self._loops[-1]
        (loop.after if isinstance(node, ast.Break) else loop.again).append(((node, "leave"), known))

    def _return(self, node: ast.Return, known: Environment) -> None:
        kind = types.void if node.value is None else self.expression(node.value, known)
        if (kind == types.void) != (self.returned == types.void):
            raise Refused(node, f"returns {kind}, expected {self.returned}")

    def _nothing(self, node: ast.Pass, known: Environment) -> Environment:
        return known

    def _merge(self, ways: Sequence[tuple[Way, Environment]]) -> Environment | None:
        """Return the types of variables where several paths meet.

        A variable that a path has not assigned is not read there (`assignment.py`). A variable whose types have no
        common type has no value.
        """
        if not ways:
            return None
        merged: dict[str, types.Type | None] = dict(ways[0][1])
        for _, known in ways[1:]:
            for name, kind in known.items():
                other = merged.setdefault(name, kind)
                if other is not None and other is not kind:
                    merged[name] = overloads.unified(other, kind)
        met = {name: kind for name, kind in merged.items() if kind is not None}
        for way, known in ways:
            changed = [(name, kind, met[name]) for name, kind in known.items() if met.get(name, kind) is not kind]
            self.conversions[way] = [(n, a, b) for n, a, b in changed if types.unliteral(a) != types.unliteral(b)]
        return met

    # Expressions

    def expression(self, node: ast.expr, known: Environment) -> types.Type:
        """Return the type of an expression, given the types of the variables.

        Raises:
            Refused: the expression has no type.
        """
        constant = folded(node)
        if constant is not None:
            kind = self._literal(node, constant)
        else:
            handler = _EXPRESSIONS.get(type(node))
            if handler is None:
                raise Refused(node, f"a kernel cannot contain {type(node).__name__}")
            kind = handler(self, node, known)
        self.kinds[node] = kind
        return kind

    def _literal(self, node: ast.expr, value: int | float | bool | str) -> types.Type:
        self.constants[node] = value
        try:
            return overloads.literal(value)
        except TypeError as error:
            raise Refused(node, str(error)) from error

    def _name(self, node: ast.Name, known: Environment) -> types.Type:
        name = node.id
        if name in known:
            block = self._places[name][1]
            if self._block[: len(block)] != block:
                self.many.add(name)
            return known[name]
        if name in self._places:
            raise Refused(node, f"{name} has no value here")
        value = self.namespace.get(name)
        if not isinstance(value, (int, float)):
            raise Refused(node, f"{name} is no variable and no number")
        return self._literal(node, value)

    def _call(self, node: ast.Call, known: Environment) -> types.Type:
        if node.keywords:
            raise Refused(node, "a kernel's calls name no parameters")
        if not isinstance(node.func, ast.Name) or not overloads.is_function(self.namespace.get(node.func.id)):
            raise Refused(node, f"calls {ast.unparse(node.func)}, which no kernel may call")
        arguments = tuple(self.expression(argument, known) for argument in node.args)
        return self._called(node, self.namespace[node.func.id], arguments)

    def _operation(self, node: ast.BinOp, known: Environment) -> types.Type:
        kinds = (self.expression(node.left, known), self.expression(node.right, known))
        return self._called(node, self._operator(node, overloads.BINARY, node.op), kinds)

    def _unary(self, node: ast.UnaryOp, known: Environment) -> types.Type:
        kind = self.expression(node.operand, known)
        return self._called(node, self._operator(node, overloads.UNARY, node.op), (kind,))

    def _compare(self, node: ast.Compare, known: Environment) -> types.Type:
        if len(node.ops) > 1:
            raise Refused(node, "a kernel compares two values at a time")
        kinds = (self.expression(node.left, known), self.expression(node.comparators[0], known))
        return self._called(node, self._operator(node, overloads.COMPARISONS, node.ops[0]), kinds)

    def _operator(self, node: ast.AST, known: Mapping[Any, Callable[..., Any]], sign: ast.AST) -> Callable[..., Any]:
        if type(sign) not in known:
            raise Refused(node, f"a kernel cannot contain {type(sign).__name__}")
        return known[type(sign)]

    def _subscript(self, node: ast.Subscript, known: Environment) -> types.Type:
        kinds = (self.expression(node.value, known), self.expression(node.slice, known))
        return self._called(node, operator.getitem, kinds)

    def _tuple(self, node: ast.Tuple, known: Environment) -> types.Type:
        found: types.Type = types.BaseTuple.from_types([types.unliteral(self.expression(e, known)) for e in node.elts])
        return found

    def _either(self, node: ast.IfExp, known: Environment) -> types.Type:
        self._condition(node.test, known)
        return self._unified(node, [node.body, node.orelse], known)

    def _both(self, node: ast.BoolOp, known: Environment) -> types.Type:
        return self._unified(node, node.values, known)

    def _unified(self, node: ast.expr, ways: Sequence[ast.expr], known: Environment) -> types.Type:
        found = self.expression(ways[0], known)
        for way in ways[1:]:
            kind = self.expression(way, known)
            merged = overloads.unified(found, kind)
            if merged is None:
                raise Refused(node, f"is {found} on one way and {kind} on another")
            found = merged
        return types.unliteral(found)

    def _condition(self, node: ast.expr, known: Environment) -> None:
        """Type a condition; operands of ``and`` and ``or`` are conditions too, not values."""
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._condition(value, known)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._condition(node.operand, known)
        else:
            self.expression(node, known)

    def _called(
        self,
        node: ast.AST,
        function: object,
        arguments: tuple[types.Type, ...],
        chosen: dict[ast.AST, tuple[Any, Any]] | None = None,
    ) -> Any:
        """Choose and record the signature of the function that a node calls; return the type of its result."""
        try:
            found = overloads.signature(function, arguments)
        except NumbaError as error:
            raise Refused(node, str(error)) from error
        except Exception as error:  # an intrinsic called with the wrong number of arguments
            raise Refused(node, f"{type(error).__name__}: {error}") from error
        (self.calls if chosen is None else chosen)[node] = function, found
        return found.return_type


_STATEMENTS: dict[type[ast.stmt], Callable[..., Environment | None]] = {
    ast.Assign: Inference._assign,
    ast.AugAssign: Inference._augmented,
    ast.Expr: Inference._effect,
    ast.If: Inference._branch,
    ast.While: Inference._while,
    ast.For: Inference._for,
    ast.Break: Inference._leave,
    ast.Continue: Inference._leave,
    ast.Return: Inference._return,
    ast.Pass: Inference._nothing,
}
_EXPRESSIONS: dict[type[ast.expr], Callable[..., types.Type]] = {
    ast.Name: Inference._name,
    ast.Call: Inference._call,
    ast.BinOp: Inference._operation,
    ast.UnaryOp: Inference._unary,
    ast.Compare: Inference._compare,
    ast.Subscript: Inference._subscript,
    ast.Tuple: Inference._tuple,
    ast.IfExp: Inference._either,
    ast.BoolOp: Inference._both,
}
