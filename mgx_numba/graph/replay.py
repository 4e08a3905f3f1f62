"""A rewriting of programs that is done once for programs which differ in their lengths alone.

The rewriting is run on integers that note what is computed from them and asked of them (`traced_int`). For another
program of the same form (`numbers`) the result then follows by substitution, if all answers are the same: no rule is
tried again. What tracing may miss, numbers that go through NumPy, shows on an example: a trace is used after it has
given what the rewriting itself gave for another program.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from ..core.argument import Argument
from ..dataclass import dataclass
from ..errors import MgxError
from .copies import CopyPattern, Numbered, chooser, copy_with
from .folds import Fold, Folds, kind_of
from .known_literals import KnownLiterals, contents, without_memory
from .numbers import Numbers, ProgramForm, numbers_of, plain
from .program import Program
from .traced_int import Trace

__all__ = ["Replay"]

MOST_FORMS = 64
"""Forms of programs that are remembered: there are some where a length is 1, or 0, or larger than a limit."""
MOST_TRACES = 64
"""Traces of one form, the least recently used going first. Trying one takes a small part of a millisecond."""
MOST_FAILURES = 4
"""Programs of one form in succession that could not be traced, after which none is."""
MOST_EXAMPLES = 4
"""Programs of one form with their results, to tell from what differs, and to check traces on."""

Rewriting = Callable[[Program], None]


@dataclass(frozen=True)
class _Example:
    """A program's numbers and literals, and those of its result, literals by content."""

    given: Numbers
    literals: KnownLiterals
    found: Numbers
    contents: list[Hashable]


class _Recorded:
    """One traced rewriting.

    Attributes:
        confirmed: whether it gave the right result for another program than the one that was traced, see `tells`.
        whole: whether each literal that varies is in the result as it is, or follows from its lengths, or is filled
            with a value that does not vary, or is one number that others are computed of: what else is computed of its
            values is not traced.
        log: that of the rewriting.
    """

    def __init__(
        self,
        given: Numbers,
        literals: KnownLiterals,
        groups: Sequence[int],
        constants: Sequence[bool],
        fillings: Mapping[int, bytes],
        result: Program,
        trace: Trace,
        folds: Folds,
    ):
        """
        Args:
            given: the program that was traced.
            literals: its literals.
            groups: for each of its integers the number of the symbol, -1 if it is none.
            constants: for each literal, whether it is the same in all examples.
            fillings: of some that are not, the one value that all their elements have.
            result: what became of it, with traced integers.
            trace: theirs.
            folds: of the constants that were computed.
        """
        self.confirmed = False
        self._trace = trace
        self._fixed = chooser([k for k, group in enumerate(groups) if group < 0])
        self._fixed_values = self._fixed(given.values)
        moving, own = [k for k, group in enumerate(groups) if group >= 0], [group for group in groups if group >= 0]
        self._moving, self._groups = chooser(moving), chooser(own)
        self._first = [moving[own.index(group)] for group in range(max(own, default=-1) + 1)]
        self._constants = [k for k, same in enumerate(constants) if same]
        self._varying = {k: literals.character(k) for k, same in enumerate(constants) if not same}
        self._fillings = fillings
        numbers = numbers_of(result)
        places = {id(a): k for k, a in enumerate(literals.arguments)}
        self._folds = folds.of({id(literals.arguments[k]): k for k in self._varying if k not in fillings})
        self._literals = [places.get(id(a), self._folds.get(id(a), a)) for a in numbers.literals]
        self._kinds = [kind_of(made) for made in self._made(literals.arguments).values()]
        needed = {id(a): a for a in self._literals if isinstance(a, Fold)}
        for fold in reversed(self._folds.values()):  # inputs come before what is made of them
            if id(fold) in needed:
                needed.update((id(i), i) for i in fold.inputs if isinstance(i, Fold))
        folded = {k for fold in needed.values() for k in fold.inputs if isinstance(k, int)}
        kept = folded.union(a for a in self._literals if isinstance(a, int))
        told = (k for k, character in self._varying.items() if not (character.pattern or k in fillings))
        known = kept.issuperset(told)
        kinds = [kind for fold, kind in zip(self._folds.values(), self._kinds) if id(fold) in needed]
        self.whole = known and all(kinds) and all(self._varying[k].kind for k in folded)
        shapes = [without_memory(a) for a in numbers.literals]
        made = copy_with(result, numbers, [int.__index__(value) for value in numbers.values], shapes)
        self._pattern = CopyPattern(made, [trace.number(value) for value in numbers.values])
        self._known = literals.without_values()
        self._values = given.values
        self.log = result.log.converted(plain)

    def _made(self, given: Sequence[Argument]) -> dict[int, Argument]:
        """What is computed of literals that vary, for these literals, by identity of the folds."""
        made: dict[int, Argument] = {}
        for fold in self._folds.values():
            made[id(fold)] = fold.of(given, made)
        return made

    def tells(self, given: Numbers, literals: KnownLiterals) -> bool:
        """Whether the right result for a program confirms this: a literal that varies, and is the one that was traced,
        could as well be a constant of the result, unless it has no other value wherever this is used."""
        varying = [k for k, character in self._varying.items() if not character.is_value]
        if any(self._known.same(literals, k) for k in varying):
            return False
        return bool(varying) or given.values != self._values

    def narrowed(self, given: Numbers, literals: KnownLiterals) -> _Recorded | None:
        """This for programs that have the literals of the traced one where a program has them that it gave the right
        result for, which confirms that; None if this program has the same integers, too."""
        if given.values == self._values:
            return None
        same = [k for k in self._varying if self._known.same(literals, k)]
        one = copy.copy(self)
        one._constants = [*self._constants, *same]
        one._varying = {k: character for k, character in self._varying.items() if k not in same}
        one.confirmed = True
        return one

    def result(self, given: Numbers, literals: KnownLiterals) -> Program | None:
        """The result for another program of the same form, if its integers and literals let it be had so."""
        values = given.values
        if self._fixed(values) != self._fixed_values:
            return None
        symbols = [values[k] for k in self._first]
        if self._moving(values) != self._groups(symbols):
            return None
        if not all(self._known.same(literals, k) for k in self._constants):
            return None
        if any(literals.character(k) != character for k, character in self._varying.items()):
            return None
        if any(literals.filling(k) != filling for k, filling in self._fillings.items()):
            return None
        own = literals.arguments
        made = self._made(own)
        if [kind_of(a) for a in made.values()] != self._kinds:
            return None
        known = self._trace.evaluate(symbols)
        if known is None:
            return None
        arguments = [
            own[a] if isinstance(a, int) else made[id(a)] if isinstance(a, Fold) else a for a in self._literals
        ]
        try:
            return self._pattern.copy(known, arguments)
        except MgxError:
            return None


