"""Symbolic programs for all lengths: input lengths are symbols, and shapes are computed from symbols.

A program with dynamic inputs is specialised as by `specialize`, with symbols as lengths. Values that depend on lengths
alone are folded to expressions (`length_arithmetic`). Where an expression is used as data, it becomes a `lengths`
instruction. Tables of positions, masks and fill values stay instructions, which a plan computes.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.dim import (
    Dim,
    Length,
    Scope,
    SymbolicLengthError,
    UnfollowedLengthError,
    exact_quotient,
    substitute,
    symbols_of,
)  # fmt: skip
from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type
from ..errors import MgxError
from ..ops.control import Loop
from ..ops.lengths import Lengths
from ..ops.selection import DynamicRange
from .instruction import Instruction
from .length_arithmetic import array_of_lengths, has_symbolic_elements
from .module import Module
from .passes.build import RewriteBuilder
from .program import Program
from .specialize import Specializer, _after

LONGEST = (1 << 24, (1 << 31) - 1)
"""Greatest value of a symbol: the first limit, unless a given length exceeds it. Below the limits, lengths are exact in
float32 and int32, in which many models compute with them."""
HINTS = (
    (37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113),
    (211, 223, 227, 229, 233, 239, 241, 251, 257, 263, 269, 271, 277, 281, 283, 293, 307, 311, 313),
    (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097),
    (17, 19, 23, 29, 31, 13, 11, 7),
)
"""Example lengths: primes beyond vector sizes, so that a product of lengths equals another length only by intent. Later
rows are for programs that fail for the first row, such as those that take the best 100 of all positions or fewer."""
EVEN_HINTS = (320, 448, 704, 832, 1088, 1216, 1472)
"""Example lengths for programs whose rounded fractions of a length must be equal, such as image pyramids: multiples of
64, more halvings than such networks have, by different primes."""
SHORT_HINTS = (31, 29, 23, 19, 17, 13, 11, 7, 5, 3, 2)
"""Example lengths of dimensions whose maximum is below `HINTS`."""
TOGETHER = (1, 2, 3, 4, 8, 16, 64, 300, 1024)
"""Lengths that all symbols share in a sample. Kernels differ where an axis has one element, where rows are shorter than
a vector or a tile, and where estimates prefer another algorithm."""
MOST_SINGLE = 32
"""Most symbols of a program for which each gets a sample in which it alone is 1: with 320 symbols in one problem these
samples take 20 s. Programs of encoders and decoders have up to five."""
LAST = 4
"""Number of last comparisons before an operator's failure that are examined first."""
MOST_RELATIONS = 64
"""Most relations between lengths that are derived for one program."""


def symbolic_program(
    program: Program, scope: Scope, lens: Mapping[str, Sequence[int]] | None = None, computed_lengths: bool = False
) -> Program:
    """Return a copy of a program whose dynamic inputs have symbols for lengths.

    Dimensions of the same name share a symbol. A name such as ``past + tokens`` is parsed as an expression if its parts
    are names of other dimensions. Where operators fit only if one dimension follows from others, its length is that
    expression. The copy is valid for input lengths that satisfy the parameters' shapes for some symbol values within
    their ranges, and for which all guards have the recorded answers.

    Args:
        program: the dynamic program, which is not changed.
        scope: receives symbols, hints, samples and guards. Lengths in the program may already use its symbols.
        lens: lengths of dynamic inputs for which the copy must be valid. They become the hints. A length of 0 gets no
            symbol, nor does one that is not given and whose only optimal value is 0; dimensions of one name with
            different lengths get separate symbols.
        computed_lengths: whether lengths may follow from others in a way that no expression has, such as by a
            product with 1.7. They are as open as lengths that depend on data.

    Raises:
        SymbolicLengthError: the program needs a number where a length is symbolic.
    """
    inputs = _Inputs(program, lens)
    relations: dict[str, Length] = {}
    first, forget = len(scope.symbols), scope.forgetting()
    alone = not first
    number, ordered, rows = 0, False, [*HINTS]
    while True:
        own = inputs.lengths(scope, relations, rows[number])
        try:
            made = _Symbolic(own, computed_lengths).copy(program)
            settled = _settled_equalities(scope, relations) if alone else None
            if not settled:
                return made
            relations |= settled
            forget()
        except SymbolicLengthError:
            raise
        except MgxError as error:
            if lens is not None or len(relations) == MOST_RELATIONS:
                raise SymbolicLengthError(f"the program fails for symbolic lengths: {error}") from error
            found = _relation(scope, first, relations, ordered)
            if found is not None:
                relations[found[0]] = found[1]
            elif ordered:
                raise SymbolicLengthError(f"the program fails for symbolic lengths: {error}") from error
            else:
                if EVEN_HINTS not in rows and _compared_quotients(scope):
                    rows.insert(number + 1, EVEN_HINTS)
                number = (number + 1) % len(rows)
                ordered = number == 0
                relations.clear()
            forget()
        except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
            raise SymbolicLengthError(f"lengths cannot be symbols: {type(error).__name__}: {error}") from error


