"""Cache the solutions of problems: equal layers are planned once. Answers to questions about problems with symbolic
lengths are kept for all programs of a process.


Programs have the same problems: variants of a model, plans for other guards, bodies, layers of one family of networks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

from ...codegen.alternatives import lengths_in
from ...codegen.launch import Solution
from ...codegen.problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
from ...core.dim import Guard, symbols_of
from ...graph.instruction import Instruction
from ...graph.module import Module

MOST = 2048
"""Maximum number of cached solutions, of about 3 KB each. A network of hundreds of layers needs some hundred for each
set of lengths. The limit bounds the memory of a process that meets ever-new lengths."""

T = TypeVar("T")


class Solutions:
    """A thread-safe cache of answers by question.

    When it is full, the least recently used half is dropped at once: an exact order of use would take as long to record
    as a lookup.
    """

    def __init__(self) -> None:
        self._recent: dict[Hashable, Any] = {}
        self._earlier: dict[Hashable, Any] = {}

    def of(self, question: Hashable, answer: Callable[[], T]) -> T:
        """Return the cached answer to an equal question, or call ``answer``; exceptions are not cached."""
        try:
            found: T = self._recent[question]
            return found
        except KeyError:
            pass
        try:
            found = self._earlier[question]
        except KeyError:  # never cached, or dropped by another thread
            found = answer()
        if len(self._recent) >= MOST // 2:
            self._earlier, self._recent = self._recent, {}
        self._recent[question] = found
        return found


def with_origin(solution: Solution, origin: str) -> Solution:
    """Return the solution with the text ``origin`` for its kernels, unless ``origin`` is empty."""
    if not origin or all(launch.kernel.origin == origin for launch in solution.launches):
        return solution
    launches = (replace(one, kernel=replace(one.kernel, origin=origin)) for one in solution.launches)
    return replace(solution, launches=tuple(launches))


def problem_key(problem: PointwiseProblem | ReductionProblem | CopyProblem) -> Hashable:
    """Return a key of the problem without its origin; a module is identified by its computation."""
    if isinstance(problem, CopyProblem):
        return problem.source, problem.target
    own = (_text(problem.module), problem.inputs, problem.outputs, problem.fast_math, problem.again)
    if isinstance(problem, PointwiseProblem):
        return own
    return (*own, problem.axes, problem.parts, problem.cut, problem.share, problem.fold)


def _text(module: Module) -> Hashable:
    """Return a key of a module without submodules: operators, their operands by position, shapes and constants."""
    places: dict[Instruction, int] = {}
    written: list[Hashable] = []
    order = {ins: k for k, ins in enumerate(module.parameters())}
    for ins in module:
        places[ins] = len(places)
        literal = None if ins.literal is None else ins.literal.numpy().tobytes()
        parameter = order.get(ins)
        operator: Hashable = ins.op if parameter is None else parameter
        written.append((operator, ins.shape, tuple([places[i] for i in ins.inputs]), literal))
    return tuple(written)


MOST_ANSWERS = 256
"""Maximum number of kept answers, of some 100 KB each; a program with symbolic lengths asks some ten to forty. All are
dropped when it is reached."""

P = TypeVar("P")


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
    symbols = symbols_of([*lengths, *scope.guards])
    samples = tuple([tuple(sample.items()) for sample in scope.samples_of(symbols)])
    key = question, problem if like is None else like, before, samples
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
