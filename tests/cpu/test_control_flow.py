"""Branches and loops on the cpu target: their bodies are compiled, and results equal those of ref."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mgx_numba as migraphx
from mgx_numba.codegen.workers import batch
from mgx_numba.errors import ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.runtime.plan import FallbackStep, Plan
from mgx_numba.targets.cpu import bodies
from mgx_numba.targets.cpu.rules import control
from mgx_numba.targets.lowering import fallback_call

from ..values import normal
from .control_models import (
    GO,
    branches,
    decoding_feeds,
    decoding_loop,
    info,
    loop,
    model_of,
    nested_loops,
    scan,
    swapping_loop,
)


def compiled(model: bytes, target: str) -> migraphx.program:
    return migraphx.parse_onnx_buffer(model).compile(migraphx.get_target(target), fast_math=False)


def checked(model: bytes, feeds: dict[str, np.ndarray]) -> list[Plan]:
    """Runs on both targets, and against ONNX Runtime if it is there; returns the plans."""
    program = compiled(model, "cpu")
    expected = [np.asarray(r) for r in compiled(model, "ref").run(feeds)]
    for _ in range(2):
        for result, wanted in zip(program.run(feeds), expected, strict=True):
            assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    try:
        import onnxruntime
    except ImportError:
        pass
    else:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        for result, wanted in zip(expected, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(result.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)
    return list(program.compiled.own_plans())


def agrees(model: bytes, feeds: dict[str, np.ndarray]) -> Plan:
    """See `checked`; returns the only plan."""
    (plan,) = checked(model, feeds)
    return plan


def hosts(plan: Plan) -> list[FallbackStep]:
    return [s for s in plan.steps if isinstance(s, FallbackStep)]


def inlined(plan: Plan, jumps: int) -> None:
    """A loop has two jumps, an if as well: kernels of bodies are steps of the plan."""
    assert not hosts(plan) and len(plan.jumps) == jumps


@pytest.mark.parametrize("ways", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_scan_step_ran_in_python(axis: int, ways: tuple[int, int]) -> None:
    lens = [2, 4]
    lens.insert(axis, 5)
    feeds = {"start": normal(2, 4), "p": normal(*lens, seed=1), "q": normal(*lens, seed=2), "bias": normal(4)}
    model = model_of([scan((axis, axis), ways, ways[1])], feeds, ["last", "rows"], w=normal(4, 4, seed=3))
    inlined(agrees(model, feeds), 2)


def test_kernels_of_a_body_are_shown() -> None:
    feeds = {"start": normal(2, 4), "p": normal(5, 2, 4, seed=1), "q": normal(5, 2, 4, seed=2), "bias": normal(4)}
    program = compiled(model_of([scan()], feeds, ["last", "rows"], w=normal(4, 4, seed=3)), "cpu")
    assert "gather_kernel" in [kernel.name for kernel in program.kernels()]


def test_a_loop_stops_by_its_condition_and_carries_scalars() -> None:
    nodes = [
        helper.make_node("Add", ["v", "step"], ["v_out"]),
        helper.make_node("Less", ["v_out", "end"], ["go_out"]),
        helper.make_node("Mul", ["v_out", "v_out"], ["scan0"]),
    ]
    for start in (np.array(0.5, np.float32), np.array([0.5], np.float32)):
        feeds = {"x": start, "step": np.array(1.5, np.float32)}
        node = loop(nodes, start.shape, ["y"], 0)
        model = model_of([node], feeds, ["y"], n=np.array(100), end=np.array(20, np.float32).reshape(start.shape))
        inlined(agrees(model, feeds), 2)


def test_a_loop_inside_of_a_loop_takes_values_of_both() -> None:
    feeds = {"x": normal(3), "k": normal(3, seed=1)}
    inlined(agrees(nested_loops(feeds), feeds), 4)


def test_a_carried_value_may_change_its_lengths() -> None:
    nodes = [GO, helper.make_node("Concat", ["v", "v"], ["v_out"], axis=0)]
    feeds = {"x": normal(2, 2)}
    node = loop(nodes, None, ["y"], 0)
    model = model_of([node], feeds, ["y"], n=np.array(3))
    program = compiled(model, "cpu")
    np.testing.assert_array_equal(program.run(feeds)[0], np.tile(feeds["x"], (8, 1)))


@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("seen", [False, True])
def test_a_cache_that_grew_had_the_length_of_the_first_iteration(trips: int, seen: bool) -> None:
    agrees(decoding_loop(trips, seen=seen), decoding_feeds(2))
    agrees(decoding_loop(None, seen=seen), decoding_feeds(2) | {"n": np.array(trips)})


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_body_that_is_read_again_had_branches_that_used_it(trips: int) -> None:
    """The carried value grows, and a branch inside of the loop multiplies it."""
    graphs = [
        helper.make_graph(
            [helper.make_node("MatMul", ["v", "w"], ["m"]), helper.make_node("Add", ["m", bias], [name])],
            name,
            [],
            [info(name, None)],
        )
        for name, bias in (("then", "one"), ("otherwise", "two"))
    ]
    nodes = [
        GO,
        helper.make_node("Equal", ["i", "zero"], ["first"]),
        helper.make_node("If", ["first"], ["new"], then_branch=graphs[0], else_branch=graphs[1]),
        helper.make_node("Concat", ["new", "x"], ["v_out"], axis=0),
    ]
    feeds = {"x": normal(2, 4)}
    constants = {"n": np.array(trips), "zero": np.array(0), "w": normal(4, 4, seed=1)}
    constants |= {"one": np.full(4, 1, np.float32), "two": np.full(4, 2, np.float32)}
    agrees(model_of([loop(nodes, None, ["y"], 0)], feeds, ["y"], **constants), feeds)


@pytest.mark.parametrize("past", [2, None])
def test_iterations_of_new_lengths_have_plans_and_compile_nothing(
    past: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoding_loop(None, past=past)
    program, reference = compiled(model, "cpu"), compiled(model, "ref")
    assert program.kernels()

    def refused(*_: object) -> None:
        raise AssertionError("compiled, or interpreted, in a run")

    monkeypatch.setattr(batch, "compile_objects", refused)
    monkeypatch.setattr(fallback_call, "evaluate_module", refused)
    for first, trips in ((2, 3), (2, 7), (2, 3)) if past else ((1, 3), (5, 2), (0, 2), (1, 4)):
        feeds = decoding_feeds(first) | {"n": np.array(trips)}
        for result, wanted in zip(program.run(feeds), reference.run(feeds), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_branches_whose_lengths_depend_on_data_are_compiled() -> None:
    """Chosen rows of ``x``, multiplied by one of two matrices."""
    graphs = [
        helper.make_graph(
            [
                helper.make_node("Compress", ["x", "chosen"], ["rows"], axis=0),
                helper.make_node("MatMul", ["rows", weight], ["m"]),
                helper.make_node("Relu", ["m"], [name]),
            ],
            name,
            [],
            [info(name, None)],
        )
        for name, weight in (("then", "w"), ("otherwise", "u"))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    chosen = np.array([True, False, True, True])
    feeds = {"c": np.array([True]), "x": normal(4, 5), "chosen": chosen}
    model = model_of([node], feeds, ["y"], w=normal(5, 3, seed=1), u=normal(5, 3, seed=2))
    for condition in (True, False):
        plans = checked(model, {**feeds, "c": np.array([condition]), "chosen": chosen ^ condition})
        assert all(plan.kernels() for plan in plans)


@pytest.mark.parametrize("other", [3, 4])
def test_branches_are_compiled(other: int) -> None:
    for condition in (True, False):
        feeds = {"c": np.array([condition]), "x": normal(4, 5)}
        if other == 3:
            inlined(agrees(branches(other, feeds), feeds), 2)
        else:  # of other lengths than the first branch's, which has a plan of its own
            assert not any(map(hosts, checked(branches(other, feeds), feeds)))


@pytest.mark.parametrize("way", ["inlined", "at once", "one by one"])
@pytest.mark.parametrize("trips", [5, 300])
def test_an_index_out_of_range_in_an_iteration_is_an_error_of_the_call(
    trips: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error named no iteration where one native function runs all iterations."""
    if way != "inlined":
        monkeypatch.setattr(control, "inline", lambda low, ins: False)
    if way == "one by one":
        monkeypatch.setattr(bodies, "may_repeat", lambda plan, carried: False)
    nodes = [GO, helper.make_node("Gather", ["t", "i"], ["row"]), helper.make_node("Add", ["v", "row"], ["v_out"])]
    last = trips - 1
    feeds: dict[str, Any] = {"x": normal(3), "t": normal(last, 3)}
    node = loop(nodes, [3], ["y"], 0)
    node.name = "decode"
    program = parse_onnx(
        onnx.load_from_string(model_of([node], feeds, ["y"], n=np.array(trips))),
        limit_max_iterations=trips,
        use_debug_symbols=True,
    )
    place = rf"^node decode: loop: iteration {last} \(from 0\) of 'decode_loop': "
    with pytest.raises(ShapeError, match=f"{place}.*gather: index {last} is out of range for axis 0 of length {last}"):
        migraphx.program.wrap(program).compile("cpu").run(feeds)
    agrees(model_of([node], {**feeds, "t": normal(4, 3)}, ["y"], n=np.array(4)), {**feeds, "t": normal(4, 3)})


