"""Models of Keras with random weights, frozen by TensorFlow (extra ``tensorflow``), against TensorFlow's results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba

tf = pytest.importorskip("tensorflow")

LARGEST_ERROR = 1e-4
"""Accepted error of a result relative to its largest element."""


def frozen(function: Callable[..., Any], *specs: Any) -> Any:
    """A concrete function whose variables are constants."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    return convert_variables_to_constants_v2(tf.function(function).get_concrete_function(*specs))


def randomise(model: Any) -> None:
    """Statistics and factors of normalisations near 1, so that nothing vanishes or explodes with depth."""
    rng = np.random.default_rng(2)
    for weight in model.weights:
        if "variance" in weight.name:
            weight.assign(rng.uniform(0.5, 1.5, weight.shape))
        elif "gamma" in weight.name:
            weight.assign(rng.uniform(0.7, 1.1, weight.shape))
        elif any(part in weight.name for part in ("mean", "beta", "bias")):
            weight.assign(rng.normal(0, 0.1, weight.shape))


def check(program: Any, feeds: dict[str, np.ndarray], wanted: list[Any]) -> None:
    """Compile for ``cpu``, run, compare."""
    program.compile(mgx_numba.get_target("cpu"))
    found = program.run(feeds)
    assert len(found) == len(wanted)
    for a, b in zip(map(np.asarray, found), map(np.asarray, wanted), strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= LARGEST_ERROR * np.abs(b).max()


@pytest.mark.parametrize(
    "name, size",
    [("MobileNet", 64), ("MobileNetV2", 64), ("ResNet50", 64), ("EfficientNetB0", 64), ("InceptionV3", 96)],
)
def test_keras_applications(name: str, size: int) -> None:
    tf.keras.utils.set_random_seed(1)
    model = getattr(tf.keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)
    randomise(model)
    x = np.random.default_rng(0).uniform(0, 1, (2, size, size, 3)).astype(np.float32)
    function = frozen(lambda t: model(t, training=False), tf.TensorSpec((None, size, size, 3), tf.float32))
    data = function.graph.as_graph_def().SerializeToString()
    program = mgx_numba.parse_tf_buffer(data, batch_size=2)
    (name,) = program.get_parameter_names()
    check(program, {name: np.ascontiguousarray(x.transpose(0, 3, 1, 2))}, [model(x, training=False)])


class Encoder(tf.Module):
    """BERT: embeddings, two layers of self-attention with a mask, a pooler."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        rng = np.random.default_rng(3)
        keras = tf.keras.layers
        self.tables = [tf.Variable(rng.normal(0, 0.5, (rows, width)).astype(np.float32)) for rows in (100, 32, 2)]
        self.first = keras.LayerNormalization(epsilon=1e-12)
        self.blocks = [
            (
                keras.MultiHeadAttention(heads, width // heads),
                keras.LayerNormalization(epsilon=1e-12),
                keras.Dense(4 * width, activation="gelu"),
                keras.Dense(width),
                keras.LayerNormalization(epsilon=1e-12),
            )
            for _ in range(2)
        ]
        self.pool = keras.Dense(width, activation="tanh")

    def __call__(self, ids: Any, mask: Any, types: Any) -> Any:
        words, places, kinds = self.tables
        x = tf.gather(words, ids) + tf.gather(places, tf.range(tf.shape(ids)[1])) + tf.gather(kinds, types)
        x = self.first(x)
        for attention, norm, wide, narrow, last in self.blocks:
            x = norm(x + attention(x, x, attention_mask=tf.cast(mask[:, tf.newaxis, :], tf.bool)))
            x = last(x + narrow(wide(x)))
        return x, self.pool(x[:, 0])


@pytest.mark.parametrize("lens", [(2, 16), (None, None)], ids=["fixed", "open"])
def test_bert(lens: tuple[Any, Any], tmp_path: Path) -> None:
    tf.keras.utils.set_random_seed(1)
    model = Encoder()
    rng = np.random.default_rng(0)
    mask = np.ones((2, 16), np.int32)
    mask[1, 11:] = 0
    feeds = [rng.integers(0, 100, (2, 16)), mask, rng.integers(0, 2, (2, 16))]
    feeds = [x.astype(np.int32) for x in feeds]
    wanted = model(*feeds)
    function = frozen(model.__call__, *(tf.TensorSpec(lens, tf.int32, n) for n in ("ids", "mask", "types")))
    path = tmp_path / "bert.pb"
    path.write_bytes(function.graph.as_graph_def().SerializeToString())
    program = mgx_numba.parse_tf(path, map_input_dims=dict.fromkeys(("ids", "mask", "types"), (2, 16)))
    check(program, dict(zip(("ids", "mask", "types"), feeds, strict=True)), list(wanted))


def test_saved_model_of_a_frozen_function(tmp_path: Path) -> None:
    layer = tf.keras.Sequential([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(5, "relu")])
    module = tf.Module()
    module.f = frozen(lambda x: layer(x), tf.TensorSpec((None, 6), tf.float32))
    tf.saved_model.save(module, str(tmp_path), signatures=module.f)
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    program = mgx_numba.parse_tf(tmp_path, batch_size=3)
    (name,) = program.get_parameter_names()
    check(program, {name: x}, [layer(x)])
