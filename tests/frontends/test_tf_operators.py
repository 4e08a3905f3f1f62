"""Each TensorFlow operator against a reference in NumPy, on both targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mgx_numba.frontends.tf import get_tf_operators

from .tf_support import Graph, Kind, run

RNG = np.random.default_rng(11)
START = RNG.bit_generator.state


def normal(*lens: int) -> np.ndarray:
    return RNG.normal(size=lens).astype(np.float32)


@dataclass
class Case:
    """An operator, its inputs (positions in ``constant`` become Const nodes), and the expected result."""

    op: str
    inputs: list[Any]
    want: Any
    constant: tuple[int, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    label: str = ""


def case(op: str, inputs: list[Any], want: Any, *constant: int, label: str = "", **attributes: Any) -> Case:
    return Case(op, [np.asarray(x) for x in inputs], want, constant, attributes, label)


def pads_of(padding: Any, lens: list[int], kernel: list[int], stride: list[int], dilation: list[int]) -> list[Any]:
    """Padding of SAME and VALID as TensorFlow's documentation has it."""
    if padding == "VALID":
        return [(0, 0)] * len(lens)
    result = []
    for n, k, s, d in zip(lens, kernel, stride, dilation, strict=True):
        reach = (k - 1) * d + 1
        total = max(reach - (s if n % s == 0 else n % s), 0)
        result.append((total // 2, total - total // 2))
    return result


def windows(x: np.ndarray, kernel: list[int], stride: list[int], dilation: list[int], pads: list[Any], fill: float):
    """Windows [n, oh, ow, c, kh, kw] of [n, h, w, c]."""
    x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, reach, (1, 2))
    return view[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]


def conv(x: np.ndarray, w: np.ndarray, stride: list[int], padding: Any, dilation: list[int]) -> np.ndarray:
    pads = pads_of(padding, x.shape[1:3], w.shape[:2], stride, dilation) if isinstance(padding, str) else padding
    view = windows(x, w.shape[:2], stride, dilation, pads, 0)
    groups = x.shape[3] // w.shape[2]
    each = w.shape[3] // groups
    parts = [
        np.einsum(
            "nhwcij,ijco->nhwo",
            view[:, :, :, k * w.shape[2] : (k + 1) * w.shape[2]],
            w[..., k * each : (k + 1) * each],
        )
        for k in range(groups)
    ]
    return np.concatenate(parts, -1)


def depthwise(x: np.ndarray, w: np.ndarray, stride: list[int], padding: str) -> np.ndarray:
    view = windows(x, w.shape[:2], stride, [1, 1], pads_of(padding, x.shape[1:3], w.shape[:2], stride, [1, 1]), 0)
    y = np.einsum("nhwcij,ijcm->nhwcm", view, w)
    return y.reshape(*y.shape[:3], -1)


def conv_cases() -> list[Case]:
    cases = []
    x = normal(2, 7, 8, 6)
    for kernel, stride, dilation, padding, channels in [
        ((3, 3), [2, 2], [1, 1], "SAME", 6),
        ((3, 2), [1, 2], [1, 1], "VALID", 6),
        ((3, 3), [1, 1], [2, 3], "SAME", 6),
        ((1, 1), [1, 1], [1, 1], "SAME", 6),
        ((2, 3), [3, 2], [1, 1], "SAME", 3),
    ]:
        w = normal(*kernel, channels, 4)
        attributes = {"strides": [1, *stride, 1], "dilations": [1, *dilation, 1], "padding": padding}
        label = f"{kernel}{stride}{dilation}{padding}{channels}"
        cases.append(case("Conv2D", [x, w], conv(x, w, stride, padding, dilation), 1, label=label, **attributes))
    w = normal(3, 3, 6, 5)
    explicit = [(1, 2), (0, 3)]
    cases.append(
        case(
            "Conv2D",
            [x, w],
            conv(x, w, [1, 1], explicit, [1, 1]),
            1,
            label="explicit",
            strides=[1, 1, 1, 1],
            padding="EXPLICIT",
            explicit_paddings=[0, 0, 1, 2, 0, 3, 0, 0],
        )
    )
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    cases.append(
        case(
            "Conv2D",
            [first, w],
            conv(x, w, [2, 1], "SAME", [1, 1]).transpose(0, 3, 1, 2),
            1,
            label="nchw",
            strides=[1, 1, 2, 1],
            padding="SAME",
            data_format="NCHW",
        )
    )
    for multiplier, stride, padding in ((1, [1, 1], "SAME"), (2, [2, 2], "SAME"), (3, [1, 1], "VALID")):
        d = normal(3, 3, 6, multiplier)
        cases.append(
            case(
                "DepthwiseConv2dNative",
                [x, d],
                depthwise(x, d, stride, padding),
                1,
                label=f"{multiplier}{padding}",
                strides=[1, *stride, 1],
                padding=padding,
            )
        )
    cases.append(case("BiasAdd", [x, b := normal(6)], x + b, 1))
    cases.append(case("BiasAdd", [first, b], first + b[:, None, None], 1, label="nchw", data_format="NCHW"))
    cases.append(case("BiasAdd", [normal(3, 4), c := normal(4)], None, 1, label="matrix"))
    cases[-1].want = cases[-1].inputs[0] + c
    scale, offset, mean, variance = normal(6), normal(6), normal(6), RNG.uniform(0.5, 2, 6).astype(np.float32)
    norm = (x - mean) / np.sqrt(variance + 1e-3) * scale + offset
    training = {"epsilon": 1e-3, "is_training": False}
    inputs = [x, scale, offset, mean, variance]
    cases += [case(f"FusedBatchNorm{version}", inputs, norm, 1, 2, 3, 4, **training) for version in ("", "V2", "V3")]
    return cases


def backprop_cases() -> list[Case]:
    """The transposed convolution is the adjoint of the convolution: <conv(x), y> = <x, backprop(y)> for all x."""
    cases = []
    for lens, kernel, stride, padding in (
        ((7, 8), (3, 3), [2, 2], "SAME"),
        ((6, 9), (2, 3), [2, 2], "VALID"),
        ((8, 8), (3, 3), [3, 3], "VALID"),
        ((5, 5), (1, 1), [2, 2], "SAME"),
    ):
        w = normal(*kernel, 3, 4)
        basis = np.eye(math.prod(lens) * 3, dtype=np.float32).reshape(-1, *lens, 3)
        columns = conv(basis, w, stride, padding, [1, 1])
        y = normal(2, *columns.shape[1:])
        want = np.einsum("khwo,nhwo->nk", columns, y).reshape(2, *lens, 3)
        inputs = [np.array([2, *lens, 3], np.int32), w, y]
        cases.append(
            case("Conv2DBackpropInput", inputs, want, 0, 1, label=f"{lens}", strides=[1, *stride, 1], padding=padding)
        )
    return cases


def pool_cases() -> list[Case]:
    cases = []
    x = normal(2, 7, 6, 3)
    for kernel, stride, padding in (
        ([3, 3], [2, 2], "SAME"),
        ([2, 3], [1, 2], "VALID"),
        ([3, 3], [1, 1], "SAME"),
        ([1, 1], [2, 2], "SAME"),
    ):
        pads = pads_of(padding, x.shape[1:3], kernel, stride, [1, 1])
        largest = windows(x, kernel, stride, [1, 1], pads, -np.inf).max((4, 5))
        mean = np.nanmean(windows(x, kernel, stride, [1, 1], pads, np.nan), (4, 5))
        attributes = {"ksize": [1, *kernel, 1], "strides": [1, *stride, 1], "padding": padding}
        cases.append(case("MaxPool", [x], largest, label=f"{kernel}{padding}", **attributes))
        cases.append(case("AvgPool", [x], mean, label=f"{kernel}{padding}", **attributes))
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    pads = pads_of("SAME", x.shape[1:3], [3, 3], [2, 2], [1, 1])
    want = windows(x, [3, 3], [2, 2], [1, 1], pads, -np.inf).max((4, 5)).transpose(0, 3, 1, 2)
    form = {"padding": "SAME", "data_format": "NCHW"}
    cases.append(case("MaxPool", [first], want, label="nchw", ksize=[1, 1, 3, 3], strides=[1, 1, 2, 2], **form))
    sizes = [np.array([1, 1, 3, 3], np.int32), np.array([1, 1, 2, 2], np.int32)]
    cases.append(case("MaxPoolV2", [first, *sizes], want, 1, 2, **form))
    volume = normal(1, 4, 5, 6, 2)
    pair = volume.reshape(1, 2, 2, 5, 6, 2)
    attributes = {"ksize": [1, 2, 1, 1, 1], "strides": [1, 2, 1, 1, 1], "padding": "VALID"}
    cases.append(case("MaxPool3D", [volume], pair.max(2), **attributes))
    cases.append(case("AvgPool3D", [volume], pair.mean(2), **attributes))
    w = normal(2, 1, 1, 2, 3)
    want = np.einsum("ndthwc,tco->ndhwo", pair, w[:, 0, 0])
    cases.append(case("Conv3D", [volume, w], want, 1, strides=[1, 2, 1, 1, 1], padding="VALID"))
    squares = np.pad(x**2, [(0, 0)] * 3 + [(1, 1)])
    sums = squares[..., :-2] + squares[..., 1:-1] + squares[..., 2:]
    cases.append(case("LRN", [x], x / (2 + 0.3 * sums) ** 0.75, depth_radius=1, bias=2.0, alpha=0.3, beta=0.75))
    return cases


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x.astype(np.float64))


