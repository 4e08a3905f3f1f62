"""Nodes valid under another operator set's schema, and input types that ONNX does not allow together."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.errors import ParseError

from ..values import normal
from .support import make_model, single

FLOAT, FLOAT16, BF16, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
INT32, INT64, UINT8, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL
X = normal(1, 2, 4, 4)
HALF = X.astype(np.float16)
WEIGHTS = normal(2, 2, 3, 3, seed=1)
PLACES = np.zeros((1, 2, 1, 4), np.int64)
TRUE = np.array([True, False, True])
WHOLE = np.array([3, 0, -2], np.int32)
CHANNELS = np.linspace(0.5, 1.5, 2, dtype=np.float32)
NORM = [CHANNELS] * 4
AXES = np.array([1], np.int64)

Case: TypeAlias = "tuple[str, list[Any], dict[str, Any]]"
"""An operator, its inputs (all inputs after the first are constants) and options of `single`."""


def case(op_type: str, *inputs: Any, **options: Any) -> Case:
    return op_type, list(inputs), options


REDUCTIONS = "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare ReduceL1 ReduceL2 ReduceLogSumExp".split()
FORMS: dict[str, tuple[Case, Case]] = {
    "slice attributes": (
        case("Slice", X, opset=13, starts=[0], ends=[1], axes=[1]),
        case("Slice", X, opset=9, starts=[0], ends=[1], axes=[1]),
    ),
    "slice inputs": (
        case("Slice", X, np.array([1]), np.array([4]), AXES * 2, np.array([2]), opset=9),
        case("Slice", X, np.array([1]), np.array([4]), AXES * 2, np.array([2]), opset=13),
    ),
    "squeeze attribute": (case("Squeeze", X, opset=13, axes=[0]), case("Squeeze", X, opset=11, axes=[0])),
    "squeeze input": (case("Squeeze", X, AXES * 0, opset=11), case("Squeeze", X, AXES * 0, opset=13)),
    "unsqueeze attribute": (case("Unsqueeze", X, opset=13, axes=[0]), case("Unsqueeze", X, opset=11, axes=[0])),
    "unsqueeze input": (case("Unsqueeze", X, AXES, opset=11), case("Unsqueeze", X, AXES, opset=13)),
    "sum attribute": (case("ReduceSum", X, opset=13, axes=[1]), case("ReduceSum", X, AXES, opset=13)),
    "sum input": (case("ReduceSum", X, AXES, opset=11, keepdims=0), case("ReduceSum", X, AXES, opset=13, keepdims=0)),
    **{
        f"{name} attribute": (case(name, X, opset=18, axes=[2, 3]), case(name, X, opset=13, axes=[2, 3]))
        for name in REDUCTIONS
    },
    **{f"{name} input": (case(name, X, AXES, opset=13), case(name, X, AXES, opset=18)) for name in REDUCTIONS},
    "split attribute": (
        case("Split", X, opset=13, split=[1, 3], axis=2, outputs=(FLOAT, FLOAT)),
        case("Split", X, opset=11, split=[1, 3], axis=2, outputs=(FLOAT, FLOAT)),
    ),
    "split input": (
        case("Split", X, np.array([1, 3]), opset=11, axis=2, outputs=(FLOAT, FLOAT)),
        case("Split", X, np.array([1, 3]), opset=13, axis=2, outputs=(FLOAT, FLOAT)),
    ),
    "split in parts": (
        case("Split", X, opset=13, num_outputs=2, axis=2, outputs=(FLOAT, FLOAT)),
        case("Split", X, opset=18, num_outputs=2, axis=2, outputs=(FLOAT, FLOAT)),
    ),
    "pad attributes": (
        case("Pad", X, opset=11, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=2.0),
        case("Pad", X, opset=10, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=2.0),
    ),
    "pad inputs": (
        case("Pad", X, np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.float32(2), opset=10),
        case("Pad", X, np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.float32(2), opset=11),
    ),
    "pad axes": (
        case("Pad", X, np.array([1, 1]), np.float32(2), AXES, opset=13),
        case("Pad", X, np.array([1, 1]), np.float32(2), AXES, opset=18),
    ),
    "clip attributes": (case("Clip", X, opset=13, min=0.0, max=0.5), case("Clip", X, opset=6, min=0.0, max=0.5)),
    "clip attributes of the first set with inputs": (
        case("Clip", X, opset=11, min=0.0, max=6.0),
        case("Clip", X, opset=6, min=0.0, max=6.0),
    ),
    "clip inputs": (
        case("Clip", X, np.float32(0), np.float32(0.5), opset=6),
        case("Clip", X, np.float32(0), np.float32(0.5), opset=13),
    ),
    "dropout attribute": (case("Dropout", X, opset=13, ratio=0.5), case("Dropout", X, opset=10, ratio=0.5)),
    "dropout attribute of the first set with an input": (
        case("Dropout", X, opset=12, ratio=0.5),
        case("Dropout", X, opset=10, ratio=0.5),
    ),
    "topk attribute of the first set with an input": (
        case("TopK", X, opset=10, k=2, outputs=(FLOAT, INT64)),
        case("TopK", X, np.array([2]), opset=10, outputs=(FLOAT, INT64)),
    ),
    "topk attribute": (
        case("TopK", X, opset=11, k=2, outputs=(FLOAT, INT64)),
        case("TopK", X, np.array([2]), opset=11, outputs=(FLOAT, INT64)),
    ),
    "topk order": (
        case("TopK", X, np.array([2]), opset=10, largest=0, outputs=(FLOAT, INT64)),
        case("TopK", X, np.array([2]), opset=11, largest=0, outputs=(FLOAT, INT64)),
    ),
    "reshape attribute": (case("Reshape", X, opset=13, shape=[2, -1]), case("Reshape", X, np.array([2, -1]), opset=13)),
    "reshape attribute of the first set with an input": (
        case("Reshape", X, opset=5, shape=[1, -1]),
        case("Reshape", X, np.array([1, -1]), opset=5),
    ),
    "upsample attribute": (
        case("Upsample", X, opset=9, scales=[1.0, 1.0, 2.0, 2.0]),
        case("Upsample", X, np.float32([1, 1, 2, 2]), opset=9),
    ),
    "resize scales": (
        case("Resize", X, np.float32([1, 1, 2, 2]), opset=11),
        case("Resize", X, np.float32([1, 1, 2, 2]), opset=10),
    ),
    "average dilations": (
        case("AveragePool", X, opset=15, kernel_shape=[2, 2], dilations=[2, 2]),
        case("AveragePool", X, opset=19, kernel_shape=[2, 2], dilations=[2, 2]),
    ),
    "scatter reduction": (
        case("ScatterElements", X, PLACES, X[:, :, :1], opset=12, axis=2, reduction="add"),
        case("ScatterElements", X, PLACES, X[:, :, :1], opset=18, axis=2, reduction="add"),
    ),
    "blocks": (
        case("QuantizeLinear", X, np.ones((1, 2, 4, 2), np.float32), opset=19, axis=3, block_size=2, outputs=(UINT8,)),
        case("QuantizeLinear", X, np.ones((1, 2, 4, 2), np.float32), opset=21, axis=3, block_size=2, outputs=(UINT8,)),
    ),
    "spatial": (
        case("BatchNormalization", X, *NORM, opset=9, spatial=1),
        case("BatchNormalization", X, *NORM, opset=9),
    ),
    "add along an axis": (
        case("Add", X, CHANNELS, opset=13, axis=1, broadcast=1),
        case("Add", X, CHANNELS.reshape(2, 1, 1), opset=13),
    ),
    "add along an axis of the first set without": (
        case("Add", X, CHANNELS, opset=8, axis=1, broadcast=1),
        case("Add", X, CHANNELS.reshape(2, 1, 1), opset=8),
    ),
    "axis alone": (case("Mul", X, CHANNELS, opset=8, axis=1), case("Mul", X, CHANNELS.reshape(2, 1, 1), opset=8)),
    "broadcast before it was": (case("Sub", X, X[:, :, :1], opset=6), case("Sub", X, X[:, :, :1], opset=7)),
    "consumed inputs": (case("Relu", X, opset=13, consumed_inputs=[0]), case("Relu", X, opset=13)),
    "attributes of two forms that say nothing": (
        case("BatchNormalization", X, *NORM, opset=13, training_mode=0, spatial=1),
        case("BatchNormalization", X, *NORM, opset=13),
    ),
    "shape of a part": (
        case("Shape", X, opset=13, start=1, outputs=(INT64,)),
        case("Shape", X, opset=15, start=1, outputs=(INT64,)),
    ),
    "axis of a transform": (
        case("DFT", X[..., :2], opset=20, axis=1, onesided=0),
        case("DFT", X[..., :2], opset=17, axis=1, onesided=0),
    ),
    "list of one": (
        case("IsInf", X, opset=20, detect_negative=[0], outputs=(BOOL,)),
        case("IsInf", X, opset=20, detect_negative=0, outputs=(BOOL,)),
    ),
    "list of an integer for a float": (case("Elu", X, alpha=[2]), case("Elu", X, alpha=2.0)),
    "one for a list": (case("Squeeze", X, opset=11, axes=0), case("Squeeze", X, opset=11, axes=[0])),
    "padding called same": (
        case("Conv", X, WEIGHTS, auto_pad="SAME"),
        case("Conv", X, WEIGHTS, auto_pad="SAME_UPPER"),
    ),
    "small letters": (
        case("Conv", X, WEIGHTS, auto_pad="same_lower"),
        case("Conv", X, WEIGHTS, auto_pad="SAME_LOWER"),
    ),
}

TYPES: dict[str, tuple[Case, Case]] = {
    "half and float": (case("Add", X, HALF, opset=13), case("Add", X, HALF.astype(np.float32), opset=13)),
    "the first is the half": (
        case("Mul", HALF, X, opset=13),
        case("Mul", HALF.astype(np.float32), X, opset=13),
    ),
    "half and bfloat16": (
        case("Sub", HALF, X.astype(ml_dtypes.bfloat16), opset=13),
        case("Sub", HALF.astype(np.float32), X.astype(ml_dtypes.bfloat16).astype(np.float32), opset=13),
    ),
    "float and integer": (case("Div", X, np.int64(3), opset=13), case("Div", X, np.float32(3), opset=13)),
    "integers of two sizes": (
        case("Concat", WHOLE, np.array([1, 2]), axis=0, outputs=(INT64,)),
        case("Concat", WHOLE.astype(np.int64), np.array([1, 2]), axis=0, outputs=(INT64,)),
    ),
    "signed and unsigned": (
        case("Add", WHOLE, np.array([200], np.uint32), opset=14, outputs=(INT64,)),
        case("Add", WHOLE.astype(np.int64), np.array([200]), opset=14, outputs=(INT64,)),
    ),
    "branches of where": (
        case("Where", TRUE, WHOLE, np.float32(0.5), opset=16),
        case("Where", TRUE, WHOLE.astype(np.float32), np.float32(0.5), opset=16),
    ),
    "products": (
        case("MatMul", HALF, X.swapaxes(2, 3), opset=13),
        case("MatMul", HALF.astype(np.float32), X.swapaxes(2, 3), opset=13),
    ),
    "integer bounds": (
        case("Clip", X, np.int64(0), np.int64(1), opset=13),
        case("Clip", X, np.float32(0), np.float32(1), opset=13),
    ),
    "integer padding": (
        case("Pad", X, np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.int32(2), opset=13),
        case("Pad", X, np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.float32(2), opset=13),
    ),
    "order of bools": (
        case("Greater", TRUE, TRUE[::-1].copy(), opset=13, outputs=(BOOL,)),
        case("Greater", TRUE.astype(np.uint8), TRUE[::-1].astype(np.uint8), opset=13, outputs=(BOOL,)),
    ),
    "not of integers": (
        case("Not", WHOLE, outputs=(BOOL,)),
        case("Not", WHOLE != 0, outputs=(BOOL,)),
    ),
    "and of integers": (
        case("And", WHOLE, TRUE, outputs=(BOOL,)),
        case("And", WHOLE != 0, TRUE, outputs=(BOOL,)),
    ),
    "condition of integers": (
        case("Where", WHOLE, np.float32(1), np.float32(2), opset=16),
        case("Where", WHOLE != 0, np.float32(1), np.float32(2), opset=16),
    ),
    "scales of double": (
        case("Resize", X, None, np.float64([1, 1, 2, 2]), opset=13),
        case("Resize", X, None, np.float32([1, 1, 2, 2]), opset=13),
    ),
    "small indices": (
        case("Gather", X, np.array([1, 0], np.uint8), axis=1),
        case("Gather", X, np.array([1, 0], np.int32), axis=1),
    ),
}


def model_of(given: Case, *, rows: str = "", name: str = "it") -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the model and its feeds; with ``rows`` the first axis of its input is open."""
    op_type, inputs, options = given
    constant = [k for k, x in enumerate(inputs) if k and x is not None]
    model, feeds = single(op_type, inputs, constant=constant, **{"opset": 17, **options})
    model.graph.node[0].name = name
    if rows:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = rows
    return model, feeds


