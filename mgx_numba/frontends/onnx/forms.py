"""Search for the version of an operator's schema that a node fits.

Exporters write attributes of one operator set into files that declare another: an attribute that later became an input,
or one that only later sets have. A node that fits another version of its schema has the meaning of that version.
"""

from __future__ import annotations

from ...interrupts import whole_module
from .node import Node
from .schema import Schema, find_schema, misfit, versions

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
