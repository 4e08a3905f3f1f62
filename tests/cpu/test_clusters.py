"""Fused pointwise and reduction clusters on the cpu target against ref."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core.argument import Argument
from mgx_numba.runtime.plan import Region
from mgx_numba.targets.lowering import common

from ..values import normal
from .programs import broadcast, check, softmax

data = functools.partial(normal, scale=3)

SHAPES = [(1,), (7,), (33,), (4, 5), (3, 1, 17), (2, 3, 4, 65), (0,), (3, 0, 2), (1, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_chain_of_operations_is_one_kernel(shape):
    def build(m, p):
        total = m.add_instruction("add", [p[0], p[1]])
        return m.add_instruction("mul", [m.add_instruction("relu", [total]), p[0]])

    program = check([data(*shape), data(*shape, seed=1)], build)
    assert [i.name for i in program.main if not i.is_param] == ["pointwise", "@return"]


@pytest.mark.parametrize("shape", [(33,), (3, 17), (2, 3, 65)])
def test_nan_and_infinity_pass_through(shape):
    def build(m, p):
        return m.add_instruction("min", [m.add_instruction("max", [p[0], p[1]]), m.add_instruction("exp", [p[0]])])

    check([data(*shape, special=True), data(*shape, seed=1, special=True)], build)


def test_several_results_of_one_cluster():
    def build(m, p):
        total = m.add_instruction("add", [p[0], p[1]])
        return [total, m.add_instruction("tanh", [total]), m.add_instruction("mul", [total, p[1]])]

    program = check([data(5, 37), data(5, 37, seed=1)], build)
    assert sum(i.name == "pointwise" for i in program.main) == 1


@pytest.mark.parametrize("lens", [(1, 37), (5, 1), (1, 1)])
def test_broadcast_operands(lens):
    def build(m, p):
        return m.add_instruction("sub", [p[0], broadcast(m, p[1], (5, 37))])

    check([data(5, 37), data(*lens, seed=1)], build)


@pytest.mark.parametrize("permutation", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_transposed_operands(permutation):
    lens = (4, 9, 33)
    source = tuple(lens[permutation.index(a)] for a in range(3))

    def build(m, p):
        return m.add_instruction("add", [p[0], m.add_instruction("transpose", [p[1]], permutation=permutation)])

    check([data(*lens), data(*source, seed=1)], build)


def test_sliced_operands():
    def build(m, p):
        part = m.add_instruction("slice", [p[0]], axes=[1, 2], starts=[1, 2], ends=[5, 30])
        return m.add_instruction("neg", [part])

    check([data(3, 7, 33)], build)


def test_constants_inside_a_cluster():
    def build(m, p):
        half = broadcast(m, m.add_literal(np.array([0.5], np.float32)), (3, 50))
        return m.add_instruction("pow", [m.add_instruction("abs", [p[0]]), half])

    check([data(3, 50)], build)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.uint8, np.int8])
def test_element_types(dtype):
    def build(m, p):
        return m.add_instruction("add", [m.add_instruction("mul", [p[0], p[1]]), p[0]])

    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 9, (3, 41)).astype(dtype) for _ in range(2))
    check([a, b], build, rtol=1e-2 if np.dtype(dtype).itemsize == 2 else 1e-6)


@pytest.mark.parametrize("target", ["int32", "int8", "bool", "double", "half"])
def test_conversions_and_comparisons(target):
    def build(m, p):
        smaller = m.add_instruction("less", [p[0], p[1]])
        picked = m.add_instruction("where", [smaller, p[1], p[0]])
        return [smaller, m.add_instruction("convert", [picked], target_type=target)]

    check([data(3, 41), data(3, 41, seed=1)], build, rtol=1e-3)


LONG_AXES = [(lens, axis) for lens in [(3, 5, 70), (2, 33, 7), (1, 8, 300)] for axis in range(3) if lens[axis] > 1]


@pytest.mark.parametrize(("lens", "axis"), LONG_AXES)
def test_softmax_is_one_kernel_along_any_axis(lens, axis):
    program = check([data(*lens)], lambda m, p: softmax(m, p[0], axis, lens))
    assert [i.name for i in program.main if not i.is_param] == ["fused_reduce", "@return"]


def test_softmax_with_masked_entries():
    x = data(4, 37)
    x[:, 20:] = -np.inf
    check([x], lambda m, p: softmax(m, p[0], 1, (4, 37)))


@pytest.mark.parametrize("lens", [(2, 5, 64), (3, 100), (1, 2, 9000)])
def test_layer_norm_is_one_kernel(lens):
    axis, width = len(lens) - 1, lens[-1]

    def build(m, p):
        mean = broadcast(m, m.add_instruction("reduce_mean", [p[0]], axes=[axis]), lens)
        centered = m.add_instruction("sub", [p[0], mean])
        variance = m.add_instruction("reduce_mean", [m.add_instruction("mul", [centered, centered])], axes=[axis])
        small = broadcast(m, m.add_literal(np.array([1e-5], np.float32)), (*lens[:-1], 1))
        scale = m.add_instruction("rsqrt", [m.add_instruction("add", [variance, small])])
        normal = m.add_instruction("mul", [centered, broadcast(m, scale, lens)])
        gamma = m.add_instruction("broadcast", [p[1]], axis=axis, out_lens=lens)
        return m.add_instruction("mul", [normal, gamma])

    program = check([data(*lens), data(width, seed=1)], build)
    assert sum(i.name == "fused_reduce" for i in program.main) == 1


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"])
@pytest.mark.parametrize("axes", [(0,), (1,), (3,), (1, 2), (2, 3), (0, 3), (0, 1, 2, 3)])
def test_reductions_over_any_axes(name, axes):
    x = data(3, 4, 5, 37) * (0.2 if name == "reduce_prod" else 1)
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=axes))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.int8, np.uint8, np.int64])
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min"])
def test_reduction_types(name, dtype):
    x = np.random.default_rng(2).integers(0, 5, (7, 41)).astype(dtype)
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[1]), rtol=1e-3)


@pytest.mark.parametrize("name", ["reduce_any", "reduce_all"])
def test_boolean_reductions(name):
    x = np.random.default_rng(2).random((7, 41)) < 0.05
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[1]))


def test_reduction_of_channels_last_memory():
    def build(m, p):
        nhwc = m.add_instruction("layout", [p[0]], permutation=[0, 2, 3, 1])
        return m.add_instruction("reduce_mean", [nhwc], axes=[2, 3])

    check([data(2, 35, 6, 7)], build)


def test_concat_inputs_are_computed_in_place():
    def build(m, p):
        left, right = m.add_instruction("neg", [p[0]]), m.add_instruction("exp", [p[1]])
        return m.add_instruction("relu", [m.add_instruction("concat", [left, right, p[0]], axis=1)])

    check([data(2, 3, 9), data(2, 4, 9, seed=1)], build)


def test_results_that_are_parameters_constants_and_views():
    def build(m, p):
        literal = m.add_literal(np.arange(6, dtype=np.float32).reshape(2, 3))
        return [p[0], literal, m.add_instruction("transpose", [p[0]], permutation=[1, 0]), p[0]]

    check([data(4, 5)], build)


@pytest.mark.parametrize("lens", [(2, 5, 7, 8), (1, 5, 1, 8), (3, 1, 1, 1)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
@pytest.mark.parametrize("reduced", [False, True])
def test_constants_lie_in_the_order_of_what_they_meet(lens, order, reduced, monkeypatch):
    """Tables of rotary positions are transposed where PyTorch computed them by a product."""
    found = []
    own = common.in_order_of

    def noting(low, view, like):
        found.append((own(low, view, like), like))
        return found[-1][0]

    monkeypatch.setattr(common, "in_order_of", noting)
    table = np.arange(1.0, 57, dtype=np.float32).reshape(8, 7)[:, : lens[2]].T
    planes = data(8, 5, 7, seed=2).transpose(1, 2, 0)[: lens[1], : lens[2]]
    inverse = [order.index(axis) for axis in range(4)]

    def build(m, p):
        x = m.add_instruction("transpose", [p[0]], permutation=inverse)
        y = m.add_instruction("mul", [x, broadcast(m, m.add_literal(Argument.from_array(table[:, : lens[3]])), lens)])
        y = m.add_instruction(
            "add", [y, broadcast(m, m.add_literal(Argument.from_array(planes[..., : lens[3]])), lens)]
        )
        return m.add_instruction("reduce_sum", [y], axes=(3,)) if reduced else y

    check([data(*(lens[axis] for axis in order))], build)
    constants = [(view, like) for view, like in found if view.buffer.region is Region.CONSTANT]
    assert constants
    for view, like in constants:
        axes = [axis for axis in range(4) if view.lens[axis] > 1 and view.strides[axis]]
        given, wanted = (sorted(axes, key=lambda axis: -v.strides[axis]) for v in (view, like))
        assert given == wanted


@pytest.mark.parametrize("columns", [12_000, 12_345])
def test_a_softmax_of_long_rows_keeps_exponentials_in_its_result(columns):
    """Exponentials were computed twice for rows past the L1 cache: 32x30000 took 1.35 times as long. Rows are computed
    in the place of an operand, too."""
    rows = data(5, columns)
    rows[1, 3], rows[2, :7], rows[3, 5], rows[4] = np.nan, -np.inf, np.inf, -np.inf

    def build(m, p):
        x = m.add_instruction("topk", [p[0]], axis=1, k=columns)  # a value that no kernel but the softmax's computes
        x = m.add_instruction("get_tuple_elem", [x], index=0)
        return softmax(m, m.add_instruction("add", [x, x]), 1, (5, columns))

    check([rows], build)


def test_exponentials_that_are_results_too_are_kept_once():
    def build(m, p):
        top = broadcast(m, m.add_instruction("reduce_max", [p[0]], axes=[1]), (3, 9001))
        e = m.add_instruction("exp", [m.add_instruction("sub", [p[0], top])])
        total = broadcast(m, m.add_instruction("reduce_sum", [e], axes=[1]), (3, 9001))
        return [m.add_instruction("div", [e, total]), e, m.add_instruction("mul", [total, p[0]])]

    check([data(3, 9001)], build)
