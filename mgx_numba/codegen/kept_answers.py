"""Answers to questions about problems with symbolic lengths, kept for all programs of a process.

Programs have the same problems: variants of a model, plans for other guards, bodies, layers of one family of networks.
A kept answer is expressed by symbols in a scope of its own, and given by the symbols of the program that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from ..core.dim import Guard, Scope, Twins
from .alternatives import lengths_in, with_lengths

MOST_ANSWERS = 256
"""Maximum number of kept answers, of some 100 KB each; a program with symbolic lengths asks some ten to forty. All are
dropped when it is reached."""

T = TypeVar("T")


class KeptAnswers:
    """A thread-safe cache of answers by question and problem."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all answers."""
        self._scopes: dict[Hashable, Scope] = {}
        self._answers: dict[Hashable, tuple[Any, tuple[Guard, ...]]] = {}

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
        before = list(scope.guards.values())

        def named() -> tuple[Twins, Hashable]:
            twins = scope.twins_in(self._scope_like(scope))
            guards = tuple([(twins.renamed(guard.condition), guard.answer) for guard in before])
            return twins, (question, guards, with_lengths(problem if like is None else like, twins.renamed))

        twins, key = named()
        try:
            found = self._answers.get(key)
        except TypeError:  # not hashable, such as constants in an array
            return answer(problem)
        if found is not None:
            made, added = found
            for guard in added:
                condition = twins.original(guard.condition)
                scope.guards[condition] = guard._replace(condition=condition)
            return with_lengths(made, twins.original)  # type: ignore[no-any-return]
        result = answer(problem)
        if len(self._answers) >= MOST_ANSWERS:
            self.clear()
            twins, key = named()
        new = list(scope.guards.values())[len(before) :]
        added = tuple([guard._replace(condition=twins.renamed(guard.condition)) for guard in new])
        self._answers[key] = with_lengths(result, twins.renamed), added
        return result

    def _scope_like(self, scope: Scope) -> Scope:
        """Return the scope in which answers are kept for programs with the symbols, ranges, example lengths and samples
        of ``scope``."""
        symbols = tuple([(str(s), s.low, s.high, hint) for s, hint in scope.hints().items()])
        like = symbols, tuple([tuple([sample.get(s) for s in scope.symbols]) for sample in scope.samples])
        found = self._scopes.get(like)
        if found is None:
            made = Scope()
            for name, low, high, hint in symbols:
                made.symbol(name, low or 0, high, hint)
            found = self._scopes.setdefault(like, made)
        return found


ANSWERS = KeptAnswers()

