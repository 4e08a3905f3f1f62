"""Collection of all faults of a model: `check` continues where `parser.parse` stops.

A value computed from an unreadable node has no type here, so its users are checked only against their operator's
schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dataclass import dataclass
from ...errors import MgxError, OptionError
from ...graph.instruction import Instruction
from ...nearest import did_you_mean
from . import registry
from .builder import Builder, NameScope
from .functions import EXPANDED
from .leniency import FinalError, Leniency
from .model import Model, load_model, opset_versions
from .node import Node
from .options import ParseOptions
from .order import uses
from .parser import GraphParser
from .schema import DOMAINS, newest_since

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

UNREAD: Any = object()
"""Placeholder for a value that could not be read."""


@dataclass(frozen=True)
class Finding:
    """A fault of a model.

    Attributes:
        message: the fault, and the expected form.
        graph: name of the graph or function that has the fault; empty for the model itself.
        node: the node's name, or ``#`` and its position in the graph; empty if the fault is not in a node.
        operator, domain, opset: the node's operator, its domain, and the operator set in force (0: none).
        supported: supported forms of this operator, or supported alternatives.
        accepted: the model is parsed despite this fault, except in strict mode.
    """

    message: str
    graph: str = ""
    node: str = ""
    operator: str = ""
    domain: str = ""
    opset: int = 0
    supported: str = ""
    accepted: bool = False

    def __str__(self) -> str:
        place = f"graph {self.graph!r}: " if self.graph else ""
        if self.node:
            place += f"node {self.node} ({self.operator}, domain {self.domain}, opset {self.opset or 'none'}): "
        kind = "accepted" if self.accepted else "error"
        return f"{kind}: {place}{self.message}" + (f" [{self.supported}]" if self.supported else "")


@np.errstate(all="ignore")
def check(source: object, options: ParseOptions) -> list[Finding]:
    """Return all faults of a model: first errors, then accepted deviations from the ONNX specification.

    Args:
        source: a path, the bytes of a file, or an ``onnx.ModelProto``.
        options: options of `parse_onnx`.

    Raises:
        OptionError: an option does not fit the model.
    """
    try:
        model = load_model(source, options.external_data_path)
    except MgxError as error:
        return [Finding(str(error))]
    checker = _Checker(model, options)
    try:
        checker.parse_main()
    except OptionError:
        raise
    except _UnreadError:
        pass
    except MgxError as error:
        checker.errors[Finding(str(error))] = None
    accepted = [
        _finding(node if isinstance(node, Node) else None, what, accepted=True) for node, what in checker.leniency.told
    ]
    return list(dict.fromkeys([*checker.errors, *accepted]))


class _UnreadError(FinalError):
    """A graph has results that could not be read, for a reason that has been recorded."""


class _Checker(GraphParser):
    """A graph parser that records a node's error and continues with the next node.

    Attributes:
        errors: the distinct faults, in order.
    """

    def __init__(self, model: Model, options: ParseOptions) -> None:
        super().__init__(model, options)
        self.errors: dict[Finding, None] = {}
        self.leniency = Leniency(options.strict, silent=True)

    def parse_graph(self, g: Builder, graph: GraphProto, scope: NameScope) -> list[Instruction]:
        results = super().parse_graph(g, graph, scope)
        if any(r is UNREAD for r in results):
            raise _UnreadError(f"graph {graph.name!r} has results that could not be read")
        return results

    def parse_nodes(self, g: Builder, nodes: Sequence[NodeProto], scope: NameScope, graph: str) -> None:
        try:
            super().parse_nodes(g, nodes, scope, graph)
        except MgxError as error:  # an error of the nodes' order; errors of nodes have been recorded
            self.errors[Finding(str(error))] = None
            self._glance(nodes, scope, graph)

    def read_node(self, g: Builder, proto: NodeProto, index: int, scope: NameScope, graph: str) -> None:
        if any(scope.knows(name) and scope.find(name) is UNREAD for name in uses(proto)):
            self._glance([proto], scope, graph, index)
            return
        node = self._node(proto, index, scope, graph)
        if node is not None:
            try:
                self._parse_node(g, node, scope)
                return
            except _UnreadError:
                pass
            except MgxError as error:
                self._note(node, str(error), graph)
            except Exception as error:
                self._note(node, f"{type(error).__name__}: {error}", graph)
        self._leave_unread(proto, scope)

    def unreadable(self, error: MgxError, name: str, scope: NameScope) -> None:
        self.errors[Finding(str(error))] = None
        scope.define(name, UNREAD)

    def _type_string(self, x: Instruction | None) -> str | None:
        return None if x is UNREAD else super()._type_string(x)

    def _node(self, proto: NodeProto, index: int, scope: NameScope, graph: str) -> Node | None:
        try:
            return self.node(proto, index, scope)
        except MgxError as error:
            domain = proto.domain or "ai.onnx"
            name = proto.name or f"#{index}"
            known = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in sorted(scope.opsets.items())) or "none"
            found = Finding(
                str(error), graph, name, proto.op_type, domain, supported=f"imported operator sets: {known}"
            )
            self.errors[found] = None
            return None

    def _note(self, node: Node, message: str, graph: str) -> None:
        self.errors[_finding(node, message, graph)] = None

    def _leave_unread(self, proto: NodeProto, scope: NameScope) -> None:
        for name in proto.output:
            if name and not scope.knows(name):
                scope.define(name, UNREAD)

    def _glance(self, nodes: Sequence[NodeProto], scope: NameScope, graph: str, first: int = 0) -> None:
        """Record the faults of nodes and of nested nodes that do not depend on their inputs."""
        for index, proto in enumerate(nodes, first):
            node = self._node(proto, index, scope, graph)
            self._leave_unread(proto, scope)
            if node is None:
                continue
            function = self._model_function(node)
            try:
                if function is None:
                    self._operator(node, [UNREAD if name else None for name in node.inputs])
            except MgxError as error:
                self._note(node, str(error), graph)
            for attribute in proto.attribute:
                for inner in [*([attribute.g] if attribute.type == 5 else ()), *attribute.graphs]:
                    self._glance(inner.node, scope.inner(), inner.name)
            if function is not None and function.name not in scope.path:
                opsets = opset_versions(function.opset_import)
                inside = NameScope(opsets, None, node.attributes, (*scope.path, function.name))
                self._glance(function.node, inside, function.name)


def _finding(node: Node | None, message: str, graph: str = "", accepted: bool = False) -> Finding:
    if node is None:
        return Finding(message, accepted=accepted)
    return Finding(
        message,
        graph,
        node.name or f"#{node.index}",
        node.op_type,
        node.domain or "ai.onnx",
        node.opset,
        _supported(node),
        accepted,
    )


def _supported(node: Node) -> str:
    """Return the supported forms of a node's operator, or its supported alternatives."""
    name, domain = node.op_type, node.domain or "ai.onnx"
    if registry.find(node.domain, name) is not None or (not node.domain and name in EXPANDED):
        since = newest_since(node.domain, name)
        return f"{name} of {domain} is supported" + (f" from operator set {since} on" if since else "")
    elsewhere = registry.domains_of(name)
    if elsewhere:
        return f"{name} is supported of {', '.join(elsewhere)}"
    if newest_since(node.domain, name) is not None:
        return f"{name} of {domain} is supported in no operator set"
    if node.domain and node.domain not in DOMAINS:
        return f"operators of domain {domain} are to be registered (register_custom_op)"
    return f"no operator is called {name}{did_you_mean(name, registry.names())}"
