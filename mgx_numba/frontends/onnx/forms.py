"""The form of an operator that a node has: that of its operator set, or else that of the nearest set that it fits.

Exporters write attributes of one operator set into files that name another one: what became an input later, or what
only later sets have. A node that keeps another form of its operator means what that form says.
"""

from __future__ import annotations

from .node import Node
from .schema import Schema, find_schema, misfit, versions

__all__ = ["form_of"]

CONSUMED = "consumed_inputs"
"""An attribute of operator sets before 6 that was about memory alone."""


def form_of(node: Node, schema: Schema) -> Schema:
    """Return ``schema``, which is in force, or the nearest other form of the operator that the node keeps.

    The node is told which operator set it then is of. Older forms come before newer ones: exporters change an operator
    set's number more often than they use what is newer.

    Raises:
        FinalError: it keeps another form only, and files are to be as ONNX wants them.
    """
    wrong = misfit(node, schema)
    if wrong is None:
        return schema
    found = _fitting(node, schema)
    if found is None:
        idle = _idle(node, schema)
        given = node.attributes
        node.attributes = {name: a for name, a in given.items() if name not in idle}
        found = schema if idle and misfit(node, schema) is None else _fitting(node, schema) if idle else None
        if found is None:
            node.attributes = given
            return schema
        node.accept(f"attributes of other operator sets say nothing: {', '.join(map(repr, idle))}")
    if found is not schema:
        node.accept(f"it has the form of operator set {found.since} ({wrong})")
        node.opset = found.since
    return found


def _fitting(node: Node, schema: Schema) -> Schema | None:
    """Return the nearest other form that a node keeps."""
    since = versions(node.domain, node.op_type)
    older = [v for v in reversed(since) if v < schema.since]
    for version in (*older, *(v for v in since if v > schema.since)):
        form = find_schema(node.domain, node.op_type, version)
        if form is not None and not form.deprecated and misfit(node, form) is None:
            return form
    return None


def _idle(node: Node, schema: Schema) -> list[str]:
    """Return attributes that a form does not have, and that have the default value of another form that has them."""
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
