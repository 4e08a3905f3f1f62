"""Branches and loops on the gpu target: their bodies are device plans, and no data leaves the device between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mgx_numba.core.device_array import DeviceArray
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.ops import control as operators
from mgx_numba.runtime.gpu.data_dependent import DataDependentBody, DataDependentLoop
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.gpu.transfers import to_device, to_host
from mgx_numba.runtime.plan import ControlStep, FallbackStep, Plan
from mgx_numba.targets.gpu.program import DynamicGpuProgram, GpuProgram, compile_program
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.registry import compile_for

from ..cpu.agreement import assert_agrees, reference
from ..cpu.control_models import (
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
from ..values import normal
from .programs import compiled, downloads, interpreter


def parsed(model: bytes, most: int = 10) -> Program:
    return parse_onnx(onnx.load_from_string(model), limit_max_iterations=most)


def agrees(model: bytes, feeds: dict[str, np.ndarray], on: Engine, most: int = 10) -> Plan:
    """Check twice that results equal ref's; return the plan."""
    program = parsed(model, most)
    net = compiled(program, on)
    for _ in range(2):
        assert_agrees(net.run(feeds), reference(parsed(model, most), feeds))
    return plan_of(net)


def plan_of(net: GpuProgram) -> Plan:
    assert net.executable is not None
    return net.executable.plan


def controls(plan: Plan) -> list[ControlStep]:
    """The control steps of a plan that has no fallback steps, nor have their bodies."""
    assert not [s for s in plan.steps if isinstance(s, FallbackStep)]
    found = [s for s in plan.steps if isinstance(s, ControlStep)]
    for step in found:
        for body in step.plans:
            controls(body)
    return found


def test_one_of_two_branches_runs(on: Engine) -> None:
    for condition in (True, False):
        feeds = {"c": np.array([condition]), "x": normal(4, 5)}
        (step,) = controls(agrees(branches(3, feeds), feeds, on))
        assert len(step.plans) == 2


def test_branches_of_other_lengths_run_on_the_host() -> None:
    feeds = {"c": np.array([True]), "x": normal(4, 5)}
    net = compiled(parsed(branches(4, feeds)), interpreter())
    assert any("lengths of its result are known at run time only" in why for why in net.fallback_reasons().values())


@pytest.mark.parametrize(("past", "seen"), [(2, False), (2, True), (None, True)])
def test_a_cache_that_grows_in_a_loop_has_one_plan_for_all_lengths(past: int | None, seen: bool, on: Engine) -> None:
    model = decoding_loop(None, seen=seen, past=past)
    net = compiled(parsed(model), on)
    assert net.kernels()
    for first, trips in ((2, 3), (2, 0), (2, 1)) if past else ((1, 3), (5, 2)):
        feeds = decoding_feeds(first) | {"n": np.array(trips)}
        assert_agrees(net.run(feeds), reference(parsed(model), feeds))
    for step in plan_of(net).steps if past else ():
        if isinstance(step, FallbackStep):
            assert isinstance(step.on_device, DataDependentLoop)
            body = step.on_device._body._program
            assert isinstance(body, DynamicGpuProgram)
            assert len(body.symbolic_plans) == 1 and not body.fixed_plans
            assert {k.text for k in body.kernels()} <= {k.text for k in step.kernels}


def test_a_matrix_of_one_element_entered_a_loop_as_a_vector(on: Engine) -> None:
    model = decoding_loop(None, width=1, past=None)
    net = compiled(parsed(model), on)
    for first, trips in ((1, 2), (2, 2)):
        feeds = decoding_feeds(first, 1) | {"n": np.array(trips)}
        assert_agrees(net.run(feeds), reference(parsed(model), feeds))


def test_results_whose_lengths_a_body_tells_are_in_the_order_of_the_queue() -> None:
    """Their memory is not another queue's before the work on them that comes next is done."""
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Compress", ["x", "chosen"], ["rows"], axis=0),
    ]
    x, chosen = normal(2, 3), np.array([False, True])
    program = parsed(model_of(nodes, {"x": x}, ["y", "rows"], chosen=chosen))
    engine = interpreter()
    queue = engine.queue()
    body = DataDependentBody(compile_program(program, TargetOptions(), on=engine), program.parameter_shapes())
    given = to_device(engine, x, "x")
    results = [r for r in body.run(queue, [given]) if isinstance(r, DeviceArray)]
    for result, wanted in zip(results, (-x, x[chosen]), strict=True):
        np.testing.assert_array_equal(to_host(engine, result).reshape(result.shape.lens), wanted)
    assert all(array.owner._order == queue.identity for array in (given, *results))


