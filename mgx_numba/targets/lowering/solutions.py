"""How problems are computed, remembered by what they are: equal layers are planned once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

from ...codegen.launch import Solution
from ...codegen.problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
from ...graph.instruction import Instruction
from ...graph.module import Module

__all__ = ["Solutions", "problem_key", "with_origin"]

MOST = 2048
"""Answers that are kept, of some 3 KB each; a network of hundreds of layers asks for some hundred at each set of
lengths. A process that meets ever-new lengths grows by at most these."""

T = TypeVar("T")


class Solutions:
    """Answers to questions that were asked before; those that have not been asked for long go first, half of all at
    once: noting the order of all that is asked would take as long as finding it. May be used from any thread."""

    def __init__(self) -> None:
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
    return (*own, problem.axes, problem.parts, problem.cut, problem.share, problem.fold)


def _text(module: Module) -> Hashable:
    """What a module without submodules computes: operators, their operands by position, shapes and constants."""
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
