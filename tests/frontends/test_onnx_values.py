"""Complex numbers and float8e8m0 as inputs, constants and results; sparse constants of every element type."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mgx_numba as migraphx
from mgx_numba.errors import MgxError, ParameterError
from mgx_numba.frontends.onnx import parse_onnx

from ..values import SPECIAL, normal
from .support import make_model, run, single

C64, C128, E8M0 = TensorProto.COMPLEX64, TensorProto.COMPLEX128, TensorProto.FLOAT8E8M0
FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
TYPES = {C64: np.complex64, C128: np.complex128}


def complexes(*lens: int, seed: int = 0, dtype: Any = np.complex64) -> np.ndarray:
    return (normal(*lens, seed=seed) + 1j * normal(*lens, seed=seed + 1)).astype(dtype)


def both(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the results of ``cpu`` after checking that they equal those of ``ref``."""
    found = {}
    for target in ("ref", "cpu"):
        found[target] = [np.asarray(r) for r in migraphx.parse_onnx(model).compile(target).run(feeds)]
    for a, b in zip(found["ref"], found["cpu"], strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)
    return found["cpu"]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize(
    ("op_type", "others", "attributes"),
    [
        ("Identity", [], {}),
        ("Transpose", [], {"perm": [1, 0]}),
        ("Reshape", [np.array([3, -1])], {}),
        ("Gather", [np.array([[1, 0], [-1, 1]])], {"axis": 1}),
        ("Slice", [np.array([1]), np.array([3]), np.array([1])], {}),
        ("Expand", [np.array([2, 2, 3])], {}),
        ("Unsqueeze", [np.array([1])], {}),
        ("Tile", [np.array([2, 2])], {}),
        ("Pad", [np.array([0, 1, 1, 0])], {}),
        ("Flatten", [], {}),
    ],
)
def test_complex_numbers_are_moved(
    op_type: str, others: list[np.ndarray], attributes: dict[str, Any], type: int
) -> None:
    x = complexes(2, 3, dtype=TYPES[type])
    model, feeds = single(op_type, [x, *others], outputs=(type,), **attributes)
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    (found,) = both(model, feeds)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("type", TYPES)
def test_complex_constants(type: int, raw: bool, tmp_path: Path) -> None:
    w, x = complexes(2, 3, dtype=TYPES[type]), complexes(1, 3, seed=5, dtype=TYPES[type])
    tensor = numpy_helper.from_array(w, "w") if raw else helper.make_tensor("w", type, w.shape, w.ravel())
    model = make_model([helper.make_node("Concat", ["x", "w"], ["y"], axis=0)], {"x": x}, {"y": type})
    model.graph.initializer.append(tensor)
    np.testing.assert_array_equal(both(model, {"x": x})[0], np.concatenate([x, w]))
    program = migraphx.parse_onnx(model)
    program.save(tmp_path / "c.mxr")
    np.testing.assert_array_equal(
        migraphx.load(tmp_path / "c.mxr").compile("cpu").run({"x": x})[0], np.concatenate([x, w])
    )


def test_complex_numbers_do_not_become_real_silently() -> None:
    model, _ = single("Identity", [normal(2)])
    with pytest.raises(ParameterError, match="Incorrect type .*complex64_type.*float_type"):
        migraphx.parse_onnx(model).compile("cpu").run({"x0": complexes(2)})


NUMBERS = np.float32([*SPECIAL, 1, 1.5, 3, 5, 0.75, -2.5, 1e-40, 3e38, 1.6e38, 2**-126, 6.5e-39, 2.0**127])


