"""Inputs copied from the host by calls, and results copied to it: in pieces, from and to pinned memory."""

from __future__ import annotations

import gc
import os
import re
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.driver.device import Device
from mgx_numba.codegen.gpu.driver.graphs import GraphInMaking, KernelNode
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.gpu.transfer import transfer, transfer_kernel
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu import host_copies
from mgx_numba.runtime.gpu.context import DeviceContext
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.runtime.gpu.host_copies import LOANS, HostParameters, HostResults
from mgx_numba.runtime.plan import TensorSpec

from ..interpreter.run import interpret
from ..running import at_once
from .device_data import PLACES, numbers, one_input, place, softmax_of_sum, wanted
from .programs import compiled, interpreter
from .test_streams import stream

LENS = (7, 33)
"""Lengths of tensors that are copied in several pieces if tensors from 256 bytes on count as large."""


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Little is large, and pieces are small."""
    monkeypatch.setattr(host_copies, "LARGE", 512)
    monkeypatch.setattr(host_copies, "ALONE", 256)
    monkeypatch.setattr(host_copies, "PIECE", 256)
    monkeypatch.setattr(host_copies, "MOST_OF_A_PIECE", 256)
    monkeypatch.setattr(host_copies, "LEAST_DONATED", 256)
    monkeypatch.setattr(host_copies, "_threads_for", lambda size: 3)
    with place(request.param):
        yield request.param


def form_of(model: Any) -> Any:
    (context,) = model.compiled.executable.idle
    return next(iter(context.forms.values()))


def close(results: list[Any], expected: list[np.ndarray]) -> None:
    assert len(results) == len(expected)
    for got, want in zip(results, expected):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_every_call_copies_its_own(where: str) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    for seed in range(4):
        x, y = numbers(seed, LENS)
        close(model.run({"x": x, "y": y}), wanted(x, y))
        close(model.run({"x": mgx.to_gpu(x), "y": y}), wanted(x, y))
    assert form_of(model).host_parameters.large and form_of(model).host_results.large


def test_what_lies_otherwise_in_memory(where: str) -> None:
    """Other strides, the same array twice, a slice, a result as input, and NaN."""
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    whole = np.stack([x, y], axis=-1)
    close(model.run({"x": whole[..., 0], "y": whole[::-1, ::-1, 1]}), wanted(x, y[::-1, ::-1]))
    close(model.run({"x": x, "y": x}), wanted(x, x))
    rows = np.concatenate([x, y])
    close(model.run({"x": rows[:7], "y": rows[3:10]}), wanted(rows[:7], rows[3:10]))
    total = model.run({"x": x, "y": y})[1]
    for _ in range(3):
        want = wanted(np.array(total), y)
        again = model.run({"x": total, "y": y})
        close(again, want)
        total = again[1]
    x[0, 0], x[1, 1], y[2, 2] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        close(model.run({"x": x, "y": y}), wanted(x, y))


@pytest.mark.parametrize(
    ("type", "lens"), [("half", (5, 77)), ("int8", (3, 5, 59)), ("double", (1, 65)), ("bool", (601,))]
)
def test_other_types_and_odd_lengths(where: str, type: str, lens: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    model = one_input(lambda main, x: [main.add_instruction(mgx.op("concat", axis=0), [x, x])], type, list(lens))
    dtype = {"half": np.float16, "int8": np.int8, "double": np.float64, "bool": np.bool_}[type]
    x = rng.integers(0, 2 if type == "bool" else 100, lens).astype(dtype)
    (got,) = model.compile("gpu").run({"x": x})
    np.testing.assert_array_equal(got, np.concatenate([x, x]))


def test_small_and_empty_ones_beside_large_ones(where: str) -> None:
    made = mgx.program()
    main = made.get_main_module()
    lens = {"a": [10, 30], "none": [0, 5], "few": [3], "b": [2, 150]}
    values = {name: main.add_parameter(name, mgx.shape(type="float", lens=own)) for name, own in lens.items()}
    results = [main.add_instruction(mgx.op("relu"), [value]) for value in values.values()]
    main.add_return(results)
    model = made.compile("gpu")
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(own).astype(np.float32) for name, own in lens.items()}
    for _ in range(2):
        for got, x in zip(model.run(given), given.values()):
            np.testing.assert_array_equal(got, np.maximum(x, 0))


def test_a_parameter_is_sent_before_the_first_step_that_has_it(where: str) -> None:
    made = mgx.program()
    main = made.get_main_module()
    x, late = (main.add_parameter(name, mgx.shape(type="float", lens=list(LENS))) for name in ("x", "late"))
    value = main.add_instruction(mgx.op("softmax", axis=0), [main.add_instruction(mgx.op("softmax", axis=1), [x])])
    main.add_return(
        [main.add_instruction(mgx.op("softmax", axis=1), [main.add_instruction(mgx.op("add"), [value, late])])]
    )
    model = made.compile("gpu")
    a, b = numbers(3, LENS)

    def softmax(v: np.ndarray, axis: int) -> np.ndarray:
        e = np.exp(v - v.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    for _ in range(2):
        close(model.run({"x": a, "late": b}), [softmax(softmax(softmax(a, 1), 0) + b, 1)])
    sends = [k for k, segment in enumerate(form_of(model).segments) if getattr(segment, "args", None)]
    assert len(sends) == 2 and sends[1] > sends[0] + 1


def test_pinned_memory_is_read_where_it_lies(where: str) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    pinned = mgx.allocate_gpu(mgx.shape(type="float", lens=list(LENS)), host=True)
    np.asarray(pinned)[...] = x
    close(model.run({"x": pinned, "y": y}), wanted(x, y))
    assert list(form_of(model).host_parameters._own) == [1]


def test_memory_that_is_not_of_the_engine_is_not_pinned(where: str) -> None:
    on = engine()
    one = on.staging(1000)
    with on.use():
        assert on.is_pinned(one) and on.is_pinned(one[10:20])
        assert not on.is_pinned(np.zeros(1000, np.uint8))


def test_memory_that_is_pinned_in_part_is_not() -> None:
    """A range across two adjacent pinned buffers is not pinned; device memory is not host memory."""
    buffers = {range(1000, 2000): (1, 1), range(2000, 3000): (1, 2), range(4000, 5000): (2, 3)}

    def asked(name: str, place: Any, attribute: int, address: Any) -> bool:
        found = next((known for own, known in buffers.items() if address.value in own), None)
        if found is not None:
            place._obj.value = found[0 if attribute == 2 else 1]  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, else BUFFER_ID
        return found is not None

    on = SimpleNamespace(driver=SimpleNamespace(succeeds=asked))
    for address, size, pinned in [
        (1000, 1000, True), (1999, 1, True), (2000, 1000, True), (1500, 1000, False), (2500, 501, False),
        (900, 200, False), (3500, 10, False), (4000, 10, False),
    ]:  # fmt: skip
        assert Device.is_pinned(on, address, size) == pinned, address  # type: ignore[arg-type]


def test_inputs_are_let_go_when_a_run_has_returned(where: str) -> None:
    """Each way of calling stores inputs separately."""
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    refs = [weakref.ref(x), weakref.ref(y)]
    model.run({"x": x, "y": y})
    model.run({"x": mgx.to_gpu(x), "y": y})
    del x, y
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.parametrize("way", ["run_traced", "time_steps"])
def test_inputs_were_kept_after_a_run_step_by_step(where: str, way: str) -> None:
    executable = softmax_of_sum(LENS).compile("gpu").compiled.executable
    given = [numbers(0, LENS)[0], numbers(1, LENS)[0]]
    refs = [weakref.ref(x) for x in given]
    if way == "run_traced":
        executable.run_traced(given, lambda *event: None)
    else:
        executable.time_steps(given)
    del given
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_results_stay_as_they_are(where: str) -> None:
    """More results than kept buffers of a size, and slices of results that outlive the results."""
    model = softmax_of_sum(LENS).compile("gpu")
    kept, parts = [], []
    for seed in range(LOANS + 4):
        x, y = numbers(seed, LENS)
        results = model.run({"x": x, "y": y})
        kept.append((results, wanted(x, y)))
        parts.append((model.run({"x": x, "y": y})[1][2:5, ::2], (x + y)[2:5, ::2]))
    for results, expected in kept:
        close(results, expected)
        results[0][...] = 7
    for got, want in parts:
        np.testing.assert_array_equal(got, want)


def test_results_that_are_dropped_leave_their_memory_to_the_next(where: str) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    places = set()
    for _ in range(20):
        results = model.run({"x": x, "y": y})
        places.add(results[0].ctypes.data)
    assert len(places) <= LOANS
    del results, model
    gc.collect()


def test_results_outlive_their_program(where: str) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    results = model.run({"x": x, "y": y})
    del model
    gc.collect()
    other = softmax_of_sum(LENS).compile("gpu")
    for seed in range(3):
        a, b = numbers(seed + 1, LENS)
        close(other.run({"x": a, "y": b}), wanted(a, b))
    close(results, wanted(x, y))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_what_a_fork_has_is_not_copied_to(where: str) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    results = [np.array(r) for r in model.run({"x": x, "y": y})]
    seen = model.run({"x": x, "y": y})
    held = [memory for large in form_of(model).host_results._large_results.values() for memory, _ in large._loans]
    assert held
    child = os.fork()
    if not child:
        os._exit(all(np.array_equal(a, b) for a, b in zip(seen, results)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    del seen
    other = [np.zeros_like(x) for _ in range(2)]
    later = [model.run({"x": other[0], "y": other[1]}) for _ in range(2)]
    assert {memory.ctypes.data for memory in held}.isdisjoint({r.ctypes.data for each in later for r in each})
    close(later[0], wanted(*other))


def test_many_runs_take_no_more_pinned_memory(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    results = [model.run({"x": x, "y": y}) for _ in range(LOANS + 2)]
    on, taken = engine(), []
    staging = on.staging
    monkeypatch.setattr(on, "staging", lambda size: taken.append(size) or staging(size))
    for _ in range(30):
        results = model.run({"x": x, "y": y})
    close(results, wanted(x, y))
    assert taken == []


def test_inputs_may_change_when_a_run_has_returned(where: str) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    expected = wanted(x, y)
    number = stream(where, 61)
    for given in (x.copy(), mgx.allocate_gpu(mgx.shape(type="float", lens=list(LENS)), host=True)):
        memory = np.asarray(given)
        memory[...] = x
        results = model.run_async({"x": given, "y": y}, number, "cudaStream_t")
        memory[...] = np.nan
        close(results, expected)


def test_threads_at_once(where: str) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    wrong: list[int] = []

    def work(seed: int) -> None:
        for k in range(4 if where == "interpreter" else 100):
            x, y = numbers(100 * seed + k, LENS)
            for got, want in zip(model.run({"x": x, "y": y}), wanted(x, y)):
                if not np.allclose(got, want, atol=1e-6):
                    wrong.append(seed)

    at_once(work, range(4))
    assert wrong == []


def test_a_program_runs_again_after_an_error(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(main: Any, indices: Any) -> list[Any]:
        data = main.add_literal(np.arange(5, dtype=np.float32))
        return [main.add_instruction(mgx.op("gather", axis=0), [data, indices])]

    model = one_input(gathered, "int64", [200]).compile("gpu")
    right = np.arange(200) % 5
    wrong = right.copy()
    wrong[77] = 7
    for _ in range(3):
        with pytest.raises(ShapeError, match="^gather.*index 7 is out of range"):
            model.run({"x": wrong})
        close(model.run({"x": right}), [right.astype(np.float32)])

    def fail(*arguments: Any) -> None:
        raise MemoryError("no memory for pieces")

    for name in ("_starts", "_Piece"):
        model = one_input(gathered, "int64", [200]).compile("gpu")
        held = []
        for _ in range(LOANS + 2):
            with monkeypatch.context() as meanwhile:
                meanwhile.setattr(host_copies, name, fail)
                with pytest.raises(MemoryError, match="no memory for pieces"):
                    model.run({"x": right})
            held.append(model.run({"x": right}))
            close(held[-1], [right.astype(np.float32)])


def test_an_index_of_a_run_that_failed_is_not_told_of_the_next(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(main: Any, indices: Any) -> list[Any]:
        data = main.add_literal(np.arange(5, dtype=np.float32))
        found = main.add_instruction(mgx.op("gather", axis=0), [data, indices])
        return [found, main.add_instruction(mgx.op("nonzero"), [found])]

    def fail(context: DeviceContext, step: Any, queue: Any) -> None:
        raise MemoryError("no memory for a fallback step")

    model = one_input(gathered, "int64", [200]).compile("gpu")
    right = np.arange(200) % 5
    model.run({"x": right})
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(DeviceContext, "_run_fallback_step", fail)
        with pytest.raises(MemoryError, match="fallback step"):
            model.run({"x": right + 5})
    np.testing.assert_array_equal(model.run({"x": right})[0], right.astype(np.float32))
    with pytest.raises(ZeroDivisionError):
        model.compiled.observe({"x": right + 5}, lambda step: 1 / 0)
    np.testing.assert_array_equal(model.run({"x": right})[0], right.astype(np.float32))


def test_traces_and_times_of_steps(where: str) -> None:
    model = softmax_of_sum(LENS).compile("gpu")
    x, y = numbers(0, LENS)
    seen = []
    results = model.compiled.observe({"x": x, "y": y}, lambda step: seen.append(step.outputs()))
    close(results, wanted(x, y))
    assert seen and len(model.compiled.step_seconds({"x": x, "y": y})) == len(seen)


def test_how_much_is_large() -> None:
    on = interpreter()
    parameters = HostParameters(on, [host_copies.LARGE, 3, host_copies.ALONE, 0])
    assert parameters.large == [0, 2]
    assert all(address % 256 == 0 for address in parameters.addresses)
    assert HostParameters(on, [host_copies.ALONE, 3]).large == []
    results = HostResults(on, [host_copies.ALONE, 12])
    assert results.large == []
    queue = on.queue()
    queue.upload(results.addresses[1], np.arange(3, dtype=np.int32))
    results.download(queue)
    queue.wait()
    np.testing.assert_array_equal(results.result(1, TensorSpec("int32", (3,))), np.arange(3))


@pytest.mark.parametrize("size", [16, 4096, 4112, 9 * 4096 - 16])
def test_a_kernel_copies_whole_vectors(size: int) -> None:
    on = interpreter()
    source, target = (on.allocate(size, name) for name in ("source", "target"))
    given = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
    on.memory.find(source)[0].data[:] = given
    words, grid = transfer(target, source, size)
    interpret(transfer_kernel(), words.tolist(), grid, on.memory)
    np.testing.assert_array_equal(on.memory.find(target)[0].data, given)


@pytest.mark.parametrize("name", ["sm_75", "sm_90a", "sm_120a"])
def test_the_kernel_that_copies_moves_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    text = assembly(transfer_kernel(), ARCHITECTURES[name])
    assert re.findall(r"(ld|st)\.global\.(?:v4\.b32|v2\.b64)", text) == ["ld", "st"]
    assert ("griddepcontrol.wait" in text) == ARCHITECTURES[name].overlaps


class Driver:
    """Notes the functions that are called."""

    def __init__(self) -> None:
        self.library = SimpleNamespace(cuGraphAddDependencies_v2=None)
        self.names: list[str] = []

    def call(self, name: str, *rest: Any) -> None:
        self.names.append(name)

    def bound(self, name: str) -> Any:
        return lambda *rest: self.names.append(name)


def test_kernels_that_copy_are_not_counted_and_overlap() -> None:
    driver = Driver()
    making = GraphInMaking(SimpleNamespace(driver=driver, context=None), overlaps=True)
    nodes = []
    for k in range(3):
        words, grid = transfer(16, 32, 48)
        nodes.append(KernelNode.of(k, words, grid, 0))
    making.transfer(nodes[0])
    making.kernel(nodes[1])
    making.transfer(nodes[2])
    add, edge = "cuGraphAddKernelNode_v2", "cuGraphAddDependencies_v2"
    assert driver.names[1:] == [add, add, edge, add, edge]
    assert [parameters for _, parameters in making._updatable_nodes] == [nodes[1]]


def test_fallback_steps_of_empty_tensors_touch_no_memory() -> None:
    """The place of such a tensor may be the end of the arena, which is no address of its memory."""
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(Type.float_type, (0, 5, 33)))
    y = m.add_parameter("y", Shape(Type.float_type, (0, 17, 3)))
    picked = m.add_instruction("gather", [x, m.add_literal(np.zeros(0, np.int64))], axis=0)
    zeros = [m.add_literal(np.zeros((0, n, 33), np.float32)) for n in (2, 5)]
    wide = m.add_instruction("concat", [*zeros, picked, x], axis=1)
    weights = m.add_instruction("multibroadcast", [m.add_literal(np.ones((1, 33, 3), np.float32))], out_lens=(0, 33, 3))
    product = m.add_instruction("exp", [m.add_instruction("dot", [wide, weights])])
    few = m.add_instruction("slice", [picked], axes=[1], starts=[0], ends=[3])
    m.add_return([few, m.add_instruction("max", [product, y])])
    feeds = {"x": np.zeros((0, 5, 33), np.float32), "y": np.zeros((0, 17, 3), np.float32)}
    found = compiled(program, interpreter()).run(feeds)
    assert [np.asarray(result).shape for result in found] == [(0, 3, 33), (0, 17, 3)]
