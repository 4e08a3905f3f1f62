"""Answers to questions about problems with symbolic lengths, kept for all programs of a process.

Programs have the same problems: variants of a model, plans for other guards, bodies, layers of one family of networks.
An answer is computed with symbols in a scope of its own, so that it depends on the problem alone, and is then expressed
by the symbols of the program that asks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from ..core.dim import Dim, Guard, Scope, transferred
from ..errors import UnsupportedError
from .alternatives import lengths_in, with_lengths

MOST_ANSWERS = 256
"""Maximum number of kept answers, of some 50 KB each; a program with symbolic lengths asks some ten to forty."""
MOST_SCOPES = 8
"""Maximum number of scopes by whose symbols answers are found; programs with other symbols share no answers."""

T = TypeVar("T")


class KeptAnswers:
    """A thread-safe cache of answers by question and problem; the least recently used answers are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all answers."""
        self._scopes: OrderedDict[Hashable, Scope] = OrderedDict()
        self._answers: OrderedDict[Hashable, tuple[Scope, Any]] = OrderedDict()

    def of(self, question: Hashable, problem: Any, answer: Callable[[Any], T], like: Hashable | None = None) -> T:
        """Return the answer to an equal question about an equal problem, or call ``answer``; exceptions are not kept.

        Args:
            question: identifies ``answer`` and everything that it depends on besides the problem.
            problem: dataclasses, tuples, dictionaries and lengths; modules in it have no symbolic lengths.
            like: a key of the problem, with its lengths; None: the problem is its own key.
            answer: computes the answer for a problem; guards that it adds are added for every problem.
        """
        lengths = lengths_in(problem)
        if not lengths:
            return answer(problem)
        scope = lengths[0].scope
        symbols = _likeness(scope)
        with self._lock:
            names = _recent(self._scopes, symbols, MOST_SCOPES, lambda: _twin(scope))
        renamed = _renaming(scope, names)
        guards = tuple([(renamed(guard.condition), guard.answer) for guard in scope.guards.values()])
        key = question, guards, with_lengths(problem if like is None else like, renamed)
        try:
            hash(key)
        except TypeError:  # such as constants in an array
            return answer(problem)
        with self._lock:
            found = self._answers.pop(key, None)
            if found is not None:
                self._answers[key] = found  # the most recent one
        if found is None:
            own = _twin(scope)
            renamed = _renaming(scope, own)
            _repeat_guards(scope, own)
            try:
                made = answer(with_lengths(problem, renamed))
            except UnsupportedError:
                _repeat_guards(own, scope)
                raise
            found = own, made
            own.forget_expressions()
            with self._lock:
                _recent(self._answers, key, MOST_ANSWERS, lambda: found)
        own, made = found
        _repeat_guards(own, scope)
        return with_lengths(made, _renaming(own, scope))  # type: ignore[no-any-return]


ANSWERS = KeptAnswers()


def _recent(known: OrderedDict[Hashable, Any], key: Hashable, most: int, make: Callable[[], Any]) -> Any:
    """Return an entry, which becomes the most recent one; make it if it is missing."""
    if key not in known:
        known[key] = make()
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)
    return known[key]


def _likeness(scope: Scope) -> Hashable:
    """Return a key of a scope's symbols, their ranges, example lengths and samples."""
    symbols = tuple([(str(s), s.low, s.high, hint) for s, hint in scope.hints().items()])
    return symbols, tuple([tuple([sample.get(s) for s in scope.symbols]) for sample in scope.samples])


def _twin(scope: Scope) -> Scope:
    """Return a scope with equal symbols and samples, and without guards."""
    twin = Scope()
    to = {s: twin.symbol(str(s), s.low or 0, s.high, hint) for s, hint in scope.hints().items()}
    twin.samples = [{to[s]: value for s, value in sample.items()} for sample in scope.samples]
    return twin


def _renaming(source: Scope, target: Scope) -> Callable[[Dim], Any]:
    """Return the function that expresses a length of one scope by the equal symbols of another."""
    pairs = zip(source.symbols, target.symbols)
    atoms = {old.terms[0][0][0]: new.terms[0][0][0] for old, new in pairs}
    known: dict[Dim, Any] = {}

    def renamed(length: Dim) -> Any:
        found = known.get(length)
        if found is None:
            found = known[length] = transferred(length, atoms)
        return found

    return renamed


def _repeat_guards(source: Scope, target: Scope) -> None:
    """Record in one scope the guards of the other that it lacks; the example lengths, and so the answers, are equal."""
    renamed = _renaming(source, target)
    for guard in list(source.guards.values()):
        condition = renamed(guard.condition)
        if target.answered(condition) is None:
            target.guards[condition] = Guard(condition, guard.answer, guard.place)
