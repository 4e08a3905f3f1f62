"""Every model comes back from a file as it was saved, as parsed and as optimised, with bit-equal results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from bench.models import MODELS, build, inputs, light_models
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.mxr import load_buffer, load_program, save_buffer, save_program
from mgx_numba.graph.program import Program
from mgx_numba.targets.base import compile_for
from mgx_numba.targets.cpu.options import CpuOptions
from mgx_numba.targets.cpu.target import optimize


def assert_equal(loaded: Program, saved: Program) -> None:
    assert loaded == saved
    for mine, theirs in zip(loaded.reachable_modules(), saved.reachable_modules()):
        for a, b in zip(mine, theirs):
            if b.literal is not None and b.literal.array is not None:
                assert a.literal is not None
                assert a.literal.numpy().tobytes() == b.literal.numpy().tobytes()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_round_trips(name: str, tmp_path: Path) -> None:
    model = build(name, scale="tiny")
    feeds = inputs(name, model)
    program = parse_onnx(model, use_debug_symbols=True)
    wanted = compile_for("ref", program).run(feeds)
    for format in ("msgpack", "json"):
        path = tmp_path / f"model.{format}"
        save_program(program, path, format)
        loaded, _ = load_program(path, format)
        assert_equal(loaded, program)
        for a, b in zip(compile_for("ref", loaded).run(feeds), wanted):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_optimised_model_round_trips(name: str) -> None:
    program = optimize(parse_onnx(build(name, scale="tiny")), CpuOptions())
    assert_equal(load_buffer(save_buffer(program))[0], program)


@pytest.mark.parametrize("path", light_models().values(), ids=lambda p: p.stem)
def test_light_model_round_trips(path: Path, tmp_path: Path) -> None:
    program = parse_onnx(onnx.load(path))
    for format in ("msgpack", "json"):
        save_program(program, tmp_path / "model", format)
        assert_equal(load_program(tmp_path / "model", format)[0], program)