def test_of_a_loop_with_a_cache_conditions_are_all_that_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load_from_string(decoding_loop(6))
    body = model.graph.node[0].attribute[0].g
    body.node[0].CopyFrom(helper.make_node("Less", ["i", "end"], ["go_out"]))
    body.initializer.append(onnx.numpy_helper.from_array(np.array(1), "end"))
    feeds = decoding_feeds(2)
    engine = interpreter()
    net = compiled(parsed(model.SerializeToString()), engine, offload_copy=False)
    contraction = {name: to_device(engine, array, name) for name, array in feeds.items()}
    read = downloads(monkeypatch)
    results = net.run(contraction)
    assert set(read) <= {0, 1} and read.count(1) == 2
    wanted = reference(parsed(model.SerializeToString()), feeds)
    assert_agrees([to_host(engine, r).reshape(r.shape.lens) for r in results], wanted)


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_with_products_of_other_lengths_runs_on_the_device(condition: bool, on: Engine) -> None:
    graphs = [
        helper.make_graph(
            [
                helper.make_node("Slice", ["x", "zero", end], ["rows"]),
                helper.make_node("MatMul", ["rows", "w"], [name]),
            ],
            name,
            [],
            [info(name, None)],
        )
        for name, end in (("then", "two"), ("otherwise", "three"))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    feeds = {"c": np.array([condition]), "x": normal(4, 8)}
    constants = {"zero": np.array([0]), "two": np.array([2]), "three": np.array([3]), "w": normal(8, 8, seed=1)}
    model = model_of([node], feeds, ["y"], **constants)
    net = compiled(parsed(model), on)
    (step,) = [s for s in plan_of(net).steps if isinstance(s, FallbackStep) and s.on_device]
    assert step.kernels
    for _ in range(2):
        assert_agrees(net.run(feeds), reference(parsed(model), feeds))


@pytest.mark.parametrize("trips", [0, 1, 2, 5])
@pytest.mark.parametrize("rows", [1, 3])
def test_carried_values_take_turns(trips: int, rows: int, on: Engine) -> None:
    rng = np.random.default_rng(rows)
    feeds = {n: rng.random((rows, 4), np.float32) for n in ("a0", "b0", "c0", "outer")}
    node = onnx.load_from_string(swapping_loop(rows, trips))
    del node.graph.node[0].output[3:]  # lengths of these depend on the condition
    del node.graph.output[3:]
    body = node.graph.node[0].attribute[0].g
    del body.output[4:]
    (step,) = controls(agrees(node.SerializeToString(), feeds, on))
    assert step.control.going is not None  # type: ignore[union-attr]


def counting(scans: int, carried: Sequence[int]) -> onnx.NodeProto:
    """Adds the number of the iteration; collects sums, and numbers, which are less than a vector each."""
    nodes = [
        GO,
        helper.make_node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["v", "number"], ["v_out"]),
        helper.make_node("Mul", ["v_out", "v"], ["scan0"]),
        helper.make_node("Identity", ["number"], ["scan1"]),
    ]
    return loop(nodes, carried, ["y", "all", "numbers"][: 1 + scans], scans)


@pytest.mark.parametrize("lens", [(3,), (2, 8), (0, 4)])
@pytest.mark.parametrize("trips", [1, 4])
def test_scanned_rows_are_put_together(lens: tuple[int, ...], trips: int, on: Engine) -> None:
    feeds = {"more": normal(lens[0] + 1, *lens[1:])}
    feeds["more"][:1] = np.inf
    feeds["more"][1:2] = np.nan
    first = helper.make_node("Slice", ["more", "zero", "end"], ["x"])  # an input of length 0 is one of any length
    ends = {"zero": np.array([0]), "end": np.array([lens[0]])}
    model = model_of([first, counting(2, lens)], feeds, ["y", "all", "numbers"], n=np.array(trips), **ends)
    (step,) = controls(agrees(model, feeds, on))
    assert step.control.going is None  # type: ignore[union-attr]


@pytest.mark.parametrize("ways", [(0, 0), (1, 1)])
def test_scans_run_forwards_and_backwards(ways: tuple[int, int], on: Engine) -> None:
    feeds = {"start": normal(2, 4), "p": normal(5, 2, 4, seed=1), "q": normal(5, 2, 4, seed=2), "bias": normal(4)}
    model = model_of([scan((0, 0), ways, ways[1])], feeds, ["last", "rows"], w=normal(4, 4, seed=3))
    assert len(controls(agrees(model, feeds, on))) == 1


def test_a_loop_inside_of_a_loop_takes_values_of_both(on: Engine) -> None:
    feeds = {"x": normal(3), "k": normal(3, seed=1)}
    (step,) = controls(agrees(nested_loops(feeds), feeds, on))
    assert len(controls(step.plans[0])) == 1


def test_values_that_do_not_lie_in_a_row_are_copied_first(on: Engine) -> None:
    nodes = [
        helper.make_node("Transpose", ["x0"], ["x"], perm=[1, 0]),
        helper.make_node("Flatten", ["x0"], ["flat"], axis=0),
        helper.make_node("Slice", ["flat", "one", "two", "axis"], ["k"]),  # begins between two vectors
        loop([GO, helper.make_node("Mul", ["v", "k"], ["v_out"])], [5, 4], ["y"], 0),
    ]
    feeds = {"x0": normal(4, 5)}
    model = model_of(nodes, feeds, ["y"], n=np.array(3), one=np.array([3]), two=np.array([7]), axis=np.array([1]))
    controls(agrees(model, feeds, on))


