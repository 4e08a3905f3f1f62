"""Files that are not quite as ONNX wants them, but whose meaning is beyond doubt."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from mgx_numba.errors import ParseError

from ..values import normal
from .support import FLOAT, make_model, run

X = normal(2, 3)


def test_an_operator_of_com_microsoft_needs_no_import() -> None:
    model = make_model(
        [helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", name="act")], {"x": X}, {"y": FLOAT}
    )
    with pytest.warns(UserWarning, match="act.*its domain 'com.microsoft' is not imported"):
        (y,) = run(model, {"x": X})
    np.testing.assert_allclose(y, X / (1 + np.exp(-1.702 * X)), rtol=1e-5)


def test_an_operator_of_another_domain_does() -> None:
    model = make_model([helper.make_node("QuickGelu", ["x"], ["y"], domain="com.example")], {"x": X}, {"y": FLOAT})
    with pytest.raises(ParseError, match="its domain 'com.example' is not imported"):
        run(model, {"x": X})


def test_an_integer_where_a_float_is_meant() -> None:
    model = make_model([helper.make_node("LeakyRelu", ["x"], ["y"], alpha=2, name="act")], {"x": X}, {"y": FLOAT})
    with pytest.warns(UserWarning, match="node 'act' .*attribute 'alpha' is an int, taken for a float"):
        (y,) = run(model, {"x": X})
    np.testing.assert_array_equal(y, np.where(X < 0, 2 * X, X))


def test_a_float_where_an_integer_is_meant() -> None:
    model = make_model([helper.make_node("Softmax", ["x"], ["y"], axis=1.0)], {"x": X}, {"y": FLOAT})
    with pytest.raises(ParseError, match="attribute 'axis' is of kind float, expected int"):
        run(model, {"x": X})
