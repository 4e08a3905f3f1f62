"""Device faults are reported and hang nothing: memory, kernels, forks, drivers, several processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.gpu.driver import library
from mgx_numba.codegen.gpu.driver.device import Device
from mgx_numba.errors import DeviceError
from mgx_numba.runtime.gpu.engines import engine

from ..interpreter.engine import InterpreterQueue, InterpreterRecording, interpreted
from .device_data import close, numbers, one_input, softmax_of_sum, wanted

SECONDS = 120
"""Time limit of a test's process: starting and compiling take some seconds, and the tests look for hangs."""


class Library:
    """Functions of a driver that succeed and do nothing, but for those that are given."""

    def __init__(self, **functions: Callable[..., int]) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Callable[..., int]:
        return self._functions.get(name, lambda *arguments: 0)


def _version(number: int) -> Callable[[Any], int]:
    def tell(place: Any) -> int:
        place._obj.value = number
        return 0

    return tell


def test_an_old_driver_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"driver is for CUDA 11.8; 12.0 is needed"):
        library.Driver(Library(cuDriverGetVersion=_version(11080)))


def test_a_driver_without_devices_says_so() -> None:
    with pytest.raises(DeviceError, match="cuInit failed: status 100"):
        library.Driver(Library(cuInit=lambda flags: 100))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_cannot_use_the_driver_and_its_parent_can() -> None:
    driver = library.Driver(Library(cuDriverGetVersion=_version(13000)))
    child = os.fork()
    if not child:
        status = 1
        try:
            driver.call("cuCtxSynchronize")
        except DeviceError as error:
            status = 0 if "the GPU was in use when this process was forked" in str(error) else 2
        os._exit(status or driver.succeeds("cuEventQuery"))
    assert os.waitpid(child, 0)[1] == 0
    driver.call("cuCtxSynchronize")


def test_lost_devices_are_told_as_such() -> None:
    driver = library.Driver(Library(cuDriverGetVersion=_version(13000), cuStreamSynchronize=lambda stream: 719))
    with pytest.raises(DeviceError, match="cuStreamSynchronize: a kernel failed.*lost to this process"):
        driver.call("cuStreamSynchronize", None)


def test_a_thread_does_not_take_back_the_shared_memory_that_another_allowed() -> None:
    allowed: list[int] = []
    others: list[threading.Thread] = []

    def allow(function: Any, attribute: int, size: int) -> int:
        if not others:
            others.append(threading.Thread(target=own.allow_shared, args=(1, 200)))
            others[0].start()
            others[0].join(0.2)  # it ends, or waits for this one
        allowed.append(size)
        return 0

    own = Device.__new__(Device)
    own.driver = library.Driver(Library(cuDriverGetVersion=_version(13000), cuFuncSetAttribute=allow))
    own._lock, own._allowed = threading.Lock(), {}
    own.allow_shared(1, 100)
    others[0].join()
    own.allow_shared(1, 150)
    assert allowed[-1] == 200


def test_a_call_that_is_repeated_has_the_memory_of_the_one_before() -> None:
    """However many blocks of its size wait: other addresses would have to be put into its recording."""
    with interpreted():
        on = engine()
        waiting = [on.kept.take(1000, "some") for _ in range(3)]
        addresses = [block.address for block in waiting]
        while waiting:
            waiting.pop()
        found = [on.kept.take(1000, "a result").address for _ in range(4)]
        assert found == addresses[:1] * 4
        blocks = [on.kept.take(1000, "results") for _ in range(4)]
        assert {block.address for block in blocks} > set(addresses)


def test_memory_that_is_kept_is_given_back_before_there_is_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    with interpreted():
        on = engine()
        held = on.kept.take(1000, "some")
        del held
        genuine, refused = on.allocate, []

        def allocate(size: int, name: str) -> int:
            if not refused:
                refused.append(size)
                raise DeviceError(f"{name} of {size} bytes: there is no room")
            return genuine(size, name)

        monkeypatch.setattr(on, "allocate", allocate)
        more = on.kept.take(5000, "more")
        assert more.size >= 5000 and refused == [more.size]
        refused.clear()
        with pytest.raises(DeviceError, match="another of 9216 bytes: there is no room"):
            on.kept.take(9000, "another")


def test_a_program_runs_again_after_there_was_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with interpreted():
        model = softmax_of_sum().compile("gpu", offload_copy=False)
        x, y = numbers(0)
        feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}

        def refuse(size: int, name: str) -> int:
            raise DeviceError(f"{name} of {size} bytes: there is no room")

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(engine(), "allocate", refuse)
            with pytest.raises(DeviceError, match="there is no room"):
                model.run(feed)
        close(model.run(feed), wanted(x, y))


