"""AMD's runtime on a stand-in, which reads code objects and interprets kernels; failures are reported.

Nothing in this file has run on an AMD GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.gpu.driver import device, hip, library
from mgx_numba.codegen.gpu.driver.device import selected_architecture
from mgx_numba.codegen.launch import Grid
from mgx_numba.errors import DeviceError
from mgx_numba.runtime.gpu import engines, host_copies
from mgx_numba.runtime.gpu import hip as hip_runtime

from .device_data import close, numbers, one_input, softmax_of_sum, wanted
from .hip_library import HipLibrary


def _forget() -> None:
    for kept in (hip.hip_device, hip.hip_runtime, library.first_library, hip._amd_found):
        kept.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HipLibrary]]:
    """Return a function that installs a stand-in in a process without any driver."""
    load = hip_runtime.HipEngine.load

    def install(**options: Any) -> HipLibrary:
        made = HipLibrary(**options)
        runtime = hip.HipRuntime(made)

        def noted(engine: Any, kernels: Any, *rest: Any) -> Any:
            made.sources.update((kernel.symbol, kernel) for kernel in kernels)
            return load(engine, kernels, *rest)

        monkeypatch.setattr(hip_runtime.HipEngine, "load", noted)
        monkeypatch.setattr(hip_runtime._engines, "_engines", {})
        _forget()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(hip, "HipRuntime", lambda library: runtime)
            meanwhile.setattr(ctypes, "CDLL", lambda name, *rest, **more: made)
            assert hip.hip_runtime() is runtime
        for module in (library, hip):
            monkeypatch.setattr(module, "missing", lambda: "NVIDIA's driver is not installed")
        monkeypatch.setattr(engines, "memory_at", lambda address: None)
        return made

    yield install
    _forget()


@pytest.mark.parametrize(("name", "version"), [("gfx90a", 50700000), ("gfx942", 60200000), ("gfx1100", 70000000)])
def test_a_program_runs_by_way_of_hip(installed: Callable[..., HipLibrary], name: str, version: int) -> None:
    made = installed(architecture=name, version=version)
    assert selected_architecture().name == name and device.model_of(0) == "Stand-in" and engines.missing() == ""
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    for seed in (0, 1):
        x, y = numbers(seed)
        given = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
        close(model.run(given), wanted(x, y))
        close(model.run(given), wanted(x, y))
    assert made.launches
    host = softmax_of_sum().compile("gpu")
    x, y = numbers(2)
    close(host.run({"x": x, "y": y}), wanted(x, y))


def test_large_inputs_and_results_go_in_pieces(
    installed: Callable[..., HipLibrary], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed()
    for name in ("LARGE", "ALONE", "LEAST_DONATED", "PIECE", "MOST_OF_A_PIECE"):
        monkeypatch.setattr(host_copies, name, 256)
    model, kept = softmax_of_sum((7, 33)).compile("gpu"), []
    for seed in range(4):
        x, y = numbers(seed, (7, 33))
        kept.append((model.run({"x": x, "y": y}), wanted(x, y)))
    for results, expected in kept:
        close(results, expected)


@pytest.mark.parametrize(
    ("name", "type", "how", "allowed"),
    [("gfx1201", "float", "fma", 1e-5), ("gfx942", "half", "tensor", 1e-2), ("gfx1100", "half", "tensor", 1e-2)],
)
def test_products_run_by_way_of_hip(
    installed: Callable[..., HipLibrary], name: str, type: str, how: str, allowed: float
) -> None:
    made = installed(architecture=name)
    dtype = np.float16 if type == "half" else np.float32
    weights = np.random.default_rng(0).standard_normal((24, 40)).astype(dtype)
    model = one_input(
        lambda main, x: [main.add_instruction(mgx.op("dot"), [x, main.add_literal(weights)])], type, [70, 24]
    ).compile("gpu")
    x = np.random.default_rng(1).standard_normal((70, 24)).astype(dtype)
    np.testing.assert_allclose(np.asarray(model.run({"x": x})[0]), x @ weights, atol=allowed)
    assert any(f"_{how}_" in launch for launch in made.launches), made.launches


def test_too_little_memory_is_told_and_the_program_runs_again(installed: Callable[..., HipLibrary]) -> None:
    made = installed()
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
    with pytest.raises(DeviceError, match=r"of \d+ bytes: hipMalloc: the device has not enough memory \(hipErrorOut"):
        mgx.allocate_gpu(mgx.shape(lens=[1 << 40]))
    close(model.run(feed), wanted(x, y))
    before = made.free
    del model, feed
    assert made.free >= before


def test_what_another_process_holds_is_told_and_the_program_runs_again(installed: Callable[..., HipLibrary]) -> None:
    made = installed()
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
    close(model.run(feed), wanted(x, y))
    free, made.free = made.free, 0
    close(model.run(feed), wanted(x, y))
    later = softmax_of_sum().compile("gpu")
    with pytest.raises(DeviceError, match="hipMalloc: the device has not enough memory"):
        later.run({"x": x, "y": y})
    made.free = free
    close(later.run({"x": x, "y": y}), wanted(x, y))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_cannot_use_the_device_and_its_parent_can(installed: Callable[..., HipLibrary]) -> None:
    installed()
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
    close(model.run(feed), wanted(x, y))
    child = os.fork()
    if not child:
        told = 0
        for attempt in (lambda: model.run(feed), lambda: mgx.to_gpu(x)):
            try:
                attempt()
            except DeviceError as error:
                told += "the GPU was in use when this process was forked" in str(error)
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    close(model.run(feed), wanted(x, y))


def test_what_cannot_be_used_is_told(installed: Callable[..., HipLibrary], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"AMD's HIP is 5\.4; 5\.7 is needed"):
        hip.HipRuntime(HipLibrary(version=50400000))
    installed(architecture="gfx803")
    with pytest.raises(DeviceError, match="device 0 is gfx803; kernels are compiled for gfx90a, gfx942"):
        hip.hip_architecture(0)
    with pytest.raises(DeviceError, match="there is no device 3; there are 1"):
        hip.hip_architecture(3)


def test_blocks_that_wait_for_each_other_are_not_launched(installed: Callable[..., HipLibrary]) -> None:
    installed()
    queue = hip_runtime.hip_engine().queue()
    with pytest.raises(DeviceError, match="blocks that wait for each other are launched on NVIDIA's alone"):
        queue.launch(0, np.zeros(1, np.int64), Grid((1, 1, 1), (1, 1, 1), cooperative=True))


def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, *rest: Any, **more: Any) -> Any:
        raise OSError(name)

    _forget()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(ctypes, "CDLL", absent)
        assert hip.hip_missing() == "AMD's HIP is not installed: libamdhip64.so cannot be loaded"
        assert not hip.uses_hip()
