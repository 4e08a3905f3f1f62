"""Dispatch a problem to its generator."""

from __future__ import annotations

import functools
from typing import Any

from ...core.shape import Shape
from ...errors import UnsupportedError
from ...graph.module import Module
from ..launch import Solution
from ..problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
from ..problems.indexed_copy import IndexedCopy
from ..problems.numbers import NumbersProblem, RangeProblem
from .cluster.pointwise import pointwise_launch
from .cluster.reduction_rows import reduction_launch
from .contraction.gpu_contraction import GpuContraction
from .contraction.solvers import choose
from .data.indexed import indexed_launch
from .data.numbers import numbers_launch, range_launch
from .kernel import NAME

__all__ = ["plan"]


@functools.singledispatch
def plan(problem: Any) -> Solution:
    """See `Backend.plan`; each kind of problem has a function below."""
    raise UnsupportedError(f"the back end {NAME} has no kernels for {type(problem).__name__}")


@plan.register
def _(problem: PointwiseProblem) -> Solution:
    launch = pointwise_launch(problem.module, problem.inputs, problem.outputs, problem.fast_math, problem.origin)
    return Solution((launch,))


@plan.register
def _(problem: ReductionProblem) -> Solution:
    return Solution((reduction_launch(problem),))


@plan.register
def _(problem: IndexedCopy) -> Solution:
    return Solution((indexed_launch(problem),))


@plan.register
def _(problem: NumbersProblem) -> Solution:
    return Solution((numbers_launch(problem),))


@plan.register
def _(problem: RangeProblem) -> Solution:
    return Solution((range_launch(problem),))


@plan.register
def _(problem: GpuContraction) -> Solution:
    return choose(problem).solver.plan(problem)  # type: ignore[no-any-return]


@plan.register
def _(problem: CopyProblem) -> Solution:
    module = Module("copy")
    module.add_return([module.add_parameter("x0", Shape(problem.source.type))])
    return Solution((pointwise_launch(module, [problem.source], [problem.target], origin=problem.origin),))
