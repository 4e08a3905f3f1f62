"""Programs with dynamic inputs on a device: one plan for all lengths."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.core.device_array import DeviceArray
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import IndexRangeError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.constants import DeviceConstants
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.gpu.executor import DeviceExecutable
from mgx_numba.runtime.gpu.transfers import to_device, to_host
from mgx_numba.targets.gpu.program import DynamicGpuProgram

from ..cpu.agreement import assert_agrees, reference
from ..dynamic.models import MODELS, Case, encoder
from ..interpreter.engine import InterpreterEngine
from .programs import compiled, interpreter

NEW = 3
"""Sets of lengths that are tried."""


def dynamic(case: Case, on: Engine, **options: object) -> Any:
    return compiled(parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096)), on, **options)


def small(case: Case, seed: int, count: int) -> list[dict[str, np.ndarray]]:
    """Return the smallest of twelve sets of inputs, in order of size: the interpreter takes seconds for large ones."""
    rng = np.random.default_rng(seed)
    return sorted((case.draw(rng) for _ in range(12)), key=lambda feeds: sum(a.size for a in feeds.values()))[:count]


def product(columns: int = 8) -> tuple[Program, np.ndarray]:
    """Rows of any number times a constant, and their softmax."""
    program, w = Program(), np.random.default_rng(0).standard_normal((8, columns)).astype(np.float16)
    m = program.main
    x = m.add_parameter("x", Shape.dynamic(Type.half_type, [DynamicDimension(0, 4096), 8]))
    y = m.add_instruction("dot", [x, m.add_literal(w)])
    m.add_return([m.add_instruction("softmax", [y], axis=1)])
    return program, w


def values(rows: int, w: np.ndarray, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = np.random.default_rng((rows, seed)).standard_normal((rows, 8)).astype(np.float16)
    y = x.astype(np.float64) @ w.astype(np.float64)
    e = np.exp(y - y.max(1, keepdims=True, initial=0))
    return {"x": x}, e / e.sum(1, keepdims=True)


def close(result: Any, wanted: np.ndarray) -> None:
    assert result.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(result, np.float64), wanted, atol=4e-3)


def only_executable(net: DynamicGpuProgram) -> DeviceExecutable:
    (plan,) = net.symbolic_plans
    assert plan.executable is not None and not net.fixed_plans
    return plan.executable


def at_host(engine: Engine, value: DeviceArray) -> np.ndarray:
    return to_host(engine, value).reshape(value.shape.array_lens)


def test_few_rows_or_none_of_an_open_axis_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no rows the kernel for few rows read the row before the first."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program, w = Program(), np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32)
    m = program.main
    x = m.add_parameter("x", Shape.dynamic(Type.float_type, [4, DynamicDimension(0, 4096), 5]))
    m.add_return([m.add_instruction("dot", [x, m.add_literal(np.stack([w] * 4))])])
    net = compiled(program, interpreter())
    for rows in (1, 0, 3):
        given = np.random.default_rng(rows).standard_normal((4, rows, 5)).astype(np.float32)
        np.testing.assert_allclose(net.run({"x": given})[0], given @ w, 1e-5, 1e-5)
    assert only_executable(net)


def test_the_first_run_takes_memory_that_compile_has_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    on = interpreter()
    program, w = product()
    net = compiled(program, on)
    taken: list[Any] = []
    for name in ("allocate", "staging"):
        monkeypatch.setattr(InterpreterEngine, name, lambda self, *given: taken.append(given))
    feeds, wanted = values(40, w)
    close(net.run(feeds)[0], wanted)
    assert not taken


@pytest.mark.parametrize("name", ["encoder", "decoder", "shuffle_net", "detector_head"])
def test_new_lengths_need_no_kernel_and_no_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    case, on = MODELS[name](), interpreter()
    net = dynamic(case, on)
    known = net.kernels()
    assert known
    loads: list[Any] = []
    monkeypatch.setattr(InterpreterEngine, "load", lambda self, kernels, *_: loads.append(kernels))
    for feeds in small(case, 7, NEW):
        net.stages(feeds)
    assert len(net.symbolic_plans) == 1 and not net.fixed_plans and net.kernels() == known and not loads


@pytest.mark.parametrize(
    "name",
    ["decoder", pytest.param("two_stages", marks=pytest.mark.gpu), pytest.param("encoder", marks=pytest.mark.gpu)],
)
def test_values_are_those_of_ref(name: str, on: Engine) -> None:
    case = MODELS[name]()
    net = dynamic(case, on)
    for feeds in small(case, 3, 2 if on.name == "" else 12):
        lens = {key: list(array.shape) for key, array in feeds.items()}
        assert_agrees(net.run(feeds), reference(parse_onnx(case.model, map_input_dims=lens), feeds))


def test_lengths_that_come_again_give_the_same(on: Engine) -> None:
    program, w = product()
    net = compiled(program, on)
    for run in range(4):
        for rows in (3, 40, 1, 0):
            feeds, wanted = values(rows, w, run)
            close(net.run(feeds)[0], wanted)


def test_the_same_lengths_at_other_addresses_and_with_a_larger_arena(on: Engine) -> None:
    case = MODELS["decoder"]()
    program = parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096))
    net, drawn = compiled(program, on, offload_copy=False), small(case, 2, 3)
    kept = []  # so that no memory is that of a run before
    for feeds in (drawn[0], drawn[2], drawn[0]):
        contraction = {name: to_device(on, array, name) for name, array in feeds.items()}
        results = net.run(contraction)
        into = {f"main:#output_{k}": result for k, result in enumerate(results)}
        kept.append((contraction, results))
        for _ in range(2 if feeds is drawn[2] else 1):  # the interpreter takes 2 s for each run
            assert net.run(contraction | into)[0].address == results[0].address
            assert_agrees([at_host(on, result) for result in results], reference(program, feeds))


def test_runs_of_other_lengths_follow_one_another_on_a_stream(on: Engine) -> None:
    """Argument blocks are written anew while kernels with the last ones have not run."""
    program, w = product()
    net = compiled(program, on, offload_copy=False)
    drawn = [values(rows, w) for rows in (5, 2, 33, 2, 9, 5)]
    wanted = [expected for _, expected in drawn]
    contraction = [to_device(on, feeds["x"], "x") for feeds, _ in drawn]
    results = [net.run({"x": x}, stream=0)[0] for x in contraction]
    on.synchronize()
    for result, expected in zip(results, wanted):
        close(at_host(on, result), expected)


def test_results_may_have_memory_of_the_caller_at_new_lengths(on: Engine) -> None:
    program, w = product()
    net = compiled(program, on, offload_copy=False)
    for rows in (4, 7):
        feeds, wanted = values(rows, w)
        given = to_device(on, np.zeros((rows, 8), np.float16), "result")
        (result,) = net.run({"x": to_device(on, feeds["x"], "x"), "main:#output_0": given})
        assert result.address == given.address
        close(at_host(on, result), wanted)


def test_memory_grows_with_the_largest_lengths_alone() -> None:
    case, on = MODELS["decoder"](), interpreter()
    net, drawn = dynamic(case, on, offload_copy=False), small(case, 5, 3)
    arenas = []
    for feeds in (*drawn, *drawn):
        net.run({name: to_device(on, array, name) for name, array in feeds.items()})
        (context,) = only_executable(net).idle
        arenas.append(context._memory.arena)
    sizes = [arena.size for arena in arenas]
    assert sizes == sorted(sizes) and all(arena is arenas[2] for arena in arenas[2:])


def test_weights_are_on_a_device_once_whatever_the_lengths() -> None:
    case, rng = encoder(2, 32, 16), np.random.default_rng(1)
    on = interpreter()
    net = dynamic(case, on)
    weights = {p.address for p in only_executable(net).constants}
    for _ in range(2):
        feeds = case.draw(rng)
        made = only_executable(net).at([feeds[p.name] for p in only_executable(net).plan.parameters])
        assert {p.address for p in made.constants} == weights


def test_lengths_beyond_a_range_are_refused() -> None:
    net = compiled(product()[0], interpreter())
    with pytest.raises(ShapeError, match="does not serve the lengths of x"):
        only_executable(net).run([np.zeros((4097, 8), np.float16)])


def test_an_index_out_of_range_names_the_length_of_the_run(on: Engine) -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2]),
        helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ["k"]),
    ]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["k", 2])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)]
    )
    net = compiled(parse_onnx(model.SerializeToString(), default_dyn_dim_value=DynamicDimension(0, 100)), on)
    for _ in range(3):
        for length in (5, 3):
            feeds = {"x": np.ones((length, 2), np.float32), "i": np.array([0, length])}
            with pytest.raises(
                IndexRangeError, match=rf"index {length} is out of range for axis 0 of length {length}$"
            ):
                net.run(feeds)
            np.testing.assert_array_equal(net.run(feeds | {"i": np.array([1, -1])})[0], np.ones((2, 2), np.float32))


def test_steps_are_observed_with_the_numbers_of_the_lengths(on: Engine) -> None:
    program, w = product()
    net = compiled(program, on)
    for rows in (3, 17):
        feeds, wanted = values(rows, w)
        seen: list[Any] = []
        close(net.observe(feeds, seen.append)[0], wanted)
        (stage,) = net.stages(feeds)
        assert stage.plan is not None and len(stage.plan.steps) == len(seen) == len(net.step_seconds(feeds))
        assert f"{{{rows}, 8}}" in seen[-1].instruction and seen[-1].outputs()[0].shape == (rows, 8)


def test_constants_are_on_a_device_once_as_long_as_they_live(on: Engine) -> None:
    constants = DeviceConstants(on)
    a, b = np.arange(100, dtype=np.float32), np.arange(7)
    first = constants.placed([a, b, np.empty(0)])
    again = constants.placed([b, a, a[:50], a.reshape(10, 10)])
    assert [p.address for p in again[:2]] == [first[1].address, first[0].address]
    assert again[3].address == first[0].address
    assert len({p.address for p in (*first[:2], again[2])}) == 3
    del a, first, again
    gc.collect()
    c = np.arange(100, dtype=np.float32) + 1  # may lie where the first one did
    (contraction,) = constants.placed([c])
    got = np.empty(100, np.float32)
    with on.use():
        queue = on.queue(0)
        queue.download(got, contraction.address)
        queue.wait()
    assert np.array_equal(got, c)


def test_two_arrays_of_one_memory_each_have_a_place(on: Engine) -> None:
    memory = np.arange(8, dtype=np.float32).tobytes()
    arrays = [np.frombuffer(memory, np.float32), np.frombuffer(memory, np.float32), np.ones(4, np.float32)]
    for array, contraction in zip(arrays, DeviceConstants(on).placed(arrays), strict=True):
        got = np.empty_like(array)
        with on.use():
            queue = on.queue(0)
            queue.download(got, contraction.address)
            queue.wait()
        assert np.array_equal(got, array)
