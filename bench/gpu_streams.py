"""Cost of calls with data on a device: `python -m bench.gpu_streams [--json FILE] [--runs N]`.

It measures host time of a call against the device's own, threads with a stream each, memory growth over many runs, and
two devices where present. The program is a row of small kernels, so that host time dominates.
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_uint, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

import mgx_numba
from mgx_numba.codegen.gpu.driver.device import device_count
from mgx_numba.runtime.gpu.cuda import CudaEngine, cuda_engine
from mgx_numba.runtime.gpu.transfers import to_device

from .figures import tell

LENS = (8, 64)
THREADS, RUNS_EACH = 4, 250
BATCH = 50
"""Calls in a row of one measurement: fewer than the driver queues before it blocks the caller."""


def program(kernels: int, lens: tuple[int, int] = LENS, device_id: int = 0) -> Any:
    """Return a program of ``kernels`` softmax in sequence, a kernel each."""
    made = mgx_numba.program()
    main = made.get_main_module()
    value = main.add_parameter("x", mgx_numba.shape(type="float", lens=list(lens)))
    for _ in range(kernels):
        value = main.add_instruction(mgx_numba.op("softmax", axis=1), [value])
    main.add_return([value])
    return made.compile("gpu", offload_copy=False, device_id=device_id)


def numbers(seed: int) -> np.ndarray:
    """Return random inputs."""
    return np.random.default_rng(seed).standard_normal(LENS).astype(np.float32)


def expected(x: np.ndarray, kernels: int) -> np.ndarray:
    """Return the result of `program`."""
    for _ in range(kernels):
        e = np.exp(x - x.max(1, keepdims=True))
        x = e / e.sum(1, keepdims=True)
    return x


def stream(on: CudaEngine) -> int:
    """Create a stream and return its handle."""
    made = c_void_p()
    with on.use():
        on.driver.call("cuStreamCreate", byref(made), c_uint(1))
    assert made.value is not None
    return made.value


def microseconds(call: Callable[[int], Any], repeats: int, each: int = 1) -> float:
    """Return the median time (us) of a call, from rounds of ``each`` calls in a row."""
    found = []
    for k in range(repeats):
        start = time.perf_counter()
        for i in range(each):
            call(k * each + i)
        found.append((time.perf_counter() - start) / each)
        mgx_numba.gpu_sync()
    return 1e6 * float(np.median(found))


def calls(kernels: int) -> dict[str, float]:
    """Return the host's time (us) for a call, and the device's for its kernels."""
    on, model = cuda_engine(), program(kernels)
    number = stream(on)
    shapes = model.get_parameter_shapes()
    feeds = []
    for seed in range(2):
        memory = mgx_numba.allocate_gpu(shapes["main:#output_0"])
        feeds.append({"x": mgx_numba.to_gpu(numbers(seed)), "main:#output_0": memory})
    alone = {"x": feeds[0]["x"]}
    for feed in (*feeds, alone):
        model.run(feed)
        model.run_async(feed, number, "cudaStream_t")
    mgx_numba.gpu_sync()
    figures = {
        "run": microseconds(lambda k: model.run(feeds[0]), 300),
        "run, other addresses each time": microseconds(lambda k: model.run(feeds[k % 2]), 300),
        "run, new memory for results": microseconds(lambda k: model.run(alone), 300),
        "run_async": microseconds(lambda k: model.run_async(feeds[0], number, "cudaStream_t"), 20, BATCH),
        "run_async, other addresses each time": microseconds(
            lambda k: model.run_async(feeds[k % 2], number, "cudaStream_t"), 20, BATCH
        ),
        "run_async, new memory for results": microseconds(
            lambda k: model.run_async(alone, number, "cudaStream_t"), 20, BATCH
        ),
    }
    executable, on_device = model.compiled.executable, to_device(on, numbers(0), "x")
    figures["device"] = 1e6 * min(executable.seconds([on_device]) for _ in range(20))
    offloaded = model.clone().compile("gpu")
    x = numbers(0)
    figures["run, data on the host"] = microseconds(lambda k: offloaded.run({"x": x}), 300)
    try:
        import torch
    except ImportError:
        return figures
    tensor, memory = torch.from_numpy(x).cuda(), torch.empty(*LENS, device="cuda")
    given = {"x": tensor, "main:#output_0": memory}
    figures["run, tensors of torch in and out"] = microseconds(lambda k: torch.from_dlpack(model.run(given)[0]), 300)
    return figures


def threads(kernels: int) -> dict[str, float]:
    """Return runs per second of threads with a stream each, and the number of wrong results."""
    on, model = cuda_engine(), program(kernels)
    wrong = []

    def work(seed: int) -> None:
        number = stream(on)
        for k in range(RUNS_EACH):
            x = numbers(seed * RUNS_EACH + k)
            (result,) = model.run_async({"x": mgx_numba.to_gpu(x)}, number, "cudaStream_t")
            if not np.allclose(np.asarray(mgx_numba.from_gpu(result)), expected(x, kernels), atol=1e-6):
                wrong.append((seed, k))

    started = time.perf_counter()
    each = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    seconds = time.perf_counter() - started
    return {"runs": THREADS * RUNS_EACH, "wrong": len(wrong), "runs a second": THREADS * RUNS_EACH / seconds}


def devices() -> dict[str, float]:
    """Return the throughput of two devices relative to one device.

    It is measured with a program and a thread on each, by synchronous and asynchronous calls, and with one thread for
    both.
    """
    lens, runs = (8192, 4096), 200
    models, feeds, streams = [program(10, lens, k) for k in range(2)], [], [stream(cuda_engine(k)) for k in range(2)]
    for k in range(2):
        x, memory = (mgx_numba.to_gpu(np.ones(lens, np.float32), device_id=k) for _ in range(2))
        feeds.append({"x": x, "main:#output_0": memory})

    def waiting(numbers: tuple[int, ...]) -> None:
        for _ in range(runs):
            for k in numbers:
                models[k].run(feeds[k])

    def ahead(numbers: tuple[int, ...]) -> None:
        for _ in range(runs):
            for k in numbers:
                models[k].run_async(feeds[k], streams[k], "cudaStream_t")
        for k in numbers:
            cuda_engine(k).synchronize()

    def seconds(work: Callable[[tuple[int, ...]], None], *parts: tuple[int, ...]) -> float:
        started = time.perf_counter()
        each = [threading.Thread(target=work, args=(part,)) for part in parts]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        return time.perf_counter() - started

    figures = {}
    for name, work, parts in (
        ("run, a thread each", waiting, ((0,), (1,))),
        ("run_async, a thread each", ahead, ((0,), (1,))),
        ("run_async, one thread", ahead, ((0, 1),)),
    ):
        seconds(work, *parts)
        one, other, both = (min(seconds(work, *p) for _ in range(4)) for p in (((0,),), ((1,),), parts))
        figures[f"{name}: ms alone"] = 1e3 * one / runs
        figures[f"{name}: throughput of two"] = (one + other) / both
    return figures


def memory(runs: int) -> dict[str, int]:
    """Return the growth (bytes) of used device memory and of this process's memory over ``runs`` runs."""
    on, model = cuda_engine(), program(3)
    number = stream(on)
    x = numbers(0)
    there = mgx_numba.to_gpu(x)

    def some(count: int) -> None:
        for k in range(count):
            model.run({"x": there})
            model.run_async({"x": mgx_numba.to_gpu(x)} if k % 10 == 0 else {"x": there}, number, "cudaStream_t")
        mgx_numba.gpu_sync()

    some(200)
    free, resident = on.device.room()[0], _resident()
    some(runs // 2)
    return {"runs": runs, "device": free - on.device.room()[0], "host": _resident() - resident}


def _resident() -> int:
    """Return the peak resident bytes of this process."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    """Run all measurements; the exit status counts wrong results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="of which memory is looked at")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    for kernels in (1, 60):
        figures[f"{kernels} kernels"] = calls(kernels)
    figures["threads"] = threads(5)
    figures["memory"] = memory(given.runs)
    if device_count() > 1:
        figures["two devices"] = devices()
    tell(figures, given.json)
    return int(figures["threads"]["wrong"])


if __name__ == "__main__":
    sys.exit(main())
