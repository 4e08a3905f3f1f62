"""Topological order of a graph's nodes: checked, and repaired if the file lists them unsorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ...errors import ParseError

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from .leniency import Leniency


def sorted_nodes(
    nodes: Sequence[NodeProto], known: Callable[[str], bool], graph: str, leniency: Leniency
) -> list[tuple[int, NodeProto]]:
    """Return nodes with their positions in the file, sorted so that every value is defined before it is used.

    Args:
        nodes: the nodes of one graph.
        known: tells whether a value is defined outside (inputs, initializers, enclosing graphs).
        graph: the graph's name, for messages.
        leniency: records that the file's order differs.

    Raises:
        ParseError: two nodes define one value, a value is undefined, or there is a cycle.
    """
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in producer:
                raise ParseError(
                    f"graph {graph!r}: value {name!r} is given twice, by"
                    f" {label(nodes[producer[name]], producer[name])}"
                    f" and by {label(node, index)}"
                )
            producer[name] = index
    read = [uses(node) for node in nodes]
    for index, names in enumerate(read):
        for name in names:
            if name not in producer and not known(name):
                raise ParseError(
                    f"graph {graph!r}: {label(nodes[index], index)} uses value {name!r},"
                    " but no input, initializer or node gives it"
                )
    if all(producer.get(name, -1) < index for index, names in enumerate(read) for name in names):
        return list(enumerate(nodes))
    order = _depth_first(nodes, producer, read, graph)
    leniency.accept(f"graph {graph!r} lists its nodes unsorted; they were sorted")
    return [(index, nodes[index]) for index in order]


def label(node: NodeProto, index: int) -> str:
    """Return a description of a node before its operator set is known."""
    return f"node {node.name!r} ({node.op_type})" if node.name else f"node #{index} ({node.op_type})"


def _depth_first(
    nodes: Sequence[NodeProto], producer: dict[str, int], read: Sequence[Iterable[str]], graph: str
) -> list[int]:
    order: list[int] = []
    state = [0] * len(nodes)
    for root in range(len(nodes)):
        stack = [(root, False)]
        while stack:
            index, done = stack.pop()
            if done:
                state[index] = 2
                order.append(index)
                continue
            if state[index]:
                continue
            state[index] = 1
            stack.append((index, True))
            for name in read[index]:
                before = producer.get(name)
                if before is None or state[before] == 2:
                    continue
                if state[before] == 1:
                    raise ParseError(
                        f"graph {graph!r} has a cycle: {label(nodes[index], index)} needs value {name!r}"
                        f" of {label(nodes[before], before)}, which needs its result"
                    )
                stack.append((before, False))
    return order


def uses(node: NodeProto) -> list[str]:
    """Return the names that a node reads: its inputs, and outer values used by its subgraphs."""
    names = list(filter(None, node.input))
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == 5 else attribute.graphs:
            names += _captures(graph)
    return names


def _captures(graph: GraphProto) -> list[str]:
    """Return the names that a subgraph reads and does not define."""
    defined = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    defined |= {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        defined.update(node.output)
    read = [name for node in graph.node for name in uses(node)]
    read += [o.name for o in graph.output]
    return [name for name in dict.fromkeys(read) if name and name not in defined]
