"""Attention to the valid rows of a cache reads no other row, on any kind of tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .programs import compiled, interpreter, labels

TYPES = {"float16": Type.half_type, "bfloat16": Type.bf16_type, "float32": Type.float_type}
SHAPES = {
    "grouped token": (1, 4, 2, 1, 40, 16, 16),
    "few queries": (2, 8, 2, 5, 33, 24, 24),
    "many queries": (1, 1, 1, 70, 100, 32, 32),
    "keys in parts": (1, 4, 1, 1, 300, 64, 64),
    "many heads of one key head": (1, 40, 1, 1, 150, 32, 64),
    "one key": (2, 3, 3, 2, 1, 8, 8),
    "wide features": (1, 1, 1, 40, 70, 136, 160),
}
FORMS: dict[str, dict[str, Any]] = {"causal": {}, "window": {"window": 6}, "bidirectional": {"causal": False}}


def attention(lens: tuple[int, ...], kind: str, seed: int, **options: Any) -> tuple[Program, dict[str, np.ndarray]]:
    """Return a program of attention to a cache whose invalid rows are NaN; of the last batch nothing may be valid."""
    b, h, shared, s, t, d, e = lens
    rng = np.random.default_rng(seed)
    lengths = {"q": (b, h, s, d), "k": (b, shared, t, d), "v": (b, shared, t, e)}
    feeds = {name: rng.standard_normal(shape).astype(TYPES[kind].numpy) for name, shape in lengths.items()}
    start = rng.integers(0, max(1, t - s) + 1, b)
    stop = np.minimum(start + s, t)
    if b > 1:
        stop[-1] = rng.integers(0, t + 1)
    for row in range(b):
        feeds["k"][row, :, stop[row] :] = feeds["v"][row, :, stop[row] :] = np.nan
    feeds["limits"] = np.stack([start, stop], 1).astype(np.int64)
    program = Program()
    inputs = [program.main.add_parameter(n, Shape(TYPES[kind], feeds[n].shape)) for n in lengths]
    inputs.append(program.main.add_parameter("limits", Shape(Type.int64_type, (b, 2))))
    program.main.add_return([program.main.add_instruction("cached_attention", inputs, scale=0.2, **options)])
    return program, feeds


def check(on: Engine, lens: tuple[int, ...], kind: str, kernel: str, **options: Any) -> None:
    for seed in (0,) if on is interpreter() else (0, 1, 2):
        program, feeds = attention(lens, kind, seed, **options)
        made = compiled(program, on, float32_matmul_precision="medium")
        assert any(kernel in label for label in labels(made)), labels(made)
        found, wanted = (
            np.asarray(values[0], np.float64) for values in (made.run(feeds), reference(program, feeds).results)
        )
        np.testing.assert_allclose(found, wanted, atol=2e-3 if kind == "float16" else 8e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lens", SHAPES)
def test_attention_reads_valid_rows_alone(lens: str, form: str, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    if on is interpreter():
        monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    check(on, SHAPES[lens], "float16", "_limited", **FORMS[form])


@pytest.mark.parametrize(("arch", "kind"), [("sm_80", "bfloat16"), ("sm_80", "float32")])
def test_attention_of_other_types_and_architectures(arch: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", arch)
    for lens, form in (("few queries", "window"), ("grouped token", "causal")):
        check(interpreter(), SHAPES[lens], kind, "_limited", **FORMS[form])


def test_other_caches_are_attended_to_with_a_mask(on: Engine) -> None:
    check(on, SHAPES["grouped token"], "float16", "tanh", softcap=3.0)
