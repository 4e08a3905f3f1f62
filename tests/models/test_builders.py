"""The model builders make valid graphs that another runtime accepts and whose values stay in a sane range."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from bench.models import MODELS, build, input_specs, inputs, light_models


@pytest.fixture(scope="module", params=sorted(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("batch", [1, 2])
def test_model_is_valid_and_every_shape_is_inferred(name: str, batch: int) -> None:
    model = build(name, batch=batch, scale="tiny")
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    known = {v.name for v in (*inferred.value_info, *inferred.output) if v.type.tensor_type.HasField("shape")}
    missing = [value for node in inferred.node for value in node.output if value and value not in known]
    assert missing == []


@pytest.mark.parametrize("batch", [1, 2])
def test_onnxruntime_gives_finite_outputs_of_the_declared_shapes(name: str, batch: int) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = build(name, batch=batch, scale="tiny")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, inputs(name, model))
    for info, value in zip(model.graph.output, results, strict=True):
        dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        assert all(want in (0, got) for want, got in zip(dims, value.shape, strict=True)), info.name
        assert np.isfinite(value).all(), info.name
        assert value.std() > 1e-3, info.name


def test_building_twice_gives_the_same_bytes(name: str) -> None:
    assert build(name, scale="tiny").SerializeToString() == build(name, scale="tiny").SerializeToString()


def test_inputs_fit_the_model_and_follow_the_seed(name: str) -> None:
    model = build(name, batch=2, scale="tiny")
    first, again, other = inputs(name, model), inputs(name, model), inputs(name, model, seed=1)
    assert {key: (value.dtype, value.shape) for key, value in first.items()} == input_specs(model)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)


def test_token_ids_reach_beyond_zero_and_one_and_stay_in_the_vocabulary() -> None:
    model = build("bert", batch=2, scale="tiny")
    values = inputs("bert", model)
    assert values["input_ids"].max() > 1
    assert values["input_ids"].max() < 50
    assert set(np.unique(values["token_type_ids"])) <= {0, 1}


def test_masks_pad_right_for_an_encoder_and_left_for_a_decoder() -> None:
    for seed in range(5):
        encoder = inputs("bert", build("bert", batch=4, scale="tiny"), seed)["attention_mask"]
        assert (np.diff(encoder, axis=1) <= 0).all()
        assert (encoder.sum(axis=1) >= encoder.shape[1] / 2).all()
        decoder = inputs("gpt2", build("gpt2", batch=4, scale="tiny"), seed)
        assert (np.diff(decoder["attention_mask"], axis=1) >= 0).all()
        assert np.array_equal(decoder["position_ids"][:, -1], decoder["attention_mask"].sum(axis=1) - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet"}, "unknown model 'resnet': expected one of bert"),
        ({"name": "mlp", "scale": "huge"}, "unknown scale 'huge': expected one of full, tiny"),
        ({"name": "mlp", "batch": 0}, "batch is 0: expected at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**arguments)  # type: ignore[arg-type]


def test_onnx_ships_nine_light_models_with_one_image_input() -> None:
    models = light_models()
    assert len(models) == 9
    for path in models.values():
        ((dtype, dims),) = input_specs(onnx.load(path)).values()
        assert (dtype, dims) == (np.float32, (1, 3, 224, 224))