UNARY: dict[str, Callable[[np.ndarray], Any]] = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "Erf": _erf,
    "Erfc": lambda x: 1 - _erf(x),
    "Exp": np.exp,
    "Expm1": np.expm1,
    "Floor": np.floor,
    "IsFinite": np.isfinite,
    "IsInf": np.isinf,
    "IsNan": np.isnan,
    "Neg": np.negative,
    "OnesLike": np.ones_like,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.maximum(x, 0),
    "Relu6": lambda x: np.clip(x, 0, 6),
    "Rint": np.rint,
    "Round": np.rint,
    "Selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x.astype(np.float64))),
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Square": np.square,
    "Tan": np.tan,
    "Tanh": np.tanh,
    "ZerosLike": np.zeros_like,
    "CheckNumerics": lambda x: x,
    "EnsureShape": lambda x: x,
    "Identity": lambda x: x,
    "IdentityN": lambda x: x,
    "PlaceholderWithDefault": lambda x: x,
    "PreventGradient": lambda x: x,
    "Snapshot": lambda x: x,
    "StopGradient": lambda x: x,
}
INSIDE: dict[str, Callable[[np.ndarray], Any]] = {
    "Acos": np.arccos,
    "Asin": np.arcsin,
    "Atanh": np.arctanh,
    "Log": np.log,
    "Log1p": np.log1p,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Sqrt": np.sqrt,
}
"""Functions that are defined for numbers between 0 and 1."""
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Div": np.divide,
    "Equal": np.equal,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mod": np.fmod,
    "Mul": np.multiply,
    "NotEqual": np.not_equal,
    "RealDiv": np.divide,
    "SquaredDifference": lambda a, b: (a - b) ** 2,
    "Sub": np.subtract,
    "TruncateMod": np.fmod,
}


