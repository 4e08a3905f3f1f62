"""Means of elements whose sum overflows: they were infinite or NaN, and so were normalisations of these rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.cpu.cluster.reduce import reduce_launch
from mgx_numba.codegen.cpu.cluster.reduction_layout import reduce_layout
from mgx_numba.codegen.cpu.cluster.vectors import Strategy
from mgx_numba.codegen.problems.cluster import ReductionProblem
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.graph.module import Module
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..codegen.launching import run_launch, tensor_of
from .programs import check, compile_and_run, program_of
from .test_clusters import broadcast
from .test_streaming import layer_norm

KINDS = 8


def rows_of(kind, rows, count, rng):
    """Ordinary rows, every eighth; between them rows whose sums, or sums of squares, pass what ``kind`` holds.

    All have few bits, so that their sums are exact.
    """
    info = ml_dtypes.finfo(kind)
    x = rng.integers(-8, 8, (rows, count)).astype(kind)
    huge, root = kind(1.5 * 2.0 ** (info.maxexp - 1)), kind(1.5 * 2.0 ** (info.maxexp // 2 - 1))
    signs = rng.choice(np.array([-1, 1], kind), (rows, count))
    x[1::KINDS] = huge
    x[2::KINDS] = huge * signs[2::KINDS]
    x[3::KINDS] = np.where(np.arange(count) % 2, huge, -huge)
    x[4::KINDS] = np.where(np.arange(count) < count // 2, huge, -huge)
    x[5::KINDS] = root * signs[5::KINDS]
    x[6::KINDS] = huge
    x[6::KINDS, count // 2] = np.inf
    x[7::KINDS, count - 1] = np.nan
    return x


def along(x, lens, axes):
    """Arrange rows ``x`` as a tensor of lengths ``lens``, with each row along the reduced axes."""
    kept = [a for a in range(len(lens)) if a not in axes]
    order = [*kept, *axes]
    return np.ascontiguousarray(x.reshape([lens[a] for a in order]).transpose(np.argsort(order)))


def wanted_means(x, axes, kind):
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        squares = np.multiply(x, x, dtype=from_numpy(x.dtype).compute.numpy).astype(np.longdouble)
        return [m.mean(axes, keepdims=True).astype(kind) for m in (wide, squares)]


def two_means(m, x, axes):
    return [m.add_instruction("reduce_mean", [v], axes=axes) for v in (x, m.add_instruction("mul", [x, x]))]


def with_elements(m, x, axes):
    """Append `two_means` and expensive elementwise results after them."""
    means = two_means(m, x, axes)
    spread = broadcast(m, means[0], x.shape.lens)
    total = broadcast(m, m.add_instruction("reduce_sum", [m.add_instruction("tanh", [x])], axes=axes), x.shape.lens)
    return [*means, m.add_instruction("add", [m.add_instruction("mul", [x, total]), spread])]


CASES = [
    (two_means, (19, 12), (1,), False, Strategy.WHOLE_ROWS),
    (two_means, (19, 700), (1,), False, Strategy.ROWS),
    (two_means, (5, 19, 70), (0, 2), False, Strategy.ROWS),
    (two_means, (60, 41), (0,), False, Strategy.ROWS),
    (two_means, (3, 6, 10, 33), (1, 2), False, Strategy.ROWS),
    (with_elements, (19, 700), (1,), False, Strategy.ROWS),
    (with_elements, (9, 130), (0,), False, Strategy.ROWS),
    (two_means, (61, 300), (0,), True, Strategy.COLUMNS),
    (two_means, (7, 9, 270), (0, 1), True, Strategy.COLUMNS),
    (with_elements, (19, 2005), (1,), True, Strategy.ROW_PIPELINE),
]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("build", "lens", "axes", "past_caches", "strategy"), CASES)
def test_each_strategy(build, lens, axes, past_caches, strategy, kind, given_machine):
    given_machine(last_cache_bytes=0 if past_caches else 1 << 40)
    count = int(np.prod([lens[a] for a in axes]))
    rows = rows_of(kind, int(np.prod(lens)) // count, count, np.random.default_rng(0))
    module = Module("cluster")
    module.add_return(build(module, module.add_parameter("x0", Shape(from_numpy(np.dtype(kind)), lens)), axes))

    def run(x):
        outs = [np.zeros(r.shape.lens, kind) for r in module.results()]
        problem = ReductionProblem(module, axes, (tensor_of(x),), tuple(tensor_of(o) for o in outs))
        assert kind is np.float64 or reduce_layout(problem).strategy is strategy
        run_launch(reduce_launch(problem), {"x0": x, **{f"out{k}": o for k, o in enumerate(outs)}})
        return outs

    x = along(rows, lens, axes)
    got = run(x)
    for a, b in zip(got, wanted_means(x, axes, kind)):
        np.testing.assert_allclose(a, b, rtol=4 * np.finfo(kind).eps)
    ordinary = np.arange(len(rows)) % KINDS == 0
    alone = run(along(np.where(ordinary[:, None], rows, kind(1)), lens, axes))
    for a, b in zip(got[:2], alone):  # other sums depend on where memory lies
        kept = np.moveaxis(a - b, axes, range(-len(axes), 0)).reshape(len(rows), -1)
        np.testing.assert_array_equal(kept[ordinary], 0)


@pytest.mark.parametrize(
    ("lens", "axes"), [((3, 7001), (1,)), ((9001,), (0,)), ((67, 259), (0,)), ((3000, 3), (0,)), ((5, 7, 260), (0, 2))]
)
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_reductions_in_parts(lens, axes, kind, given_machine):
    given_machine(last_cache_bytes=0, reduced_part_elements=2, reduced_share=2, repeated_elements=2)
    count = int(np.prod([lens[a] for a in axes]))
    rows = int(np.prod(lens)) // count
    for first in range(0, KINDS, rows):
        some = rows_of(kind, rows + first, count, np.random.default_rng(0))[first:]
        x = along(some, lens, axes)
        (got,), _ = compile_and_run(
            program_of([x], lambda m, p: m.add_instruction("reduce_mean", [p[0]], axes=axes)), [x]
        )
        np.testing.assert_allclose(
            got.astype(np.float64),
            wanted_means(x, axes, kind)[0].astype(np.float64),
            rtol=4 * ml_dtypes.finfo(kind).eps,
        )


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("machine", [{}, {"last_cache_bytes": 0}, {"repeated_elements": 2, "row_part_elements": 2}])
@pytest.mark.parametrize("lens", [(3, 24), (3, 5, 64), (5, 768), (3, 9000)])
def test_layer_normalisation_is_zero(lens, machine, fast_math, given_machine):
    """The variance is infinite then: what is divided by its root is 0. That is so for any order of the elements."""
    given_machine(**machine)
    axis, rng = len(lens) - 1, np.random.default_rng(0)
    x = rng.standard_normal(lens).astype(np.float32)
    x[1] = rng.permuted(np.broadcast_to(np.tile(np.float32([3e38, -3e38]), lens[-1] // 2), lens[1:]), axis=-1)
    x[2] = np.where(np.arange(lens[-1]) % 2, 1e38, -3e38)
    optimised = check([x], lambda m, p: layer_norm(m, p[0], [axis], lens), rtol=1e-4, fast_math=fast_math)
    (got,) = Executable(lower(optimised, TargetOptions(fast_math=fast_math)), num_threads=2).run([x])
    np.testing.assert_array_equal(got[1:3], 0)


def test_a_head_from_which_other_elements_are_too_far_away(given_machine):
    """A variance in one pass is taken about the mean of a row's first elements; less that, others were infinite."""
    given_machine(last_cache_bytes=0)
    x = np.full((3, 4000), -3e38, np.float32)
    x[1, :128] = 1e38
    x[2, :128] = 3e38
    (got,), _ = compile_and_run(program_of([x], lambda m, p: layer_norm(m, p[0], [1], x.shape)), [x])
    np.testing.assert_array_equal(got[0], 0)
    np.testing.assert_array_equal(got[:, 128:], 0)
