"""The generator of each type of problem on the CPU. Generators that few programs need are imported when they are."""

from __future__ import annotations

from ...core.shape import Shape
from ...graph.module import Module
from ..launch import Launch, Solution
from ..planning import Planners, planned
from ..problems.cluster import CopyProblem, NumbersProblem, PointwiseProblem, RangeProblem, ReductionProblem
from ..problems.indexed_copy import IndexedCopy
from .cluster.pointwise import pointwise_launch
from .cluster.reduce import reduce_launch
from .kernel import NAME


def plan(problem: object) -> Solution:
    return planned(PLANNERS, NAME, problem)


def _pointwise(problem: PointwiseProblem) -> Launch:
    return pointwise_launch(
        problem.module, problem.inputs, problem.outputs, problem.fast_math, problem.origin, problem.again
    )


def _copy(problem: CopyProblem) -> Launch:
    from .data.copies import runs_launch
    from .data.transpose import transpose_launch, transposes_short_rows

    transposing = transpose_launch(problem.source, problem.target, problem.origin)
    if transposing is not None:
        return transposing
    runs = runs_launch("copy_kernel", problem.source, problem.target, ("x0", "out0"), origin=problem.origin)
    if runs is not None:
        return runs
    module = Module("copy")
    module.add_return([module.add_parameter("x0", Shape(problem.source.type))])
    order_by = 0 if transposes_short_rows(problem.source, problem.target) else None
    return pointwise_launch(module, [problem.source], [problem.target], origin=problem.origin, order_by=order_by)


def _indexed_copy(problem: IndexedCopy) -> Launch:
    from .data.copies import indexed_launch

    return indexed_launch(problem)


def _numbers(problem: NumbersProblem | RangeProblem) -> Launch:
    from .data.numbers import numbers_launch, range_launch

    return numbers_launch(problem) if isinstance(problem, NumbersProblem) else range_launch(problem)


PLANNERS: Planners = {
    PointwiseProblem: _pointwise,
    ReductionProblem: reduce_launch,
    CopyProblem: _copy,
    IndexedCopy: _indexed_copy,
    NumbersProblem: _numbers,
    RangeProblem: _numbers,
}
