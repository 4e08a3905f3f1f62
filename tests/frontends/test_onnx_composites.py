"""Operators that become several instructions compute in float32 inside on 16-bit floats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .support import assert_like_onnxruntime, make_model

onnxruntime = pytest.importorskip("onnxruntime")

TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
STEP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding a normal number to nearest."""
LARGE = normal(2, 4, 5, 6) * 3000  # squares and sums are beyond float16
FULL = np.full((3, 4), 60000.0)
ENDS = np.array([-60000, -300, -20, -2.5, -1, 0, 0.5, 1, 20, 300, 60000.0])
CHANNELS = np.linspace(0.5, 2, 4)
LAST = np.linspace(-2, 2, 6)
AXIS = np.array([1])

CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "instance": ("InstanceNormalization", [LARGE, CHANNELS, -CHANNELS], {}),
    "group_18": ("GroupNormalization", [LARGE, CHANNELS[:2], CHANNELS[2:]], {"num_groups": 2, "opset": 18}),
    "group": ("GroupNormalization", [LARGE, CHANNELS * 9000, CHANNELS * -5000], {"num_groups": 2}),
    "layer": ("LayerNormalization", [LARGE, LAST * 9000, LAST * -9000], {}),
    "layer_stash_float16": ("LayerNormalization", [LARGE, LAST], {"stash_type": TensorProto.FLOAT16}),
    "layer_stash_bfloat16": ("LayerNormalization", [LARGE, LAST], {"stash_type": TensorProto.BFLOAT16}),
    "rms": ("RMSNormalization", [LARGE, LAST], {"opset": 23}),
    "batch": ("BatchNormalization", [FULL, CHANNELS * 100, CHANNELS - 6e4, CHANNELS * 0 + 59000, CHANNELS * 4], {}),
    "mean_variance": ("MeanVarianceNormalization", [LARGE], {}),
    "lp_1": ("LpNormalization", [LARGE], {"axis": 1, "p": 1, "opset": 22}),
    "lp_2": ("LpNormalization", [LARGE], {"axis": 1, "opset": 22}),
    "skip_layer": ("SkipLayerNormalization", [LARGE[0] * 5, LARGE[0] * 4, LAST, LAST], {"domain": "com.microsoft"}),
    "reduce_l1": ("ReduceL1", [FULL - 50000, AXIS], {}),
    "reduce_l2": ("ReduceL2", [FULL - 50000, AXIS], {}),
    "reduce_log_sum": ("ReduceLogSum", [FULL, AXIS], {}),
    "reduce_log_sum_exp": ("ReduceLogSumExp", [FULL, AXIS], {}),
    "reduce_sum_square": ("ReduceSumSquare", [FULL / 600, AXIS], {}),
    "sum": ("Sum", [FULL, FULL, -FULL], {}),
    "mean": ("Mean", [FULL, FULL, FULL], {}),
    "einsum_3": ("Einsum", [FULL / 100, FULL.T / 100, FULL / 2e7], {"equation": "ij,jk,kl->il"}),
    "einsum_sum": ("Einsum", [FULL, FULL.T / 2e7], {"equation": "ij,jk->k"}),
    "gelu": ("Gelu", [ENDS], {}),
    "gelu_tanh": ("Gelu", [ENDS], {"approximate": "tanh"}),
    "bias_gelu": ("BiasGelu", [ENDS, ENDS[::-1]], {"domain": "com.microsoft"}),
    "hard_sigmoid": ("HardSigmoid", [ENDS], {"alpha": 3.0}),
    "hard_swish": ("HardSwish", [ENDS], {}),
    "mish": ("Mish", [ENDS], {}),
    "selu": ("Selu", [ENDS / 600], {"alpha": 1000.0, "gamma": 0.001}),
    "softplus": ("Softplus", [ENDS], {}),
    "loss": ("SoftmaxCrossEntropyLoss", [normal(3, 5) * 20000, np.array([1, 2, 0])], {}),
}