def test_a_call_that_cannot_be_recorded_leaves_the_program_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half recorded is run, and no address of the broken call is left in it."""
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)

    def product(main: Any, x: Any) -> list[Any]:
        return [main.add_instruction(mgx.op("dot"), [x, main.add_literal(weights)])]

    def right(x: np.ndarray) -> None:
        (result,) = model.run({"x": mgx.to_gpu(x)})
        np.testing.assert_allclose(
            np.asarray(mgx.from_gpu(result), np.float32), x.astype(np.float32) @ weights, atol=0.05, rtol=1e-2
        )

    def broken(*arguments: Any) -> Any:
        raise DeviceError("no more graphs")

    with interpreted():
        model = one_input(product, "half", [64, 64]).compile("gpu", offload_copy=False)
        x, other = (np.random.default_rng(k).standard_normal((64, 64)).astype(np.float16) for k in (1, 2))
        for kind, name in ((InterpreterQueue, "recorded"), (InterpreterRecording, "change")):
            with monkeypatch.context() as meanwhile:
                meanwhile.setattr(kind, name, broken)
                with pytest.raises(DeviceError, match="no more graphs"):
                    model.run({"x": mgx.to_gpu(other)})
            right(x)


def test_a_host_step_that_raises_leaves_the_program_usable(where: str) -> None:
    """The step's exception passes through, and later runs are not affected by the failed run."""

    def reshaped(main: Any, x: Any) -> list[Any]:
        return [main.add_instruction(mgx.op("add"), [x, x]), main.add_instruction(mgx.op("nonzero"), [x])]

    model = one_input(reshaped, "float", [3, 5]).compile("gpu", offload_copy=False)
    step = next(s for s in model.compiled.executable.plan.steps if hasattr(s, "function"))
    genuine = step.function
    x = np.abs(numbers(0)[0]) + 1
    given = {"x": mgx.to_gpu(x)}
    for run in (model.run, lambda feed: model.run_async(feed, 0, "cudaStream_t")):
        object.__setattr__(step, "function", lambda arrays: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run(given)
        object.__setattr__(step, "function", genuine)
        assert np.array_equal(np.asarray(mgx.from_gpu(run(given)[0])), x + x)


def _process(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _says(text: str) -> str:
    """Return the output of a process, which must end by itself and successfully."""
    process = _process(text)
    out = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, out
    return out


MODEL = """
import os
import numpy as np
import mgx_numba as mgx
from tests.gpu.device_data import close, numbers, softmax_of_sum, wanted
from mgx_numba.runtime.gpu.engines import engine
x, y = numbers(0)
model = softmax_of_sum().compile("gpu", offload_copy=False)
feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
def attempt(run):
    try:
        run()
        print("nothing")
    except mgx.MgxError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.gpu
def test_a_kernel_that_traps_loses_the_device_and_hangs_nothing() -> None:
    out = _says(
        MODEL
        + """
from mgx_numba.codegen.launch import Grid
close(model.run(feed), wanted(x, y))
ptx = b".version 7.0\\n.target sm_75\\n.address_size 64\\n.visible .entry stop(.param .u64 a) { trap; ret; }"
on = engine()
function = on.device.function("stop", on.device.cubin(ptx))
with on.use():
    queue = on.queue()
    queue.launch(function, np.zeros(1, np.int64), Grid((1, 1, 1), (1, 1, 1)))
    attempt(queue.wait)
attempt(lambda: model.run(feed))
attempt(lambda: mgx.from_gpu(feed["x"]))
attempt(mgx.gpu_sync)
"""
    )
    lines = out.strip().splitlines()
    assert len(lines) == 4 and all(line.startswith("DeviceError") for line in lines), out
    assert all("the device is lost to this process" in line for line in lines), out


@pytest.mark.gpu
def test_an_address_of_nobody_is_told() -> None:
    out = _says(
        MODEL
        + """
feed["x"]._value.address = 16
attempt(lambda: model.run(feed))
"""
    )
    assert "memory that it may not touch" in out and "lost to this process" in out


@pytest.mark.gpu
def test_too_little_memory_is_told_and_the_program_runs_again() -> None:
    model = softmax_of_sum().compile("gpu", offload_copy=False)
    x, y = numbers(0)
    feed = {"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}
    with pytest.raises(DeviceError, match=r"of \d+ bytes: .*not enough memory.*; \d+ of its \d+ bytes are free"):
        mgx.allocate_gpu(mgx.shape(lens=[1 << 40]))
    large = one_input(lambda main, v: [main.add_instruction(mgx.op("add"), [v, v])], "float", [1 << 37])
    with pytest.raises(DeviceError, match="not enough memory"):
        large.compile("gpu", offload_copy=False).run(
            {"x": mgx.gpudata_to_argument(mgx.shape(lens=[1 << 37]), feed["x"].data_ptr())}
        )
    close(model.run(feed), wanted(x, y))


@pytest.mark.gpu
def test_a_fork_says_that_it_has_no_device() -> None:
    out = _says(
        MODEL
        + """
close(model.run(feed), wanted(x, y))
child = os.fork()
if not child:
    attempt(lambda: model.run(feed))
    attempt(lambda: mgx.to_gpu(x))
    print(mgx.argument_from_pointer(mgx.shape(lens=[3, 5]), x.ctypes.data).shape, flush=True)
    del model, feed
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
close(model.run(feed), wanted(x, y))
print("the parent goes on")
"""
    )
    assert out.count("DeviceError") == 2 and out.count("forked") == 2, out
    assert "(3, 5)" in out and "the parent goes on" in out


@pytest.mark.gpu
def test_two_processes_use_one_device() -> None:
    text = (
        MODEL
        + """
for k in range(200):
    x, y = numbers(k)
    close(model.run({"x": mgx.to_gpu(x), "y": mgx.to_gpu(y)}), wanted(x, y))
"""
    )
    both = [_process(text) for _ in range(2)]
    for process in both:
        out = process.communicate(timeout=SECONDS)[0]
        assert process.returncode == 0, out


@pytest.mark.gpu
def test_hidden_devices_are_missing() -> None:
    out = _says(
        """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import mgx_numba as mgx
for call in (lambda: mgx.get_target("gpu"), lambda: mgx.allocate_gpu(mgx.shape(lens=[2]))):
    try:
        call()
    except mgx.MgxError as error:
        print(type(error).__name__, error)
"""
    )
    assert "UnsupportedError target 'gpu' is not available here" in out and "DeviceError" in out
