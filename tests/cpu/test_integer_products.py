"""Products and convolutions of integers by tiles: exact for all types, zero points, signs, groups and lengths."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from .programs import check, program_of

CODES = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8}
NAMES = ("x", "w", "x_zero", "w_zero")


def model_of(
    node: onnx.NodeProto, values: dict[str, np.ndarray], inputs: Sequence[str], opened: bool = False
) -> onnx.ModelProto:
    """Return a one-node model; values named in ``inputs`` are its inputs, all remaining values are constants."""
    given = [
        helper.make_tensor_value_info(
            name,
            CODES[values[name].dtype],
            [f"{name}{d}" if opened else n for d, n in enumerate(values[name].shape)],
        )
        for name in inputs
    ]
    constants = [numpy_helper.from_array(v, name) for name, v in values.items() if name not in inputs]
    result = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    graph = helper.make_graph([node], "integers", given, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(node: onnx.NodeProto, values: dict[str, np.ndarray], inputs: Sequence[str], opened: bool = False) -> np.ndarray:
    """Return the result on the target cpu, after comparing that of ref; no contraction may run in NumPy."""
    model, feeds = model_of(node, values, inputs, opened), {name: values[name] for name in inputs}
    expected = np.asarray(mgx_numba.parse_onnx(model).compile("ref").run(feeds)[0])
    p = mgx_numba.parse_onnx(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "quant_|integer_")
        p.compile("cpu", num_threads=1)
        found = np.asarray(p.run(feeds)[0])
    if not opened:
        compiled: Any = p.compiled
        steps = compiled.executable.plan.steps
        assert not [step.label for step in steps if isinstance(step, FallbackStep)]
    assert found.dtype == expected.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    return found


def integers(rng: np.random.Generator, dtype: Any, *lens: int) -> np.ndarray:
    """Return integers over the whole range of a type, its ends among them."""
    limits = np.iinfo(dtype)
    values = np.asarray(rng.integers(limits.min, limits.max + 1, lens, dtype=dtype))
    values.reshape(-1)[:1] = limits.min
    values.reshape(-1)[-1:] = limits.max
    return values


def convolved(values: Sequence[np.ndarray], pads: Sequence[int], stride: int, dilation: int, groups: int) -> np.ndarray:
    """Return the sums of integers that ConvInteger is, in int32."""
    x, w, x_zero, w_zero = (v.astype(np.int64) for v in values)
    x, w = x - x_zero.reshape(()), w - w_zero.reshape(-1, *(1 for _ in w.shape[1:]))
    spatial = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *((pads[k], pads[k + spatial]) for k in range(spatial))])
    lens = [(n - (k - 1) * dilation - 1) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:])]
    grouped = w.reshape(groups, -1, *w.shape[1:])
    result = np.zeros((x.shape[0], *grouped.shape[:2], *lens), np.int64)
    for tap in itertools.product(*map(range, w.shape[2:])):
        area = tuple(slice(t * dilation, t * dilation + (n - 1) * stride + 1, stride) for t, n in zip(tap, lens))
        seen = x[(slice(None), slice(None), *area)]
        seen = seen.reshape(x.shape[0], groups, -1, *lens)
        result += np.einsum("ngc...,goc->ngo...", seen, grouped[(..., *tap)])
    return result.reshape(x.shape[0], w.shape[0], *lens).astype(np.int32)


CONVOLUTIONS = {
    # x, w, groups, pads, stride, dilation, types of x and w, elements of w_zero, inputs beside x, open lengths
    "padding by a computed zero point": ([2, 8, 9, 7], [6, 8, 3, 3], 1, [1] * 4, 1, 1, "uu", 1, ["x_zero"], False),
    "zero points of channels": ([1, 16, 6, 5], [10, 16, 2, 3], 1, [1, 0, 0, 2], 2, 1, "us", 10, ["x_zero"], False),
    "signed pixels": ([1, 5, 8, 9], [3, 5, 3, 2], 1, [2, 1, 0, 1], 1, 2, "su", 3, ["x_zero"], False),
    "a constant zero point": ([1, 6, 7, 6], [9, 6, 1, 1], 1, [0] * 4, 2, 1, "uu", 1, [], False),
    "depthwise": ([2, 11, 9, 9], [11, 1, 3, 3], 11, [1] * 4, 1, 1, "uu", 11, ["x_zero"], False),
    "depthwise of open lengths": ([2, 11, 9, 23], [11, 1, 3, 3], 11, [1] * 4, 2, 1, "us", 1, ["x_zero"], True),
    "groups of few channels": ([1, 6, 5, 8], [8, 3, 3, 3], 2, [1] * 4, 1, 1, "us", 8, ["x_zero"], False),
    "groups with several results": ([1, 3, 6, 6], [12, 1, 3, 2], 3, [0, 1, 1, 0], 1, 1, "su", 12, [], False),
    "open lengths": ([2, 8, 9, 11], [6, 8, 3, 3], 1, [1] * 4, 1, 1, "uu", 1, ["x_zero"], True),
    "one dimension": ([3, 4, 17], [5, 4, 5], 1, [2, 2], 1, 1, "uu", 5, ["x_zero"], False),
    "three dimensions": ([1, 4, 5, 4, 6], [3, 4, 2, 2, 3], 1, [1, 0, 1, 0, 1, 1], 1, 1, "us", 1, ["x_zero"], False),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_of_integers_is_exact(case: str) -> None:
    x_lens, w_lens, groups, pads, stride, dilation, types, elements, inputs, opened = CONVOLUTIONS[case]
    rng = np.random.default_rng(len(case))
    x_type, w_type = (np.uint8 if t == "u" else np.int8 for t in types)
    w_zero = integers(rng, w_type, elements) if elements > 1 else np.asarray(rng.integers(3, 120), w_type)
    values = (integers(rng, x_type, *x_lens), integers(rng, w_type, *w_lens), np.asarray(117, x_type), w_zero)
    spatial = len(w_lens) - 2
    node = helper.make_node(
        "ConvInteger", NAMES, ["y"], group=groups, pads=pads, strides=[stride] * spatial, dilations=[dilation] * spatial
    )
    found = run(node, dict(zip(NAMES, values)), ["x", *inputs], opened)
    np.testing.assert_array_equal(found, convolved(values, pads, stride, dilation, groups))


PRODUCTS = {
    # a, b, types, lengths of both zero points, what is an input beside a, open lengths
    "per tensor": ([2, 5, 37], [37, 50], "uu", [], [], ["x_zero"], False),
    "per column, fitting int8 or not": ([3, 64], [64, 17], "us", [], [17], ["x_zero"], False),
    "per row": ([2, 7, 30], [30, 9], "su", [7], [9], ["x_zero"], False),
    "constant zero points": ([1, 20], [20, 33], "ss", [], [33], [], False),
    "both sides computed": ([2, 3, 6, 19], [2, 3, 19, 35], "su", [], [35], ["x_zero", "w", "w_zero"], False),
    "a computed matrix for all": ([2, 6, 41], [41, 18], "us", [6], [], ["w"], False),
    "open lengths": ([2, 13, 40], [40, 24], "uu", [], [24], ["x_zero"], True),
    "a vector": ([40], [40, 24], "uu", [], [24], ["x_zero"], False),
    "times a vector": ([3, 40], [40], "us", [3], [], [], False),
}  # fmt: skip


@pytest.mark.parametrize("case", PRODUCTS)
def test_product_of_integers_is_exact(case: str) -> None:
    a_lens, b_lens, types, a_points, b_points, inputs, opened = PRODUCTS[case]
    rng = np.random.default_rng(len(case))
    a_type, b_type = (np.uint8 if t == "u" else np.int8 for t in types)
    values = (
        integers(rng, a_type, *a_lens), integers(rng, b_type, *b_lens),
        integers(rng, a_type, *a_points) if a_points else np.asarray(91, a_type),
        integers(rng, b_type, *b_points) if b_points else np.asarray(100, b_type),
    )  # fmt: skip
    a, b, a_zero, b_zero = (v.astype(np.int64) for v in values)
    expected = (a - (a_zero[:, None] if a_points else a_zero)) @ (b - b_zero)
    node = helper.make_node("MatMulInteger", NAMES, ["y"])
    found = run(node, dict(zip(NAMES, values)), ["x", *inputs], opened)
    np.testing.assert_array_equal(found, expected.astype(np.int32))


def test_a_zero_point_of_the_pixels_is_as_it_was_quantised() -> None:
    """A model as of `quantize_dynamic`: the padding surrounds the quantised pixels."""
    rng = np.random.default_rng(3)
    w = integers(rng, np.uint8, 7, 4, 3, 3)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "w_zero"], ["y"], pads=[1, 1, 1, 1]),
    ]
    x = rng.standard_normal((2, 4, 6, 7)).astype(np.float32) + 0.5
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(n, c, None) for n, c in (("y", 6), ("q", 2), ("z", 2))],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.uint8(121), "w_zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found, codes, zero = map(np.asarray, mgx_numba.parse_onnx(model).compile("cpu").run({"x": x}))
    assert 0 < zero < 255
    np.testing.assert_array_equal(found, convolved((codes, w, zero, np.array([121])), [1] * 4, 1, 1, 1))


def test_compile_warns_of_integers_that_numpy_computes() -> None:
    rng = np.random.default_rng(1)
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"])
    values = {"x": integers(rng, np.uint8, 1, 4, 5, 5), "w": integers(rng, np.int8, 3, 4, 2, 2)}
    p = mgx_numba.parse_onnx(model_of(node, values, ["x", "w"]))
    with pytest.warns(RuntimeWarning, match=r"quant_convolution of uint8_type \[1, 4, 5, 5\], .* NumPy"):
        p.compile("cpu")
    zero = np.zeros((), np.int64)
    np.testing.assert_array_equal(
        np.asarray(p.run(values)[0]), convolved((values["x"], values["w"], zero, zero), [0] * 4, 1, 1, 1)
    )


WIDE = {
    # operator, lengths of both operands, attributes
    "product": ("dot", (13, 37), (37, 50), {}),
    "a row": ("dot", (1, 70), (70, 33), {}),
    "a column": ("dot", (70, 33), (33, 1), {}),
    "batches": ("dot", (3, 5, 7), (3, 7, 20), {}),
    "no terms": ("dot", (5, 0), (0, 4), {}),
    "convolution": ("convolution", (2, 8, 9, 9), (12, 8, 3, 3), {"padding": (1, 1)}),
    "1x1": ("convolution", (2, 8, 5, 9), (17, 8, 1, 1), {}),
    "depthwise": ("convolution", (2, 8, 9, 9), (8, 1, 3, 3), {"padding": (1, 1), "group": 8}),
    "groups": ("convolution", (1, 6, 8, 7), (4, 3, 3, 2), {"stride": (2, 1), "group": 2}),
    "transposed": ("convolution_backwards", (2, 8, 5, 6), (8, 6, 3, 3), {"stride": (2, 2)}),
}


@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("case", WIDE)
def test_wide_integers_wrap_around(case: str, dtype: str, constant: bool) -> None:
    """Sums that exceed the type, followed by another operator."""
    operator, a_lens, b_lens, attributes = WIDE[case]
    rng = np.random.default_rng(len(case))
    a, b = (
        integers(rng, np.dtype(dtype).type, *lens) if np.prod(lens) else np.zeros(lens, dtype)
        for lens in (a_lens, b_lens)
    )

    def build(m: Module, p: list[Instruction]) -> Instruction:
        right = m.add_literal(b) if constant else p[1]
        made = m.add_instruction(operator, [p[0], right], **attributes)
        return m.add_instruction("add", [made, made])

    check([a] if constant else [a, b], build)
    plan = lower(program_of([a] if constant else [a, b], build), TargetOptions())
    hosted = [s.label for s in plan.steps if isinstance(s, FallbackStep) and s.label.startswith("ref::")]
    assert not hosted or case == "no terms"
