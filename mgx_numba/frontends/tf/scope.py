"""Scopes: the nodes of a graph or of a function's body, and the tensors read from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import ParseError
from ...graph.instruction import Instruction
from . import registry
from .node import TfNode


class TfScope:
    """Nodes by name, and the results of the nodes read so far.

    A tensor's name is ``node`` or ``node:1`` in a graph; in a function it is an argument, or ``node:output:0``.

    Attributes:
        nodes: the nodes in the file's order.
        path: names of the functions that are being called, outermost first.
    """

    def __init__(
        self,
        nodes: Iterable[Any],
        bindings: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Instruction] | None = None,
        path: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.nodes: dict[str, TfNode] = {}
        self._values: dict[str, Sequence[Instruction]] = {n: [x] for n, x in (arguments or {}).items()}
        for number, proto in enumerate(nodes):
            if not proto.name:
                raise ParseError(f"{self.prefix}node #{number} ({proto.op}) has no name")
            if proto.name in self.nodes or proto.name in self._values:
                raise ParseError(f"{self.prefix}two nodes are called {proto.name!r}")
            self.nodes[proto.name] = TfNode(proto, bindings)

    @property
    def prefix(self) -> str:
        """Return a description of the scope for messages."""
        return f"function {self.path[-1]!r}: " if self.path else ""

    def node_of(self, tensor: str) -> str | None:
        """Return the name of the node or argument that defines a tensor; ``None`` if there is none."""
        name = tensor.partition(":")[0]
        return name if name in self.nodes or name in self._values else None

    def used(self) -> set[str]:
        """Return the names of the nodes that occur as inputs of nodes."""
        return {name.partition(":")[0] for node in self.nodes.values() for name in node.inputs}

    def knows(self, node: str) -> bool:
        """Return whether a node has been read."""
        return node in self._values

    def define(self, node: str, values: Sequence[Instruction]) -> None:
        """Store a node's results."""
        self._values[node] = values

    def find(self, tensor: str) -> Instruction:
        """Return a tensor whose node has been read.

        Raises:
            ParseError: the node has no such result.
        """
        node, _, rest = tensor.partition(":")
        values = self._values[node]
        position = self._position(node, rest) if rest else 0
        if position is None or not 0 <= position < len(values):
            raise ParseError(f"{self.prefix}tensor {tensor!r} is not there: its node gives {len(values)}")
        return values[position]

    def _position(self, node: str, rest: str) -> int | None:
        name, colon, number = rest.rpartition(":")
        if not number.isascii() or not number.isdigit():
            return None
        known = registry.output_names(self.nodes[node].op_type) if node in self.nodes else ()
        first = known.index(name) if colon and name in known else 0
        return first + int(number)

    def order(self, tensors: Iterable[str]) -> list[str]:
        """Return the unread nodes that the tensors depend on, in topological order.

        Raises:
            ParseError: a node depends on a node that does not exist, or on itself.
        """
        result: list[str] = []
        done: set[str] = set()
        open_nodes: set[str] = set()
        stack = [(name, False) for name in reversed([self._existing(t, None) for t in tensors])]
        while stack:
            name, finished = stack.pop()
            if finished:
                open_nodes.discard(name)
                done.add(name)
                result.append(name)
                continue
            if name in done or name in self._values:
                continue
            if name in open_nodes:
                raise ParseError(f"{self.prefix}the graph has a cycle through {self.nodes[name].where}")
            open_nodes.add(name)
            stack.append((name, True))
            stack += [(self._existing(t, name), False) for t in reversed(self.nodes[name].inputs)]
        return result

    def _existing(self, tensor: str, taker: str | None) -> str:
        found = self.node_of(tensor)
        if found is None:
            place = f"{self.nodes[taker].where} takes" if taker is not None else "a result is"
            raise ParseError(f"{self.prefix}{place} {tensor!r}, but there is no such node")
        return found
