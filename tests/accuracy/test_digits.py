"""Accuracy of lower precision on real data: small networks, trained by the tests, on images not used for training."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import onnx
import pytest

import mgx_numba
from tests.caches import stored

from . import digits as digits_module
from .digits import Digits, accuracy, digits, train_cnn, train_mlp

# Not imported to find out: every worker imports this file, and one needs scikit-learn.
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="no scikit-learn")

NETWORKS: dict[str, Callable[[Digits], onnx.ModelProto]] = {"mlp": train_mlp, "cnn": train_cnn}


@pytest.fixture(scope="module", params=NETWORKS)
def trained(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, Digits, float]:
    """A network, the data, and how much of what was held out it gets right in float32."""
    data = digits()
    how = hashlib.sha256(inspect.getsource(digits_module).encode()).hexdigest()[:16]
    name = f"{request.param}_{how}_numpy_{np.__version__}_sklearn_{version('scikit-learn')}"
    model = stored(name, lambda: NETWORKS[request.param](data))
    right = percent(mgx_numba.parse_onnx(model), data)
    assert right > 94
    return model, data, right


def percent(p: mgx_numba.program, data: Digits) -> float:
    x, y = data.test
    return accuracy(np.asarray(p.compile("cpu").run({"x": x})[0]), y)


@pytest.mark.parametrize("observer", ["minmax", "percentile", "entropy", "mse"])
def test_8_bits_lose_half_a_point_at_most(trained: tuple[onnx.ModelProto, Digits, float], observer: str) -> None:
    model, data, right = trained
    p = mgx_numba.parse_onnx(model)
    batch = {"x": data.train[0][:500]}
    mgx_numba.quantize_int8(p, mgx_numba.get_target("cpu"), [batch], observer=observer)
    choices = p.quantization_choices()
    assert all(c.choice == "int8" for c in choices) and len(choices) == 3
    assert percent(p, data) >= right - 0.5


def test_weights_of_4_bits_lose_one_point_at_most(trained: tuple[onnx.ModelProto, Digits, float]) -> None:
    model, data, right = trained
    p = mgx_numba.parse_onnx(model)
    mgx_numba.quantize_int4_weights(p)
    assert str(p).count("unpack_int4") >= 2
    assert percent(p, data) >= right - 1


@pytest.mark.parametrize("quantize", [mgx_numba.quantize_fp16, mgx_numba.quantize_bf16])
def test_16_bits_lose_next_to_nothing(trained: tuple[onnx.ModelProto, Digits, float], quantize: Callable) -> None:
    model, data, right = trained
    p = mgx_numba.parse_onnx(model)
    quantize(p)
    assert percent(p, data) >= right - 0.2
