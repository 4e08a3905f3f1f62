"""Nodes of ONNX's and ONNX Runtime's operators in a program with open lengths, expanded when these are known.

So a decoder that is built here has the attention of decoders that come as ONNX files.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from ..core.shape import Shape
from ..frontends.onnx.value_types import type_proto
from ..graph.emitter import Emitter
from ..graph.instruction import Instruction
from ..ops.deferred import Deferred

OPERATOR_SET = 21
"""Operator set of ONNX that nodes name; other domains have version 1."""


def deferred_node(
    g: Emitter,
    operator: str,
    inputs: Sequence[Instruction | None],
    results: Sequence[Shape],
    domain: str = "com.microsoft",
    **attributes: Any,
) -> list[Instruction]:
    """Emit a node of ONNX or ONNX Runtime, to be expanded later, and return its results.

    Args:
        g: the builder.
        operator: name of the operator.
        inputs: the node's inputs; None for an absent one.
        results: shapes of the results.
        domain: the operator's.
        attributes: the node's attributes.
    """
    import onnx
    from onnx import helper

    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    outputs = [f"y{k}" for k in range(len(results))]
    given = [(name, x) for name, x in zip(names, inputs, strict=True) if x is not None]
    node = helper.make_node(operator, names, outputs, domain=domain, **attributes)
    graph = onnx.GraphProto(name=operator)
    graph.node.append(node)
    for name, x in given:
        graph.input.add(name=name).type.CopyFrom(type_proto(x.shape, ranked=False))
    for name in outputs:
        graph.output.add(name=name)
    opsets = [helper.make_opsetid("", OPERATOR_SET), helper.make_opsetid(domain or "com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    op = Deferred(
        operator=operator,
        source=base64.b64encode(model.SerializeToString(deterministic=True)).decode(),
        result=Shape.tuple(results),
    )
    whole = g.op(op, *(x for _, x in given))
    return [g.op("get_tuple_elem", whole, index=k) for k in range(len(results))]
