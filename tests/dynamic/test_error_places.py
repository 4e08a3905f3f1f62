"""Errors of lengths and values that only a run has name the node, as errors of parsing do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mgx_numba.api.program import program as public_program
from mgx_numba.errors import MgxError, ParseError
from mgx_numba.frontends.handlers import handler_of
from mgx_numba.frontends.onnx import parse_onnx, registry
from mgx_numba.frontends.onnx.builder import Builder
from mgx_numba.frontends.onnx.node import Node
from mgx_numba.graph.instruction import Instruction

from .models import FLOAT, INT64, Graph

OPEN = (FLOAT, ["a", "b"])
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "a broadcast": ("BitwiseAnd", {}, {"x": (INT64, ["a", "b"]), "y": (INT64, ["c", "d"])}, {"x": (2, 3), "y": (2, 4)}),
    "a product": ("MatMul", {}, {"x": OPEN, "y": (FLOAT, ["c", "d"])}, {"x": (2, 3), "y": (4, 2)}),
    "an empty axis": ("ArgMax", {"axis": 1}, {"x": OPEN}, {"x": (2, 0)}),
    "a node that is read late": ("Reshape", {}, {"x": OPEN, "k": (INT64, [2])}, {"x": (3, 5), "k": (2,)}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_errors_of_a_run_name_the_node(name: str, target: str) -> None:
    """Programs with open lengths raised ``multibroadcast: [2, 3] and [2, 4] do not broadcast`` without a place."""
    operator, attributes, inputs, lens = CASES[name]
    g = Graph(opset=18)
    model = g.model(inputs, [g.op(operator, *inputs, **attributes)])
    model.graph.node[-1].name = "the_node"
    made = public_program.wrap(parse_onnx(model)).compile(target)
    feeds = {k: np.zeros(n, np.int64 if inputs[k][0] == INT64 else np.float32) for k, n in lens.items()}
    feeds.update({"k": np.array([4, 4])} if "k" in inputs else {})
    place = re.escape(f"node 'the_node' ({operator}, domain ai.onnx, opset 18): ")
    with pytest.raises(MgxError, match=f"^{place}(?!{place})"):
        made.run(feeds)


def test_an_error_that_no_parser_function_foresaw_has_the_shapes_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(g: Builder, node: Node, x: Instruction) -> Instruction:
        (_rows,) = g.lens(x)
        return x

    g = Graph(opset=18)
    model = g.model({"x": (FLOAT, [2, 3])}, [g.op("Abs", "x")])
    registry.find("", "Abs")  # its family is loaded
    monkeypatch.setitem(registry._HANDLERS, ("", "Abs"), handler_of(unforeseen))
    with pytest.raises(ParseError, match=r"Abs, .*: ValueError: too many values to unpack .*; inputs are 'x' .*2, 3"):
        parse_onnx(model)
