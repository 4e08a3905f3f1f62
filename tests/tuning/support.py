"""Synthetic records for tests, and a small network to tune."""

from __future__ import annotations

from typing import Any

import numpy as np

import mgx_numba as migraphx
from mgx_numba.codegen.tuning.record import DeviceFingerprint, Problem, TuningRecord

HERE = DeviceFingerprint("znver4", ("avx2", "fma"), 8, 256, (("mgx_numba", "1"), ("numba", "1")))
THERE = DeviceFingerprint("skylake", ("avx2", "bmi", "fma"), 4, 256, (("mgx_numba", "1"), ("numba", "1")))


def problem(m: int = 4, threads: int = 2) -> Problem:
    return Problem.of("dot", threads, {"m": m, "n": 8, "dtype": "float32"})


def record(m: int = 4, seconds: float = 1.0, fingerprint: DeviceFingerprint = HERE, **changes: Any) -> TuningRecord:
    values: dict[str, Any] = {"solver": "gemm", "configuration": {"rows": 6}, "noise": 0.01}
    values |= {"date": "2026-01-01T00:00:00Z", **changes}
    threads = values.pop("threads", 2)
    return TuningRecord(problem(m, threads), fingerprint, seconds=seconds, **values)


def network() -> migraphx.program:
    """A padded 3x3 convolution with ReLU, then a product: two problems."""
    rng = np.random.default_rng(5)
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[1, 8, 9, 9]))
    w = main.add_literal(rng.standard_normal((12, 8, 3, 3)).astype(np.float32))
    x = main.add_instruction(migraphx.op("convolution", padding=[1, 1]), [x, w])
    x = main.add_instruction(migraphx.op("relu"), [x])
    x = main.add_instruction(migraphx.op("flatten"), [x])
    w = main.add_literal(rng.standard_normal((12 * 81, 10)).astype(np.float32))
    main.add_return([main.add_instruction(migraphx.op("dot"), [x, w])])
    return net


def product(m: int = 3, n: int = 8, k: int = 5) -> migraphx.program:
    """Return a program of one product."""
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[m, k]))
    w = main.add_literal(np.ones((k, n), np.float32))
    main.add_return([main.add_instruction(migraphx.op("dot"), [x, w])])
    return net


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(6).standard_normal((1, 8, 9, 9)).astype(np.float32)}


def expected() -> np.ndarray:
    net = network()
    net.compile(migraphx.get_target("ref"))
    return np.array(net.run(feeds())[0])


def check(net: migraphx.program) -> None:
    """The program computes what ``ref`` does."""
    wanted = expected()
    np.testing.assert_allclose(np.array(net.run(feeds())[0]), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def choices(net: migraphx.program) -> list[str]:
    """Return each step of the compiled program as text: kernel, number of tasks, integer arguments."""
    steps = net.compiled.executable.plan.steps
    return [f"{s.kernel.name} {s.geometry.tasks} {[a for a in s.args if isinstance(a, int)]}" for s in steps]
