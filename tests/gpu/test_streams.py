"""Runs ordered by streams, on the interpreter (which runs nothing before a wait) and on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.errors import ParameterError, ShapeError
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.runtime.gpu.executor import MOST_CONTEXTS

from ..interpreter.engine import interpreted
from ..running import at_once
from .device_data import Interfaced, close, numbers, one_input, softmax_of_sum, wanted

RUNS = {"interpreter": 5, "device": 250}
"""Runs of each of four threads."""


def stream(where: str, number: int) -> int:
    """The handle of a stream of its own, which lives as long as the process."""
    if where == "interpreter":
        return number
    from ctypes import byref, c_uint, c_void_p

    on, made = engine(), c_void_p()
    with on.use():
        on.driver.call("cuStreamCreate", byref(made), c_uint(1))  # type: ignore[attr-defined]
    assert made.value is not None
    return made.value


def test_a_run_in_a_stream_is_done_when_somebody_waits() -> None:
    with interpreted():
        model = softmax_of_sum().compile("gpu", offload_copy=False)
        x, y = numbers(0)
        feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
        memory = mgx.allocate_gpu(model.get_parameter_shapes()["main:#output_1"])
        view, at = engine().memory.find(memory.data_ptr())  # type: ignore[attr-defined]
        before = view.data[at : at + x.nbytes].tobytes()
        model.run_async({**feed, "main:#output_1": memory}, 5, "cudaStream_t")
        assert view.data[at : at + x.nbytes].tobytes() == before
        mgx.gpu_sync()
        assert view.data[at : at + x.nbytes].tobytes() == (x + y).tobytes()


def test_runs_of_one_stream_follow_one_another(where: str) -> None:
    double = one_input(lambda main, x: [main.add_instruction(mgx.op("add"), [x, x])], "float", [3, 5])
    double.compile("gpu", offload_copy=False)
    x = numbers(0)[0]
    number, value = stream(where, 4), mgx.to_gpu(x)
    for _ in range(5):
        (value,) = double.run_async({"x": value}, number, "cudaStream_t")
    close([value], [32 * x])


def test_a_run_follows_what_another_stream_still_has_to_write(where: str) -> None:
    """A result knows its stream, also by way of another library."""
    double = one_input(lambda main, x: [main.add_instruction(mgx.op("add"), [x, x])], "float", [3, 5])
    double.compile("gpu", offload_copy=False)
    x = numbers(0)[0]
    for number in range(3):
        (value,) = double.run_async({"x": mgx.to_gpu(x)}, stream(where, 2 * number + 2), "cudaStream_t")
        other = stream(where, 2 * number + 3)
        for given in (value, Interfaced(value, value._value.stream)):
            (second,) = double.run_async({"x": given}, other, "cudaStream_t")
            close([second, *double.run({"x": value})], [4 * x, 4 * x])


def test_memory_that_a_run_writes_knows_its_stream(where: str) -> None:
    double = one_input(lambda main, x: [main.add_instruction(mgx.op("add"), [x, x])], "float", [3, 5])
    double.compile("gpu", offload_copy=False)
    x, memory = numbers(0)[0], mgx.allocate_gpu(mgx.shape(lens=[3, 5]))
    double.run_async({"x": mgx.to_gpu(x), "main:#output_0": memory}, stream(where, 21), "cudaStream_t")
    close(double.run({"x": memory}), [4 * x])
    assert memory._value.stream is not None
    double.run({"x": mgx.to_gpu(x), "main:#output_0": memory})
    assert memory._value.stream is None


def test_dlpack_orders_the_consumers_stream(where: str) -> None:
    double = one_input(lambda main, x: [main.add_instruction(mgx.op("add"), [x, x])], "float", [64, 64])
    double.compile("gpu", offload_copy=False)
    x = numbers(0, (64, 64))[0]
    made, used = stream(where, 11), stream(where, 12)
    (value,) = double.run_async({"x": mgx.to_gpu(x)}, made, "cudaStream_t")
    capsule = value.__dlpack__(stream=used)
    on, back = engine(), np.empty_like(x)
    with on.use():
        queue = on.queue(used)
        queue.download(back, value.data_ptr())
        queue.wait()
    np.testing.assert_array_equal(back, 2 * x)
    del capsule


def test_results_for_the_host_are_complete(where: str) -> None:
    model = softmax_of_sum().compile("gpu")
    x, y = numbers(0)
    for feed in ({"x": x, "y": y}, {"x": mgx.to_gpu(x), "y": y}):
        results = model.run_async(feed, stream(where, 6), "ihipStream_t")
        for got, want in zip(results, wanted(x, y)):
            np.testing.assert_allclose(got, want, atol=1e-6)
    with pytest.raises(ParameterError, match="stream must be an integer"):
        model.run_async({"x": x, "y": y}, "0", "cudaStream_t")


def test_threads_and_streams_at_once(where: str) -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    streams = [stream(where, k + 1) for k in range(4)]

    def work(k: int) -> None:
        rng = np.random.default_rng(k)
        for _ in range(RUNS[where]):
            x, y = (rng.standard_normal((3, 5)).astype(np.float32) for _ in range(2))
            results = model.run_async({"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}, streams[k], "cudaStream_t")
            for got, want in zip(results, wanted(x, y)):
                np.testing.assert_allclose(np.asarray(mgx.from_gpu(got)), want, rtol=1e-5, atol=1e-6)

    at_once(work, range(4))


def test_many_streams_share_contexts(where: str) -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
    results = [model.run_async(feed, stream(where, k + 1), "cudaStream_t") for k in range(2 * MOST_CONTEXTS)]
    assert len(model.compiled.executable.idle) <= MOST_CONTEXTS  # type: ignore[union-attr]
    for got in results:
        close(got, wanted(x, y))


def test_an_index_out_of_range_is_told_by_a_later_run(where: str) -> None:
    def gathered(main: Any, indices: Any) -> list[Any]:
        data = main.add_literal(np.arange(5, dtype=np.float32))
        return [main.add_instruction(mgx.op("gather", axis=0), [data, indices])]

    model = one_input(gathered, "int64", [3]).compile("gpu", offload_copy=False)
    right, wrong = mgx.to_gpu(np.array([0, 4, 2])), mgx.to_gpu(np.array([0, 7, 2]))
    with pytest.raises(ShapeError, match="^gather.*index 7 is out of range"):
        model.run({"x": wrong})
    close(model.run({"x": right}), [np.array([0, 4, 2], np.float32)])
    number = stream(where, 8)
    model.run_async({"x": wrong}, number, "cudaStream_t")
    mgx.gpu_sync()
    with pytest.raises(ShapeError, match="an earlier asynchronous run of this program: gather.*index 7"):
        model.run_async({"x": right}, number, "cudaStream_t")
    close(model.run_async({"x": right}, number, "cudaStream_t"), [np.array([0, 4, 2], np.float32)])


def test_programs_on_two_devices_at_once() -> None:
    with interpreted(devices=2):
        models = [softmax_of_sum().compile("gpu", offload_copy=False, device_id=k) for k in range(2)]
        given = [numbers(k) for k in range(2)]
        feeds = [{"x": mgx.to_gpu(x, device_id=k), "y": mgx.to_gpu(y, device_id=k)} for k, (x, y) in enumerate(given)]
        results = [model.run_async(feed, 9, "cudaStream_t") for model, feed in zip(models, feeds)]
        for k, got in enumerate(results):
            assert [r.device_id() for r in got] == [k, k]
            close(got, wanted(*given[k]))
