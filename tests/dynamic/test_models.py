"""Models with symbolic dimensions, on random lengths in random order, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import DynamicDimension
from mgx_numba.errors import ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.validate import validate

from .models import FLOAT, MODELS, Case, Graph

LENGTHS = 6


def assert_like_onnxruntime(
    case: Case, target: str, seed: int, lengths: int = LENGTHS, **options: DynamicDimension
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), settings, ["CPUExecutionProvider"])
    program = parse_onnx(case.model, **options)
    validate(program)
    compiled = public_program.wrap(program).compile(target)
    rng = np.random.default_rng(seed)
    for _ in range(lengths):
        feeds = case.draw(rng)
        for result, wanted in zip(compiled.run(feeds), session.run(None, feeds), strict=True):
            array = np.asarray(result)
            assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
            scale = max(1e-6, np.abs(wanted).max(initial=0))
            np.testing.assert_allclose(array, wanted, rtol=0, atol=case.tolerance * scale)


@pytest.mark.parametrize("name", MODELS)
def test_models_with_open_dimensions_on_ref(name: str) -> None:
    assert_like_onnxruntime(MODELS[name](), "ref", 1)


@pytest.mark.parametrize("name", MODELS)
def test_models_with_open_dimensions_on_cpu(name: str) -> None:
    assert_like_onnxruntime(MODELS[name](), "cpu", 2, default_dyn_dim_value=DynamicDimension(0, 4096))


def test_a_saved_program_keeps_its_deferred_nodes(tmp_path: object) -> None:
    case = MODELS["shuffle_net"]()
    program = parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(1, 64))
    assert any(ins.name == "deferred" for ins in program.main)
    whole = public_program.wrap(program)
    from mgx_numba.api.loading import load_buffer
    from mgx_numba.api.saving import save_buffer

    again = load_buffer(save_buffer(whole))
    assert str(again) == str(whole)
    feeds = case.draw(np.random.default_rng(3))
    for a, b in zip(again.compile("ref").run(feeds), whole.compile("ref").run(feeds), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_lengths_at_which_a_window_does_not_fit_raise_when_they_are_run() -> None:
    g = Graph()
    y = g.op("MaxPool", g.op("MaxPool", "x", kernel_shape=[2], strides=[2]), kernel_shape=[2], strides=[2])
    length = DynamicDimension(1, 9, {1, 3, 9})
    program = parse_onnx(g.model({"x": (FLOAT, [1, 1, "L"])}, [y]), default_dyn_dim_value=length)
    compiled = public_program.wrap(program).compile("cpu")
    for count in (3, 9, 1, 4):
        x = np.arange(count, dtype=np.float32).reshape(1, 1, count)
        if count < 4:
            with pytest.raises(
                ShapeError, match=rf"window \[2\] does not fit .*, where inputs have .* x \[1, 1, {count}\]"
            ):
                compiled.run({"x": x})
        else:
            np.testing.assert_array_equal(np.asarray(compiled.run({"x": x})[0]).ravel(), np.arange(3, count, 4))