class _Inputs:
    """The dimensions of a program's dynamic inputs, by name."""

    def __init__(self, program: Program, lens: Mapping[str, Sequence[int]] | None) -> None:
        self._keys: dict[str, list[str | int]] = {}
        self._ranges: dict[str, DynamicDimension] = {}
        self._given: dict[str, int] = {}
        for name, shape in program.parameter_shapes().items():
            if not shape.is_dynamic or shape.element is not None:
                continue
            if shape.rank is None:
                raise SymbolicLengthError(f"input {name!r} has any number of dimensions")
            keys: list[str | int] = []
            self._keys[name] = keys
            for axis, d in enumerate(shape.dims):
                key = d.symbol or f"{name}.{axis}"
                usual = 0 if d.optimals == {0} else None
                given = usual if lens is None or name not in lens else lens[name][axis]
                if d.is_fixed or given == 0:
                    keys.append(d.min if given is None else given)
                    continue
                if given is not None and self._given.setdefault(key, given) != given:
                    key = f"{name}.{axis}"
                    self._given[key] = given
                keys.append(key)
                known = self._ranges.get(key, d)
                low = max(d.min, known.min)
                self._ranges[key] = DynamicDimension(low, max(low, min(d.max, known.max)), d.optimals | known.optimals)

    def lengths(self, scope: Scope, relations: dict[str, Length], primes: Sequence[int]) -> dict[str, list[Length]]:
        """Return the lengths of the inputs: new symbols of a scope, or expressions by ``relations`` and names."""
        lengths: dict[str, Length] = {}
        outer = set(scope.symbols)
        hints = itertools.count(len(outer))  # other lengths than those of earlier stages
        parsed = {key: tree for key in self._ranges if (tree := _expression(key, self._ranges)) is not None}
        if self._given:  # names may contradict the given lengths
            parsed = {key: tree for key, tree in parsed.items() if _value(tree, self._given) == self._given.get(key)}
        for key, d in self._ranges.items():
            if key not in parsed and key not in relations:
                given = self._given.get(key, -1)
                most = next((n for n in LONGEST if n >= given), UNBOUNDED)
                low, high = d.min, max(min(d.max, most), given)
                hint = given if given >= 0 else _hint(low, high, primes, next(hints))
                lengths[key] = scope.symbol(key, low, high, hint)
        for key, expression in reversed(relations.items()):  # a later relation never uses a symbol replaced earlier
            own = [s for s in symbols_of([expression]) if s not in outer]
            lengths[key] = substitute(expression, {s: lengths[str(s)] for s in own})
        for key, tree in parsed.items():
            lengths[key] = _value(tree, lengths)
        scope.samples = list(self._samples(scope))
        return {name: [lengths[k] if isinstance(k, str) else k for k in keys] for name, keys in self._keys.items()}

    def _samples(self, scope: Scope) -> Iterator[dict[Dim, int]]:
        """Yield sample lengths for which kernels are chosen: optimal lengths, equal lengths, and length 1 for single
        symbols; then the samples of outer programs and earlier stages."""
        hints = scope.hints()
        ranges = {s: self._ranges[str(s)] for s in hints if str(s) in self._ranges}
        yield from self._own_samples(hints, ranges)
        yield from scope.samples

    @staticmethod
    def _own_samples(hints: Mapping[Dim, int], ranges: Mapping[Dim, DynamicDimension]) -> Iterator[dict[Dim, int]]:
        for k in range(max((len(d.optimals) for d in ranges.values()), default=0)):
            chosen = {s: sorted(d.optimals)[k % len(d.optimals)] for s, d in ranges.items() if d.optimals}
            yield {s: max(1, chosen.get(s, hints[s])) for s in ranges}
        for length in TOGETHER:
            yield {s: max(1, d.clamp(length)) for s, d in ranges.items()}
        for one in ranges if 1 < len(hints) <= MOST_SINGLE else ():
            yield {s: max(1, d.clamp(1)) if s is one else hints[s] for s, d in ranges.items()}
            yield {s: hints[s] if s is one else max(1, d.clamp(1)) for s, d in ranges.items()}


def _hint(low: int, high: int, primes: Sequence[int], number: int) -> int:
    """Return the example length of symbol ``number``, different from other symbols' as far as its range allows."""
    prime = primes[number % len(primes)]
    if prime < low:
        return min(high, low + prime)
    if prime <= high:
        return prime
    short = [n for n in SHORT_HINTS if low <= n <= high]
    return short[number % len(short)] if short else high


