"""The cpu target's list of passes: each leaves valid IR and is idempotent, and none is needed for correct values."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from bench.models import build, inputs
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.passes import PASSES
from mgx_numba.targets.ref.interpreter import evaluate

TOLERANCE = 1e-4
MODELS = ("bert", "efficientnet_b0", "gpt2", "lstm", "unet", "yolo")


@functools.cache
def loaded(name: str) -> tuple[Program, dict[str, np.ndarray], list[np.ndarray]]:
    """A tiny model, its inputs and the results of ref."""
    model = build(name, scale="tiny")
    program, values = parse_onnx(model), inputs(name, model)
    plain = program.clone()
    run_passes(plain, ["merge_rnn_outputs"])
    return program, values, evaluate(plain, values)


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_pass_is_idempotent(name: str, fast_math: bool) -> None:
    program, options = loaded(name)[0].clone(), pass_options(TargetOptions(fast_math=fast_math))
    for step in PASSES:
        run_passes(program, [step], options, validate=True)
        again = program.clone()
        run_passes(again, [step], options, validate=True)
        assert str(again) == str(program), step


@pytest.mark.parametrize("disabled", sorted({*PASSES, "memory_coloring"}))
@pytest.mark.parametrize("name", ["lstm", "unet"])
def test_no_pass_is_needed_for_right_values(name: str, disabled: str) -> None:
    program, values, wanted = loaded(name)
    options = TargetOptions(fast_math=False, disabled_passes=(disabled,))
    executable = Executable(lower(optimize(program, options, validate=True), options))
    got = executable.run([values[p.name] for p in executable.plan.parameters])
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * float(np.abs(b).max()))
