"""Kernels that move, order and pool elements, of symbolic lengths, on the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from mgx_numba.codegen.gpu.data import topk
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program

from ..cpu.agreement import assert_agrees, reference
from ..dynamic.models import Graph
from .symbolic import SymbolicPlan, open_shape

F32, F16, I64 = Type.float_type, Type.half_type, Type.int64_type


def check(build: Callable[[Module], None], most: int = 2, lengths: Any = ((1, 1, 1), (2, 5, 3), (3, 16, 8))) -> None:
    program = Program()
    build(program.main)
    made = SymbolicPlan(program)
    assert not made.guards
    assert len(made.labels) <= most, made.labels
    assert not [label for label in made.labels if label.startswith("ref::")]
    made.check(*lengths)


@pytest.mark.parametrize("type", [F32, F16])
def test_caches_grow(type: Type) -> None:
    def build(m: Module) -> None:
        grown = []
        for name in "kv":
            past = m.add_parameter(f"past_{name}", open_shape(type, "b", 2, "s", 8))
            new = m.add_parameter(name, open_shape(type, "b", 2, "t", 8))
            grown.append(m.add_instruction("concat", [past, new], axis=2))
        m.add_return(grown)

    check(build, 1)


@pytest.mark.parametrize("width", [6, 8])
def test_values_gathered_by_any_number_of_indices(width: int) -> None:
    def build(m: Module) -> None:
        table = m.add_literal(np.random.default_rng(0).normal(size=(4096, width)).astype(np.float32))
        found = m.add_instruction("gather", [table, m.add_parameter("at", open_shape(I64, "b", "s"))], axis=0)
        given = m.add_parameter("x", open_shape(F32, "b", "s", width))
        m.add_return([m.add_instruction("relu", [m.add_instruction("add", [found, given])])])

    check(build, 1, ((1, 1), (2, 5), (3, 16)))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_best_of_rows_of_any_length(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk, "PART", 8)
    monkeypatch.setattr(topk, "KEPT_OF_PART", 2)

    def build(m: Module) -> None:
        dims = [DynamicDimension(3, 4096, symbol="s"), DynamicDimension(1, 4096, symbol="b")]
        x = m.add_parameter("x", Shape.dynamic(F16, dims if axis == 0 else dims[::-1]))
        best = m.add_instruction("topk", [x], k=3, axis=axis, largest=bool(axis))
        m.add_return([m.add_instruction("get_tuple_elem", [best], index=k) for k in range(2)])

    check(build, 6, ((1, 3), (2, 16), (3, 17), (1, 150)))


def test_suppression_of_any_number_of_boxes() -> None:
    g = Graph()
    chosen = g.op("NonMaxSuppression", "boxes", "scores", g.ints(4), g.const([0.4], np.float32))
    inputs = {"boxes": (TensorProto.FLOAT, ["b", "s", 4]), "scores": (TensorProto.FLOAT, ["b", 2, "s"])}
    made = SymbolicPlan(parse_onnx(g.model(inputs, [chosen]), default_dyn_dim_value=DynamicDimension(1, 4096)))
    assert not made.guards and "gpu::nonmaxsuppression_kernel" in made.labels
    made.check((1, 1), (2, 7), (3, 20))


@pytest.mark.parametrize(
    "name, attributes",
    [
        ("argmax", {"axis": 1}),
        ("argmin", {"axis": 2}),
        ("prefix_scan_sum", {"axis": 1, "exclusive": False, "reverse": False}),
        ("pad", {"pads": (0, 1, 2, 1, 0, 3)}),
    ],
)
@pytest.mark.parametrize("lens", [("b", "s", 6), (3, "b", "s")])
def test_kernels_of_one_operand(name: str, attributes: Any, lens: Any) -> None:
    def build(m: Module) -> None:
        m.add_return([m.add_instruction(name, [m.add_parameter("x", open_shape(F32, *lens))], **attributes)])

    check(build)


def test_gathers() -> None:
    def build(m: Module) -> None:
        table = m.add_parameter("x", open_shape(F32, 4, 12))
        tokens = m.add_parameter("tokens", open_shape(I64, "b", "s"))
        m.add_return([m.add_instruction("gather", [table, tokens], axis=0)])

    check(build)


def test_pooling() -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(F32, "b", 4, "s", "t"))
        how = {"mode": "average", "lengths": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilations": (1, 1)}
        m.add_return([m.add_instruction("pooling", [x], **how)])

    check(build)


def test_windows_that_add_up() -> None:
    g = Graph(18)
    y = g.op("Col2Im", "x", g.ints(9, 8), g.ints(3, 2), strides=[2, 1], pads=[1, 0, 0, 1])
    model = g.model({"x": (TensorProto.FLOAT, ["b", 12, 32])}, [y])
    made = SymbolicPlan(parse_onnx(model, default_dyn_dim_value=DynamicDimension(1, 64)))
    assert not made.guards and made.labels == ["gpu::col2im_kernel"]
    made.check((1,), (3,))


@pytest.mark.parametrize("combine", ["none", "add"])
def test_scatters(combine: str) -> None:
    def build(m: Module) -> None:
        data = m.add_parameter("data", open_shape(F32, 4, "b", "s"))
        indices = m.add_parameter("indices", open_shape(I64, 2, "b", "s"))
        updates = m.add_parameter("updates", open_shape(F32, 2, "b", "s"))
        m.add_return([m.add_instruction(f"scatter_{combine}", [data, indices, updates], axis=0)])

    check(build, 4)


TYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
RESIZES = [
    ("nearest", "half_pixel", "round_prefer_floor", None),
    ("nearest", "asymmetric", "ceil", (1.0, 1.0, 2.0, 0.5)),
    ("nearest", "tf_half_pixel_for_nn", "round_prefer_ceil", None),
    ("linear", "pytorch_half_pixel", "floor", None),
    ("linear", "align_corners", "floor", (1.0, 1.0, 1.5, 2.0)),
    ("linear", "half_pixel_symmetric", "floor", (1.0, 1.0, 3.0, 1.0)),
    ("cubic", "half_pixel", "floor", None),
]


@pytest.mark.parametrize(("mode", "coordinates", "nearest", "scales"), RESIZES)
@pytest.mark.parametrize("kind", TYPES)
def test_resizing_open_axes(
    mode: str, coordinates: str, nearest: str, scales: tuple[float, ...] | None, kind: int
) -> None:
    """Programs that resize open axes had a plan for each set of lengths."""

    g = Graph(19)
    how = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    if scales is None:
        s, t = g.dim("x", 2), g.dim("x", 3)
        sizes = g.vector(1, 3, g.op("Add", g.op("Add", s, s), t), s)
        y = g.op("Resize", "x", "", "", sizes, **how)
    else:
        y = g.op("Resize", "x", "", g.const(np.array(scales, np.float32)), **how)
    model = g.model({"x": (kind, [1, 3, "s", "t"])}, [y])
    made = SymbolicPlan(parse_onnx(model, default_dyn_dim_value=DynamicDimension(1, 64)))
    assert not [label for label in made.labels if label.startswith("ref::")]
    for lens in ((1, 3, 1, 1), (1, 3, 5, 3), (1, 3, 4, 9)):
        inputs = {"x": np.random.default_rng(lens[3]).standard_normal(lens).astype(TYPES[kind])}
        assert_agrees(made.run(inputs), reference(parse_onnx(model, map_input_dims={"x": list(lens)}), inputs))