@pytest.mark.parametrize("rows", [1, 3, 20000])
@pytest.mark.parametrize("trips", [0, 1, 2, 5, 1000, None])
def test_iterations_that_are_run_at_once_are_those_run_one_by_one(
    rows: int, trips: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = []
    original = bodies.repeat

    def counted(executable: Any, inputs: Any, carried: int, most: int, place: Any) -> Any:
        repeated.append(most)
        return original(executable, inputs, carried, most, place)

    monkeypatch.setattr(bodies, "repeat", counted)
    rng = np.random.default_rng(rows)
    feeds = {n: rng.random((rows, 4), np.float32) for n in ("a0", "b0", "c0", "outer")}
    parsed = parse_onnx(onnx.load_from_string(swapping_loop(rows, trips)), limit_max_iterations=1000)
    program = migraphx.program.wrap(parsed).compile("cpu", fast_math=False, num_threads=2)
    at_once = [[np.asarray(r) for r in program.run(feeds)] for _ in range(2)]
    assert repeated == ([] if trips == 0 else [1000 if trips is None else trips] * 2)
    monkeypatch.setattr(bodies, "may_repeat", lambda plan, carried: False)
    one_by_one = [np.asarray(r) for r in program.run(feeds)]
    for results in at_once:
        for result, wanted in zip(results, one_by_one, strict=True):
            np.testing.assert_array_equal(result, wanted)
    ran = len(one_by_one[4]) if trips is None else min(trips, 1000)
    assert one_by_one[4].tolist()[:2] == [0, 1][: min(ran, 2)]
    np.testing.assert_array_equal(feeds["c0"], one_by_one[2])


def test_threads_run_one_loop_at_once() -> None:
    program = compiled(swapping_loop(300, 40), "cpu")
    rng = np.random.default_rng(0)
    given = [{n: rng.random((300, 4), np.float32) for n in ("a0", "b0", "c0", "outer")} for _ in range(6)]
    wanted = [[np.array(r) for r in program.run(feeds)] for feeds in given]
    with ThreadPoolExecutor(6) as pool:
        for results, expected in zip(pool.map(program.run, given * 5), wanted * 5, strict=True):
            for result, value in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, value)