def _expression(name: str, known: Mapping[str, object]) -> ast.expr | None:
    """Parse a dimension's name as an expression of other dimensions' names; None if it is not one."""
    if name.isidentifier():
        return None
    try:
        tree = ast.parse(name, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and (node.id not in known or node.id == name):
            return None
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            return None
        allowed = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Name, ast.Load, ast.Constant)
        if not isinstance(node, allowed):
            return None
    return tree if isinstance(tree, ast.BinOp) else None


def _value(tree: ast.expr, lengths: Mapping[str, Length]) -> Any:
    if isinstance(tree, ast.Name):
        return lengths[tree.id]
    if isinstance(tree, ast.Constant):
        return tree.value
    assert isinstance(tree, ast.BinOp)
    a, b = _value(tree.left, lengths), _value(tree.right, lengths)
    if isinstance(tree.op, ast.Add):
        return a + b
    if isinstance(tree.op, ast.Sub):
        return a - b
    return a * b if isinstance(tree.op, ast.Mult) else a // b


def _relation(scope: Scope, first: int, known: Mapping[str, Length], ordered: bool) -> tuple[str, Length] | None:
    """Return a symbol and the expression that would make two lengths equal which operators compared last.

    Among the last comparisons, symbolic expressions are tried before numbers, since broadcasting also compares with 1.

    Args:
        scope: holds the comparisons.
        first: number of the first symbol that may have a relation: earlier stages and outer programs have the others.
        known: symbols that already have a relation.
        ordered: whether to use order comparisons too. Where one fails, for example a slice longer than its source,
            equal lengths fit.
    """
    guards = list(reversed(scope.guards.values()))
    kinds = (("zero", True), ("zero", False), ("negative", False))
    for some in (guards[:LAST], guards):
        for kind, symbolic in kinds if ordered else kinds[:2]:
            for guard in some:
                ((monomial, coefficient), *more) = guard.condition.terms
                if more or coefficient != 1 or len(monomial) != 1 or monomial[0].kind != kind:
                    continue
                found = None
                if kind == "negative" or not guard.answer:
                    found = _solved(scope, first, monomial[0].operands[0], known)
                if found is not None and isinstance(found[1], Dim) >= symbolic:
                    return found
    return None


def _compared_quotients(scope: Scope) -> bool:
    """Return whether operators compared a rounded fraction of a length last."""
    last = [guard.condition.terms[0][0][0] for guard in [*scope.guards.values()][-LAST:]]
    differences = [operand for atom in last for operand in atom.operands if isinstance(operand, Dim)]
    return any(atom.kind == "floordiv" for one in differences for monomial, _ in one.terms for atom in monomial)


def _settled_equalities(scope: Scope, known: Mapping[str, Length]) -> dict[str, Length]:
    """Return symbols that equal expressions of other symbols in all runs that the guards admit, with the expressions.

    Replacing the symbols by the expressions leaves less to prove: broadcasts to them have equal lengths, and weights
    have fixed numbers of rows. No expression has a symbol that comes before it in the result.
    """
    found: dict[str, Length] = {}
    replaced: dict[Dim, Length] = {}
    for guard in scope.guards.values():
        ((monomial, coefficient), *more) = guard.condition.terms
        if guard.answer and not more and coefficient == 1 and len(monomial) == 1 and monomial[0].kind == "zero":
            difference: Length = monomial[0].operands[0]
            for symbol, expression in replaced.items():  # one by one: an expression may have symbols replaced later
                difference = substitute(difference, {symbol: expression})
            one = _symbol_of(scope, 0, difference, {**known, **found}) if isinstance(difference, Dim) else None
            if one is not None:
                found[one[0]] = one[1]
                replaced[next(s for s in scope.symbols if str(s) == one[0])] = one[1]
    return found


def _solved(scope: Scope, first: int, difference: Any, known: Mapping[str, Length]) -> tuple[str, Length] | None:
    """Return a symbol and an expression of other symbols that makes ``difference`` 0; operands of min and max are tried
    too."""
    for symbol in symbols_of([difference]):  # a length that all terms share may be 0, but need not
        rest = exact_quotient(difference, symbol)
        if isinstance(rest, Dim):
            return _solved(scope, first, rest, known)
    found = _symbol_of(scope, first, difference, known)
    if found is not None:
        return found
    for m, _ in difference.terms:  # where a == b, min(a, b) == a
        for atom in m:
            if atom.kind in ("min", "max"):
                found = _solved(scope, first, atom.operands[0] - atom.operands[1], known)
                if found is not None:
                    return found
    return None


