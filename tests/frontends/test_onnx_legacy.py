"""Operator sets 1 to 6: each old form against the equivalent form of set 7 or later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.errors import ParseError, ShapeError, UnsupportedError

from ..values import normal
from .support import FLOAT, INT64, ints, run, single

X = normal(2, 3, 4, 5)
BOOL = 9
CHANNELS = normal(3, seed=1)
OLD_BATCH = [X, *(np.abs(normal(3, seed=k)) + 0.5 for k in range(4))]

CASES: dict[str, tuple[tuple[str, list[Any], dict[str, Any]], tuple[str, list[Any], dict[str, Any]]]] = {
    "add_of_equal_lengths": (("Add", [X, X], {"opset": 6}), ("Add", [X, X], {})),
    "add_along_axis_1": (
        ("Add", [X, CHANNELS], {"opset": 6, "broadcast": 1, "axis": 1}),
        ("Add", [X, CHANNELS[:, None, None]], {}),
    ),
    "sub_along_a_negative_axis": (
        ("Sub", [X, normal(3, 4)], {"opset": 1, "broadcast": 1, "axis": -3, "consumed_inputs": [0, 0]}),
        ("Sub", [X, normal(3, 4)[..., None]], {}),
    ),
    "mul_at_the_end": (("Mul", [X, normal(4, 5)], {"opset": 4, "broadcast": 1}), ("Mul", [X, normal(4, 5)], {})),
    "div_by_a_scalar": (
        ("Div", [X, np.array([2.0], np.float32)], {"opset": 6, "broadcast": 1}),
        ("Div", [X, np.float32(2)], {}),
    ),
    "pow_along_axis_0": (
        ("Pow", [np.abs(X), np.array([2.0, 3.0], np.float32)], {"opset": 1, "broadcast": 1, "axis": 0}),
        ("Pow", [np.abs(X), np.array([2.0, 3.0], np.float32).reshape(2, 1, 1, 1)], {}),
    ),
    "less_along_axis_1": (
        ("Less", [X, CHANNELS], {"opset": 1, "broadcast": 1, "axis": 1, "outputs": (BOOL,)}),
        ("Less", [X, CHANNELS[:, None, None]], {"outputs": (BOOL,)}),
    ),
    "prelu_with_a_slope_a_channel": (
        ("PRelu", [X, CHANNELS], {"opset": 6}),
        ("PRelu", [X, CHANNELS[:, None, None]], {}),
    ),
    "prelu_with_one_slope": (
        ("PRelu", [X, CHANNELS[:1]], {"opset": 1}),
        ("PRelu", [X, CHANNELS[:1]], {}),
    ),
    "batch_normalization": (
        ("BatchNormalization", OLD_BATCH, {"opset": 6, "is_test": 1, "epsilon": 0.01}),
        ("BatchNormalization", OLD_BATCH, {"epsilon": 0.01}),
    ),
    "dropout": (("Dropout", [X], {"opset": 6, "is_test": 1, "ratio": 0.7}), ("Dropout", [X], {})),
    "cast_by_name": (
        ("Cast", [X * 5], {"opset": 1, "to": "INT64", "outputs": (INT64,)}),
        ("Cast", [X * 5], {"to": INT64, "outputs": (INT64,)}),
    ),
    "concat_along_axis_1_by_default": (("Concat", [X, X], {"opset": 1}), ("Concat", [X, X], {"axis": 1})),
    "pad_by_paddings": (
        ("Pad", [X], {"opset": 1, "paddings": [0, 1, 0, 2, 0, 0, 1, 0], "value": 3.0}),
        ("Pad", [X], {"opset": 7, "pads": [0, 1, 0, 2, 0, 0, 1, 0], "value": 3.0}),
    ),
    "reshape_by_an_attribute": (
        ("Reshape", [X], {"opset": 1, "shape": [0, -1]}),
        ("Reshape", [X, ints(0, -1)], {"constant": [1]}),
    ),
    "split_by_an_attribute": (
        ("Split", [X], {"opset": 2, "axis": 2, "split": [1, 3], "outputs": (FLOAT, FLOAT)}),
        ("Split", [X, ints(1, 3)], {"axis": 2, "constant": [1], "outputs": (FLOAT, FLOAT)}),
    ),
    "tile_along_one_axis": (
        (
            "Tile",
            [X, np.array([3], np.float32), np.array([2], np.float32)],
            {"opset": 1, "constant": [1, 2]},
        ),
        ("Tile", [X, ints(1, 1, 3, 1)], {"constant": [1]}),
    ),
    "global_lp_pool_of_a_float_order": (("GlobalLpPool", [X], {"opset": 1, "p": 2.0}), ("GlobalLpPool", [X], {"p": 2})),
    "upsample_by_width_and_height": (
        ("Upsample", [X], {"opset": 1, "width_scale": 2.0, "height_scale": 3.0, "mode": "nearest"}),
        ("Upsample", [X], {"opset": 7, "scales": [1.0, 1.0, 3.0, 2.0], "mode": "nearest"}),
    ),
    "average_pool": (
        ("AveragePool", [X], {"opset": 1, "kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}),
        ("AveragePool", [X], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}),
    ),
    "gemm_with_a_row": (
        ("Gemm", [normal(2, 3), normal(3, 4), normal(4)], {"opset": 6, "broadcast": 1}),
        ("Gemm", [normal(2, 3), normal(3, 4), normal(4)], {}),
    ),
    **{
        f"{name.lower()}_of_operator_set_1": ((name, [np.abs(X)], {"opset": 1}), (name, [np.abs(X)], {}))
        for name in ("Abs", "Exp", "Relu", "Sigmoid", "Sqrt", "Tanh", "Log", "Neg", "Reciprocal", "Floor")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_old_forms_say_what_new_ones_do(name: str) -> None:
    old, new = ((op, inputs, options) for op, inputs, options in CASES[name])
    results, wanted = (run(*single(op, inputs, **options)) for op, inputs, options in (old, new))
    for a, b in zip(results, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("op_type", "inputs", "options", "error", "message"),
    [
        ("Add", [X, CHANNELS], {"opset": 6}, ShapeError, r"do not broadcast: \[2, 3, 4, 5\], \[3\]"),
        ("Add", [X, CHANNELS], {"opset": 6, "broadcast": 1, "axis": 4}, ShapeError, "axis is 4"),
        ("Add", [CHANNELS, X], {"opset": 6, "broadcast": 1}, ShapeError, "more dimensions than the first"),
        ("Dropout", [X], {"opset": 6}, UnsupportedError, "'is_test' is 0"),
        ("Cast", [X], {"opset": 1, "to": "QUATERNION"}, ParseError, "'to' is 'QUATERNION'"),
        ("GlobalLpPool", [X], {"opset": 1, "p": 1.5}, UnsupportedError, "norms of whole orders"),
    ],
)
def test_old_forms_that_are_wrong_are_refused(
    op_type: str, inputs: list[Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(*single(op_type, inputs, **options))
