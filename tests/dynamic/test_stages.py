"""Programs in which lengths depend on data: their stages, and that heavy operators behind such a length get kernels."""

from __future__ import annotations

import io

import numpy as np
import onnxruntime
import pytest

import mgx_numba as migraphx
from mgx_numba.api.program import program as public_program
from mgx_numba.core.device_array import DeviceArray
from mgx_numba.core.scope import Scope
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.graph.specialize import specialize
from mgx_numba.graph.validate import validate
from mgx_numba.runtime.gpu import executor
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.runtime.gpu.transfers import to_device, to_host
from mgx_numba.runtime.plan import Step
from mgx_numba.targets.base import stages_of
from mgx_numba.targets.data_dependent_split import split
from mgx_numba.targets.gpu.compiled import SplitGpuProgram
from mgx_numba.targets.ref.interpreter import evaluate

from ..interpreter.engine import interpreted
from ..values import normal
from .models import FLOAT, Graph, two_stages


def chosen_rows() -> Program:
    """Rows of x where y is positive, times weights; beside them x doubled."""
    g = Graph()
    where = g.op("Squeeze", g.op("NonZero", g.op("Greater", "y", g.const(np.float32(0)))), g.ints(0))
    rows = g.op("Gather", "x", where)
    product = g.op("Add", g.op("MatMul", rows, g.weights(4, 3)), g.weights(3))
    twice = g.op("Add", "x", "x")
    again = g.op("Reshape", g.op("MatMul", g.op("Transpose", product), product), g.ints(-1))
    model = g.model({"x": (FLOAT, [6, 4]), "y": (FLOAT, [6])}, [product, twice, again, where])
    return parse_onnx(model)


def test_the_stages_give_together_what_the_program_gives() -> None:
    program = chosen_rows()
    stages = split(program)
    assert stages is not None
    validate(stages.head)
    validate(stages.tail)
    assert not any(ins.name == "dot" for ins in stages.head.main)
    assert not any(ins.name == "nonzero" for ins in stages.tail.main)
    for seed in range(3):
        feeds = {"x": normal(6, 4, seed=seed), "y": normal(6, seed=seed + 9)}
        first = evaluate(stages.head, feeds)
        passed = dict(zip(stages.split_point.inputs, first[len(first) - len(stages.split_point.inputs) :], strict=True))
        tail = specialize(stages.tail, {n: a.shape for n, a in passed.items()})
        assert not any(ins.shape.is_dynamic for ins in tail.main)
        second = evaluate(tail, passed)
        together = [(first if early else second)[k] for early, k in stages.split_point.results]
        for a, b in zip(together, evaluate(program, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_program_without_lengths_that_depend_on_data_has_one_stage() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (2, 2)))
    program.main.add_return([program.main.add_instruction("dot", [x, x])])
    assert split(program) is None


def light_chain(steps: int) -> Program:
    """Elements of x that are positive, changed ``steps`` times."""
    g = Graph()
    kept = g.op(
        "Gather", "x", g.op("Squeeze", g.op("NonZero", g.op("Greater", "x", g.const(np.float32(0)))), g.ints(0))
    )
    for k in range(steps):
        kept = g.op(("Sigmoid", "Tanh", "Relu")[k % 3], kept)
    return parse_onnx(g.model({"x": (FLOAT, [50])}, [kept]))


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_several_light_operators_behind_such_a_length_take_kernels(target: str) -> None:
    """Each took a fallback step; with one or two of them a second plan does not pay."""
    assert split(light_chain(2)) is None and split(light_chain(3)) is not None
    with interpreted():
        made = public_program.wrap(light_chain(5)).compile(migraphx.get_target(target))
        for seed, shift in ((0, 0.0), (1, 0.0), (2, -9.0)):
            feeds = {"x": normal(50, seed=seed) + np.float32(shift)}
            np.testing.assert_allclose(made.run(feeds)[0], evaluate(light_chain(5), feeds)[0], rtol=1e-5)


def test_both_stages_see_one_random_number() -> None:
    """Two stages drew different seeds for one instruction."""
    program = Program()
    main = program.main
    x = main.add_parameter("x", Shape(Type.float_type, (9,)))
    like = main.add_literal(np.zeros(9, np.float32))
    noise = main.add_instruction("random_uniform", [main.add_instruction("random_seed", []), like])
    ones = main.add_literal(np.ones(9, np.float32))
    noise = main.add_instruction("add", [noise, ones])  # logarithms of numbers near 1 lose what is small
    places = main.add_instruction("nonzero", [x], use_dyn_output=True)
    chosen = main.add_instruction("gather", [noise, main.add_instruction("squeeze", [places], axes=[0])], axis=0)
    for name in ("exp", "log", "exp", "log"):
        chosen = main.add_instruction(name, [chosen])
    main.add_return([noise, chosen])
    assert split(program) is not None
    for target in ("ref", "cpu"):
        all_of, some = public_program.wrap(program).clone().compile(target).run({"x": np.float32([1, 0, 2] * 3)})
        np.testing.assert_allclose(np.asarray(some), np.asarray(all_of)[[0, 2, 3, 5, 6, 8]], rtol=1e-5)


@pytest.mark.parametrize("none", [False, True])
@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_products_of_chosen_rows_take_kernels(target: str, none: bool) -> None:
    with interpreted():
        check_products_of_chosen_rows(target, none)


