"""Values below a byte, and float8e8m0, as inputs, constants, results and between operators."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.errors import MgxError, ParameterError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.session import InferenceSession, OrtValue

from ..interpreter.engine import interpreted
from .support import make_model

BITS = {"uint2": 2, "int2": 2, "uint4": 4, "int4": 4, "float4_e2m1fn": 4}
"""Types of ml_dtypes below a byte."""
CODED = [*BITS, "float8_e8m0fnu"]
OTHERS = ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int64", "uint64", "bool", "float8_e4m3fn"]
NUMBERS_OF_FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TARGETS = ["ref", "cpu", "gpu"]


def dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def number(name: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype(name)))


def every_code(name: str) -> np.ndarray:
    """Return all values of a type; the first value is repeated at the end, so that the number of values is odd."""
    codes = np.arange(1 << BITS.get(name, 8), dtype=np.uint8)
    return np.concatenate([codes, codes[:1]]).view(dtype(name))


def values(name: str) -> np.ndarray:
    """Return numbers at, between and beyond the numbers of narrow types; floats include -0, infinities and NaN."""
    if name in CODED:
        return every_code(name)
    if name == "bool":
        return np.array([True, False, True])
    if dtype(name).kind in "iu":
        limits = np.iinfo(name)
        wide = np.arange(max(-40, limits.min), 41).astype(name)
        return np.concatenate([wide, np.array([limits.min, limits.max], name)])
    steps = np.arange(-32, 33) / 8
    with np.errstate(all="ignore"):
        return np.concatenate([steps, steps * 2, [-0.0, 7.5, -9, np.inf, -np.inf, np.nan]]).astype(dtype(name))


def casts(source: str, wanted: list[str], lens: tuple[int, ...]) -> onnx.ModelProto:
    nodes = [helper.make_node("Cast", ["x"], [f"y{k}"], to=number(t)) for k, t in enumerate(wanted)]
    feeds = {"x": np.empty(lens, dtype(source))}
    return make_model(nodes, feeds, {f"y{k}": number(t) for k, t in enumerate(wanted)}, opset=25)


def run_on(target: str, model: onnx.ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if target != "gpu":
            return [np.asarray(r) for r in parse_onnx_and_compile(model, target).run(feeds)]
        with interpreted():
            return [np.asarray(r) for r in parse_onnx_and_compile(model, target).run(feeds)]


def parse_onnx_and_compile(model: onnx.ModelProto, target: str) -> migraphx.program:
    return migraphx.parse_onnx(model).compile(target)


def wide(x: np.ndarray) -> np.ndarray:
    """Return values in float64, which holds all compared values exactly except the largest integers."""
    return x.astype(np.float32).astype(np.float64) if x.dtype.kind == "V" else x.astype(np.float64)


def nearest_code(v: float) -> int:
    """Return the float4e2m1 code nearest to a number, by comparison with all codes; ties give the even code."""
    if np.isnan(v):
        return 8
    distance = np.abs(NUMBERS_OF_FLOAT4 - min(abs(v), 6))
    best = [k for k in range(8) if distance[k] == distance.min()]
    return int(min(best, key=lambda k: k % 2)) | (8 if np.signbit(v) else 0)


def expected(x: np.ndarray, name: str) -> np.ndarray:
    """Return a conversion to a type below a byte, as Cast defines it.

    Cast does not define floats out of range: the result is the low bits of the saturated int32.
    """
    if name == "float4_e2m1fn":
        return np.array([nearest_code(float(np.float32(v))) for v in wide(x)], np.uint8).view(dtype(name))
    if x.dtype.kind in "iub":
        low = x.astype(np.uint64)
    else:
        low = np.trunc(np.clip(np.nan_to_num(wide(x)), -(2**31), 2**31 - 1)).astype(np.int64).astype(np.uint64)
    return (low & np.uint64((1 << BITS[name]) - 1)).astype(np.uint8).view(dtype(name))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", CODED)
def test_every_value_is_converted_to_every_type(source: str, target: str) -> None:
    x, wanted = every_code(source), [*BITS, *(t for t in OTHERS if t != "bfloat16")]
    x = (
        x[wide(x) > 2.0**-126] if source == "float8_e8m0fnu" else x
    )  # what kernels make of subnormal floats is their own
    for name, y in zip(wanted, run_on(target, casts(source, wanted, x.shape), {"x": x}), strict=True):
        assert y.dtype == dtype(name)
        if name in BITS:
            np.testing.assert_array_equal(y.view(np.uint8), expected(x, name).view(np.uint8))
        elif dtype(name).kind != "V" and (dtype(name).kind != "u" or (wide(x) >= 0).all()) and source in BITS:
            np.testing.assert_array_equal(wide(y), wide(x).astype(name).astype(np.float64))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", OTHERS)
def test_numbers_are_rounded_and_wrapped(source: str, target: str) -> None:
    x = values(source)
    for name, y in zip(BITS, run_on(target, casts(source, [*BITS], x.shape), {"x": x}), strict=True):
        assert y.dtype == dtype(name)
        np.testing.assert_array_equal(y.view(np.uint8), expected(x, name).view(np.uint8), err_msg=name)


@pytest.mark.parametrize("lens", [(), (1,), (0, 3), (3, 5)])
@pytest.mark.parametrize("name", CODED)
def test_any_rank_and_an_odd_number_of_elements(name: str, lens: tuple[int, ...]) -> None:
    x = np.resize(every_code(name)[1:], lens)
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT)]
    model = make_model(nodes, {"x": x}, {"y": number(name), "f": TensorProto.FLOAT}, opset=25)
    for target in ("ref", "cpu"):
        y, f = run_on(target, model, {"x": x})
        assert (y.dtype, y.shape, f.shape) == (x.dtype, lens, lens)
        np.testing.assert_array_equal(f, x.astype(np.float32))
        np.testing.assert_array_equal(y.astype(np.float32), f)


def moved(name: str, w: np.ndarray, x: np.ndarray, lens: list[int | str]) -> onnx.ModelProto:
    """Return a model that moves elements of ``x`` and ``w``, also in a branch and in a sequence."""
    node = helper.make_node
    inner = helper.make_graph(
        [node("Reshape", ["x", "flat"], ["inner"])], "then", [], [helper.make_value_info("inner", onnx.TypeProto())]
    )
    other = helper.make_graph(
        [node("Identity", ["w"], ["other"])], "else", [], [helper.make_value_info("other", onnx.TypeProto())]
    )
    nodes = [
        node("Transpose", ["x"], ["t"]),
        node("Reshape", ["t", "flat"], ["r"]),
        node("Gather", ["r", "indices"], ["g"]),
        node("Concat", ["g", "w"], ["c"], axis=0),
        node("Pad", ["c", "pads", "one"], ["p"]),
        node("If", ["b"], ["i"], then_branch=inner, else_branch=other),
        node("SequenceConstruct", ["x", "t"], ["s"]),
        node("SequenceAt", ["s", "last"], ["q"]),
    ]
    outputs = dict.fromkeys(("p", "i", "q"), number(name))
    numbers = {"flat": [-1], "indices": [4, 0, -1], "pads": [1, 2], "last": 1}
    constants = {n: np.array(v, np.int64) for n, v in numbers.items()} | {"w": w, "one": np.ones((), x.dtype)}
    model = make_model(nodes, {"x": x, "b": np.array(True)}, outputs, opset=25, constants=constants)
    for dim, length in zip(model.graph.input[0].type.tensor_type.shape.dim, lens, strict=True):
        dim.Clear()
        setattr(dim, "dim_param" if isinstance(length, str) else "dim_value", length)
    return model


@pytest.mark.parametrize(
    ("name", "lens"), [*((name, [3, 5]) for name in CODED), *((name, ["rows", "columns"]) for name in CODED[3:5])]
)
def test_elements_are_moved(name: str, lens: list[int | str]) -> None:
    x, w = np.resize(every_code(name)[1:], (3, 5)), every_code(name)[1:4]
    with pytest.warns(UserWarning, match="Gather.*which no operator set allows; its elements are moved"):
        parse_onnx(moved(name, w, x, lens))
    picked = np.concatenate([x.T.ravel()[[4, 0, -1]], w]).astype(np.float32)
    wanted = [np.pad(picked, (1, 2), constant_values=1), x.ravel().astype(np.float32), x.T.astype(np.float32)]
    for target in ("ref", "cpu"):
        for y, right in zip(
            run_on(target, moved(name, w, x, lens), {"x": x, "b": np.array(True)}), wanted, strict=True
        ):
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(y.astype(np.float32), right)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BITS)
def test_zero_points_that_were_moved_keep_their_type(name: str, target: str) -> None:
    """QuantizeLinear had the range of the wider type that stored a zero point, once anything had moved it."""
    x = np.linspace(-20, 20, 21, dtype=np.float32).reshape(7, 3)
    zero = np.zeros((1, 3), dtype(name))
    nodes = [
        helper.make_node("Squeeze", ["zero"], ["z"]),
        helper.make_node("QuantizeLinear", ["x", "scale", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "z"], ["y"]),
    ]
    scale = np.float32([1, 2, 0.5])
    feeds = {"x": x, "zero": zero}
    model = make_model(nodes, feeds, {"q": number(name), "y": TensorProto.FLOAT}, opset=25, constants={"scale": scale})
    q, y = run_on(target, model, feeds)
    if name == "float4_e2m1fn":
        wanted = expected((x / scale).ravel(), name).reshape(x.shape).astype(np.float32)
    else:
        low = -(1 << (BITS[name] - 1)) if name.startswith("int") else 0
        wanted = np.clip(np.rint(x / scale), low, low + (1 << BITS[name]) - 1)
    np.testing.assert_array_equal(q.astype(np.float32), wanted)
    np.testing.assert_array_equal(y, wanted * scale)


def test_values_that_were_quantised_to_4_bits_stay_bytes_in_kernels() -> None:
    x = np.linspace(-9, 9, 33, dtype=np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    constants = {"s": np.float32(0.5), "z": np.zeros((), ml_dtypes.int4)}
    model = make_model(nodes, {"x": x}, {"y": TensorProto.FLOAT}, opset=21, constants=constants)
    program = migraphx.parse_onnx(model).compile("cpu")
    assert "on the host" not in str(program)
    assert "bitwise" not in str(program)
    np.testing.assert_array_equal(program.run({"x": x})[0], np.clip(np.rint(x * 2), -8, 7) / 2)


@pytest.mark.parametrize("moved", [False, True])
def test_weights_of_4_bits_stay_so_in_products(moved: bool) -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-8, 8, (256, 128)).astype(ml_dtypes.int4)
    scale = rng.uniform(0.01, 0.02, (8, 128)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    constants = {"w": w, "s": scale}
    if moved:
        nodes.insert(0, helper.make_node("Transpose", ["t"], ["w"]))
        constants = {"t": np.ascontiguousarray(w.T), "s": scale}
    x = rng.standard_normal((1, 256)).astype(np.float32)
    model = make_model(nodes, {"x": x}, {"y": TensorProto.FLOAT}, opset=21, constants=constants)
    program = migraphx.parse_onnx(model).compile("cpu")
    assert "matmul_nbits" in str(program)
    wanted = x.astype(np.float64) @ (w.astype(np.float64) * np.repeat(scale, 32, 0))
    np.testing.assert_allclose(program.run({"x": x})[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CODED)
def test_programs_in_files_and_as_source(name: str, tmp_path: Path) -> None:
    x, w = every_code(name)[:3], every_code(name)[1:4]
    node = helper.make_node("Concat", ["x", "w"], ["y"], axis=0)
    model = make_model([node], {"x": x}, {"y": number(name)}, opset=25, constants={"w": w})
    with pytest.warns(UserWarning):
        program = migraphx.parse_onnx(model)
    names: dict[str, Any] = {}
    exec(program.to_py(), names)
    wanted = np.concatenate([x, w]).view(np.uint8)
    for form in ("msgpack", "json"):
        migraphx.save(program, tmp_path / form, format=form)
        found = [migraphx.load(tmp_path / form, format=form), names["p"]]
        for (y,) in (p.compile("cpu").run({"x": x}) for p in found if not p.is_compiled()):
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(np.asarray(y).view(np.uint8), wanted)


@pytest.mark.parametrize("name", CODED)
def test_sessions(name: str) -> None:
    x = every_code(name)
    model = make_model([helper.make_node("Identity", ["x"], ["y"])], {"x": x}, {"y": number(name)}, opset=25)
    session = InferenceSession(model.SerializeToString())
    onnx_name = {"float4_e2m1fn": "float4e2m1", "float8_e8m0fnu": "float8e8m0"}.get(name, name)
    assert session.get_inputs()[0].type == session.get_outputs()[0].type == f"tensor({onnx_name})"
    (y,) = session.run(None, {"x": x})
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.view(np.uint8), x.view(np.uint8))
    assert OrtValue.ortvalue_from_numpy(x).element_type() == number(name)


def test_another_type_is_refused_by_name() -> None:
    model = make_model(
        [helper.make_node("Identity", ["x"], ["y"])], {"x": np.empty(3, ml_dtypes.int4)}, {"y": 22}, opset=25
    )
    with pytest.raises(ParameterError, match="uint4_type.*for parameter: x should be: {int4_type"):
        migraphx.parse_onnx(model).compile("cpu").run({"x": np.zeros(3, ml_dtypes.uint4)})


def test_bits_that_mean_nothing_are_ignored() -> None:
    """ml_dtypes ignores the upper bits of a byte; so do kernels."""
    x = np.arange(0, 256, 7, dtype=np.uint8).view(ml_dtypes.int4)
    (y,) = run_on("cpu", casts("int4", ["float32"], x.shape), {"x": x})
    np.testing.assert_array_equal(y, x.astype(np.float32))


def test_reinterpreting_needs_as_many_bits() -> None:
    x = every_code("int4")
    node = helper.make_node("BitCast", ["x"], ["y"], to=TensorProto.FLOAT4E2M1)
    model = make_model([node], {"x": x}, {"y": TensorProto.FLOAT4E2M1}, opset=26)
    for target in ("ref", "cpu"):
        np.testing.assert_array_equal(run_on(target, model, {"x": x})[0].view(np.uint8), x.view(np.uint8))
    model.graph.node[0].attribute[0].i = TensorProto.INT8
    with pytest.raises(MgxError, match="cannot read int4_type as int8_type: sizes differ"):
        parse_onnx(model)


def test_libraries_have_no_types_below_a_byte(tmp_path: Path) -> None:
    model = casts("int4", ["float32"], (3,))
    with pytest.raises(MgxError, match="export_library: parameter x is of int4_type, for which libraries have no type"):
        migraphx.parse_onnx(model).compile("cpu").export_library(tmp_path)
