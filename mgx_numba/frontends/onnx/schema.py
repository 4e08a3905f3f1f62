"""Checks of a node against its ONNX operator schema: number of inputs and outputs, attributes,
element types.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ParseError
from .node import ATTRIBUTE_KINDS, Node

__all__ = ["Schema", "check_node", "find_schema"]


@dataclass(frozen=True)
class Formal:
    """A formal input: its name, its type variable or type, whether it may be absent, and if it takes all that
    follow.
    """

    name: str
    type: str
    optional: bool
    variadic: bool
    homogeneous: bool


@dataclass(frozen=True)
class Schema:
    """What an ``onnx.defs.OpSchema`` (``source``) says, read once."""

    source: Any
    since: int
    inputs: tuple[Formal, ...]
    min_inputs: int
    max_inputs: int
    max_outputs: int
    attributes: dict[str, tuple[int, bool]]
    types: dict[str, frozenset[str]]
    deprecated: bool


@functools.cache
def find_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """The schema in force in an operator set, ``None`` when that set has no such operator."""
    import onnx.defs

    try:
        source: Any = onnx.defs.get_schema(op_type, opset, domain)
    except Exception:
        return None
    options = onnx.defs.OpSchema.FormalParameterOption
    inputs = tuple(
        Formal(i.name, i.type_str, i.option == options.Optional, i.option == options.Variadic, i.is_homogeneous)
        for i in source.inputs
    )
    return Schema(
        source,
        source.since_version,
        inputs,
        source.min_input,
        source.max_input,
        source.max_output,
        {name: (int(a.type.value), a.required) for name, a in source.attributes.items()},
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in source.type_constraints},
        source.deprecated,
    )


def newest_since(domain: str, op_type: str) -> int | None:
    """The first operator set that has this operator, ``None`` when none has."""
    import onnx.defs

    versions = _first_versions()
    return versions.get((domain, op_type)) if onnx.defs.has(op_type, domain) else None


@functools.cache
def _first_versions() -> dict[tuple[str, str], int]:
    import onnx.defs

    first: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        first[key] = min(first.get(key, schema.since_version), schema.since_version)
    return first


def check_node(node: Node, schema: Schema, types: Sequence[str | None]) -> None:
    """Check a node.

    Args:
        node: the node.
        schema: the operator's schema.
        types: ONNX type string of each input, ``None`` for absent or unknown ones.

    Raises:
        ParseError: wrong number of inputs or outputs, a missing required input, an attribute that is
            unknown, missing
            or of the wrong kind, or an element type that the operator takes in no operator set: later ones only
            add types, and exporters and MIGraphX do not wait for them.
    """
    count = len(node.inputs)
    if count > schema.max_inputs or len(node.proto.input) < schema.min_inputs:
        wanted = _between(schema.min_inputs, schema.max_inputs)
        raise ParseError(f"got {count} inputs, expected {wanted}")
    if len(node.outputs) > schema.max_outputs:
        raise ParseError(f"got {len(node.outputs)} outputs, expected at most {schema.max_outputs}")
    _check_attributes(node, schema)
    for position in range(count, schema.min_inputs):  # absent at the end, by an empty name
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if not formal.optional:
            raise ParseError(f"input {position} ({formal.name}) is missing")
    bound: dict[str, tuple[str, str]] = {}
    for position, type in enumerate(types):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if not node.inputs[position]:
            if not formal.optional:
                raise ParseError(f"input {position} ({formal.name}) is missing")
            continue
        if type is not None:
            _check_type(node, position, formal, type, schema.types, bound)


def _allowed_later(node: Node, position: int, type: str) -> bool:
    """Whether the newest form of the operator takes a type at this input."""
    import onnx.defs

    newest = None if node.domain else find_schema("", node.op_type, onnx.defs.onnx_opset_version())
    if newest is None or newest.deprecated or not newest.inputs:
        return False
    formal = newest.inputs[min(position, len(newest.inputs) - 1)]
    return type in newest.types.get(formal.type, frozenset({formal.type}))


def _check_type(
    node: Node,
    position: int,
    formal: Formal,
    type: str,
    types: dict[str, frozenset[str]],
    bound: dict[str, tuple[str, str]],
) -> None:
    allowed = types.get(formal.type, frozenset({formal.type}))
    if type not in allowed and f"optional({type})" not in allowed and not _allowed_later(node, position, type):
        tensors = sorted(t for t in allowed if t.startswith("tensor("))
        raise ParseError(
            f"input {position} ({formal.name}) is of type {type}, expected {_one_of(tensors or sorted(allowed))}"
        )
    if formal.type in types and not (formal.variadic and not formal.homogeneous):
        first, other = bound.setdefault(formal.type, (formal.name, type))
        if other != type:
            raise ParseError(
                f"input {position} ({formal.name}) is of type {type}, but {first}"
                f" is of type {other}: they must be the same"
            )


def _check_attributes(node: Node, schema: Schema) -> None:
    for name, attribute in node.attributes.items():
        known = schema.attributes.get(name)
        if known is None:
            if name.startswith("__"):
                continue
            listed = ", ".join(sorted(schema.attributes)) or "none"
            raise ParseError(f"attribute {name!r} is unknown; the operator has: {listed}")
        if attribute.type != known[0] and (attribute.type, known[0]) != (2, 1):  # an int is taken for a float
            found = ATTRIBUTE_KINDS.get(attribute.type, f"kind {attribute.type}")
            raise ParseError(f"attribute {name!r} is of kind {found}, expected {ATTRIBUTE_KINDS[known[0]]}")
    for name, (kind, required) in schema.attributes.items():
        if required and name not in node.attributes:
            raise ParseError(f"attribute {name!r} ({ATTRIBUTE_KINDS[kind]}) is missing")


def _between(least: int, most: int) -> str:
    if most > 1 << 20:
        return f"at least {least}"
    return str(least) if least == most else f"{least} to {most}"


def _one_of(values: Sequence[Any]) -> str:
    return str(values[0]) if len(values) == 1 else f"one of {', '.join(map(str, values))}"
