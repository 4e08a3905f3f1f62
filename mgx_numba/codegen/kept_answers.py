"""Answers to questions about problems with symbolic lengths, kept for all programs of a process.

Programs have the same problems: variants of a model, plans for other guards, bodies, layers of one family of networks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from ..core.dim import Guard
from .alternatives import lengths_in

MOST_ANSWERS = 256
"""Maximum number of kept answers, of some 100 KB each; a program with symbolic lengths asks some ten to forty. All are
dropped when it is reached."""

P = TypeVar("P")
T = TypeVar("T")


def kept_answer(question: Hashable, problem: P, answer: Callable[[P], T], like: Hashable | None = None) -> T:
    """Return the answer to an equal question about an equal problem, or call ``answer``; exceptions are not kept.

    An answer depends on the example lengths, samples and guards of the program that asks. It is kept in the space of
    the lengths (`core.scope.ExpressionSpace`).

    Args:
        question: identifies ``answer`` and everything that it depends on besides the problem.
        problem: dataclasses, tuples, dictionaries and lengths; modules in it have no symbolic lengths.
        like: a key of the problem, with its lengths; None: the problem is its own key.
        answer: computes the answer for a problem; guards that it adds are added for every problem.
    """
    lengths = lengths_in(problem)
    if not lengths:
        return answer(problem)
    scope, answers = lengths[0].scope, lengths[0].space.answers
    before = tuple([(guard.condition, guard.answer) for guard in scope.guards.values()])
    samples = tuple([tuple([sample.get(s) for s in scope.symbols]) for sample in scope.samples])
    key = question, problem if like is None else like, before, tuple(scope.hints().items()), samples
    try:
        found: tuple[Any, tuple[Guard, ...]] | None = answers.get(key)
    except TypeError:  # not hashable, such as constants in an array
        return answer(problem)
    if found is None:
        made = answer(problem)
        if len(answers) >= MOST_ANSWERS:
            answers.clear()
        found = answers[key] = made, tuple(scope.guards.values())[len(before) :]
    for guard in found[1]:
        scope.guards[guard.condition] = guard
    return found[0]  # type: ignore[no-any-return]
