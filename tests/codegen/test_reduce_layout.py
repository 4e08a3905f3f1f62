"""Kernels of reduction clusters: the strategy for each layout, which determines texts and results."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mgx_numba.codegen.arguments import Arguments
from mgx_numba.codegen.cpu.cluster.reduce import PRINTERS, reduce_launch
from mgx_numba.codegen.cpu.cluster.reduction_layout import names_of, reduce_layout
from mgx_numba.codegen.cpu.cluster.vectors import Strategy
from mgx_numba.codegen.problems.cluster import ReductionProblem
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import UnsupportedError
from mgx_numba.graph.module import Module

from .launching import run_launch, tensor_of


def module_of(build, *lens):
    module = Module("cluster")
    module.add_return(
        build(module, *(module.add_parameter(f"x{k}", Shape(Type.float_type, n)) for k, n in enumerate(lens)))
    )
    return module


def spread(m, ins, like):
    return m.add_instruction("multibroadcast", [ins], out_lens=like.shape.lens)


def variance(m, x, axes):
    """The mean, and the variance from moments about the head's."""
    head = m.add_instruction("head_mean", [x], axes=axes)
    away = m.add_instruction("sub", [x, spread(m, head, x)])
    first = m.add_instruction("reduce_mean", [away], axes=axes)
    second = m.add_instruction("reduce_mean", [m.add_instruction("mul", [away, away])], axes=axes)
    square = m.add_instruction("mul", [first, first])
    return m.add_instruction("add", [head, first]), m.add_instruction("sub", [second, square])


def softmax(axis):
    def build(m, x):
        top = m.add_instruction("reduce_max", [x], axes=[axis])
        e = m.add_instruction("exp", [m.add_instruction("sub", [x, spread(m, top, x)])])
        total = m.add_instruction("reduce_sum", [e], axes=[axis])
        return [m.add_instruction("div", [e, spread(m, total, x)])]

    return build


def total(axis):
    return lambda m, x: [m.add_instruction("reduce_sum", [x], axes=[axis])]


@pytest.mark.parametrize(
    ("build", "lens", "axis", "past_caches", "strategy"),
    [
        (softmax(1), (40, 2000), 1, False, Strategy.ROWS),
        (softmax(0), (40, 200), 0, False, Strategy.ROWS),
        (total(0), (40, 200), 0, False, Strategy.ROWS),
        (softmax(1), (40, 33), 1, False, Strategy.WHOLE_ROWS),
        (total(0), (40, 2000), 0, True, Strategy.COLUMNS),
        (softmax(1), (40, 2000), 1, True, Strategy.ROW_PIPELINE),
    ],
)
def test_text_follows_from_the_layout_alone(build, lens, axis, past_caches, strategy, given_machine):
    given_machine(last_cache_bytes=0 if past_caches else 1 << 40)
    module = module_of(build, lens)
    results = tuple(tensor_of(np.empty(r.shape.lens, np.float32)) for r in module.results())
    problem = ReductionProblem(module, (axis,), (tensor_of(np.empty(lens, np.float32)),), results)
    layout = reduce_layout(problem)
    assert layout.strategy is strategy
    state = {field.name: getattr(layout, field.name) for field in dataclasses.fields(layout)}
    names = names_of(layout, Arguments())
    first = PRINTERS[strategy](layout, names)
    assert PRINTERS[strategy](layout, names) == first
    assert reduce_layout(problem) == layout
    assert {field.name: getattr(layout, field.name) for field in dataclasses.fields(layout)} == state
    text = reduce_launch(problem).kernel.text
    assert all(f"    {line}\n" in text for line in first)


def test_variances_of_what_is_one_value_a_row_are_about_that_of_their_own_row(given_machine):
    """In a pipeline they were taken about the value that the row before had begun with."""
    given_machine(last_cache_bytes=0)
    lens = (9, 1024)

    def build(m, x, y):
        mean, spread_of_y = variance(m, y, [1])
        e = m.add_instruction("tanh", [x])
        total = m.add_instruction("reduce_sum", [m.add_instruction("exp", [e])], axes=[1])
        return [m.add_instruction("mul", [e, spread(m, total, x)]), mean, spread_of_y]

    rng = np.random.default_rng(0)
    x = rng.standard_normal(lens).astype(np.float32)
    rows = rng.standard_normal((9, 1)).astype(np.float32) * 100
    y = np.broadcast_to(rows, lens)
    out = np.empty(lens, np.float32), np.empty((9, 1), np.float32), np.empty((9, 1), np.float32)
    module = module_of(build, lens, lens)
    operands = (tensor_of(x), tensor_of(y)), tuple(tensor_of(o) for o in out)
    launch = reduce_launch(ReductionProblem(module, (1,), *operands))
    assert "live0" in launch.kernel.text
    run_launch(launch, {"x0": x, "x1": y, **{f"out{k}": o for k, o in enumerate(out)}})
    e = np.tanh(x)
    np.testing.assert_allclose(out[0], e * np.exp(e).sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(out[1], rows, rtol=1e-5)
    np.testing.assert_allclose(out[2], 0, atol=1e-4)


def problem_of(x, axes, **fields):
    """A sum of an array over axes, in parts."""
    module = module_of(lambda m, v: [m.add_instruction("reduce_sum", [v], axes=axes)], x.shape)
    lens = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    return ReductionProblem(module, axes, (tensor_of(x),), (tensor_of(np.empty(lens, np.float32)),), **fields)


def test_operands_that_do_not_lie_as_parts_need_it_are_refused():
    x = np.zeros((3, 8, 40), np.float32)
    with pytest.raises(UnsupportedError, match=r"axes \[0, 1\] are not walked as one"):
        reduce_layout(problem_of(x.transpose(1, 0, 2), (0, 1), parts=2, cut=(0, 1), share=12))
    assert reduce_layout(problem_of(x, (0, 1), parts=2, cut=(0, 1), share=12)).share == 12
    with pytest.raises(UnsupportedError, match="4 steps do not follow one another"):
        reduce_layout(problem_of(x[:, :, :30], (0, 1), fold=4))
    with pytest.raises(UnsupportedError, match="no multiples of 4 steps"):
        reduce_layout(problem_of(x, (0, 1), parts=2, cut=(0, 1), share=14, fold=4))
    module = module_of(lambda m, v: [variance(m, v, (0,))[1]], (40, 8))
    operands = (tensor_of(np.zeros((40, 8), np.float32)),), (tensor_of(np.zeros((1, 8), np.float32)),)
    with pytest.raises(UnsupportedError, match="rows do not begin with"):
        reduce_layout(ReductionProblem(module, (0,), *operands))
