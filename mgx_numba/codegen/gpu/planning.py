"""The generator of each type of problem on the GPU."""

from __future__ import annotations

from ...core.shape import Shape
from ...graph.module import Module
from ..launch import Launch, Solution
from ..planning import Planners, planned
from ..problems.cluster import CopyProblem, NumbersProblem, PointwiseProblem, RangeProblem, ReductionProblem
from ..problems.indexed_copy import IndexedCopy
from .cluster.pointwise import pointwise_launch
from .cluster.reduction_rows import reduction_launch
from .contraction.gpu_contraction import GpuContraction
from .contraction.solvers import SOLVER_SET
from .data.indexed import indexed_launch
from .data.numbers import numbers_launch, range_launch
from .kernel import NAME


def plan(problem: object) -> Solution:
    return planned(PLANNERS, NAME, problem)


def _pointwise(problem: PointwiseProblem) -> Launch:
    return pointwise_launch(problem.module, problem.inputs, problem.outputs, problem.fast_math, problem.origin)


def _copy(problem: CopyProblem) -> Launch:
    module = Module("copy")
    module.add_return([module.add_parameter("x0", Shape(problem.source.type))])
    return pointwise_launch(module, [problem.source], [problem.target], origin=problem.origin)


def _contraction(contraction: GpuContraction) -> Solution:
    return SOLVER_SET.choose(contraction).solver.plan(contraction)  # type: ignore[no-any-return]


PLANNERS: Planners = {
    PointwiseProblem: _pointwise,
    ReductionProblem: reduction_launch,
    CopyProblem: _copy,
    IndexedCopy: indexed_launch,
    NumbersProblem: numbers_launch,
    RangeProblem: range_launch,
    GpuContraction: _contraction,
}
