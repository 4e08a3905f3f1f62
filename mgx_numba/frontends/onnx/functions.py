"""Operators defined by a body of other operators: ONNX's own (from the schema) and the model's.

ONNX `IR.md`, section Functions. A body is read in a scope of its own: formal inputs stand for the values that
the node takes, ``ref_attr_name`` for its attributes, and the body's operator set imports hold inside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import Builder
from .model import opset_versions
from .node import Node
from .schema import Schema
from .scope import NameScope
from .value_types import type_proto

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, NodeProto

__all__ = ["EXPANDED", "expand", "has_body", "schema_body"]

EXPANDED = frozenset(
    "AffineGrid Bernoulli BlackmanWindow CausalConvWithState CenterCropPad"
    " HammingWindow HannWindow LinearAttention"
    " NegativeLogLikelihoodLoss SequenceMap SoftmaxCrossEntropyLoss SwiGLU FlexAttention".split()
)
"""Operators that are read through the body that ONNX gives them, having no parser of their own."""

DEEPEST = 32
"""Functions inside of functions: a bound for models that call one another; known ones have a handful."""


def has_body(schema: Schema) -> bool:
    """Whether ONNX defines an operator by a body, for some inputs at least."""
    return schema.source.has_function or schema.source.has_context_dependent_function


def schema_body(node: Node, schema: Schema, inputs: Sequence[Instruction | None]) -> FunctionProto | None:
    """The body that ONNX gives an operator for these inputs, ``None`` when it gives none.

    Raises:
        ParseError: ONNX refuses to build a body for this node.
    """
    import onnx

    source = schema.source
    versions: list[int] = []
    if source.has_function:
        versions = [v for v in source.function_opset_versions if v <= node.opset]
    if versions:
        return onnx.FunctionProto.FromString(source.get_function_with_opset_version(max(versions)))
    if source.has_context_dependent_function:
        versions = [v for v in source.context_dependent_function_opset_versions if v <= node.opset]
    if not versions:
        return None
    types = [onnx.TypeProto() if x is None else type_proto(x.shape) for x in inputs]
    try:
        body = source.get_context_dependent_function_with_opset_version(
            max(versions), node.proto.SerializeToString(), [t.SerializeToString() for t in types]
        )
    except Exception as error:
        raise ParseError(f"ONNX builds no function body for this node: {error}") from error
    return onnx.FunctionProto.FromString(body) if body else None


def schema_attributes(schema: Schema) -> dict[str, AttributeProto]:
    """Default values of an operator's attributes."""
    defaults = {name: a.default_value for name, a in schema.source.attributes.items()}
    return {name: value for name, value in defaults.items() if value is not None and value.type}


def function_attributes(function: FunctionProto) -> dict[str, AttributeProto]:
    """Default values of a model function's attributes."""
    return {a.name: a for a in function.attribute_proto}


def expand(
    g: Builder,
    node: Node,
    function: FunctionProto,
    inputs: Sequence[Instruction | None],
    defaults: Mapping[str, AttributeProto],
    path: tuple[str, ...],
) -> list[Instruction | None]:
    """Read a function body in place of a node.

    Args:
        g: where instructions go.
        node: the node that calls the function.
        function: the body.
        inputs: values of the node's inputs.
        defaults: values of attributes that the node does not give.
        path: functions being expanded around this node.

    Raises:
        ParseError: more inputs than the body has, a body that calls itself, or what reading its nodes raises.
    """
    import onnx.defs

    if len(inputs) > len(function.input):
        raise ParseError(f"got {len(inputs)} inputs, the function {node.op_type!r} has {len(function.input)}")
    if len(node.outputs) > len(function.output):
        raise ParseError(f"got {len(node.outputs)} outputs, the function {node.op_type!r} has {len(function.output)}")
    key = f"{node.domain}::{function.name}::{function.overload}"
    if (key in path and node.domain not in ("", "ai.onnx.preview")) or len(path) >= DEEPEST:
        raise ParseError(f"function {node.op_type!r} calls itself: {' -> '.join([*path, key])}")
    opsets = opset_versions(function.opset_import)
    opsets.setdefault("", node.scope.opsets.get("", onnx.defs.onnx_opset_version()))
    scope = NameScope(opsets, None, {**defaults, **node.attributes}, (*path, key))
    for position, name in enumerate(function.input):
        scope.define(name, inputs[position] if position < len(inputs) else None)
    g.parser.parse_nodes(g, function.node, scope, function.name)
    return [scope.find(name) for name in function.output[: len(node.outputs)]]


def resolve_attributes(proto: NodeProto, attributes: Mapping[str, AttributeProto] | None) -> NodeProto:
    """A node with its attribute references replaced by the values that the function was called with.

    References to attributes without a value are dropped.

    Raises:
        ParseError: a reference outside of a function.
    """
    if not any(a.ref_attr_name for a in proto.attribute):
        return proto
    if attributes is None:
        raise ParseError(f"{proto.op_type} node {proto.name!r} refers to a function's attribute outside of a function")
    resolved = type(proto)()
    resolved.CopyFrom(proto)
    del resolved.attribute[:]
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            resolved.attribute.append(attribute)
        elif attribute.ref_attr_name in attributes:
            value = resolved.attribute.add()
            value.CopyFrom(attributes[attribute.ref_attr_name])
            value.name = attribute.name
            value.ref_attr_name = ""
    return resolved