@np.errstate(all="ignore")
def unary_cases() -> list[Case]:
    x = normal(3, 37) * 3
    x[0, :5] = [0, -0.0, 1e-6, -1e-6, 7.5]
    special = np.array([np.nan, np.inf, -np.inf, 0, 1], np.float32)
    inside = RNG.uniform(0.01, 0.99, (2, 19)).astype(np.float32)
    cases = [case(op, [x], f(x)) for op, f in UNARY.items()] + [
        case(op, [inside], f(inside)) for op, f in INSIDE.items()
    ]
    cases += [case(op, [special], UNARY[op](special), label="special") for op in ("IsFinite", "IsInf", "IsNan", "Relu")]
    cases.append(case("Acosh", [1 + inside], np.arccosh(1 + inside)))
    cases.append(case("LeakyRelu", [x], np.where(x > 0, x, x * np.float32(0.3)), alpha=0.3))
    e = np.exp(x - x.max(-1, keepdims=True))
    cases.append(case("Softmax", [x], e / e.sum(-1, keepdims=True)))
    cases.append(case("LogSoftmax", [x], np.log(e / e.sum(-1, keepdims=True))))
    cases.append(case("LogicalNot", [x > 0], x <= 0))
    cases.append(case("Invert", [np.array([0, 5, -7], np.int32)], ~np.array([0, 5, -7])))
    cases.append(case("Cast", [x], x.astype(np.int32), DstT=Kind(np.int32)))
    cases.append(case("Cast", [x > 0], (x > 0).astype(np.float32), label="bool", DstT=Kind(np.float32)))
    return cases


