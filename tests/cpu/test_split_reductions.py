"""Reductions split into parts, and columns with accumulators in memory, against ref."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from mgx_numba.codegen.cpu.cluster.reduce import reduce_launch
from mgx_numba.codegen.problems.cluster import ReductionProblem
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import run_passes
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..codegen.launching import run_launch, tensor_of
from ..values import normal
from .programs import FUSION, check, compile_and_run, program_of
from .test_clusters import broadcast, softmax

data = functools.partial(normal, scale=3)

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")
NAMES = "reduce_sum reduce_mean reduce_max reduce_min reduce_prod".split()


@pytest.fixture(autouse=True)
def small_tensors_count_as_large(given_machine):
    given_machine(last_cache_bytes=0, reduced_part_elements=2, reduced_share=2, repeated_elements=2)


def launches(build, *arrays):
    """Return the number of steps in the plan for two threads."""
    program = program_of(arrays, build)
    options = TargetOptions(fast_math=False, num_threads=2)
    run_passes(program, list(FUSION), pass_options(options), validate=True)
    return len(lower(program, options).steps)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lens", "axes"),
    [
        ((7001,), (0,)),
        ((1, 33), (1,)),
        ((67, 259), (0, 1)),
        ((3, 1111), (1,)),
        ((130, 5), (0,)),
        ((37, 150), (0,)),
        ((29, 1030), (0,)),
        ((3, 17, 300), (1,)),
        ((3, 17, 300), (0, 2)),
        ((5, 6, 7, 260), (0, 2)),
        ((2, 3, 400), (0, 1)),
    ],
)
def test_lengths(name, lens, axes):
    x = data(*lens) * 0.2 if name == "reduce_prod" else data(*lens)
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=axes))


def test_whole_tensors_take_two_launches():
    assert (
        launches(lambda m, p: m.add_instruction("tanh", [m.add_instruction("reduce_sum", p, axes=[0])]), data(7001))
        == 2
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lens", "axes"),
    [
        ((3000, 3), (0,)),
        ((4, 500, 3), (1,)),
        ((40, 60, 5), (1,)),
        ((20, 300, 2, 2), (1,)),
        ((30, 20, 1, 7), (0, 1)),
        ((1009, 3), (0,)),
        ((6, 50, 2, 70), (0, 1)),
    ],
)
def test_few_columns(name, lens, axes):
    x = np.random.default_rng(3).integers(0, 5, lens)
    x = (x % 3 + 7 * x // 5) * (0.1 if name == "reduce_prod" else 1)
    check([x.astype(np.float32)], lambda m, p: m.add_instruction(name, [p[0]], axes=axes))
    arrays = [data(*lens), data(*lens, seed=1)]

    def build(m, p):
        return m.add_instruction("sqrt", [m.add_instruction(name, [m.add_instruction("mul", p)], axes=axes)])

    check(arrays, build, rtol=1e-4)


def test_short_columns_stay_one_launch():
    """A second one would read nearly as much as the first."""
    for lens, count in (((100, 24, 3), 1), ((100, 320, 3), 2)):
        assert launches(lambda m, p: m.add_instruction("reduce_sum", p, axes=[1]), data(*lens)) == count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("lens", "axes"), [((4099,), (0,)), ((37, 150), (0,)), ((5, 300), (1,))])
def test_nan_and_infinity(name, lens, axes):
    x = np.where(np.random.default_rng(1).random(lens) < 0.01, np.inf, data(*lens)).astype(np.float32)
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=axes))
    x.reshape(-1)[77] = np.nan
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=axes))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.int8, np.uint8, np.int64])
@pytest.mark.parametrize("name", NAMES[:-1])
@pytest.mark.parametrize("lens", [(997,), (31, 260)])
def test_element_types(name, dtype, lens):
    x = np.random.default_rng(2).integers(0, 5, lens).astype(dtype)
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[0]), rtol=1e-3)


@pytest.mark.parametrize("name", ["reduce_any", "reduce_all"])
@pytest.mark.parametrize("lens", [(997,), (31, 260)])
def test_booleans(name, lens):
    x = np.random.default_rng(2).random(lens) < (0.001 if name == "reduce_any" else 0.99)
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[0]))


@pytest.mark.parametrize(("lens", "axes"), [((2, 999), (1,)), ((41, 300), (0,)), ((3, 5, 260), (0, 1))])
def test_what_surrounds_reductions_is_fused(lens, axes):
    """Rows and columns as operands, several reductions of one pass, and row values after them."""
    reduced = tuple(1 if a in axes else n for a, n in enumerate(lens))

    def build(m, p):
        shifted = m.add_instruction("sub", [p[0], broadcast(m, p[1], lens)])
        total = m.add_instruction("reduce_mean", [m.add_instruction("mul", [shifted, p[2]])], axes=axes)
        top = m.add_instruction("reduce_max", [shifted], axes=axes)
        half = broadcast(m, m.add_literal(np.array([0.3], np.float32)), reduced)
        scaled = m.add_instruction("mul", [m.add_instruction("add", [total, p[1]]), half])
        return m.add_instruction("tanh", [m.add_instruction("add", [top, scaled])])

    arrays = [data(*lens), data(*reduced, seed=1), data(*lens, seed=2)]
    check(arrays, build)


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize(("lens", "axis"), [((1, 4099), 1), ((2311,), 0), ((70, 3), 0)])
def test_softmax_of_one_row(lens, axis, fast_math):
    check([data(*lens)], lambda m, p: softmax(m, p[0], axis, lens), fast_math=fast_math, num_threads=8)


@pytest.mark.parametrize("lens", [(1, 4099), (1, 3, 700)])
def test_layer_norm_of_one_row(lens):
    axes, row = tuple(range(1, len(lens))), (1,) * len(lens)

    def build(m, p):
        mean = broadcast(m, m.add_instruction("reduce_mean", [p[0]], axes=axes), lens)
        centered = m.add_instruction("sub", [p[0], mean])
        variance = m.add_instruction("reduce_mean", [m.add_instruction("mul", [centered, centered])], axes=axes)
        small = broadcast(m, m.add_literal(np.array([1e-5], np.float32)), row)
        scale = m.add_instruction("rsqrt", [m.add_instruction("add", [variance, small])])
        normal = m.add_instruction("mul", [centered, broadcast(m, scale, lens)])
        return [m.add_instruction("mul", [normal, p[1]]), variance, mean]

    arrays = [data(*lens), data(*lens, seed=1)]
    check(arrays, build, num_threads=2)
    assert launches(build, *arrays) > 4


@pytest.mark.parametrize("lens", [(1, 500, 3), (4, 500, 1), (1, 1, 3)])
def test_repeated_operands_before_others(lens):
    """The order in memory is that of an operand that is not repeated, whichever comes first."""

    def build(m, p):
        return m.add_instruction(
            "reduce_sum", [m.add_instruction("mul", [broadcast(m, p[0], (4, 500, 3)), p[1]])], axes=[1]
        )

    check([data(*lens), data(4, 500, 3, seed=1)], build)


@pytest.mark.parametrize(("lens", "axis"), [((1, 20, 300), 1), ((4, 200, 1), 1), ((40, 1, 1), 2)])
def test_softmax_of_repeated_operands(lens, axis):
    full = (40 if lens[0] != 4 else 4, lens[1] if lens[1] > 1 else 20, 300)
    check([data(*lens)], lambda m, p: softmax(m, broadcast(m, p[0], full), axis, full))


@pytest.mark.parametrize(("lens", "axis"), [((37, 300), 0), ((3, 1111), 1)])
def test_reductions_of_repeated_reductions(lens, axis):
    """Nothing of the full lengths is left after the first reduction."""

    def build(m, p):
        mean = m.add_instruction("reduce_mean", [m.add_instruction("mul", p)], axes=[axis])
        return m.add_instruction("reduce_sum", [m.add_instruction("tanh", [broadcast(m, mean, lens)])], axes=[axis])

    check([data(*lens), data(*lens, seed=1)], build, num_threads=8)


def test_elements_as_results_beside_column_sums():
    x = data(37, 300)
    module = Module("cluster")
    parameter = module.add_parameter("x0", Shape(Type.float_type, x.shape))
    square = module.add_instruction("mul", [parameter, parameter])
    module.add_return([square, module.add_instruction("reduce_sum", [square], axes=(0,))])
    squares, sums = np.zeros_like(x), np.zeros((1, 300), np.float32)
    launch = reduce_launch(ReductionProblem(module, (0,), (tensor_of(x),), (tensor_of(squares), tensor_of(sums))))
    run_launch(launch, {"x0": x, "out0": squares, "out1": sums})
    np.testing.assert_array_equal(squares, x * x)
    np.testing.assert_allclose(sums, (x * x).sum(0, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("permutation", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2)])
def test_transposed_and_sliced_operands(permutation, axes):
    def build(m, p):
        x = m.add_instruction("slice", [p[0]], axes=[0, 2], starts=[1, 3], ends=[12, 290])
        x = m.add_instruction("transpose", [x], permutation=permutation)
        return m.add_instruction("reduce_mean", [x], axes=axes)

    check([data(13, 9, 300)], build)


def test_results_do_not_depend_on_threads():
    x = data(3, 70001)
    program = program_of([x], lambda m, p: m.add_instruction("reduce_sum", [p[0]], axes=[1]))
    one, four = (compile_and_run(program, [x], num_threads=n)[0][0] for n in (1, 4))
    assert np.array_equal(one, four)
