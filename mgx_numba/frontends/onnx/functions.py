"""Functions: operators defined by a body of other operators, in ONNX's schemas or in the model.

ONNX `IR.md`, section Functions. A body is read in its own scope: formal inputs stand for the node's inputs,
``ref_attr_name`` for its attributes, and the body's own operator set imports apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import ParseError
from ...graph.instruction import Instruction
from ...interrupts import whole_module
from .builder import Builder, NameScope
from .model import opset_versions
from .node import Node
from .onnx_package import messages, newest_opset
from .schema import Schema
from .tensors import type_proto

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, NodeProto

EXPANDED = frozenset(
    "Bernoulli BlackmanWindow CausalConvWithState CenterCropPad"
    " HammingWindow HannWindow LinearAttention"
    " NegativeLogLikelihoodLoss SequenceMap SoftmaxCrossEntropyLoss SwiGLU FlexAttention".split()
)
"""Operators without a parser function, which are read through ONNX's function body."""

DEEPEST = 32
"""Largest depth of nested functions, to stop recursion in malformed models; known models nest a handful."""


def has_body(schema: Schema) -> bool:
    """Return whether ONNX defines a function body for an operator, at least for some inputs."""
    return schema.source.has_function or schema.source.has_context_dependent_function


def schema_body(node: Node, schema: Schema, inputs: Sequence[Instruction | None]) -> FunctionProto | None:
    """Return ONNX's function body of an operator for these inputs; ``None`` if there is none.

    Raises:
        ParseError: ONNX refuses to build a body for this node.
    """
    source = schema.source
    versions: list[int] = []
    if source.has_function:
        versions = [v for v in source.function_opset_versions if v <= node.opset]
    if versions:
        return messages().FunctionProto.FromString(source.get_function_with_opset_version(max(versions)))
    if source.has_context_dependent_function:
        versions = [v for v in source.context_dependent_function_opset_versions if v <= node.opset]
    if not versions:
        return None
    types = [messages().TypeProto() if x is None else type_proto(x.shape) for x in inputs]
    try:
        body = source.get_context_dependent_function_with_opset_version(
            max(versions), node.proto.SerializeToString(), [t.SerializeToString() for t in types]
        )
    except Exception as error:
        raise ParseError(f"ONNX builds no function body for this node: {error}") from error
    return messages().FunctionProto.FromString(body) if body else None


def schema_attributes(schema: Schema) -> dict[str, AttributeProto]:
    """Return the default values of an operator's attributes."""
    whole_module("onnx.defs")  # defines `default_value`
    defaults = {name: a.default_value for name, a in schema.source.attributes.items()}
    return {name: value for name, value in defaults.items() if value is not None and value.type}


def function_attributes(function: FunctionProto) -> dict[str, AttributeProto]:
    """Return the default values of a model function's attributes."""
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
        g: the builder that receives the instructions.
        node: the node that calls the function.
        function: the body.
        inputs: values of the node's inputs.
        defaults: values of attributes that the node does not set.
        path: functions being expanded around this node.

    Raises:
        ParseError: there are more inputs than the body has, or the body calls itself; also all errors of its nodes.
    """
    if len(inputs) > len(function.input):
        raise ParseError(f"got {len(inputs)} inputs, the function {node.op_type!r} has {len(function.input)}")
    if len(node.outputs) > len(function.output):
        raise ParseError(f"got {len(node.outputs)} outputs, the function {node.op_type!r} has {len(function.output)}")
    key = f"{node.domain}::{function.name}::{function.overload}"
    if (key in path and node.domain not in ("", "ai.onnx.preview")) or len(path) >= DEEPEST:
        raise ParseError(f"function {node.op_type!r} calls itself: {' -> '.join([*path, key])}")
    opsets = opset_versions(function.opset_import)
    opsets.setdefault("", node.scope.opsets.get("", newest_opset()))
    scope = NameScope(opsets, None, {**defaults, **node.attributes}, (*path, key))
    for position, name in enumerate(function.input):
        scope.define(name, inputs[position] if position < len(inputs) else None)
    g.parser.parse_nodes(g, function.node, scope, function.name)
    return [scope.find(name) for name in function.output[: len(node.outputs)]]


def resolve_attributes(proto: NodeProto, attributes: Mapping[str, AttributeProto] | None) -> NodeProto:
    """Return a node with attribute references replaced by the values of the function call.

    References to attributes without a value are dropped.

    Raises:
        ParseError: there is a reference outside a function.
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