def test_an_index_out_of_range_in_an_iteration_is_an_error_of_the_call(on: Engine) -> None:
    nodes = [GO, helper.make_node("Gather", ["t", "i"], ["row"]), helper.make_node("Add", ["v", "row"], ["v_out"])]
    feeds: dict[str, Any] = {"x": normal(3), "t": normal(4, 3)}
    net = compiled(parsed(model_of([loop(nodes, [3], ["y"], 0)], feeds, ["y"], n=np.array(5))), on)
    place = r"^node #0 \(Loop, .*\): loop: iteration 4 \(from 0\) of 'Loop_0_loop': node #1 \(Gather, .*\): "
    for _ in range(2):
        with pytest.raises(ShapeError, match=f"{place}gather: index 4 is out of range for axis 0 of length 4"):
            net.run(feeds)
    controls(agrees(model_of([loop(nodes, [3], ["y"], 0)], feeds, ["y"], n=np.array(4)), feeds, on))


def test_a_loop_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = {"x": normal(3), "n": np.array(70)}
    nodes = [GO, helper.make_node("Add", ["v", "v"], ["v_out"])]
    program = parsed(model_of([loop(nodes, [3], ["y"], 0)], feeds, ["y"]))
    monkeypatch.setattr(operators, "LONGEST", 20)
    net = compiled(program, interpreter())
    with pytest.raises(MgxError, match=r"loop: runs longer than 20 iterations \(trip count 70\)"):
        net.run(feeds)
    np.testing.assert_array_equal(net.run({**feeds, "n": np.array(20)})[0], feeds["x"] * np.float32(2**20))


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_module_that_lengths_select_is_part_of_the_plan(target: str) -> None:
    program = Program()
    choices = []
    for n in (2, 3):
        choice = program.create_module(f"dim_{n}")
        x = choice.add_parameter("x", Shape(Type.float_type, (n, 4)))
        weights = choice.add_literal(normal(4, 4, seed=n))
        choice.add_return([choice.add_instruction("dot", [x, weights])])
        choices.append(choice)
    rows = DynamicDimension(2, 4)
    output = Shape.tuple([Shape.dynamic(Type.float_type, [rows, DynamicDimension(4, 4)])])
    main = program.main
    x = main.add_parameter("x", Shape.dynamic(Type.float_type, [rows, DynamicDimension(4, 4)]))
    chosen = main.add_instruction("select_module", [x], choices, output_dyn_shapes=output)
    main.add_return([main.add_instruction("get_tuple_elem", [chosen], index=0)])
    net = compiled(program, interpreter()) if target == "gpu" else compile_for("cpu", program)
    for n in (3, 2, 3):
        feeds = {"x": normal(n, 4)}
        np.testing.assert_allclose(net.run(feeds)[0], feeds["x"] @ normal(4, 4, seed=n), rtol=1e-5, atol=1e-6)
        assert not net._for(feeds).fallback_reasons()  # type: ignore[attr-defined]
    with pytest.raises(MgxError, match=r"no submodule takes float_type \[4, 4\]"):
        net.run({"x": normal(4, 4)})


@pytest.mark.parametrize("changes", [False, True])
def test_a_condition_is_all_that_is_read_back(changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a loop of five iterations, only the condition is read back, and nothing if iterations do not change it."""
    last = helper.make_node("Less", ["i", "end"], ["go_out"]) if changes else GO
    nodes = [last, helper.make_node("Add", ["v", "v"], ["v_out"])]
    feeds = {"x": normal(3)}
    model = model_of([loop(nodes, [3], ["y"], 0)], feeds, ["y"], n=np.array(9), end=np.array(4))
    program = parsed(model if changes else model_of([loop(nodes, [3], ["y"], 0)], feeds, ["y"], n=np.array(5)))
    net = compiled(program, interpreter())
    net.run(feeds)  # records
    read = downloads(monkeypatch)
    np.testing.assert_array_equal(net.run(feeds)[0], feeds["x"] * np.float32(32))
    assert [size for size in sorted(read) if size][:-1] == [1] * (5 if changes else 0)  # and the result


def test_what_stays_on_the_device_is_given_there(on: Engine) -> None:
    feeds = {"c": np.array([True]), "x": normal(4, 5)}
    net = compiled(parsed(branches(3, feeds)), on, offload_copy=False)
    for condition in (True, False, True):
        given = {"c": np.array([condition]), "x": feeds["x"]}
        contraction = {name: to_device(on, array, name) for name, array in given.items()}
        (result,) = net.run(contraction)
        wanted = reference(parsed(branches(3, feeds)), given)
        assert_agrees([to_host(on, result).reshape(result.shape.lens)], wanted)
