"""Forms that operators had in older operator sets, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import mgx_numba as migraphx
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .support import FLOAT, INT64, assert_like_onnxruntime, ints, run, single

U8, I32 = 2, 6
X4 = normal(2, 3, 6, 5)
ENDS = np.array([np.inf, -np.inf, np.nan, 2, -2], np.float32)


def u8(*lens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, lens).astype(np.uint8)


CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "softmax_7_over_several_axes": ("Softmax", [normal(2, 3, 4)], {"opset": 7, "axis": 1}),
    "softmax_11_default_axis": ("Softmax", [normal(2, 3, 4)], {"opset": 11}),
    "softmax_13_default_axis": ("Softmax", [normal(2, 3, 4)], {"opset": 13}),
    "logsoftmax_11": ("LogSoftmax", [normal(2, 3, 4)], {"opset": 11, "axis": 0}),
    "hardmax_of_nothing": ("Hardmax", [normal(2, 0)], {"opset": 13, "axis": 1}),
    "hardmax_11": ("Hardmax", [normal(2, 3, 4)], {"opset": 11, "axis": 1}),
    "squeeze_7_attribute": ("Squeeze", [normal(1, 3, 1, 2)], {"opset": 7, "axes": [0, 2]}),
    "squeeze_11_negative": ("Squeeze", [normal(1, 3, 1)], {"opset": 11, "axes": [-1]}),
    "squeeze_13_input": ("Squeeze", [normal(1, 3, 1), ints(0)], {"opset": 13, "constant": [1]}),
    "squeeze_13_empty": ("Squeeze", [normal(1, 3, 1), ints()], {"opset": 13, "constant": [1]}),
    "squeeze_13_all": ("Squeeze", [normal(1, 3, 1)], {"opset": 13}),
    "unsqueeze_7_attribute": ("Unsqueeze", [normal(3, 2)], {"opset": 7, "axes": [0, 3]}),
    "unsqueeze_13_input": ("Unsqueeze", [normal(3, 2), ints(-1, 0)], {"opset": 13, "constant": [1]}),
    **{
        f"clip_6_of_infinity_{k}": ("Clip", [ENDS], {"opset": 6, **b})
        for k, b in enumerate(({}, {"min": 0.0}, {"max": 1.0}))
    },
    "slice_9_attributes": ("Slice", [X4], {"opset": 9, "starts": [0, 1], "ends": [1, -1], "axes": [0, 2]}),
    "slice_7_no_axes": ("Slice", [X4], {"opset": 7, "starts": [0, 1], "ends": [2, 9999]}),
    "slice_10_inputs": (
        "Slice",
        [X4, ints(-1, 4), ints(-9999, 0), ints(2, 3), ints(-2, -1)],
        {"opset": 10, "constant": [1, 2, 3, 4]},
    ),
    "slice_backwards_from_before_the_axis": (
        "Slice",
        [X4, ints(-9999, -7), ints(-9999, -8), ints(2, 3), ints(-1, -2)],
        {"opset": 10, "constant": [1, 2, 3, 4]},
    ),
    "slice_backwards_from_beyond_the_axis": (
        "Slice",
        [X4, ints(9999, 5), ints(-9999, 1), ints(2, 3), ints(-2, -1)],
        {"opset": 10, "constant": [1, 2, 3, 4]},
    ),
    "slice_backwards_of_an_empty_axis": (
        "Slice",
        [normal(0, 3), ints(-1, -9), ints(-9, -9), ints(0, 1), ints(-1, -1)],
        {"opset": 10, "constant": [1, 2, 3, 4]},
    ),
    "shrink_of_integers": (
        "Shrink",
        [np.arange(-5, 6, dtype=np.int32)],
        {"opset": 9, "lambd": 1.5, "bias": 0.7, "outputs": (I32,)},
    ),
    "shrink_of_unsigned_integers": (
        "Shrink",
        [np.arange(9, dtype=np.uint8)],
        {"opset": 9, "lambd": 2.5, "bias": 1.5, "outputs": (U8,)},
    ),
    "shrink_with_default_threshold_of_int64": (
        "Shrink",
        [np.arange(-2, 3)],
        {"opset": 9, "outputs": (INT64,)},
    ),
    "clip_7_attributes": ("Clip", [X4], {"opset": 7, "min": -0.5, "max": 0.5}),
    "clip_7_minimum_alone": ("Clip", [X4], {"opset": 7, "min": -0.5}),
    "clip_11_inputs": ("Clip", [X4, None, np.float32(0.5)], {"opset": 11}),
    "clip_13_both": ("Clip", [X4, np.float32(-0.25), np.float32(0.5)], {"opset": 13}),
    "pad_7_attributes": ("Pad", [X4], {"opset": 7, "pads": [0, 0, 1, 2, 0, 0, 0, 1], "value": 1.5}),
    "pad_10_reflect": ("Pad", [X4], {"opset": 10, "pads": [0, 0, 2, 2, 0, 0, 1, 1], "mode": "reflect"}),
    "pad_10_negative": ("Pad", [X4], {"opset": 10, "pads": [0, 0, -1, 2, 0, 0, 1, -1]}),
    "pad_11_value": (
        "Pad",
        [X4, ints(0, 0, 1, 0, 0, 0, 0, 1), np.float32(7)],
        {"opset": 11, "constant": [1, 2]},
    ),
    "pad_11_value_at_run_time": (
        "Pad",
        [X4, ints(0, 0, 1, 0, 0, 0, 0, 1), np.float32(7)],
        {"opset": 11, "constant": [1]},
    ),
    "pad_18_axes": (
        "Pad",
        [X4, ints(1, 2), None, ints(2)],
        {"opset": 18, "constant": [1, 3], "mode": "edge"},
    ),
    "pad_19_wrap": ("Pad", [X4, ints(0, 0, 1, 2, 0, 0, 2, 1)], {"opset": 19, "constant": [1], "mode": "wrap"}),
    "upsample_7_attribute": ("Upsample", [X4], {"opset": 7, "scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}),
    "upsample_9_input": (
        "Upsample",
        [X4, np.array([1, 1, 2, 2], np.float32)],
        {"opset": 9, "constant": [1], "mode": "linear"},
    ),
    "resize_10_nearest": ("Resize", [X4, np.array([1, 1, 0.6, 1.5], np.float32)], {"opset": 10, "constant": [1]}),
    "resize_10_linear": (
        "Resize",
        [X4, np.array([1, 1, 2, 2], np.float32)],
        {"opset": 10, "constant": [1], "mode": "linear"},
    ),
    "resize_11_sizes": (
        "Resize",
        [X4, np.zeros(0, np.float32), np.zeros(0, np.float32), ints(2, 3, 9, 8)],
        {"opset": 11, "constant": [1, 2, 3], "mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "resize_13_cubic": (
        "Resize",
        [X4, None, np.array([1, 1, 1.5, 2], np.float32)],
        {"opset": 13, "constant": [2], "mode": "cubic", "cubic_coeff_a": -0.5},
    ),
    "resize_11_crop": (
        "Resize",
        [X4, np.array([0, 0, 0.2, -0.2, 1, 1, 0.8, 1.1], np.float32), None, ints(2, 3, 4, 4)],
        {
            "opset": 13,
            "constant": [1, 3],
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 3.0,
        },
    ),
    "resize_18_antialias": (
        "Resize",
        [X4, None, np.array([0.5, 0.6], np.float32)],
        {"opset": 18, "constant": [2], "mode": "linear", "axes": [2, 3], "antialias": 1},
    ),
    "resize_18_not_larger": (
        "Resize",
        [X4, None, None, ints(4, 4)],
        {"opset": 18, "constant": [3], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
    ),
    "topk_7_attribute": ("TopK", [normal(3, 7)], {"opset": 7, "k": 3, "outputs": (FLOAT, INT64)}),
    "topk_10_input": ("TopK", [normal(3, 7), ints(2)], {"opset": 10, "constant": [1], "outputs": (FLOAT, INT64)}),
    "topk_11_smallest": (
        "TopK",
        [normal(3, 7), ints(2)],
        {"opset": 11, "constant": [1], "largest": 0, "axis": 0, "outputs": (FLOAT, INT64)},
    ),
    "split_7_attribute": ("Split", [normal(5, 2)], {"opset": 7, "split": [2, 3], "outputs": (FLOAT, FLOAT)}),
    "split_7_equal": ("Split", [normal(4, 2)], {"opset": 7, "outputs": (FLOAT, FLOAT)}),
    "split_13_input": (
        "Split",
        [normal(5, 2), ints(1, 4)],
        {"opset": 13, "constant": [1], "outputs": (FLOAT, FLOAT)},
    ),
    "split_18_uneven": ("Split", [normal(5, 2)], {"opset": 18, "num_outputs": 3, "outputs": (FLOAT,) * 3}),
    "reduce_7_attribute": ("ReduceSum", [X4], {"opset": 7, "axes": [1, 3], "keepdims": 0}),
    "reduce_11_negative": ("ReduceMax", [X4], {"opset": 11, "axes": [-1]}),
    "reduce_13_input": ("ReduceSum", [X4, ints(2)], {"opset": 13, "constant": [1]}),
    "reduce_18_input": ("ReduceL2", [X4, ints(0, 2)], {"opset": 18, "constant": [1], "keepdims": 0}),
    "reduce_18_noop": ("ReduceMean", [X4], {"opset": 18, "noop_with_empty_axes": 1}),
    "reduce_all_to_scalar": ("ReduceProd", [X4], {"opset": 13, "keepdims": 0}),
    "batch_normalization_7": (
        "BatchNormalization",
        [X4, normal(3, seed=1), normal(3, seed=2), normal(3, seed=3), np.abs(normal(3, seed=4))],
        {"opset": 7, "epsilon": 1e-3},
    ),
    "batch_normalization_15_of_a_vector": (
        "BatchNormalization",
        [normal(5), *(np.array([v], np.float32) for v in (2, 1, 0.5, 4))],
        {"opset": 15},
    ),
    "batch_normalization_15": (
        "BatchNormalization",
        [X4, normal(3, seed=1), normal(3, seed=2), normal(3, seed=3), np.abs(normal(3, seed=4))],
        {"opset": 15},
    ),
    "dropout_7": ("Dropout", [X4], {"opset": 7, "ratio": 0.3}),
    "dropout_13": ("Dropout", [X4, np.float32(0.3)], {"opset": 13}),
    "cast_9": ("Cast", [X4 * 10], {"opset": 9, "to": INT64, "outputs": (INT64,)}),
    "gemm_7": (
        "Gemm",
        [normal(4, 3), normal(4, 5, seed=1), normal(5, seed=2)],
        {"opset": 7, "transA": 1, "alpha": 0.5, "beta": 2.0},
    ),
    "gemm_11_without_c": ("Gemm", [normal(3, 4), normal(5, 4, seed=1)], {"opset": 11, "transB": 1}),
    "average_pool_7": (
        "AveragePool",
        [X4],
        {"opset": 7, "kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1], "count_include_pad": 1},
    ),
    "average_pool_10_ceil": (
        "AveragePool",
        [X4],
        {"opset": 10, "kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
    ),
    "average_pool_19_dilated": (
        "AveragePool",
        [X4],
        {"opset": 19, "kernel_shape": [2, 2], "dilations": [2, 2], "pads": [1, 0, 0, 1]},
    ),
    "max_pool_8_same_lower": (
        "MaxPool",
        [X4],
        {"opset": 8, "kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ),
    "max_pool_10_positions": (
        "MaxPool",
        [X4],
        {
            "opset": 10,
            "kernel_shape": [3, 2],
            "strides": [2, 2],
            "pads": [1, 0, 1, 0],
            "outputs": (FLOAT, INT64),
        },
    ),
    "max_pool_column_major_positions": (
        "MaxPool",
        [X4],
        {"opset": 12, "kernel_shape": [2, 2], "storage_order": 1, "outputs": (FLOAT, INT64)},
    ),
    "lp_pool_11": ("LpPool", [X4], {"opset": 11, "kernel_shape": [2, 2], "p": 3}),
    "conv_transpose_output_padding": (
        "ConvTranspose",
        [X4, normal(3, 4, 3, 3, seed=1), normal(4, seed=2)],
        {"opset": 11, "strides": [2, 2], "pads": [1, 1, 0, 0], "output_padding": [1, 1]},
    ),
    "conv_transpose_only_output_padding_left": (
        "ConvTranspose",
        [normal(1, 3, 4, 1), normal(3, 2, 3, 1, seed=1), normal(2, seed=2)],
        {"opset": 11, "strides": [1, 3], "pads": [1, 1, 1, 0], "output_padding": [0, 1]},
    ),
    **{
        f"conv_transpose_longer_than_the_sum_{k}": (
            "ConvTranspose",
            [normal(1, 3, 4, 2), normal(3, 2, 1, 2, seed=1), normal(2, seed=2)],
            {"opset": 11, "strides": [3, 1], "output_shape": [12, 3], **pads},
        )
        for k, pads in enumerate(({}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}))
    },
    "conv_transpose_same_upper": (
        "ConvTranspose",
        [X4, normal(3, 4, 3, 3, seed=1)],
        {"opset": 11, "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    "conv_same_lower_grouped": (
        "Conv",
        [X4, normal(6, 1, 2, 2, seed=1), normal(6, seed=2)],
        {"opset": 11, "group": 3, "auto_pad": "SAME_LOWER", "strides": [2, 1]},
    ),
    "arg_max_7": ("ArgMax", [normal(3, 4)], {"opset": 7, "axis": 1, "keepdims": 0, "outputs": (INT64,)}),
    "arg_min_12_last": (
        "ArgMin",
        [np.array([[2, 1, 1], [3, 3, 3]], np.float32)],
        {"opset": 12, "axis": 1, "select_last_index": 1, "outputs": (INT64,)},
    ),
    "scatter_9": (
        "Scatter",
        [normal(3, 4), np.array([[1, 0], [2, 3]]), normal(2, 2, seed=1)],
        {"opset": 9, "axis": 1},
    ),
    "one_hot_9": (
        "OneHot",
        [np.array([[1, 3], [0, -2]]), ints(4), np.array([-1, 5], np.float32)],
        {"opset": 9, "constant": [1], "axis": 1},
    ),
    "max_8_broadcast": ("Max", [normal(3, 1), normal(4), normal(1, seed=1)], {"opset": 8}),
    "depth_to_space_11_crd": ("DepthToSpace", [normal(1, 8, 2, 3)], {"opset": 11, "blocksize": 2, "mode": "CRD"}),
    "einsum_12_ellipsis": (
        "Einsum",
        [normal(2, 3, 4, 5), normal(2, 3, 5, 6, seed=1)],
        {"opset": 12, "equation": "...ij,...jk->...ik"},
    ),
    "einsum_12_sum": (
        "Einsum",
        [normal(2, 3, 4), normal(4, 3, seed=1)],
        {"opset": 12, "equation": "abc,cb->a"},
    ),
    "constant_of_shape_9": ("ConstantOfShape", [ints(2, 3)], {"opset": 9, "constant": [0]}),
    "expand_8": ("Expand", [normal(3, 1), ints(2, 1, 4)], {"opset": 8, "constant": [1]}),
    "group_normalization_21": (
        "GroupNormalization",
        [normal(2, 6, 3, 3), normal(6, seed=1), normal(6, seed=2)],
        {"opset": 21, "num_groups": 3},
    ),
    "roi_align_10": (
        "RoiAlign",
        [normal(1, 2, 8, 8), np.array([[0, 0, 7, 7], [1, 2, 5, 6]], np.float32), ints(0, 0)],
        {"opset": 10, "output_height": 3, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.9},
    ),
    "qlinear_conv_per_channel": (
        "QLinearConv",
        [
            u8(1, 2, 5, 5),
            np.float32(0.02),
            np.uint8(120),
            u8(3, 2, 3, 3, seed=1).astype(np.int8),
            np.array([0.01, 0.02, 0.03], np.float32),
            np.zeros(3, np.int8),
            np.float32(0.3),
            np.uint8(100),
            np.array([5, -7, 100], np.int32),
        ],
        {"opset": 13, "constant": [3, 4, 5, 8], "outputs": (U8,)},
    ),
    "qlinear_conv_of_ties": (
        "QLinearConv",
        [
            u8(1, 4, 40, 40),
            np.float32(0.1),
            np.uint8(100),
            u8(3, 4, 3, 3, seed=1).astype(np.int8),
            np.array([0.1, 0.2, 0.05], np.float32),
            np.zeros(3, np.int8),
            np.float32(0.8),
            np.uint8(100),
            np.array([5001, -7003, 100], np.int32),
        ],
        {"opset": 13, "constant": [3, 4, 5, 8], "outputs": (U8,)},
    ),
    "qlinear_matmul_of_ties": (
        "QLinearMatMul",
        [
            u8(400, 6),
            np.float32(0.1),
            np.uint8(100),
            u8(6, 30, seed=1).astype(np.int8),
            np.resize(np.array([0.1, 0.2, 0.05], np.float32), 30),
            np.zeros(30, np.int8),
            np.float32(0.8),
            np.uint8(100),
        ],
        {"opset": 13, "outputs": (U8,)},
    ),
    "conv_integer_with_zero_points": (
        "ConvInteger",
        [u8(1, 2, 5, 5), u8(3, 2, 3, 3, seed=1), np.uint8(7)],
        {"opset": 10, "constant": [1], "outputs": (I32,), "pads": [1, 1, 1, 1]},
    ),
    "matmul_integer_per_column": (
        "MatMulInteger",
        [u8(3, 4), u8(4, 5, seed=1), np.uint8(7), u8(5, seed=2)],
        {"opset": 10, "constant": [1, 3], "outputs": (I32,)},
    ),
    "quantize_linear_per_axis": (
        "QuantizeLinear",
        [X4, np.array([0.01, 0.02, 0.03], np.float32), np.array([1, 120, 255], np.uint8)],
        {"opset": 13, "constant": [1, 2], "outputs": (U8,)},
    ),
    "quantize_linear_blocked": (
        "QuantizeLinear",
        [normal(2, 6), np.abs(normal(2, 3, seed=1)) + 0.1],
        {"opset": 21, "block_size": 2, "outputs": (U8,)},
    ),
    "dequantize_linear_blocked": (
        "DequantizeLinear",
        [u8(2, 6), np.abs(normal(2, 3)), u8(2, 3, seed=1)],
        {"opset": 21, "block_size": 2},
    ),
    "dynamic_quantize_linear": (
        "DynamicQuantizeLinear",
        [normal(3, 5)],
        {"opset": 11, "outputs": (U8, FLOAT, U8)},
    ),
    "dynamic_quantize_linear_of_a_scalar": (
        "DynamicQuantizeLinear",
        [np.array(-1.5, np.float32)],
        {"opset": 11, "outputs": (U8, FLOAT, U8)},
    ),
    "lstm_bidirectional_with_everything": (
        "LSTM",
        [
            normal(4, 2, 3),
            normal(2, 8, 3, seed=1),
            normal(2, 8, 2, seed=2),
            normal(2, 16, seed=3),
            np.array([4, 2], np.int32),
            normal(2, 2, 2, seed=4),
            normal(2, 2, 2, seed=5),
            normal(2, 6, seed=6),
        ],
        {"opset": 14, "hidden_size": 2, "direction": "bidirectional", "outputs": (FLOAT,) * 3},
    ),
    "gru_linear_before_reset": (
        "GRU",
        [normal(3, 2, 3), normal(1, 6, 3, seed=1), normal(1, 6, 2, seed=2), normal(1, 12, seed=3)],
        {"opset": 14, "hidden_size": 2, "linear_before_reset": 1, "outputs": (FLOAT, FLOAT)},
    ),
    "rnn_reverse_with_relu": (
        "RNN",
        [normal(3, 2, 3), normal(1, 2, 3, seed=1), normal(1, 2, 2, seed=2)],
        {"opset": 7, "hidden_size": 2, "direction": "reverse", "activations": ["Relu"], "outputs": (0, FLOAT)},
    ),
    "gather_nd_12_batched": (
        "GatherND",
        [normal(2, 3, 4), np.array([[[1], [2]], [[0], [-1]]])],
        {"opset": 12, "batch_dims": 1},
    ),
    "non_zero_9": ("NonZero", [np.array([[1, 0], [0, 3]], np.float32)], {"opset": 9, "outputs": (INT64,)}),
    "lrn_7": ("LRN", [X4], {"opset": 7, "size": 3, "alpha": 0.1}),
    "instance_normalization_7": (
        "InstanceNormalization",
        [X4, normal(3, seed=1), normal(3, seed=2)],
        {"opset": 7},
    ),
    "prelu_9": ("PRelu", [X4, normal(3, 1, 1, seed=1)], {"opset": 9}),
    "matmul_vectors": ("MatMul", [normal(4), normal(4, seed=1)], {"opset": 9}),
    "matmul_broadcast": ("MatMul", [normal(2, 1, 3, 4), normal(5, 4, 2, seed=1)], {"opset": 9}),
    "sum_of_scalar_and_matrix": ("Sum", [np.float32(2), normal(2, 3)], {"opset": 8}),
    "gather_scalar_index": ("Gather", [normal(3, 4), np.array(1)], {"opset": 11, "axis": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_form_agrees_with_onnxruntime(name: str) -> None:
    op_type, inputs, options = CASES[name]
    inputs = [None if x is None else np.asarray(x) for x in inputs]
    model, feeds = single(op_type, inputs, **options)
    assert_like_onnxruntime(model, feeds)


def test_group_normalization_18_scales_groups() -> None:
    x, scale, bias = normal(2, 4, 3), normal(2, seed=1), normal(2, seed=2)
    model, feeds = single("GroupNormalization", [x, scale, bias], opset=18, num_groups=2, epsilon=1e-3)
    groups = x.reshape(2, 2, 6).astype(np.float64)
    standard = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-3)
    expected = (standard * scale[:, None] + bias[:, None]).reshape(x.shape)
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "LayerNormalization", "InstanceNormalization"]
)
def test_numbers_that_are_not_given_were_doubles(name: str) -> None:
    """Attributes are float32, by default too; with doubles results differed in the ninth digit."""
    more = {"InstanceNormalization": [normal(3), normal(3)], "LayerNormalization": [normal(5)]}.get(name, [])
    inputs = [x.astype(np.float64) for x in (1e-2 * normal(2, 3, 5), *more)]
    model, feeds = single(name, inputs, outputs=(11,))
    try:
        assert_like_onnxruntime(model, feeds, 1e-14)
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            raise
        wanted = ReferenceEvaluator(model).run(None, feeds)[0]
        np.testing.assert_allclose(run(model, feeds)[0], wanted, rtol=1e-14)


def test_factors_of_gemm_of_integers_are_not_cut() -> None:
    a, b, c = (np.random.default_rng(k).integers(-9, 9, lens) for k, lens in enumerate([(3, 4), (4, 5), (5,)]))
    model, feeds = single("Gemm", [a, b, c], opset=13, outputs=(INT64,), alpha=0.5, beta=0.25)
    np.testing.assert_array_equal(run(model, feeds)[0], (a @ b * 0.5 + c * 0.25).astype(np.int64))


def test_operators_unchanged_since_old_sets_are_read() -> None:
    model, _ = single("Not", [np.array([True])], opset=1, outputs=(9,))
    assert parse_onnx(model).output_shapes()[0].lens == (1,)


@pytest.mark.parametrize("step", [-2, 3])
@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_slices_with_steps_have_bounds_that_a_run_tells(step: int, target: str) -> None:
    """Bounds that only a run tells were refused on ``cpu`` unless all steps were 1."""
    begin, end = ([7], [1]) if step < 0 else ([1], [7])
    inputs = [normal(3, 9), *(np.array(v) for v in (begin, end, [1], [step]))]
    model, feeds = single("Slice", inputs, constant=[3, 4], opset=13)
    program = migraphx.parse_onnx(model).compile(target)
    for first in (begin[0], 3):
        given = {**feeds, "x1": np.array([first])}
        np.testing.assert_array_equal(program.run(given)[0], feeds["x0"][:, first : end[0] : step])


@pytest.mark.parametrize(("length", "begin", "end"), [(0, -1, 1), (1, -2, 3), (1, -2, 1), (2, 1, -3), (3, -4, 2)])
def test_pads_that_cut_more_than_there_is_leave_padding(length: int, begin: int, end: int) -> None:
    model, feeds = single("Pad", [normal(length, 2), ints(begin, 0, end, 0), np.float32(7)], constant=[1, 2], opset=17)
    assert_like_onnxruntime(model, feeds)