def _symbol_of(scope: Scope, first: int, difference: Any, known: Mapping[str, Length]) -> tuple[str, Length] | None:
    """Return a symbol and the expression of other symbols for which ``difference`` is 0."""
    for symbol in reversed(scope.symbols[first:]):
        for m, c in difference.terms:
            rest = -c * (difference - c * symbol)
            alone = m == symbol.terms[0][0] and abs(c) == 1 and not any(s is symbol for s in symbols_of([rest]))
            if alone and str(symbol) not in known and scope.value(rest) >= 1:
                return str(symbol), rest
    return None


class _Symbolic(Specializer):
    """A symbolic copy of a program under construction."""

    def __init__(self, lens: Mapping[str, Sequence[Length]], computed_lengths: bool) -> None:
        super().__init__(lens, computed_lengths)
        self._valued: dict[Instruction, None] = {}

    def _twin(self, ins: Instruction, target: Module) -> Instruction:
        last = target.last
        twin = super()._twin(ins, target)
        for new in reversed(_after(target, last)):
            if isinstance(new.op, Lengths) or any(i in self._valued for i in new.inputs):
                self._note(new)
        if not twin.inputs or twin.module is not target:
            return twin
        if ins in self.members:
            self.members[ins] = [self._folded(member, target) for member in self.members[ins]]
            return self.members[ins][0]
        twin = self._folded(twin, target)
        self._check(twin)
        return twin

    def _fitting(self, ins: Instruction, body: Module, inputs: Sequence[Instruction]) -> Module | str:
        return self._body(ins, body, inputs)  # an error may be due to lengths not known to be equal

    def _note(self, ins: Instruction) -> None:
        """Record whether the value of an instruction holds symbolic lengths."""
        if has_symbolic_elements(self.constants.value(ins)):
            self._valued[ins] = None

    def _folded(self, ins: Instruction, target: Module) -> Instruction:
        """Replace a new instruction that computes lengths by one that holds them, where the value is known."""
        if ins.users or not any(i in self._valued for i in ins.inputs):
            return ins
        value = self.constants.value(ins)
        if value is None or (has_symbolic_elements(value) and ins.shape.type is not Type.int64_type):
            return ins
        made = self._literal(ins, value.reshape(()) if ins.shape.without_axes else value, target)
        target.remove_instruction(ins)
        return made

    def _literal(self, ins: Instruction, value: np.ndarray, target: Module) -> Instruction:
        if not has_symbolic_elements(value):
            return super()._literal(ins, value, target)
        return self._lengths_instruction(ins, tuple(value.flat), value.shape, target)

    def _lengths_instruction(
        self, ins: Instruction, values: tuple[Length, ...], lens: tuple[int, ...], target: Module
    ) -> Instruction:
        op = Lengths(values, lens)  # type: ignore[arg-type]
        made = target._link(Instruction(op, (), op.compute_shape(())), None)
        made.debug_symbols = ins.debug_symbols
        self._valued[made] = None
        return made

    def _lengths(self, ins: Instruction, lens: Sequence[int], target: Module) -> Instruction:
        own = list(lens[ins.op.start : ins.op.end])  # type: ignore[attr-defined]
        return self._literal(ins, array_of_lengths(own, (len(own),)), target)

    def _computed(
        self, ins: Instruction, shape: Shape, values: Sequence[np.ndarray], target: Module
    ) -> Instruction | None:
        if not any(map(has_symbolic_elements, values)):
            return super()._computed(ins, shape, values, target)
        if isinstance(ins.op, DynamicRange):
            return self._range(ins, [v.reshape(-1)[0] for v in values], target)
        raise UnfollowedLengthError(
            ins.located(f"{ins.name} of lengths gives a number of elements that is not followed")
        )

    def _range(self, ins: Instruction, bounds: Sequence[object], target: Module) -> Instruction:
        """Append a range between bounds that are symbolic lengths."""
        builder = RewriteBuilder(target, None)
        start, _, delta = (self.mapped[i] for i in ins.inputs)
        made = builder.progression(start, delta, bounds)
        for new in builder.created:
            new.debug_symbols = ins.debug_symbols
        return made

    def _check(self, ins: Instruction) -> None:
        """Raise if a result has open lengths although it follows from lengths, and nothing in the data decides it."""
        if not ins.shape.is_dynamic or ins.shape.element is not None or any(i.shape.is_dynamic for i in ins.inputs):
            return
        if isinstance(ins.op, Loop):
            return  # the body decides how states grow, not the first states
        follows = [self.constants.value(i) is None and self.constants.follows_lengths(i) for i in ins.inputs]
        if ins.inputs and (all(follows) or any(follows[1:])):
            raise UnfollowedLengthError(ins.located(f"{ins.name} gives a number of elements that is not followed"))
