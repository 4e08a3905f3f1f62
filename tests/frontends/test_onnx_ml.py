"""ai.onnx.ml against ONNX Runtime; where ONNX Runtime differs from the specification, against ONNX's evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from mgx_numba.errors import ParseError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.frontends.onnx.hash_table import hash_table

from ..values import normal
from .onnx_cases import run_compiled
from .support import FLOAT, INT64, assert_like_onnxruntime, ints, make_model, run

ML = "ai.onnx.ml"
NAN = float("nan")
X = normal(5, 4)


def model(
    op_type: str, inputs: list[np.ndarray], outputs: list[int] | None = None, version: int = 3, **attributes: Any
):
    """Return a one-operator model and its feeds."""
    feeds = {f"x{k}": value for k, value in enumerate(inputs)}
    types = outputs or [FLOAT]
    node = helper.make_node(op_type, list(feeds), [f"y{k}" for k in range(len(types))], domain=ML, **attributes)
    made = make_model([node], feeds, {f"y{k}": t for k, t in enumerate(types)})
    made.opset_import.append(helper.make_opsetid(ML, version))
    return made, feeds


def with_nan(value: np.ndarray) -> np.ndarray:
    value = value.copy()
    value.ravel()[::3] = np.nan
    return value


CASES: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    "scaler_of_each_feature": ("Scaler", [X], {"offset": [1.0, 0.0, -1.0, 2.0], "scale": [1.0, 2.0, 0.5, -1.0]}),
    "scaler_of_all": ("Scaler", [X], {"offset": [1.0], "scale": [2.0]}),
    "scaler_of_integers": ("Scaler", [ints(1, 2, 3).reshape(3, 1)], {"offset": [1.0], "scale": [0.5]}),
    "scaler_of_nothing": ("Scaler", [normal(0, 2)], {"offset": [1.0, 2.0], "scale": [1.0, 2.0]}),
    "normalizer_max": ("Normalizer", [np.abs(X)], {"norm": "MAX"}),
    "normalizer_l1": ("Normalizer", [X], {"norm": "L1"}),
    "normalizer_l2": ("Normalizer", [X], {"norm": "L2"}),
    "normalizer_l2_of_zeros": ("Normalizer", [np.zeros((2, 3), np.float32)], {"norm": "L2"}),
    "normalizer_of_a_vector": ("Normalizer", [X[0]], {"norm": "L1"}),
    "imputer_of_nan": ("Imputer", [with_nan(X)], {"imputed_value_floats": [9.0], "replaced_value_float": NAN}),
    "imputer_of_each_feature": (
        "Imputer",
        [np.round(X)],
        {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": 0.0},
    ),
    "imputer_of_integers": (
        "Imputer",
        [ints(1, 0, 3, 0).reshape(2, 2)],
        {"imputed_value_int64s": [7, 8], "replaced_value_int64": 0, "outputs": [INT64]},
    ),
    "binarizer": ("Binarizer", [X], {"threshold": 0.25}),
    "feature_vectorizer": ("FeatureVectorizer", [X, normal(5, 2, seed=1)], {"inputdimensions": [4, 2]}),
    "array_feature_extractor": ("ArrayFeatureExtractor", [X, ints(3, 0)], {}),
    "array_feature_extractor_of_a_vector": ("ArrayFeatureExtractor", [X[0], ints(1, 1, 2)], {}),
    "array_feature_extractor_of_many_axes": ("ArrayFeatureExtractor", [normal(2, 3, 4), ints(2)], {}),
    "one_hot_encoder": ("OneHotEncoder", [ints(1, 5, 3).reshape(1, 3)], {"cats_int64s": [1, 3, 4], "zeros": 1}),
    "one_hot_encoder_of_floats": (
        "OneHotEncoder",
        [np.array([1, 4, 2], np.float32)],
        {"cats_int64s": [1, 3, 4], "zeros": 1},
    ),
    "label_encoder_of_integers": (
        "LabelEncoder",
        [ints(4, 1, 7, 2, 9).reshape(5, 1)],
        {"keys_int64s": [7, 1, 4], "values_int64s": [70, 10, 40], "default_int64": -3, "outputs": [INT64]},
    ),
    "label_encoder_of_floats": (
        "LabelEncoder",
        [np.array([1.5, 2.5, 2.0, -1.0], np.float32)],
        {"keys_floats": [2.0, 1.5], "values_floats": [20.0, 15.0], "default_float": 0.5},
    ),
    "label_encoder_from_integers_to_floats": (
        "LabelEncoder",
        [ints(4, 1, 0)],
        {"keys_int64s": [0, 1], "values_floats": [0.5, 1.5]},
    ),
    "linear_regressor": (
        "LinearRegressor",
        [X],
        {"coefficients": normal(8).tolist(), "intercepts": [1.0, -2.0], "targets": 2},
    ),
    "linear_regressor_without_intercepts": ("LinearRegressor", [X], {"coefficients": [1.0, 2.0, 3.0, 4.0]}),
    "linear_regressor_of_a_vector": ("LinearRegressor", [X[0]], {"coefficients": [1.0, 2.0, 3.0, 4.0]}),
    "linear_regressor_of_nothing": ("LinearRegressor", [normal(0, 4)], {"coefficients": [1.0, 2.0, 3.0, 4.0]}),
    **{
        f"svm_regressor_{kind.lower()}": (
            "SVMRegressor",
            [X],
            {
                "kernel_type": kind,
                "kernel_params": [0.3, 0.1, 3.0],
                "n_supports": 3,
                "support_vectors": normal(12, seed=2).tolist(),
                "coefficients": [0.5, -1.0, 2.0],
                "rho": [0.25],
            },
        )
        for kind in ("LINEAR", "POLY", "RBF", "SIGMOID")
    },
    "svm_regressor_without_vectors": (
        "SVMRegressor",
        [X],
        {
            "kernel_type": "LINEAR",
            "kernel_params": [0.0, 0.0, 0.0],
            "coefficients": [0.5, -1.0, 2.0, 1.0],
            "rho": [0.25],
        },
    ),
    "svm_regressor_of_one_class": (
        "SVMRegressor",
        [X],
        {
            "kernel_type": "RBF",
            "kernel_params": [0.5, 0.0, 3.0],
            "n_supports": 2,
            "support_vectors": X[:2].ravel().tolist(),
            "coefficients": [1.0, 0.5],
            "rho": [-0.5],
            "one_class": 1,
        },
    ),
    **{
        f"linear_classifier_of_{count}_{transform.lower()}": (
            "LinearClassifier",
            [X],
            {
                "coefficients": normal(4 * count, seed=3).tolist(),
                "intercepts": normal(count, seed=4).tolist(),
                "classlabels_ints": [10, 20, 30][:count],
                "post_transform": transform,
                "outputs": [INT64, FLOAT],
            },
        )
        for count in (2, 3)
        for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    },
    **{
        f"linear_classifier_of_one_row_{transform.lower()}": (
            "LinearClassifier",
            [X],
            {
                "coefficients": normal(4, seed=3).tolist(),
                "intercepts": [0.1],
                "classlabels_ints": [5, 6],
                "post_transform": transform,
                "outputs": [INT64, FLOAT],
            },
        )
        for transform in ("NONE", "LOGISTIC", "SOFTMAX")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str) -> None:
    op_type, inputs, attributes = CASES[name]
    attributes = dict(attributes)
    outputs = attributes.pop("outputs", None)
    if op_type in ("Binarizer", "ArrayFeatureExtractor", "Imputer"):
        outputs = outputs or [helper.np_dtype_to_tensor_dtype(inputs[0].dtype)]
    version = 2 if op_type == "LabelEncoder" else 1
    assert_like_onnxruntime(*model(op_type, inputs, outputs, version, **attributes), tolerance=2e-6)


def test_nan_is_a_key_of_label_encoder() -> None:
    """ONNX Runtime finds it from version 4 of the operator on."""
    x = np.array([1.5, NAN, 2.0, -1.0], np.float32)
    keys, values = [2.0, NAN, 1.5], [20.0, 5.0, 15.0]
    made, feeds = model("LabelEncoder", [x], version=2, keys_floats=keys, values_floats=values, default_float=0.5)
    (y,) = run(made, feeds)
    np.testing.assert_array_equal(y, np.array([15.0, 5.0, 20.0, 0.5], np.float32))


@pytest.mark.parametrize("keys", [[], [3], [*range(17)], [*range(0, 64, 2)]])
def test_label_encoder_finds_every_key_and_nothing_else(keys: list[int]) -> None:
    tensors = {
        "keys_tensor": numpy_helper.from_array(np.array(keys, np.int64)),
        "values_tensor": numpy_helper.from_array(np.array(keys, np.float64) * 10),
        "default_tensor": numpy_helper.from_array(np.array([-7.0])),
    }
    x = np.arange(-2, 70).reshape(8, 9)
    made, feeds = model("LabelEncoder", [x], [11], version=4, **tensors)
    (y,) = run(made, feeds)
    np.testing.assert_array_equal(y, np.where(np.isin(x, keys), x * 10.0, -7.0))


def test_label_encoder_of_large_integers() -> None:
    rng, ends = np.random.default_rng(1), np.iinfo(np.int64)
    keys = np.unique([*rng.integers(-(1 << 62), 1 << 62, 200), 0, -1, ends.max, ends.min, *(np.arange(50) << 44)])
    values = np.arange(keys.size, dtype=float)
    known = dict(zip(keys.tolist(), values.tolist()))
    x = rng.permutation(np.concatenate([keys, keys[1:] - 1]))
    made, feeds = model(
        "LabelEncoder", [x], version=2, keys_int64s=keys.tolist(), values_floats=values.tolist(), default_float=-1.0
    )
    wanted = np.array([known.get(key, -1) for key in x.tolist()], np.float32)
    for found in (run(made, feeds), run_compiled(parse_onnx(made), feeds)):
        np.testing.assert_array_equal(found[0], wanted)


def numbers(dtype: str) -> np.ndarray:
    """Return numbers of few low bits, of few high bits, extremes, both zeros, and NaN."""
    if np.dtype(dtype).kind == "f":
        some = np.concatenate(
            [np.arange(-40, 40) / 4, 2.0 ** np.arange(-100, 100, 7), [np.inf, -np.inf, np.nan, 0, -0.0]]
        )
        return some.astype(dtype)
    limits = np.iinfo(dtype)
    some = [*range(-20, 40), *(k * (limits.max // 32) for k in range(-32, 33)), limits.min, limits.max]
    return np.array(some, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("count", [1, 5, 60])
def test_label_encoder_takes_the_last_of_equal_keys_of_any_type(dtype: str, count: int) -> None:
    random, all_numbers = np.random.default_rng(count), numbers(dtype)
    keys = random.choice(all_numbers, count)
    if np.dtype(dtype).kind == "f":
        keys[-1] = -0.0
    values = random.permutation(count).astype(np.float32)
    tensors = {"keys_tensor": keys, "values_tensor": values, "default_tensor": np.array([-1], np.float32)}
    x = random.permutation(np.concatenate([all_numbers, keys]))
    attributes = {name: numpy_helper.from_array(value) for name, value in tensors.items()}
    made, feeds = model("LabelEncoder", [x], version=4, **attributes)
    wanted = [
        next((v for k, v in zip(keys[::-1], values[::-1]) if k == one or (k != k and one != one)), -1) for one in x
    ]
    for found in (run(made, feeds), run_compiled(parse_onnx(made), feeds)):
        np.testing.assert_array_equal(found[0], np.array(wanted, np.float32))


@pytest.mark.parametrize(
    "keys",
    [
        np.arange(5000) * 977, np.arange(16) << 60, np.arange(300.0).view(np.int64), -np.arange(77), np.array([7]),
        np.unique(np.random.default_rng(1).integers(-(1 << 17), 1 << 17, 5000)) << 44,
        np.unique(np.random.default_rng(2).integers(0, 1 << 30, 5000)) * ((1 << 32) + 1),
    ],
    ids=["spread", "high bits", "floats", "negative", "one", "irregular high bits", "equal halves"],
)  # fmt: skip
def test_each_key_of_a_hash_table_has_a_slot_of_its_own(keys: np.ndarray) -> None:
    table = hash_table(keys)
    slots = table.slot(keys)
    assert len(set(slots.tolist())) == len(keys) and slots.min() >= 0 and slots.max() < table.slots <= 8 * len(keys)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "error", "message"),
    [
        ("Scaler", [X], {"scale": [1.0, 2.0]}, ShapeError, "'scale' has 2 elements"),
        ("LinearRegressor", [X], {"coefficients": [1.0] * 5}, ShapeError, "the model is of 5 features"),
        ("LinearRegressor", [X], {"coefficients": [1.0] * 5, "targets": 2}, ParseError, "do not make 2 equal rows"),
        ("OneHotEncoder", [ints(1)], {"cats_strings": ["a"]}, ParseError, "'cats_int64s' .ints. is missing"),
        ("LabelEncoder", [ints(1)], {"keys_int64s": [1], "values_int64s": [1, 2]}, ParseError, "1 keys, but 2 values"),
        ("Imputer", [X], {"imputed_value_int64s": [1]}, ParseError, "no imputed values for elements of type float"),
    ],
)
def test_what_does_not_fit_is_refused(
    op_type: str, inputs: list[np.ndarray], attributes: dict[str, Any], error: type, message: str
) -> None:
    made, feeds = model(op_type, inputs, version=2 if op_type == "LabelEncoder" else 1, **attributes)
    with pytest.raises(error, match=message):
        run(made, feeds)


def test_features_are_extracted_at_indices_of_open_lengths() -> None:
    """The largest number of indices was taken for their number, as in models of scikit-learn's nearest neighbours."""
    x, indices = normal(3, 4), np.array([[0, 1], [2, 0]])
    made, feeds = model("ArrayFeatureExtractor", [x, indices])
    for value in made.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = f"{value.name}_{len(dim.dim_param)}"
    made.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 2
    (y,) = run_compiled(parse_onnx(made), feeds)
    np.testing.assert_array_equal(y, x[:, indices.ravel()])