def model_of(name: str, type: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model of one node in a float type, and float32 feeds whose values 16 bits hold exactly."""
    op_type, inputs, attributes = CASES[name]
    attributes = dict(attributes)
    opset, domain = attributes.pop("opset", 21), attributes.pop("domain", "")
    feeds, constants = {}, {}
    for k, value in enumerate(inputs):
        if value.dtype.kind != "f":
            (constants if value is AXIS else feeds)[f"x{k}"] = value
        else:
            feeds[f"x{k}"] = value.astype(ml_dtypes.bfloat16).astype(np.float16).astype(np.float32)
    node = helper.make_node(op_type, [f"x{k}" for k in range(len(inputs))], ["y"], domain=domain, **attributes)
    model = make_model([node], feeds, {"y": type}, opset=opset, constants=constants, contrib=bool(domain))
    for info in model.graph.input:
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = type
    return model, feeds


@pytest.mark.filterwarnings("ignore:.*which operator set .* does not allow")  # bfloat16
@pytest.mark.parametrize("name", CASES)
def test_values_inside_of_an_operator_are_float32(name: str) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model, feeds = model_of(name, TensorProto.FLOAT)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feeds)
    assert np.abs(wanted).max() < np.finfo(np.float16).max
    for type, number in TYPES.items():
        model, feeds = model_of(name, number)
        dtype = np.dtype(type)
        given = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in feeds.items()}
        for target, fast in (("ref", False), ("cpu", False), ("cpu", True)):
            (found,) = migraphx.parse_onnx(model).compile(target, fast_math=fast).run(given)
            found = np.asarray(found)
            assert found.dtype == dtype
            # what float32 rounds inside, a norm's cancellation included, is below half a step of the result
            size = np.abs(wanted).max() * 2.0**-12 + 2.0**-25
            np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=1.01 * STEP[type], atol=size)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_statistics_in_16_bits_are_rounded_once(target: str) -> None:
    """Statistics were computed in the type of ``stash_type``, where squares overflow; their results have that type."""
    x = LARGE.astype(np.float32)
    model = make_model(
        [helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean", "inverse"], stash_type=TensorProto.BFLOAT16)],
        {"x": x}, {"y": TensorProto.FLOAT, "mean": TensorProto.BFLOAT16, "inverse": TensorProto.BFLOAT16},
        opset=17, constants={"s": np.ones(6, np.float32)},
    )  # fmt: skip
    y, mean, inverse = (np.asarray(r) for r in migraphx.parse_onnx(model).compile(target).run({"x": x}))
    deviation = 1 / np.sqrt(x.var(-1, keepdims=True, dtype=float) + 1e-5)
    middle = x.mean(-1, keepdims=True, dtype=float)
    np.testing.assert_allclose(y, (x - middle) * deviation, rtol=1e-4, atol=1e-5)
    for found, wanted in ((mean, middle), (inverse, deviation)):
        assert found.dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(found.astype(float), wanted, rtol=1.01 * STEP["bfloat16"], atol=1e-3)


def test_statistics_of_doubles_have_the_type_of_stash_type() -> None:
    """They were double, a type that ONNX does not permit there."""
    x = LARGE.astype(np.float64)
    outputs = {"y": TensorProto.DOUBLE, "mean": TensorProto.FLOAT, "inverse": TensorProto.FLOAT}
    nodes = [helper.make_node("LayerNormalization", ["x", "s"], list(outputs))]
    assert_like_onnxruntime(make_model(nodes, {"x": x}, outputs, constants={"s": np.ones(6)}), {"x": x})


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("precision", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_scores_beyond_the_precision_of_a_softmax(precision: int, target: str) -> None:
    """Infinities less infinities were NaN in float16, and bfloat16 does not tell such scores apart."""
    q, k, v = (np.array(rows, np.float32)[None, None] for rows in ([[300, 0.001]], [[300, 1], [300, 900]], [[1], [5]]))
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], scale=1.0, softmax_precision=precision)
    feeds = {"q": q, "k": k, "v": v}
    model = make_model([node], feeds, {"y": TensorProto.FLOAT}, opset=23)
    (found,) = migraphx.parse_onnx(model).compile(target, fast_math=False).run(feeds)
    weight = 1 / (1 + np.exp(0.899))
    np.testing.assert_allclose(np.asarray(found).ravel(), weight + 5 * (1 - weight), atol=1e-2)


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_a_softmax_has_the_precision_of_its_input_by_default(softcap: float, target: str) -> None:
    """That of doubles was computed in float32."""
    q, k, v = (np.random.default_rng(s).standard_normal((1, 2, 5, 16)) for s in range(3))
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], scale=0.25, softcap=softcap)
    feeds = {"q": q, "k": k, "v": v}
    model = make_model([node], feeds, {"y": TensorProto.DOUBLE}, opset=23)
    (found,) = migraphx.parse_onnx(model).compile(target, fast_math=False).run(feeds)
    scores = 0.25 * q @ k.swapaxes(2, 3)
    weights = np.exp(softcap * np.tanh(scores / softcap) if softcap else scores)
    np.testing.assert_allclose(np.asarray(found), weights / weights.sum(3, keepdims=True) @ v, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Relu", 1),
        ("LeakyRelu", 1),
        ("Softmax", 1),
        ("Add", 2),
        ("MatMul", 2),
        ("Gemm", 3),
        ("ReduceMean", 1),
        ("Abs", 1),
    ],
)
def test_operators_of_one_rounding_are_left_in_their_type(op_type: str, inputs: int) -> None:
    feeds = {f"x{k}": np.zeros((3, 3), np.float16) for k in range(inputs)}
    model = make_model([helper.make_node(op_type, list(feeds), ["y"])], feeds, {"y": TensorProto.FLOAT16})
    assert "convert" not in str(parse_onnx(model))


def test_a_norm_of_a_convolution_stays_beside_it() -> None:
    """Passes fold the operator into the weights."""
    x, w, one = np.zeros((1, 2, 5, 5), np.float16), np.zeros((2, 2, 3, 3), np.float16), np.ones(2, np.float16)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["y"]),
    ]
    model = make_model(nodes, {"x": x}, {"y": TensorProto.FLOAT16}, constants={"w": w, "s": one})
    for fast in (False, True):
        program = migraphx.parse_onnx(model).compile("cpu", fast_math=fast)
        assert not {"sub", "rsqrt"} & set(str(program).replace("(", " ").split())


@pytest.mark.parametrize("fast", [False, True])
def test_casts_around_one_operation_round_where_the_author_wrote_them(fast: bool) -> None:
    """Passes may remove a composite's own conversions; the model's conversions stay, also with fast_math."""
    casts = {"a": ("x", TensorProto.FLOAT), "c": ("b", TensorProto.FLOAT16), "d": ("c", TensorProto.FLOAT)}
    nodes = [helper.make_node("Cast", [source], [name], to=to) for name, (source, to) in casts.items()]
    nodes.insert(1, helper.make_node("Exp", ["a"], ["b"]))
    nodes.append(helper.make_node("Neg", ["d"], ["y"]))
    x = normal(40).astype(np.float16)
    model = make_model(nodes, {"x": x}, {"y": TensorProto.FLOAT})
    (found,) = migraphx.parse_onnx(model).compile("cpu", fast_math=fast).run({"x": x})
    y = np.asarray(found)
    np.testing.assert_array_equal(y, y.astype(np.float16).astype(np.float32))
    np.testing.assert_allclose(y, -np.exp(x.astype(np.float32)), rtol=STEP["float16"] * 1.01)


def test_products_of_a_resize_are_rounded_once() -> None:
    """A resize handles its axes in sequence."""
    scales = np.array([1, 1, 0.6, 1.5], np.float32)
    x = np.where(np.arange(54).reshape(1, 1, 6, 9) % 4 < 2, 60000, -60000).astype(np.float16)
    results = []
    for dtype, number in ((np.float16, TensorProto.FLOAT16), (np.float32, TensorProto.FLOAT)):
        feeds = {"x": x.astype(dtype)}
        node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="cubic", antialias=1)
        model = make_model([node], feeds, {"y": number}, opset=19, constants={"s": scales})
        results.append(np.asarray(migraphx.parse_onnx(model).compile("ref").run(feeds)[0]))
    assert np.isfinite(results[0]).any()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(results[0], results[1].astype(np.float16))


def test_a_node_that_waits_for_a_value_computes_in_float32_too() -> None:
    feeds = {"x": np.full((2, 3), 60000, np.float16), "axes": np.array([1])}
    nodes = [helper.make_node("Add", ["axes", "axes"], ["a"]), helper.make_node("Sub", ["a", "axes"], ["b"])]
    nodes.append(helper.make_node("ReduceL2", ["x", "b"], ["y"], keepdims=0))
    model = make_model(nodes, feeds, {"y": TensorProto.FLOAT16}, opset=18)
    for target in ("ref", "cpu"):
        (found,) = migraphx.parse_onnx(model).compile(target, fast_math=False).run({**feeds, "x": feeds["x"] / 2})
        np.testing.assert_array_equal(np.asarray(found), np.full(2, 30000 * 3**0.5, np.float16))
