"""Whole models: the onnx package's models are read, and small copies of real architectures agree with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from bench.models import MODELS, build, inputs, light_models
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.validate import validate

from .onnx_cases import run_program
from .support import assert_like_onnxruntime

LIGHT = light_models()


@pytest.mark.parametrize("name", LIGHT)
def test_light_models_are_read_without_materialising_their_weights(name: str) -> None:
    program = parse_onnx(LIGHT[name])
    validate(program)
    (shape,) = program.parameter_shapes().values()
    assert shape.lens == (1, 3, 224, 224)
    assert [s.elements for s in program.output_shapes()] == [1000]
    assert all(ins.literal is None or ins.shape.elements <= 4096 for ins in program.main)


@pytest.mark.parametrize("name", MODELS)
def test_architectures_agree_with_onnxruntime(name: str) -> None:
    model = build(name, scale="tiny")
    assert_like_onnxruntime(model, inputs(name, model), tolerance=1e-5)


def test_batches_are_a_matter_of_the_input_dimensions() -> None:
    model = build("mlp", scale="tiny")
    feeds = inputs("mlp", model)
    (name,) = feeds
    twice = {name: np.concatenate([feeds[name], feeds[name]])}
    (one,) = run_program(parse_onnx(model), feeds)
    (two,) = run_program(parse_onnx(model, map_input_dims={name: list(twice[name].shape)}), twice)
    np.testing.assert_allclose(two, np.concatenate([one, one]), rtol=1e-5, atol=1e-6)
