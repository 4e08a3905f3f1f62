"""Dispatch problems to the generators that plan them."""

from __future__ import annotations

import functools
from typing import Any

from ...core.shape import Shape
from ...errors import UnsupportedError
from ...graph.module import Module
from ..launch import Launch, Solution
from ..problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
from ..problems.indexed_copy import IndexedCopy
from ..problems.numbers import NumbersProblem, RangeProblem
from .cluster.pointwise import pointwise_launch
from .cluster.reduce import reduce_launch
from .data.indexed import indexed_launch
from .data.numbers import numbers_launch, range_launch
from .data.short_runs import runs_launch
from .data.transpose import transpose_launch, transposes_short_rows
from .kernel import NAME

__all__ = ["plan"]


@functools.singledispatch
def plan(problem: Any) -> Solution:
    """See `Backend.plan`; each kind of problem has a registered function below."""
    raise UnsupportedError(f"the back end {NAME} has no kernels for {type(problem).__name__}")


@plan.register
def _(problem: PointwiseProblem) -> Solution:
    launch = pointwise_launch(
        problem.module, problem.inputs, problem.outputs, problem.fast_math, problem.origin, problem.again
    )
    return Solution((launch,))


@plan.register
def _(problem: ReductionProblem) -> Solution:
    return Solution((reduce_launch(problem),))


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
def _(problem: CopyProblem) -> Solution:
    return Solution((_copy(problem),))


def _copy(problem: CopyProblem) -> Launch:
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
