"""Cost of calls with data on the host: `python -m bench.gpu_copies [--json FILE] [--runs N]`.

For a program of one kernel whose result is as large as its input, it measures a whole call, copying the input alone,
the kernel on the device, and PyTorch's copies; then memory growth over many runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mgx_numba
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.host_copies import HostParameters
from mgx_numba.runtime.gpu.transfers import to_device

from .figures import tell

SIZES = {"4 KB": 4096, "64 KB": 65536, "600 KB": 602112, "19 MB": 19267584, "77 MB": 77070336}
"""Bytes of inputs: small, one 224x224x3 image in float32, and 32 and 128 such images."""
SECONDS = 0.15
"""Approximate duration (s) of one measurement."""


def program(size: int) -> Any:
    """Return a program of one kernel."""
    made = mgx_numba.program()
    main = made.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[size // 4]))
    main.add_return([main.add_instruction(mgx_numba.op("relu"), [x])])
    return made.compile("gpu")


def microseconds(call: Callable[[], Any]) -> float:
    """Return the median time (us) of a call."""
    for _ in range(4):
        call()
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while not found or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return 1e6 * float(np.median(found))


def calls(size: int) -> dict[str, float]:
    """Return the times (us) of calls with an input of ``size`` bytes, and of their parts."""
    model, x = program(size), np.random.default_rng(0).standard_normal(size // 4).astype(np.float32)
    figures, wanted = {}, np.maximum(x, 0)
    kept: deque[Any] = deque(maxlen=4)
    pinned = mgx_numba.allocate_gpu(mgx_numba.shape(type="float", lens=[size // 4]), host=True)
    np.asarray(pinned)[...] = x

    def run(given: Any) -> None:
        (result,) = model.run({"x": given})
        right[0] &= bool(result[-1] == wanted[-1])

    right = [bool(np.array_equal(np.asarray(model.run({"x": given})[0]), wanted)) for given in (x, pinned)]
    figures["run"] = microseconds(lambda: run(x))
    figures["run, GB/s of input and result"] = 2 * size / figures["run"] / 1e3
    figures["run, four results kept"] = microseconds(lambda: kept.append(model.run({"x": x})))
    kept.clear()
    figures["run, pinned input"] = microseconds(lambda: run(pinned))
    executable, on = model.compiled.executable, cuda_engine()
    on_device = to_device(on, x, "x")
    figures["device, the kernel alone"] = 1e6 * min(executable.seconds([on_device]) for _ in range(5))
    figures["wrong"] = right.count(False)
    with on.use():
        queue, parameters = on.queue(), HostParameters(on, [size])
        copy = queue.recorded(lambda: parameters.upload(queue))

        def bring(given: Any) -> None:
            parameters.take([given])
            copy()
            parameters.send(parameters.large, queue)
            queue.wait()

        figures["input to the device"] = microseconds(lambda: bring(x))
        figures["pinned input to the device"] = microseconds(lambda: bring(np.asarray(pinned)))
    try:
        import torch
    except ImportError:
        return figures
    tensor = torch.from_numpy(x)
    there = tensor.cuda()

    def wait(value: Any) -> None:
        torch.cuda.synchronize()

    figures["PyTorch: to(cuda)"] = microseconds(lambda: wait(tensor.to("cuda")))
    figures["PyTorch: cpu()"] = microseconds(there.cpu)
    figures["PyTorch: both, and the kernel"] = microseconds(lambda: torch.relu(tensor.to("cuda")).cpu())
    return figures


def memory(runs: int, size: int) -> dict[str, int]:
    """Return the growth (bytes) of this process's memory and of used device memory over ``runs`` runs."""
    on, model, x = cuda_engine(), program(size), np.ones(size // 4, np.float32)
    for _ in range(50):
        model.run({"x": x})
    free, resident = on.device.room()[0], _resident()
    for _ in range(runs):
        model.run({"x": x})
    return {"runs": runs, "device": free - on.device.room()[0], "host": _resident() - resident}


def _resident() -> int:
    """Return the resident bytes of this process, including pinned memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmPin")))


def main() -> int:
    """Run all measurements; the exit status counts wrong results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="of which memory is looked at")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    figures: dict[str, Any] = {name: calls(size) for name, size in SIZES.items()}
    figures["memory, 600 KB"] = memory(given.runs, SIZES["600 KB"])
    figures["memory, 19 MB"] = memory(given.runs // 20, SIZES["19 MB"])
    tell(figures, given.json)
    return int(sum(rows.get("wrong", 0) for rows in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
