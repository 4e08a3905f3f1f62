"""ONNX's operator schemas by version, checks of a node's inputs, outputs and attributes against a schema, and the
domains that a model may omit.

Exporters write attributes of one operator set into files that declare another: an attribute that later became an input,
or one that only later sets have. A node that fits another version of its schema has the meaning of that version.
"""

from __future__ import annotations

import functools
from typing import Any

from ...dataclass import dataclass
from ...errors import ParseError
from ...interrupts import whole_module
from ...ops.custom import custom_domains
from . import registry
from .node import ATTRIBUTE_KINDS, Node, fits
from .onnx_package import definitions, newest_opset


@dataclass(frozen=True)
class Formal:
    """A formal input: name, type variable or type, and whether it is optional or variadic."""

    name: str
    type: str
    optional: bool
    variadic: bool
    homogeneous: bool


@dataclass(frozen=True)
class Schema:
    """The content of an ``onnx.defs.OpSchema`` (``source``), read once."""

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
        """Return the formal input at a position."""
        return self.inputs[min(position, len(self.inputs) - 1)]

    def allowed(self, position: int) -> frozenset[str]:
        """Return the types that an input may have."""
        formal = self.formal(position)
        return self.types.get(formal.type, frozenset({formal.type}))

    def moves(self, position: int, type: str) -> bool:
        """Return whether an input may have all element types, numeric or not, so that its elements are only moved.

        ``type`` is a type of the input's kind (a tensor, a sequence of tensors).
        """
        kind = type[: type.find("tensor(")] + "tensor({})" + ")" * type[:-1].count(")")
        return {kind.format(name) for name in ("string", "complex64", "int16")} <= self.allowed(position)


@functools.cache
def find_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """Return the schema in force in an operator set; ``None`` if that set does not have the operator."""
    try:
        source = definitions().get_schema(op_type, opset, domain)
    except Exception:
        return None
    options = definitions().OpSchema.FormalParameterOption
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


def versions(domain: str, op_type: str) -> tuple[int, ...]:
    """Return the operator sets in which an operator was added or changed, in order."""
    return _versions().get((domain, op_type), ())


def newest_since(domain: str, op_type: str) -> int | None:
    """Return the first operator set that has an operator; ``None`` if ONNX does not define it."""
    return versions(domain, op_type)[0] if definitions().has_schema(op_type, domain) else None


@functools.cache
def _versions() -> dict[tuple[str, str], tuple[int, ...]]:
    found: dict[tuple[str, str], set[int]] = {}
    for schema in definitions().get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), set()).add(schema.since_version)
    return {key: tuple(sorted(since)) for key, since in found.items()}


def misfit(node: Node, schema: Schema) -> str | None:
    """Return why a node does not fit a version of its operator's schema, whatever its input types; None if it fits.

    An input that is optional in the newest version may be absent.
    """
    count = len(node.inputs)
    if count > schema.max_inputs or len(node.proto.input) < schema.min_inputs:
        return f"got {count} inputs, expected {_between(schema.min_inputs, schema.max_inputs)}"
    if len(node.outputs) > schema.max_outputs:
        return f"got {len(node.outputs)} outputs, expected at most {schema.max_outputs}"
    newest = newest_form(node)
    for position in _absent(node, schema):
        if newest is None or not newest.formal(position).optional:
            return f"input {position} ({schema.formal(position).name}) is missing"
    return _wrong_attribute(node, schema)


def check_node(node: Node, schema: Schema) -> None:
    """Check a node against a schema version, regardless of the types of its inputs.

    Raises:
        ParseError: the number of inputs or outputs is wrong, a required input is absent, or an attribute is unknown,
            missing or of the wrong kind.
    """
    wrong = misfit(node, schema)
    if wrong is not None:
        raise ParseError(wrong)
    newest = newest_form(node)
    for position in _absent(node, schema):
        name, since = schema.formal(position).name, "?" if newest is None else newest.since
        node.accept(f"input {position} ({name}) is missing, which may be from operator set {since} on")


def _absent(node: Node, schema: Schema) -> list[int]:
    """Return the positions of absent inputs that the schema version requires."""
    if len(node.inputs) >= schema.min_inputs and all(node.inputs):
        return []
    count = max(len(node.inputs), schema.min_inputs)
    empty = [k for k in range(count) if k >= len(node.inputs) or not node.inputs[k]]
    return [k for k in empty if not schema.formal(k).optional]


