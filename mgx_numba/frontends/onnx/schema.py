"""Checks of a node against its ONNX operator schema: number of inputs and outputs, attributes,
element types.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ...dataclass import dataclass
from ...errors import ParseError
from .node import ATTRIBUTE_KINDS, INTEGERS_FOR_FLOATS, Node

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

    def formal(self, position: int) -> Formal:
        """The formal input that a position belongs to."""
        return self.inputs[min(position, len(self.inputs) - 1)]

    def allowed(self, position: int) -> frozenset[str]:
        """Types that an input may have."""
        formal = self.formal(position)
        return self.types.get(formal.type, frozenset({formal.type}))

    def takes_narrow(self, position: int, type: str | None) -> bool:
        """Whether an input is int32 where only int64 may be."""
        return type == "tensor(int32)" and self.allowed(position) == {"tensor(int64)"}

    def moves(self, position: int, type: str) -> bool:
        """Whether an input may be of all kinds of types, numbers or not, so that its elements are only moved; ``type``
        is one of these kinds (a tensor, a sequence of tensors)."""
        kind = type[: type.find("tensor(")] + "tensor({})" + ")" * type[:-1].count(")")
        return {kind.format(name) for name in ("string", "complex64", "int16")} <= self.allowed(position)


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

    Accepted although the schema forbids it: element types that only later operator sets allow, as these add types and
    exporters do not wait for them; an absent input that is optional in later ones; int32 for int64.

    Raises:
        ParseError: wrong number of inputs or outputs, a missing required input, an attribute that is unknown, missing
            or of the wrong kind, or an element type that the operator takes in no operator set.
    """
    count = len(node.inputs)
    if count > schema.max_inputs or len(node.proto.input) < schema.min_inputs:
        wanted = _between(schema.min_inputs, schema.max_inputs)
        raise ParseError(f"got {count} inputs, expected {wanted}")
    if len(node.outputs) > schema.max_outputs:
        raise ParseError(f"got {len(node.outputs)} outputs, expected at most {schema.max_outputs}")
    _check_attributes(node, schema)
    for position in range(count, schema.min_inputs):  # absent at the end, by an empty name
        _check_absent(node, position, schema)
    bound: dict[str, tuple[str, str]] = {}
    for position, type in enumerate(types):
        if not node.inputs[position]:
            _check_absent(node, position, schema)
        elif type is not None:
            _check_type(node, position, schema, type, bound)


def _newest(node: Node) -> Schema | None:
    """The newest form of a node's operator, if it has inputs."""
    import onnx.defs

    newest = None if node.domain else find_schema("", node.op_type, onnx.defs.onnx_opset_version())
    return None if newest is None or newest.deprecated or not newest.inputs else newest


def _check_absent(node: Node, position: int, schema: Schema) -> None:
    formal, newest = schema.formal(position), _newest(node)
    if formal.optional:
        return
    if newest is None or not newest.formal(position).optional:
        raise ParseError(f"input {position} ({formal.name}) is missing")
    node.accept(f"input {position} ({formal.name}) is missing, which may be from operator set {newest.since} on")


def _check_type(node: Node, position: int, schema: Schema, type: str, bound: dict[str, tuple[str, str]]) -> None:
    formal, allowed, newest = schema.formal(position), schema.allowed(position), _newest(node)
    given = f"input {position} ({formal.name}) is of type {type}"
    if type in allowed or f"optional({type})" in allowed:
        pass
    elif schema.takes_narrow(position, type):
        node.accept(f"{given}, taken for tensor(int64)")
        return
    elif newest is not None and type in newest.allowed(position):
        node.accept(f"{given}, which operator set {node.opset} does not allow and later ones do")
    elif schema.moves(position, type):
        node.accept(f"{given}, which no operator set allows; its elements are moved as those of other types are")
    else:
        tensors = sorted(t for t in allowed if t.startswith("tensor("))
        raise ParseError(f"{given}, expected {_one_of(tensors or sorted(allowed))}")
    types = schema.types
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
        if attribute.type != known[0] and (attribute.type, known[0]) not in INTEGERS_FOR_FLOATS:
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