def binary_cases() -> list[Case]:
    a, b = normal(2, 1, 7) * 4, normal(3, 1) * 2
    a[0, 0, 0] = b[0, 0]
    cases = [case(op, [a, b], f(a, b)) for op, f in BINARY.items()]
    i, j = RNG.integers(-9, 9, (4, 5)).astype(np.int32), np.array([-3, -2, 2, 3, 5], np.int32)
    whole = ("AddV2", "FloorDiv", "FloorMod", "Maximum", "Mul", "Sub", "TruncateMod", "Equal")
    cases += [case(op, [i, j], BINARY[op](i, j), label="int") for op in whole]
    ends = np.array([-(2**31), -(2**31) + 1, 2**31 - 1], np.int32)[:, None]
    cases.append(case("FloorDiv", [ends, j], ends // j, label="least"))
    cases.append(case("TruncateDiv", [i, j], np.trunc(i / j).astype(np.int32)))
    for op, f in (("BitwiseAnd", np.bitwise_and), ("BitwiseOr", np.bitwise_or), ("BitwiseXor", np.bitwise_xor)):
        cases.append(case(op, [i, j], f(i, j)))
    p, q = RNG.random((4, 1)) > 0.5, RNG.random(6) > 0.5
    cases += [case("LogicalAnd", [p, q], p & q), case("LogicalOr", [p, q], p | q)]
    base = np.abs(normal(3, 4))
    cases.append(case("Pow", [base, e := normal(4)], base**e))
    cases.append(case("AddN", [base, base * 2, base - 1], base * 4 - 1))
    zero = np.array([[0], [2], [0]], np.float32)
    with np.errstate(all="ignore"):
        cases.append(case("DivNoNan", [base, zero], np.where(zero == 0, 0, base / zero)))
    cases.append(case("ClipByValue", [a, np.float32(-1), np.float32(2)], np.clip(a, -1, 2), 1, 2))
    rows = np.array([True, False, True])
    cases.append(case("Select", [rows, base, -base], np.where(rows[:, None], base, -base)))
    cases.append(case("SelectV2", [q[:4], base, e], np.where(q[:4], base, e)))
    return cases


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def layout_cases() -> list[Case]:
    x = normal(2, 3, 4)
    image = normal(2, 4, 6, 8)
    cases = [
        case("Reshape", [x, ints(4, -1)], x.reshape(4, 6), 1),
        case("Reshape", [x[:1, :1, :1], np.zeros(0, np.int32)], x[0, 0, 0], 1, label="scalar"),
        case("ExpandDims", [x, np.int32(-2)], x[:, :, None], 1),
        case("Squeeze", [x[:, :1]], x[:, 0], squeeze_dims=[1]),
        case("Squeeze", [x[:1, :, :1]], x[0, :, 0], label="all"),
        case("Transpose", [x, ints(2, 0, 1)], x.transpose(2, 0, 1), 1),
        case("BroadcastTo", [x[:, :1], ints(2, 5, 4)], np.broadcast_to(x[:, :1], (2, 5, 4)), 1),
        case("Tile", [x, ints(1, 2, 3)], np.tile(x, (1, 2, 3)), 1),
        case("Fill", [ints(2, 3), np.float32(7)], np.full((2, 3), 7, np.float32), 0),
        case("Range", [np.int32(2), np.int32(11), np.int32(3)], np.arange(2, 11, 3), 0, 1, 2),
        case("Shape", [x], ints(2, 3, 4)),
        case("ShapeN", [x], np.array([2, 3, 4]), out_type=Kind(np.int64)),
        case("Rank", [x], np.int32(3)),
        case("Size", [x], np.int32(24)),
    ]
    n, h, w, c = image.shape
    parts = image.reshape(n, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5)
    cases.append(case("DepthToSpace", [image], parts.reshape(n, h * 2, w * 2, c // 4), block_size=2))
    parts = image.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
    cases.append(case("SpaceToDepth", [image], parts.reshape(n, h // 2, w // 2, c * 4), block_size=2))
    padded = np.pad(image, [(0, 0), (1, 1), (0, 3), (0, 0)])
    blocks = padded.reshape(2, 3, 2, 3, 3, 8).transpose(2, 4, 0, 1, 3, 5).reshape(12, 3, 3, 8)
    pads = np.array([[1, 1], [0, 3]], np.int32)
    cases.append(case("SpaceToBatchND", [image, ints(2, 3), pads], blocks, 1, 2))
    cases.append(case("BatchToSpaceND", [blocks, ints(2, 3), pads], image, 1, 2))
    nearest = image[:, [0, 0, 1, 2, 2, 3]][:, :, [0, 2, 4]]
    cases.append(case("ResizeNearestNeighbor", [image, ints(6, 3)], nearest, 1))
    ramp = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1) * np.ones((1, 1, 2, 1), np.float32)
    for label, flags, rows in (
        ("plain", {}, [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]),
        ("corners", {"align_corners": True}, np.arange(8) * 3 / 7),
        ("centres", {"half_pixel_centers": True}, np.clip((np.arange(8) + 0.5) / 2 - 0.5, 0, 3)),
    ):
        want = np.array(rows, np.float32).reshape(1, 8, 1, 1) * np.ones((1, 1, 2, 1), np.float32)
        cases.append(case("ResizeBilinear", [ramp, ints(8, 2)], want, 1, label=label, **flags))
    return cases


def indexing_cases() -> list[Case]:
    x = normal(4, 5, 6)
    picks = np.array([[3, 0], [1, 1]], np.int32)
    cases = [
        case("ConcatV2", [x, x[:, :2], np.int32(1)], np.concatenate([x, x[:, :2]], 1), 2),
        case("Concat", [np.int32(-1), x, x[..., :1]], np.concatenate([x, x[..., :1]], -1), 0),
        case("Pack", [x, x + 1], np.stack([x, x + 1], 1), axis=1),
        case("Unpack", [x], x[:, 0], axis=1, num=5),
        case("Split", [np.int32(2), x], x[..., :2], 0, num_split=3),
        case("SplitV", [x, ints(1, -1, 2), np.int32(1)], x[:, :1], 1, 2, num_split=3),
        case("Slice", [x, ints(1, 0, 2), ints(2, -1, 3)], x[1:3, :, 2:5], 1, 2),
        case("Pad", [x, ints(0, 0, 1, 2, 3, 0).reshape(3, 2)], np.pad(x, [(0, 0), (1, 2), (3, 0)]), 1),
        case("Gather", [x, picks], x[picks]),
        case("GatherV2", [x, picks, np.int32(1)], np.take(x, picks, 1), 2),
        case("GatherV2", [x, ints(*range(4)).reshape(4, 1), np.int32(1)], None, 2, label="batch", batch_dims=1),
        case("GatherNd", [x, picks], x[picks[:, 0], picks[:, 1]]),
        case("ReverseV2", [x, ints(0, -1)], x[::-1, :, ::-1], 1),
        case("TopKV2", [x, np.int32(2)], -np.sort(-x, -1)[..., :2], 1),
        case("PadV2", [x, ints(1, 0, 0, 0, 0, 1).reshape(3, 2), np.float32(9)], None, 1, 2),
    ]
    cases[10].want = np.stack([x[k, [k]] for k in range(4)])
    cases[-1].want = np.pad(x, [(1, 0), (0, 0), (0, 1)], constant_values=9)
    pads = ints(2, 1, 0, 3, 1, 1).reshape(3, 2)
    for mode, name in (("REFLECT", "reflect"), ("SYMMETRIC", "symmetric")):
        cases.append(case("MirrorPad", [x, pads], np.pad(x, pads, mode=name), 1, label=mode, mode=mode))
    indices = np.array([[0, 2, -1], [5, 3, 1]], np.int32)
    for axis in (-1, 0, 1):
        one = (indices[..., None] == np.arange(4)).astype(np.float32) * 3 - 1
        inputs = [indices, np.int32(4), np.float32(2), np.float32(-1)]
        cases.append(case("OneHot", inputs, np.moveaxis(one, -1, axis), 1, 2, 3, label=f"{axis}", axis=axis))
    for label, begin, end, step, masks, want in (
        ("plain", (1, 0, 2), (3, 5, 6), (1, 2, 3), {}, x[1:3, 0:5:2, 2:6:3]),
        ("left out", (9, 1), (9, 9), (1, 1), {"begin_mask": 1, "end_mask": 3}, x[:, 1:]),
        ("backwards", (-1, 3), (0, 0), (-1, -2), {"end_mask": 2}, x[-1:0:-1, 3::-2]),
        ("shrink", (-1, 0), (0, 3), (1, 1), {"shrink_axis_mask": 1}, x[-1, 0:3]),
        ("dots", (0, 0, 1), (0, 0, 2), (1, 1, 1), {"ellipsis_mask": 1, "new_axis_mask": 2}, x[..., None, 1:2]),
        ("all", (0, 0, 0), (0, 0, 0), (1, 1, 1), {"shrink_axis_mask": 7}, x[0, 0, 0]),
        ("empty", (3, 0), (1, 2), (1, 1), {}, x[3:1, 0:2]),
        ("beyond", (-9, 2), (99, 99), (1, 1), {}, x[-9:99, 2:99]),
        ("before", (-9,), (-8,), (-1,), {}, x[-9:-8:-1]),
    ):
        bounds = [ints(*v) for v in (begin, end, step)]
        cases.append(case("StridedSlice", [x, *bounds], want, 1, 2, 3, label=label, **masks))
    return cases


def reduction_cases() -> list[Case]:
    x, flags = normal(3, 4, 5), RNG.random((3, 4)) > 0.3
    cases = []
    for op, f in (("Max", np.max), ("Mean", np.mean), ("Min", np.min), ("Prod", np.prod), ("Sum", np.sum)):
        cases.append(case(op, [x, ints(0, -1)], f(x, axis=(0, 2)), 1))
        cases.append(case(op, [x, np.int32(1)], f(x, axis=1, keepdims=True), 1, label="kept", keep_dims=True))
    cases += [case("All", [flags, ints(1)], flags.all(1), 1), case("Any", [flags, ints(0, 1)], flags.any(), 1)]
    cases.append(case("Sum", [x, ints(0, 1, 2)], x.sum(), 1, label="scalar"))
    cases.append(case("ArgMax", [x, np.int32(1)], x.argmax(1), 1))
    cases.append(case("ArgMin", [x, np.int32(-1)], x.argmin(-1), 1, output_type=Kind(np.int32)))
    cases.append(case("Cumsum", [x, np.int32(1)], x.cumsum(1), 1))
    later = x[..., ::-1].cumsum(-1)[..., ::-1] - x
    cases.append(case("Cumsum", [x, np.int32(2)], later, 1, label="back", exclusive=True, reverse=True))
    return cases


def matmul_cases() -> list[Case]:
    a, b = normal(5, 7), normal(7, 3)
    s, t = normal(2, 1, 4, 6), normal(3, 6, 5)
    u, v = normal(2, 4, 3, 5), normal(2, 6, 3, 5)
    return [
        case("MatMul", [a, b], a @ b),
        case("MatMul", [a.T.copy(), b.T.copy()], a @ b, label="both", transpose_a=True, transpose_b=True),
        case("BatchMatMul", [t, t[:, :5].swapaxes(1, 2).copy()], t @ t[:, :5].swapaxes(1, 2)),
        case("BatchMatMulV2", [s, t], s @ t),
        case("BatchMatMulV2", [s.swapaxes(2, 3).copy(), t], s @ t, label="adj_x", adj_x=True),
        case("BatchMatMulV3", [s, t.swapaxes(1, 2).copy()], s @ t, adj_y=True, Tout=Kind(np.float32)),
        case("Einsum", [u, v], np.einsum("btnh,bsnh->bnts", u, v), equation="BTNH,BSNH->BNTS"),
    ]


FAMILIES: dict[str, Callable[[], list[Case]]] = {
    "conv": conv_cases,
    "backprop": backprop_cases,
    "pool": pool_cases,
    "unary": unary_cases,
    "binary": binary_cases,
    "layout": layout_cases,
    "indexing": indexing_cases,
    "reduction": reduction_cases,
    "matmul": matmul_cases,
}


def cases_of(family: str) -> list[Case]:
    """Return a family's cases, independent of tests that ran before."""
    RNG.bit_generator.state = START
    return FAMILIES[family]()


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_operators_agree_with_numpy(family: str, target: str) -> None:
    cases = cases_of(family)
    graph, feeds, names = Graph(), {}, []
    for number, one in enumerate(cases):
        inputs = []
        for k, value in enumerate(one.inputs):
            name = f"{number}_{k}"
            if k in one.constant:
                graph.const(name, value)
            else:
                graph.input(name, value.shape, value.dtype)
                feeds[name] = value
            inputs.append(name)
        names.append(graph.add(one.op, f"node{number}", inputs, **one.attributes))
    program = graph.parse(output_names=names)
    wanted = set(program.parameter_shapes())
    results = run(program, {k: v for k, v in feeds.items() if k in wanted}, target)
    wrong = []
    for one, found in zip(cases, results, strict=True):
        want = np.asarray(one.want)
        if found.shape != want.shape or not np.allclose(found, want, 2e-5, 2e-5, equal_nan=True):
            wrong.append((one.op, one.label, found.shape, want.shape))
    assert not wrong


def test_every_operator_has_a_case() -> None:
    covered = {one.op for family in FAMILIES for one in cases_of(family)}
    elsewhere = {"Const", "PartitionedCall", "Placeholder", "StatefulPartitionedCall"}
    assert set(get_tf_operators()) == covered | elsewhere


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_values_inside_of_an_operator_are_float32(target: str) -> None:
    """In float16, ``erf(x)`` rounds to 1 for numbers whose complement is not 0."""
    x = np.array([0.5, 1, 2, 2.5, 3], np.float16)
    graph = Graph()
    graph.input("x", x.shape, x.dtype)
    graph.add("Erfc", "y", ["x"])
    (found,) = run(graph.parse(), {"x": x}, target)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float64), 1 - _erf(x.astype(np.float64)), rtol=2e-3)