def newest_form(node: Node) -> Schema | None:
    """Return the newest schema version of a node's operator, if it has inputs."""
    return None if node.domain else _newest_form(node.op_type)


@functools.cache
def _newest_form(op_type: str) -> Schema | None:
    newest = find_schema("", op_type, newest_opset())
    return None if newest is None or newest.deprecated or not newest.inputs else newest


def _wrong_attribute(node: Node, schema: Schema) -> str | None:
    for name, attribute in node.attributes.items():
        known = schema.attributes.get(name)
        if known is None:
            if name.startswith("__"):
                continue
            listed = ", ".join(sorted(schema.attributes)) or "none"
            return f"attribute {name!r} is unknown; the operator has: {listed}"
        if not fits(attribute, known[0]):
            found = ATTRIBUTE_KINDS.get(attribute.type, f"kind {attribute.type}")
            return f"attribute {name!r} is of kind {found}, expected {ATTRIBUTE_KINDS[known[0]]}"
    for name, (kind, required) in schema.attributes.items():
        if required and name not in node.attributes:
            return f"attribute {name!r} ({ATTRIBUTE_KINDS[kind]}) is missing"
    return None


def _between(least: int, most: int) -> str:
    if most > 1 << 20:
        return f"at least {least}"
    return str(least) if least == most else f"{least} to {most}"


CONSUMED = "consumed_inputs"
"""An attribute of operator sets before 6 that affected memory only."""


def form_of(node: Node, schema: Schema) -> Schema:
    """Return ``schema`` if the node fits it, else the nearest version of the operator's schema that the node fits.

    If the version differs, ``node.opset`` becomes its operator set. Older versions are tried before newer versions,
    because exporters raise the declared operator set more often than they use features of newer sets. A node that fits
    no version keeps ``schema``, whose checks then report the error.

    Raises:
        FinalError: the node fits another version only, and parsing is strict.
    """
    wrong = misfit(node, schema)
    if wrong is None:
        return schema
    found = _nearest_fit(node, schema)
    if found is None:
        idle = _without_effect(node, schema)
        given = node.attributes
        node.attributes = {name: a for name, a in given.items() if name not in idle}
        found = schema if idle and misfit(node, schema) is None else _nearest_fit(node, schema) if idle else None
        if found is None:
            node.attributes = given
            return schema
        node.accept(f"attributes of other operator sets say nothing: {', '.join(map(repr, idle))}")
    if found is not schema:
        node.accept(f"it has the form of operator set {found.since} ({wrong})")
        node.opset = found.since
    return found


def _nearest_fit(node: Node, schema: Schema) -> Schema | None:
    """Return the nearest other version of the schema that the node fits: older versions first; None if none fits."""
    since = versions(node.domain, node.op_type)
    older = [v for v in reversed(since) if v < schema.since]
    for version in (*older, *(v for v in since if v > schema.since)):
        form = find_schema(node.domain, node.op_type, version)
        if form is not None and not form.deprecated and misfit(node, form) is None:
            return form
    return None


def _without_effect(node: Node, schema: Schema) -> list[str]:
    """Return the attributes that ``schema`` lacks and that have the default value of another version, so do nothing."""
    whole_module("onnx.defs")  # defines `default_value`
    found = []
    for version in versions(node.domain, node.op_type):
        form = find_schema(node.domain, node.op_type, version)
        known = {} if form is None else form.source.attributes
        for name, attribute in node.attributes.items():
            if name in schema.attributes or name in found or name not in known:
                continue
            default = known[name].default_value
            if name == CONSUMED or (default.type == attribute.type and default == attribute):
                found.append(name)
    return found


DOMAINS = (registry.MICROSOFT, registry.ML)
"""Domains whose operators keep their meaning across versions."""


def home_of(op_type: str) -> str:
    """Return the domain of an operator written without domain: another domain if only that domain has the operator."""
    if registry.find("", op_type) is not None or newest_since("", op_type) is not None:
        return ""
    homes = [domain for domain in DOMAINS if registry.find(domain, op_type) is not None]
    return homes[0] if len(homes) == 1 else ""


def implied_opset(domain: str) -> int | None:
    """Return the operator set that applies if a domain is not imported; ``None`` if the import is mandatory."""
    if domain == registry.ML:
        return newest_opset(registry.ML)
    return 1 if domain == registry.MICROSOFT or domain in custom_domains() else None