def results(model: onnx.ModelProto, feeds: dict[str, np.ndarray], target: str) -> list[np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [np.asarray(r) for r in migraphx.parse_onnx(model).compile(target).run(feeds)]


CASES = {**FORMS, **TYPES}


@pytest.mark.parametrize("name", CASES)
def test_is_read_with_one_warning_and_refused_if_strict(name: str) -> None:
    model, _ = model_of(CASES[name][0])
    with pytest.warns(UserWarning, match="node 'it'") as told:
        migraphx.parse_onnx(model)
    assert len([w for w in told if "node 'it'" in str(w.message)]) == 1
    with pytest.raises(ParseError, match="node 'it'"):
        migraphx.parse_onnx(model, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        migraphx.parse_onnx(model_of(CASES[name][1])[0], strict=True)


@pytest.mark.parametrize("rows", ["", "rows"])
@pytest.mark.parametrize("name", CASES)
def test_means_what_the_proper_form_means(name: str, rows: str) -> None:
    sloppy, proper = CASES[name]
    wanted = results(*model_of(proper), "ref")
    for found, right in zip(results(*model_of(sloppy, rows=rows), "ref"), wanted, strict=True):
        assert (found.dtype, found.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(found, right)


FIRST: dict[str, tuple[Case, Any]] = {
    "normalisation of halves": (case("BatchNormalization", HALF, *NORM, opset=13, outputs=(FLOAT16,)), np.float16),
    "weights of a product": (case("Conv", HALF, WEIGHTS, outputs=(FLOAT16,)), np.float16),
    "scales of instances": (case("InstanceNormalization", HALF, *NORM[:2], outputs=(FLOAT16,)), np.float16),
    "bounds of halves": (case("Clip", HALF, np.float32(-0.5), np.int64(1), opset=13, outputs=(FLOAT16,)), np.float16),
    "a half product of a float bias": (
        case("Gemm", HALF[0, 0], HALF[0, 1], WEIGHTS[0, 0, :1, :1], opset=13, outputs=(FLOAT16,)),
        np.float16,
    ),
    "sums of integers": (case("Sum", WHOLE, WHOLE, WHOLE, opset=13, outputs=(INT32,)), np.int32),
}


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("rows", ["", "rows"])
@pytest.mark.parametrize("name", FIRST)
def test_results_have_the_type_of_the_first_input_and_are_rounded_once(name: str, rows: str, target: str) -> None:
    (op_type, inputs, options), dtype = FIRST[name]
    (found,) = results(*model_of((op_type, inputs, options), rows=rows), target)
    assert found.dtype == dtype
    wide = [np.asarray(x, np.float32) for x in inputs]
    (right,) = results(*model_of((op_type, wide, options | {"outputs": (FLOAT,)})), "ref")
    np.testing.assert_allclose(found.astype(np.float32), right.astype(dtype).astype(np.float32), rtol=1e-3, atol=1e-3)


def test_large_integers_are_summed_exactly() -> None:
    x = np.array([2**31 - 2, -(2**31)], np.int32)
    (found,) = results(*model_of(case("Sum", x, np.array([1, 0], np.int32), opset=13, outputs=(INT32,))), "ref")
    np.testing.assert_array_equal(found, [2**31 - 1, -(2**31)])


def test_several_things_are_told_in_one_warning() -> None:
    model, _ = model_of(case("Conv", HALF, WEIGHTS, auto_pad="SAME", group=[1], outputs=(FLOAT16,)))
    with pytest.warns(UserWarning, match="node 'it' .*input 1.*; .*'SAME'.*; .*'group'") as told:
        migraphx.parse_onnx(model)
    assert len(told) == 1


REFUSED = {
    "an attribute that no form has": (
        case("Relu", X, slope=1.0),
        "attribute 'slope' is unknown; the operator has: none",
    ),
    "attributes of two forms": (
        case("Slice", X, np.array([0]), np.array([1]), axes=[0]),
        "attribute 'axes' is unknown",
    ),
    "too many inputs": (case("Relu", X, X), "got 2 inputs, expected 1"),
    "a list of two": (case("Softmax", X, axis=[1, 2]), "attribute 'axis' is of kind ints, expected int"),
    "a sum of bools": (case("Add", TRUE, TRUE), r"input 0 \(A\) is of type tensor\(bool\), expected one of"),
    "a root of integers": (case("Sqrt", WHOLE), r"input 0 \(X\) is of type tensor\(int32\), expected one of"),
    "integers clipped to fractions": (case("Clip", WHOLE, np.float32(0.5), opset=13), "they must be the same"),
    "integers as 8 bits": (case("MatMulInteger", WHOLE, WHOLE), r"input 0 \(A\) is of type tensor\(int32\), expected"),
    "a fraction as a shape": (
        case("Reshape", X, np.float32([2, -1])),
        r"\(shape\) is of type tensor\(float\), expected",
    ),
    "not of floats": (case("Not", X), r"input 0 \(X\) is of type tensor\(float\), expected tensor\(bool\)"),
    "uint64 and int64": (case("Add", np.array([1], np.uint64), np.array([-1]), opset=14), "they must be the same"),
    "complex and real": (case("Equal", X, np.full(4, "a", object), opset=19), "they must be the same"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_plain_meaning_is_refused(name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises(ParseError, match=message):
        migraphx.parse_onnx(model_of(given)[0])


def test_constants_of_another_type_stay_constants() -> None:
    """A shape in int32 is known when the model is parsed."""
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    model = make_model(nodes, {"x": X}, {"y": FLOAT}, constants={"s": np.array([2, -1], np.int16)})
    with pytest.warns(UserWarning, match=r"tensor\(int16\), taken for tensor\(int64\)"):
        program = migraphx.parse_onnx(model)
    assert program.get_output_shapes()[0].lens() == [2, 16]
