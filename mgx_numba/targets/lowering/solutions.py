"""How problems are computed, remembered by what they are: equal layers are planned once, also for other lengths."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from operator import eq
from typing import Any, TypeVar

from ...codegen.backend import Backend
from ...codegen.launch import Solution
from ...codegen.problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem, own_lens
from ...graph.instruction import Instruction
from ...graph.module import Module
from .trace_trees import TraceTrees

__all__ = ["Solutions", "problem_key", "with_origin"]

MOST = 2048
"""Answers that are kept, of some 3 KB each; a network of hundreds of layers asks for some hundred at each set of
lengths. A process that meets ever-new lengths grows by at most these."""

T = TypeVar("T")


class Solutions:
    """Answers to questions that were asked before; those that have not been asked for long go first, half of all at
    once: noting the order of all that is asked would take as long as finding it. May be used from any thread."""

    def __init__(self, traced: bool = False) -> None:
        """``traced``: answers of `solved` and `plan` are found for other lengths, too."""
        self._trees = TraceTrees() if traced else None
        self._recent: dict[Hashable, Any] = {}
        self._earlier: dict[Hashable, Any] = {}

    def of(self, question: Hashable, answer: Callable[[], T]) -> T:
        """What ``answer`` gives, or gave when the equal question was asked; what it raises is not remembered."""
        try:
            found: T = self._recent[question]
            return found
        except KeyError:
            pass
        try:
            found = self._earlier[question]
        except KeyError:  # asked for the first time, or gone meanwhile
            found = answer()
        if len(self._recent) >= MOST // 2:
            self._earlier, self._recent = self._recent, {}
        self._recent[question] = found
        return found

    def solved(self, kind: Hashable, problem: Any, solve: Callable[[Any], Solution]) -> Solution:
        """What ``solve`` gives for a problem; ``kind`` tells it from others. See `TraceTrees`."""
        found = None if self._trees is None else self._trees.of(kind, problem, None, solve)
        return self.of((kind, problem), lambda: solve(problem)) if found is None else found

    def plan(self, backend: Backend, problem: PointwiseProblem | ReductionProblem | CopyProblem) -> Solution:
        """`Backend.plan`, whose kernels have the problem's origin."""
        trees, found = self._trees, None
        if trees is not None:
            body = None if isinstance(problem, CopyProblem) else _text(problem.module, ranging=True)
            found = trees.of(backend.name, replace(problem, origin=""), body, backend.plan)
        if found is None:
            found = self.of((backend.name, problem_key(problem)), lambda: backend.plan(problem))
        return with_origin(found, problem.origin)


def with_origin(solution: Solution, origin: str) -> Solution:
    """The solution with another text of where its kernels come from, if there is one."""
    if not origin or all(launch.kernel.origin == origin for launch in solution.launches):
        return solution
    launches = (replace(one, kernel=replace(one.kernel, origin=origin)) for one in solution.launches)
    return replace(solution, launches=tuple(launches))


def problem_key(problem: PointwiseProblem | ReductionProblem | CopyProblem) -> Hashable:
    """The problem but for its origin, a module being known by what it computes."""
    if isinstance(problem, CopyProblem):
        return problem.source, problem.target
    own = (_text(problem.module), problem.inputs, problem.outputs, problem.fast_math, problem.again)
    if isinstance(problem, PointwiseProblem):
        return own
    return (*own, problem.axes, problem.parts, problem.cut, problem.share, problem.fold, problem.general)


def _text(module: Module, ranging: bool = False) -> Hashable:
    """What a module without submodules computes: operators, their operands by position, shapes and constants. Where it
    is ``ranging``, whatever the lengths are: of these only which are the cluster's own."""
    places: dict[Instruction, int] = {}
    written: list[Hashable] = []
    order = {ins: k for k, ins in enumerate(module.parameters())}
    own = own_lens(module) if ranging else ()
    for ins in module:
        places[ins] = len(places)
        literal = None if ins.literal is None else ins.literal.numpy().tobytes()
        parameter = order.get(ins)
        operator: Hashable = ins.op if parameter is None else parameter
        shape: Hashable = ins.shape
        if ranging:
            lens = ins.shape.lens
            operator = ins.name if ins.name == "multibroadcast" else operator
            shape = ins.shape.type, tuple(map(eq, lens, own)) if len(lens) == len(own) else lens
        written.append((operator, shape, tuple([places[i] for i in ins.inputs]), literal))
    return tuple(written)
