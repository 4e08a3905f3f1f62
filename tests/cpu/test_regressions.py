"""Bugs that were found and fixed, each with the program that showed it."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.errors import MgxError
from mgx_numba.graph.passes import run_passes
from mgx_numba.runtime import memory
from mgx_numba.targets.passes import PASSES

from ..values import normal
from .programs import FUSION, check, program_of
from .test_clusters import softmax

data = functools.partial(normal, scale=3)


@pytest.mark.parametrize("mode", ["max", "average"])
def test_pooling_slots_do_not_take_the_kernels_own_names(mode):
    def build(m, p):
        return m.add_instruction("pooling", [p[0]], mode=mode, lengths=[5, 5], padding=[2, 2], stride=[1, 1])

    check([data(2, 33, 9, 11)], build)


def test_float64_softmax_fits_its_stack_cache():
    check([data(4, 5000, dtype=np.float64)], lambda m, p: softmax(m, p[0], 1, (4, 5000)), rtol=1e-12)


@pytest.mark.parametrize("name", ["reduce_any", "reduce_all"])
def test_logical_reduction_of_integers(name):
    x = np.random.default_rng(1).integers(0, 2, (6, 33)).astype(np.int32)
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[1]))


def test_factor_of_a_convolution_of_integers_moves_no_tie_of_its_rounding():
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, (1, 4, 22, 22)).astype(np.float32)
    weights, bias = (rng.integers(-100, 100, lens).astype(np.float32) for lens in ((5, 4, 3, 3), (1, 5, 1, 1)))

    def build(m, p):
        wide = [m.add_literal(v) for v in (weights, bias, np.full((1, 1, 1, 1), 0.005, np.float32))]
        spread = [m.add_instruction("multibroadcast", [v], out_lens=[1, 5, 20, 20]) for v in wide[1:]]
        sums = m.add_instruction("add", [m.add_instruction("convolution", [p[0], wide[0]]), spread[0]])
        return m.add_instruction("nearbyint", [m.add_instruction("mul", [sums, spread[1]])])

    check([x], build, rtol=0, passes=("optimize_module", *FUSION))


def test_ordered_comparison_of_bools():
    a, b = (np.random.default_rng(s).random((3, 40)) < 0.5 for s in (1, 2))
    check([a, b], lambda m, p: m.add_instruction("less", [p[0], p[1]]))


def test_schedule_changes_nothing_when_run_twice():
    def build(m, p):
        parts = [m.add_instruction("neg", [m.add_instruction(name, [p[0]])]) for name in ("exp", "tanh", "sqrt")]
        return m.add_instruction("concat", parts, axis=0)

    program = program_of([data(4, 8)], build)
    run_passes(program, ["schedule"])
    once = str(program)
    run_passes(program, ["schedule"])
    assert str(program) == once


def test_results_of_ref_do_not_alias_inputs_and_literals():
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(lens=[3]))
    main.add_return([x, main.add_literal(np.ones(3, np.float32))])
    net.compile(migraphx.get_target("ref"))
    source = np.zeros(3, np.float32)
    for result in net.run({"x": source}):
        np.asarray(result)[:] = 7
    assert source.tolist() == [0, 0, 0]
    assert net.run({"x": source})[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize(
    ("name", "kernel", "ways"),
    [
        ("convolution", 5, [{"stride": [2, 2], "padding": [p, p, 2, 2]} for p in (2, 1)]),
        ("convolution", 7, [{"stride": [2, 2], "padding": [p, p, 3, 3]} for p in (3, 2)]),
        ("convolution_backwards", 3, [{"stride": [s, s]} for s in (2, 3, 1)]),
        ("convolution_backwards", 3, [{"stride": [2, 2], "dilation": [d, d]} for d in (1, 2)]),
    ],
)
def test_convolutions_that_share_weights_do_not_share_what_is_packed_otherwise(name, kernel, ways, fast_math):
    channels = 16

    def build(m, p):
        w = m.add_literal(data(channels, channels, kernel, kernel, seed=3))
        return [m.add_instruction(name, [p[0], w], **way) for way in ways]

    check([data(1, channels, 30, 29)], build, rtol=1e-4, fast_math=fast_math)


WORST = np.array([[np.inf, -np.inf, np.nan, 0], [3e38, -3e38, 1e-45, 65504], [1, -1, 2, -0.0]], np.float32)
WARNED = {
    "convert": {"target_type": "half_type"},
    "div": {},
    "dot": {},
    "sqrt": {},
    "pow": {},
    "softmax": {"axis": 1},
    "reduce_prod": {"axes": (1,)},
    "reduce_mean": {"axes": (0, 1)},
    "scatter_add": {"axis": 1},
    "lrn": {"size": 3},
    "pooling": {"mode": "lpnorm", "lengths": (2, 2)},
    "convolution_backwards": {},
    "quantizelinear": {},
}


@pytest.mark.parametrize("literals", [True, False])
@pytest.mark.parametrize("name", WARNED)
def test_constants_that_overflow_were_reported_by_numpy(name, literals):
    image = np.broadcast_to(WORST, (2, 2, 3, 4)).copy()
    inputs = {
        "div": [WORST, WORST[:, ::-1].copy()],
        "pow": [WORST, WORST[::-1].copy()],
        "dot": [WORST, WORST.T.copy()],
        "scatter_add": [WORST, np.zeros((3, 4), np.int64), WORST],
        "lrn": [image],
        "pooling": [image],
        "convolution_backwards": [image, image],
        "quantizelinear": [WORST, WORST],
    }.get(name, [WORST])

    def build(m, p):
        return m.add_instruction(name, [m.add_literal(i) for i in inputs] if literals else p, **WARNED[name])

    given = [] if literals else inputs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for target in ("ref", "cpu"):
            program = migraphx.program.wrap(program_of(given, build)).compile(migraphx.get_target(target))
            program.run({f"p{k}": a for k, a in enumerate(given)})


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("divisors", [(6, 1), (6, 40), ()], ids=["rows", "elements", "one"])
def test_fast_division_by_tiny_numbers_does_not_go_through_their_reciprocals(kind: type, divisors: tuple) -> None:
    """1 / 1e-5 overflows in float16, that of a denormal number in float32 and float64."""
    tiny = kind(1e-5) if kind is np.float16 else np.finfo(kind).smallest_subnormal * kind(3)
    d = np.full(divisors or (1,), tiny, kind)
    x = (np.random.default_rng(0).integers(0, 99, (6, 40)) * tiny).astype(kind)
    check(
        [x, d],
        lambda m, p: m.add_instruction("div", [p[0], m.add_instruction("multibroadcast", [p[1]], out_lens=(6, 40))]),
        rtol=1e-3 if kind is np.float16 else 1e-6,
        passes=PASSES,
        fast_math=True,
    )


def doubled(times, length=4):
    """A compiled program that concatenates a value with itself so many times, and its input."""

    def build(m, p):
        value = p[0]
        for _ in range(times):
            value = m.add_instruction("concat", [value, value], axis=0)
        return value

    x = np.arange(length, dtype=np.float32)
    return migraphx.program.wrap(program_of([x], build)).compile(migraphx.get_target("cpu")), {"p0": x}


def test_a_result_larger_than_any_memory_compiles_and_its_size_is_named_when_it_is_run():
    program, inputs = doubled(45)
    for _ in range(2):
        with pytest.raises(MgxError, match=rf"^run: not enough memory.* {16 << 45} bytes"):
            program.run(inputs)


def test_a_result_that_the_system_would_promise_and_not_have_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "BIG", 512)
    program, inputs = doubled(6)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1023)
    with pytest.raises(MgxError, match="results of 1024 bytes .* 1023 are available"):
        program.run(inputs)
    monkeypatch.undo()
    np.testing.assert_array_equal(program.run(inputs)[0], np.tile(inputs["p0"], 64))


def test_a_result_that_cannot_be_allocated_is_named_and_the_program_runs_on(monkeypatch):
    program, inputs = doubled(45)
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    with pytest.raises(MgxError, match=rf"^run: not enough memory for a result of {16 << 45} bytes"):
        program.run(inputs)