def check_products_of_chosen_rows(target: str, none: bool) -> None:
    program = public_program.wrap(chosen_rows())
    reference = program.clone().compile("ref")
    program.compile(target, fast_math=False)
    for seed in range(4):
        y = normal(6, seed=seed + 3)
        feeds = {"x": normal(6, 4, seed=seed), "y": -np.abs(y) if none else y}
        for result, wanted in zip(program.run(feeds), reference.run(feeds), strict=True):
            a, b = np.asarray(result), np.asarray(wanted)
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    compiled = program.compiled
    assert compiled is not None
    labels: list[str] = []
    compiled.observe(feeds, lambda seen: labels.append(seen.label))
    assert none or any("gemm" in label or "gemv" in label for label in labels)
    out = io.StringIO()
    compiled.trace(feeds, 1, out)
    assert "nonzero" in out.getvalue()
    compiled.idle(feeds)
    assert len(stages_of(compiled, feeds)) == 2 and compiled.kernels()
    # The CPU's kernel counts what it finds; the device's host does this.
    assert ("cpu::nonzero_kernel" if target == "cpu" else "ref::nonzero") in labels
    assert any("nonzero" in line for line in compiled.fallback_reasons()) == (target == "gpu")
    assert compiled.rewrite_log()


def test_what_the_stages_of_a_device_hand_on_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "TIMED_REPEATS", 1)
    feeds = {"x": normal(6, 4), "y": normal(6, seed=3)}
    wanted = evaluate(chosen_rows(), feeds)
    with interpreted():
        program = public_program.wrap(chosen_rows()).compile("gpu", fast_math=False, offload_copy=False)
        compiled = program.compiled
        assert isinstance(compiled, SplitGpuProgram) and compiled.entry() is None and not compiled.output_parameters()
        given = {name: to_device(engine(), value, "an input") for name, value in feeds.items()}
        for inputs in (feeds, given):
            found = compiled.run(inputs)
            assert all(isinstance(r, DeviceArray) for r in found)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(to_host(engine(), a).reshape(b.shape), b, rtol=1e-4, atol=1e-5)
        assert len(compiled.step_seconds(feeds)) == len(
            [s for stage in compiled.stages(feeds) for s in stage.plan.steps]
        )


def test_regions_that_a_detector_chose_were_pooled_in_host_steps() -> None:
    case = two_stages()
    program = public_program.wrap(parse_onnx(case.model)).compile("cpu")
    feeds = case.draw(np.random.default_rng(4))
    program.run(feeds)
    compiled = program.compiled
    assert compiled is not None
    plans = compiled.own_plans()  # type: ignore[attr-defined]
    assert len(plans) == 2
    assert sum(isinstance(step, Step) for step in plans[1].steps) >= len(plans[1].steps) - 1


def test_a_run_that_finds_nothing_needs_no_further_plan() -> None:
    """Reductions over the found rows, and products that sum over them, asked for at least one."""
    g = Graph()
    where = g.op("Transpose", g.op("NonZero", g.op("Greater", "y", g.const(np.float32(0)))), perm=[1, 0])
    boxes = g.op("GatherND", "x", where)
    most = g.op("ReduceMax", boxes, keepdims=0)
    total = g.op("Sqrt", g.op("ReduceSum", g.op("Mul", boxes, boxes), g.ints(0)))
    alike = g.op("Softmax", g.op("MatMul", boxes, g.op("Transpose", boxes)))
    results = [g.op("Add", boxes, most), most, total, g.op("Softmax", boxes, axis=0), g.op("MatMul", alike, boxes)]
    model = g.model({"x": (FLOAT, ["n", 4]), "y": (FLOAT, ["n"])}, results)
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    plans = len(compiled.open_plans())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows, least in ((6, 0.0), (6, -9.0), (1, -9.0), (0, 0.0), (40, 0.0)):
        feeds = {"x": normal(rows, 4), "y": normal(rows, seed=1).clip(-3, 3) + np.float32(least)}
        for mine, theirs in zip(compiled.run(feeds), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(np.asarray(mine), theirs, rtol=1e-5, atol=1e-6)
    assert len(compiled.open_plans()) == plans


def test_readers_of_known_lengths_beside_counted_ones_stay_behind_them() -> None:
    """The form that counts came after those readers of its results whose lengths are known before a run."""
    g = Graph()
    values, _, places, counts = g.op("Unique", "x", outputs=4)
    results = [g.op("Add", values, values), g.op("Reshape", places, g.ints(4, 3)), g.op("Add", counts, counts)]
    program = parse_onnx(g.model({"x": (FLOAT, [12])}, results))
    stages = split(program, on_host=True)
    assert stages is not None
    validate(stages.head)
    made = public_program.wrap(program)
    made.compile("cpu")
    x = np.round(normal(12) * 2)
    values, places, counts = np.unique(x, return_inverse=True, return_counts=True)
    for found, expected in zip(made.run({"x": x}), (values * 2, places.reshape(4, 3), counts * 2), strict=True):
        np.testing.assert_array_equal(np.asarray(found), expected)


def test_an_attempt_at_a_second_stage_leaves_no_symbols_behind() -> None:
    """The one plan then asked runs for lengths of the second stage's inputs, which they do not have."""
    scope = Scope()
    n = scope.symbol("n", 1, 100)
    with pytest.raises(MgxError), scope.tentative():
        m = scope.symbol("m", 1, 100)
        assert m < n * 2 and scope.guards
        raise MgxError("no second stage")
    assert scope.symbols == [n] and not scope.guards
    with scope.tentative():
        scope.symbol("k", 1, 100, hint=7)
    assert [scope.value(s) for s in scope.symbols] == [16, 7]
