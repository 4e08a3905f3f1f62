"""Lowering of a typed kernel to LLVM IR, statement by statement at a builder's position.

A variable that is assigned in one place is an SSA value. Any other variable has a stack slot for each of its types,
which LLVM's first pass promotes to registers.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ...errors import CompileError
from . import overloads
from .inference import Inference, Refused, Way, folded, variables
from .ir_builder import KernelBuilder, LoopAddresses
from .nodes import nodes_in
from .numba_core import NumbaError, cgutils, types

__all__ = ["StatementWriter"]


class StatementWriter:
    """Emits LLVM IR for a function's statements."""

    def __init__(self, known: Inference, builder: KernelBuilder, unrolled: int = 0, hoists: bool = False) -> None:
        """Emit at the position of ``builder``; unroll loops whose copies have at most ``unrolled`` operations in
        total. ``hoists``: whether the invariant parts of addresses are computed before loops."""
        self.known = known
        self.builder = builder
        self.unrolled = unrolled
        self.hoists = hoists
        self.context = overloads.target()
        self._values: dict[str, ir.Value] = {}
        self._slots: dict[tuple[str, types.Type], ir.Value] = {}
        self._last: dict[ir.Value, tuple[ir.Block, ir.Value]] = {}  # the last value read or written in a block, by slot
        self._reached: set[ir.Block] = set()
        self._loops: list[tuple[ir.Block, ir.Block]] = []  # where continue and break go
        self._assigned: set[str] = set()  # variables that the innermost loop assigns

    def run(self, function: ast.FunctionDef, values: Sequence[ir.Value], arguments: Sequence[types.Type]) -> None:
        """Emit a function with these arguments; every terminating path ends in a return.

        Raises:
            Refused: a call that types does not lower.
        """
        for argument, value, kind in zip(function.args.args, values, arguments, strict=True):
            self._store_name(argument.arg, value, kind)
        self._body(function.body)
        if not self.builder.block.is_terminated:
            if self.known.returned == types.void:
                self.builder.ret_void()
            else:
                raise Refused(function, f"ends without returning {self.known.returned}")

    # Statements

    def _body(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.builder.block.is_terminated:
                break
            _STATEMENTS[type(statement)](self, statement)

    def _assign(self, node: ast.Assign) -> None:
        sources = variables(node.value)
        values = [self._value(source) for source in sources]
        for target in node.targets:
            for name, source, value in zip(variables(target), sources, values, strict=True):
                self._store(name, value, self.known.kinds[source])

    def _augmented(self, node: ast.AugAssign) -> None:
        value = self._call(node, [node.target, node.value])
        self._store(node.target, value, self.known.calls[node][1].return_type)

    def _store(self, target: ast.expr, value: ir.Value, kind: types.Type) -> None:
        if isinstance(target, ast.Name):
            self._store_name(target.id, value, kind)
            return
        assert isinstance(target, ast.Subscript)
        function, chosen = self.known.stores[target]
        given = [(self._value(part), self.known.kinds[part]) for part in (target.value, target.slice)]
        self._write(target, function, chosen, [*given, (value, kind)])

    def _store_name(self, name: str, value: ir.Value, kind: types.Type) -> None:
        if name in self.known.many:
            self._put(value, self._slot(name, kind))
        else:
            self._values[name] = value

    def _put(self, value: ir.Value, slot: ir.Value) -> None:
        self.builder.store(value, slot)
        self._last[slot] = self.builder.block, value

    def _slot(self, name: str, kind: types.Type) -> ir.Value:
        key = name, types.unliteral(kind)
        if key not in self._slots:
            self._slots[key] = cgutils.alloca_once(self.builder, self.context.get_value_type(key[1]))
        return self._slots[key]

    def _effect(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._value(node.value)

    def _branch(self, node: ast.If) -> None:
        then, otherwise, behind = self._blocks(3)
        self._condition(node.test, then, otherwise)
        for block, body, way in ((then, node.body, "then"), (otherwise, node.orelse, "else")):
            self.builder.position_at_end(block)
            self._body(body)
            self._go((node, way), behind)
        self._meet(behind)

    def _while(self, node: ast.While) -> None:
        """Emit a rotated loop: the condition is tested before the first iteration and at the end of each, LLVM's own
        form."""
        head, inside, past, behind = self._blocks(4)
        self._go((node, "before"), head)
        before = self.builder.block
        self.builder.position_at_end(head)
        self._enter(node, inside, past)
        self._loop_body(node, before, inside, head, behind)
        if self._arrive((node, "end")):
            self._enter(node, inside, past)
        self.builder.position_at_end(past)
        if folded(node.test):
            self.builder.unreachable()
        self._go((node, "behind"), behind)
        self._meet(behind)

    def _enter(self, node: ast.While, inside: ir.Block, past: ir.Block) -> None:
        if folded(node.test):
            self.builder.branch(inside)
        else:
            self._condition(node.test, inside, past)

    def _for(self, node: ast.For) -> None:
        """Emit a counted loop as Numba does: the trip count is computed before the loop, and is 0 for a step of 0.

        As in `_while`, the end is tested before the first iteration and after each.
        """
        assert isinstance(node.iter, ast.Call)
        build, chosen = self.builder, self.known.calls[node.iter][1]
        values = _literal_range(node)
        if values and len(values) * _operations(node) <= self.unrolled:
            self._unroll(node, values, chosen.return_type.dtype)
            return
        bounds = [
            self._cast(bound, self._value(bound), self.known.kinds[bound], wanted)
            for bound, wanted in zip(node.iter.args, chosen.args, strict=True)
        ]
        zero, one = ir.Constant(bounds[0].type, 0), ir.Constant(bounds[0].type, 1)
        start, stop = bounds[:2] if len(bounds) > 1 else (zero, bounds[0])
        step = bounds[2] if len(bounds) > 2 else one
        count = self._count(start, stop, step)
        before, inside, latch, past, behind = self._blocks(5)
        self._arrive((node, "before"))
        build.cbranch(build.icmp_signed(">", count, zero), before, past)
        build.position_at_end(before)  # where LLVM moves what does not change in the loop
        build.branch(inside)
        build.position_at_end(inside)
        value, left = build.phi(zero.type), build.phi(zero.type)
        self._store(node.target, value, chosen.return_type.dtype)
        self._loop_body(node, before, inside, latch, behind)
        self._go((node, "end"), latch)
        build.position_at_end(latch)
        rest = build.sub(left, one, flags=["nsw"])
        for phi, first, following in ((value, start, build.add(value, step)), (left, count, rest)):
            phi.add_incoming(first, before)
            phi.add_incoming(following, latch)
        build.cbranch(build.icmp_signed(">", rest, zero), inside, past)
        build.position_at_end(past)
        self._go((node, "behind"), behind)
        self._meet(behind)

    def _unroll(self, node: ast.For, values: range, kind: types.Type) -> None:
        """Emit the body of a loop once for each value of its variable."""
        (behind,) = self._blocks(1)
        for value in values:
            if self._arrive((node, "before" if value == values[0] else "end")):
                self._store(node.target, ir.Constant(self.context.get_value_type(kind), value), kind)
                self._body(node.body)
        self._arrive((node, "end"))
        self._go((node, "behind"), behind)
        self._meet(behind)

    def _count(self, start: ir.Value, stop: ir.Value, step: ir.Value) -> ir.Value:
        """Emit the number of values of a range."""
        build = self.builder
        zero, one = ir.Constant(step.type, 0), ir.Constant(step.type, 1)
        distance = build.sub(stop, start)
        upwards = build.icmp_signed(">", distance, zero)
        if isinstance(step, ir.Constant) and step.constant == 1:
            return build.select(upwards, distance, zero)
        away = build.xor(upwards, build.icmp_signed(">", step, zero))
        none = build.or_(away, build.icmp_signed("==", step, zero))
        before, divided, behind = build.block, *self._blocks(2)
        build.cbranch(none, behind, divided)
        build.position_at_end(divided)
        rest = build.srem(distance, step)
        uneven = build.icmp_signed(">", build.select(upwards, rest, build.neg(rest)), zero)
        some = build.add(build.sdiv(distance, step), build.select(uneven, one, zero))
        build.branch(behind)
        build.position_at_end(behind)
        count = build.phi(zero.type)
        count.add_incoming(zero, before)
        count.add_incoming(some, divided)
        return count

    def _loop_body(
        self, node: ast.For | ast.While, before: ir.Block, inside: ir.Block, again: ir.Block, behind: ir.Block
    ) -> None:
        build = self.builder
        build.position_at_end(inside)
        self._loops.append((again, behind))
        outer = build.loop, self._assigned
        if self.hoists:
            build.loop, self._assigned = LoopAddresses(before, (again, inside)), self.known.names_assigned(node)
        self._body(node.body)
        build.loop, self._assigned = outer
        self._loops.pop()

    def _leave(self, node: ast.Break | ast.Continue) -> None:
        again, behind = self._loops[-1]
        self._go((node, "leave"), behind if isinstance(node, ast.Break) else again)

    def _return(self, node: ast.Return) -> None:
        if node.value is None:
            self.builder.ret_void()
        else:
            kind = self.known.kinds[node.value]
            self.builder.ret(self._cast(node.value, self._value(node.value), kind, self.known.returned))

    def _nothing(self, node: ast.Pass) -> None:
        pass

    def _blocks(self, count: int) -> list[ir.Block]:
        return [self.builder.append_basic_block() for _ in range(count)]

    def _go(self, way: Way, block: ir.Block) -> None:
        """Branch to ``block`` along an edge, unless the code has ended."""
        if self._arrive(way):
            self.builder.branch(block)
            self._reached.add(block)

    def _arrive(self, way: Way) -> bool:
        """Convert variables to their types at the end of an edge; return whether the code reaches it."""
        if self.builder.block.is_terminated:
            return False
        for name, kind, wanted in self.known.conversions.get(way, ()):
            value = self.builder.load(self._slot(name, kind))
            self._put(self._cast(way[0], value, types.unliteral(kind), wanted), self._slot(name, wanted))
        return True

    def _meet(self, block: ir.Block) -> None:
        """Continue in a block where edges meet; if none reaches it, mark the code as unreachable."""
        self.builder.position_at_end(block)
        if block not in self._reached:
            self.builder.unreachable()

    # Expressions

    def _value(self, node: ast.expr) -> ir.Value:
        if node in self.known.constants:
            return self._constant(self.known.kinds[node], self.known.constants[node])
        kind = self.known.kinds[node]
        if isinstance(kind, types.Literal):
            return self._constant(kind, kind.literal_value)
        return _EXPRESSIONS[type(node)](self, node)

    def _constant(self, kind: types.Type, value: object) -> ir.Value:
        if isinstance(value, str):  # which whoever is called reads from the type
            return ir.Constant(ir.IntType(8).as_pointer(), None)
        return ir.Constant(self.context.get_value_type(types.unliteral(kind)), value)

    def _name(self, node: ast.Name) -> ir.Value:
        if node.id not in self.known.many:
            return self._values[node.id]
        slot = self._slot(node.id, self.known.kinds[node])
        block, value = self._last.get(slot, (None, None))
        if block is not self.builder.block:
            value = self.builder.load(slot)
            self._last[slot] = self.builder.block, value
        if self.builder.loop is not None and node.id not in self._assigned:
            self.builder.loop.unchanged.add(value)
        return value

    def _operation(self, node: ast.BinOp) -> ir.Value:
        return self._call(node, [node.left, node.right])

    def _unary(self, node: ast.UnaryOp) -> ir.Value:
        return self._call(node, [node.operand])

    def _compare(self, node: ast.Compare) -> ir.Value:
        return self._call(node, [node.left, *node.comparators])

    def _subscript(self, node: ast.Subscript) -> ir.Value:
        return self._call(node, [node.value, node.slice])

    def _tuple(self, node: ast.Tuple) -> ir.Value:
        return self.context.make_tuple(self.builder, self.known.kinds[node], [self._value(e) for e in node.elts])

    def _either(self, node: ast.IfExp) -> ir.Value:
        then, otherwise, behind = self._blocks(3)
        self._condition(node.test, then, otherwise)
        ways = []
        for block, way in ((then, node.body), (otherwise, node.orelse)):
            self.builder.position_at_end(block)
            ways.append((self._as(node, way), self.builder.block))
            self.builder.branch(behind)
        return self._meeting(behind, ways)

    def _both(self, node: ast.BoolOp) -> ir.Value:
        """Emit ``and`` or ``or``: the first operand that decides, else the last operand."""
        (behind,) = self._blocks(1)
        ways = []
        for operand in node.values[:-1]:
            value = self._as(node, operand)
            ways.append((value, self.builder.block))
            (more,) = self._blocks(1)
            truth = self._cast(operand, value, self.known.kinds[node], types.boolean)
            targets = (more, behind) if isinstance(node.op, ast.And) else (behind, more)
            self.builder.cbranch(truth, *targets)
            self.builder.position_at_end(more)
        ways.append((self._as(node, node.values[-1]), self.builder.block))
        self.builder.branch(behind)
        return self._meeting(behind, ways)

    def _meeting(self, block: ir.Block, ways: Sequence[tuple[ir.Value, ir.Block]]) -> ir.Value:
        self.builder.position_at_end(block)
        value = self.builder.phi(ways[0][0].type)
        for way in ways:
            value.add_incoming(*way)
        return value

    def _as(self, node: ast.expr, way: ast.expr) -> ir.Value:
        """Emit one alternative of an expression, converted to the expression's type."""
        return self._cast(way, self._value(way), self.known.kinds[way], self.known.kinds[node])

    def _condition(self, node: ast.expr, yes: ir.Block, no: ir.Block) -> None:
        """Emit a branch to ``yes`` or ``no`` by a condition."""
        if isinstance(node, ast.BoolOp):
            for operand in node.values[:-1]:
                (more,) = self._blocks(1)
                self._condition(operand, *((more, no) if isinstance(node.op, ast.And) else (yes, more)))
                self.builder.position_at_end(more)
            self._condition(node.values[-1], yes, no)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._condition(node.operand, no, yes)
        elif isinstance(node, ast.Constant):
            self.builder.branch(yes if node.value else no)
        else:
            truth = self._cast(node, self._value(node), self.known.kinds[node], types.boolean)
            self.builder.cbranch(truth, yes, no)

    def _call(self, node: ast.AST, operands: Sequence[ast.expr]) -> ir.Value:
        function, chosen = self.known.calls[node]
        given = [(self._value(operand), self.known.kinds[operand]) for operand in operands]
        return self._write(node, function, chosen, given)

    def _named(self, node: ast.Call) -> ir.Value:
        return self._call(node, node.args)

    def _write(
        self, node: ast.AST, function: Any, chosen: Any, given: Sequence[tuple[ir.Value, types.Type]]
    ) -> ir.Value:
        """Emit a call of a function through Numba's lowering."""
        values = [
            self._cast(node, value, kind, wanted) for (value, kind), wanted in zip(given, chosen.args, strict=True)
        ]
        kinds = tuple(kind for _, kind in given)
        try:
            return overloads.implementation(function, kinds, chosen)(self.builder, values)
        except CompileError:
            raise
        except Exception as error:  # whatever is wrong with what it was given
            raise Refused(node, f"{type(error).__name__}: {error}") from error

    def _cast(self, node: ast.AST, value: ir.Value, kind: types.Type, wanted: types.Type) -> ir.Value:
        own, wanted = types.unliteral(kind), types.unliteral(wanted)
        if own == wanted:
            return value
        try:
            return self.context.cast(self.builder, value, own, wanted)
        except NumbaError as error:
            raise Refused(node, str(error)) from error


def _literal_range(node: ast.For) -> range:
    """Return the values of a loop variable if the range is literal and the loop has no early exit; else an empty
    range."""
    assert isinstance(node.iter, ast.Call)
    bounds = [folded(bound) for bound in node.iter.args]
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    if len(numbers) < len(bounds) or 0 in bounds[2:]:
        return range(0)
    exits = any(isinstance(found, (ast.Break, ast.Continue, ast.Return)) for found in nodes_in(node))
    return range(0) if exits else range(*numbers)


def _operations(node: ast.For) -> int:
    """Count the operations and calls in a loop's body."""
    return sum(isinstance(found, _OPERATIONS) for statement in node.body for found in nodes_in(statement))


_OPERATIONS = (ast.AugAssign, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Subscript, ast.UnaryOp)
_STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    ast.Assign: StatementWriter._assign,
    ast.AugAssign: StatementWriter._augmented,
    ast.Expr: StatementWriter._effect,
    ast.If: StatementWriter._branch,
    ast.While: StatementWriter._while,
    ast.For: StatementWriter._for,
    ast.Break: StatementWriter._leave,
    ast.Continue: StatementWriter._leave,
    ast.Return: StatementWriter._return,
    ast.Pass: StatementWriter._nothing,
}
_EXPRESSIONS: dict[type[ast.expr], Callable[..., ir.Value]] = {
    ast.Name: StatementWriter._name,
    ast.Call: StatementWriter._named,
    ast.BinOp: StatementWriter._operation,
    ast.UnaryOp: StatementWriter._unary,
    ast.Compare: StatementWriter._compare,
    ast.Subscript: StatementWriter._subscript,
    ast.Tuple: StatementWriter._tuple,
    ast.IfExp: StatementWriter._either,
    ast.BoolOp: StatementWriter._both,
}