class _Form:
    """What is known of the programs of one form."""

    def __init__(self) -> None:
        self.recorded: list[_Recorded] = []
        self.examples: list[_Example] = []
        self.failures = 0


class Replay:
    """A rewriting with what is known of it. May be used from any thread.

    Attributes:
        replayed: programs whose result was had by substitution.
    """

    def __init__(self, rewriting: Rewriting, lasting: Program | None = None) -> None:
        """``rewriting`` changes a program in place; it depends on nothing but the program. The literals of ``lasting``
        live as long as this."""
        self._rewriting = rewriting
        instructions = [] if lasting is None else [ins for module in lasting.modules for ins in module]
        self._lasting = {id(ins.literal): ins.literal for ins in instructions if ins.literal is not None}
        self._forms: OrderedDict[ProgramForm, _Form] = OrderedDict()
        self._lock = threading.Lock()
        self.replayed = 0

    def run(self, numbered: Numbered) -> Program:
        """What the rewriting makes of a program, which stays as it is, and is not asked for if its numbers do."""
        try:
            given = numbered.numbers
        except TypeError:
            return self._rewritten(numbered.program)
        literals = KnownLiterals(given.literals, self._lasting)
        with self._lock:
            form = self._forms.setdefault(given.form, _Form())
            self._forms.move_to_end(given.form)
            while len(self._forms) > MOST_FORMS:
                self._forms.popitem(last=False)
            recorded = list(form.recorded)
        waiting = []
        for one in recorded:
            found = one.result(given, literals)
            if found is not None and one.confirmed:
                with self._lock:
                    self.replayed += 1
                    form.recorded.sort(key=lambda other: other is not one)
                found.log.include(one.log)
                return found
            if found is not None:
                waiting.append((one, found))
        return self._learned(numbered.program, given, literals, form, waiting)

    def _rewritten(self, program: Program) -> Program:
        copy = program.clone()
        self._rewriting(copy)
        return copy

    def _learned(
        self,
        program: Program,
        given: Numbers,
        literals: KnownLiterals,
        form: _Form,
        waiting: list[tuple[_Recorded, Program]],
    ) -> Program:
        """The result of the rewriting itself, which confirms traces or refutes them, or is traced."""
        recorded: _Recorded | None = None
        result: Program | None = None
        examples = list(form.examples)
        if examples and not waiting and form.failures < MOST_FAILURES:
            recorded = self._recorded(program, given, literals, examples)
            alike = [e for e in examples if all(e.literals.same(literals, k) for k in range(len(given.literals)))]
            if recorded is None and 0 < len(alike) < len(examples):  # what is computed of literals stays where they do
                recorded = self._recorded(program, given, literals, alike)
            result = None if recorded is None else recorded.result(given, literals)
        if result is None:
            result, recorded = self._rewritten(program), None
        example = _example(given, literals, result)
        refuted = []
        narrowed: list[_Recorded | None] = []
        for one, found in waiting:
            if not _equal(found, given.literals, example):
                refuted.append(one)
            elif one.tells(given, literals):
                one.confirmed = True
            else:
                narrowed.append(one.narrowed(given, literals))
        if recorded is not None:
            for other in examples:
                again = recorded.result(other.given, other.literals)
                if again is not None and not _equal(again, other.literals.arguments, other):
                    recorded = None
                    break
                recorded.confirmed |= again is not None and recorded.tells(other.given, other.literals)
        if not waiting and examples:
            form.failures = form.failures + 1 if recorded is None else 0
        with self._lock:
            kept = [one for one in (*narrowed, *form.recorded) if one is not None and one not in refuted][:MOST_TRACES]
            form.recorded = [recorded, *kept][:MOST_TRACES] if recorded is not None else kept
            form.examples = [*form.examples, example][-MOST_EXAMPLES:]
        return result

    def _recorded(
        self, program: Program, given: Numbers, literals: KnownLiterals, examples: Sequence[_Example]
    ) -> _Recorded | None:
        """A trace of the rewriting of this program, its symbols being what differs between it and the examples."""
        count = len(given.literals)
        constants = [all(example.literals.same(literals, k) for example in examples) for k in range(count)]
        fillings = {k: literals.filling(k) for k, same in enumerate(constants) if not same and _filled(literals, k)}
        for example in examples:
            own = example.literals
            other = [k for k, f in fillings.items() if own.character(k).uniform and own.filling(k) != f]
            fillings = {k: f for k, f in fillings.items() if k not in other}
        trace = Trace()
        symbols: dict[tuple[int, ...], tuple[int, int]] = {}
        groups, numbers = [], []
        for column in zip(given.values, *(example.given.values for example in examples)):
            if len(set(column)) == 1:
                groups.append(-1)
                numbers.append(column[0])
                continue
            if column not in symbols:
                symbols[column] = len(symbols), trace.symbol(column[0])
            group, number = symbols[column]
            groups.append(group)
            numbers.append(number)
        try:
            traced = copy_with(program, given, numbers, given.literals)
            folds = traced.allowance.folds = Folds()
            self._rewriting(traced)
            recorded = _Recorded(given, literals, groups, constants, fillings, traced, trace, folds)
        except (MgxError, TypeError, ValueError):
            return None
        return recorded if recorded.whole else None


def _example(given: Numbers, literals: KnownLiterals, result: Program) -> _Example:
    numbers = numbers_of(result)
    known = literals.without_values()
    content = contents(numbers.literals, given.literals)
    return _Example(replace(given, literals=known.arguments), known, replace(numbers, literals=[]), content)


def _filled(literals: KnownLiterals, place: int) -> bool:
    """Whether a literal has one value, which is none that others are computed of (`folds`)."""
    return literals.filling(place) != b"" and not literals.character(place).kind


def _equal(found: Program, given: Sequence[Argument], example: _Example) -> bool:
    """Whether a program, made of one that had these literals, is the one that the rewriting gave."""
    numbers = numbers_of(found)
    own = (numbers.form, numbers.values, contents(numbers.literals, given))
    return own == (example.found.form, example.found.values, example.contents)