def nearest_power(x: float, saturate: bool, mode: str) -> int:
    """Return the code of float8e8m0: the exponent plus 127."""
    if math.isnan(x) or (not saturate and (math.isinf(x) or x < 2.0**-127)):
        return 255
    if math.isinf(x):
        return 254
    fraction, exponent = math.frexp(max(x, 2.0**-127))
    up = fraction > 0.5 if mode == "up" else fraction >= 0.75 and mode == "nearest"
    return min(exponent - 1 + 127 + up, 254 if saturate else 255)


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_rounding_to_powers_of_two(mode: str, saturate: int) -> None:
    """Follow the table of ONNX's Cast: infinity is beyond the largest power, 0 below the least. ONNX's own
    `numpy_helper.to_float8e8m0` makes NaN of infinity, and 2**-126 of each subnormal number that is rounded up."""
    x = np.concatenate([NUMBERS, normal(64, scale=100.0)])
    given = {"to": E8M0, "round_mode": mode, "saturate": saturate}
    model, feeds = single("Cast", [x], opset=24, outputs=(E8M0,), **given)
    wanted = np.array([nearest_power(abs(float(v)), bool(saturate), mode) for v in x], np.uint8)
    for target in ("ref", "cpu"):
        (found,) = migraphx.parse_onnx(model).compile(target).run(feeds)
        assert found.dtype == ml_dtypes.float8_e8m0fnu
        np.testing.assert_array_equal(np.asarray(found).view(np.uint8), wanted)


@pytest.mark.parametrize("block", [0, 4])
def test_scales_that_are_powers_of_two(block: int) -> None:
    x = normal(3, 8, scale=4.0)
    lens = (3, 8 // block) if block else (3,)
    scale = np.exp2(np.arange(np.prod(lens)) % 5 - 3).reshape(lens).astype(np.float32)
    given = {"axis": 1 if block else 0, "block_size": block}
    powers = scale.astype(ml_dtypes.float8_e8m0fnu)
    for op_type, value, output in (("QuantizeLinear", x, UINT8), ("DequantizeLinear", (x * 8).astype(np.uint8), FLOAT)):
        model, feeds = single(op_type, [value, powers], opset=28, outputs=(output,), **given)
        plain, plain_feeds = single(op_type, [value, scale], opset=28, outputs=(output,), **given)
        np.testing.assert_array_equal(both(model, feeds)[0], run(plain, plain_feeds)[0])


def test_the_division_has_the_precision_that_is_asked_for() -> None:
    x, scale = normal(64, scale=20.0).astype(np.float16), np.array(0.3, np.float16)
    model, feeds = single("QuantizeLinear", [x, scale], opset=25, outputs=(UINT8,), precision=FLOAT)
    wanted = np.clip(np.rint(x.astype(np.float32) / np.float32(scale)), 0, 255)
    np.testing.assert_array_equal(both(model, feeds)[0], wanted.astype(np.uint8))


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(
    "values", [np.float32([2, -3]), np.int64([5, 6]), np.array(["p", "q"], object), np.complex64([1j, 2])]
)
def test_sparse_constants(values: np.ndarray, linear: bool) -> None:
    where = np.array([1, 5]) if linear else np.array([[0, 1], [1, 2]])
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(where, "i"), [2, 3]
    )
    dense = np.full((2, 3), "" if values.dtype == object else 0, values.dtype)
    dense[[0, 1], [1, 2]] = values
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        helper.make_node("Concat", ["c", "w", "x"], ["y"], axis=0),
    ]
    model = make_model(nodes, {"x": dense[:1]}, {"y": helper.np_dtype_to_tensor_dtype(values.dtype)})
    model.graph.sparse_initializer.append(sparse)
    np.testing.assert_array_equal(both(model, {"x": dense[:1]})[0], np.concatenate([dense, dense, dense[:1]]))


def test_sparse_inputs_are_refused() -> None:
    info = onnx.ValueInfoProto(name="x")
    info.type.sparse_tensor_type.elem_type = FLOAT
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", [info], [onnx.ValueInfoProto(name="y")]
    )
    with pytest.raises(MgxError, match="input 'x': a sparse_tensor is not supported, only tensors, sequences"):
        parse_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
