"""Division of an ATen graph into regions that are compiled and nodes that PyTorch runs.

PyTorch makes the views at the end of a graph: they take little time, and results then share memory as in eager mode.
Python computes symbolic lengths.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

REGION = "mgx_region_"
"""Prefix of the names of submodules that hold the graphs of regions."""
_OF_LAYOUT = frozenset((torch.ops.aten.as_strided.default,))
"""Views of memory, not of elements: they are right only of values that lie in memory as PyTorch's do."""
_CHECKS = frozenset(
    (
        torch.ops.aten._assert_async.msg,
        torch.ops.aten._assert_async.default,
        torch.ops.aten._linalg_check_errors.default,
    )
)
"""Operators that raise PyTorch's errors for values that a region gives."""
_OF_COMPLEX = frozenset((torch.ops.aten.view_as_real.default, torch.ops.aten.view_as_complex.default))
"""Views between complex inputs or results and their parts, which regions take and give."""

Count = Callable[[Collection[Node]], int]


def divide(graph_module: GraphModule, unsupported: Collection[Node], min_size: int) -> GraphModule:
    """Move the nodes that are compiled into submodules, named after `REGION`; return the outer graph module.

    Args:
        graph_module: a functional ATen graph; changed.
        unsupported: nodes that cannot be compiled.
        min_size: least number of operators of a region, unless one region has all nodes that can be compiled.
    """
    _give_bodies(graph_module)
    _give_views(graph_module)
    spread = _give_strides(graph_module, unsupported)
    lengths = _of_lengths(graph_module)
    left = spread | set(unsupported) | views_at_end(graph_module) | set(lengths)
    left.update(node for node in graph_module.graph.nodes if node.target in _OF_COMPLEX | _CHECKS)
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.getitem):
        if node.args[0] in left:  # no region takes a tuple
            left.add(node)
    own = _inside(lengths, left)
    compiled = [node for node in graph_module.graph.nodes if node.op == "call_function" and node not in left - own]
    whole = _is_one_region(graph_module, set(compiled))
    groups = [compiled] if whole else _groups(graph_module, left)
    least = 1 if whole else min_size
    kept = [group for group in groups if sum(not of_no_cost(node) for node in group) >= least]
    if kept:
        fuse_by_partitions(graph_module, [dict.fromkeys(_with_bodies(group)) for group in kept], prefix=REGION)
    graph_module.recompile()
    return graph_module


def copied(graph_module: GraphModule) -> GraphModule:
    """Return a graph module with a copy of the graph, and the same submodules and values of nodes."""
    graph = Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return GraphModule(graph_module, graph)


def is_view(node: Node) -> bool:
    """Return whether a node makes views of its first argument's elements."""
    return bool(getattr(node.target, "is_view", False)) and node.target not in _OF_LAYOUT


def of_no_cost(node: Node) -> bool:
    """Return whether a node computes nothing: it is a view, or takes a member of a tuple."""
    return node.target is operator.getitem or bool(getattr(node.target, "is_view", False))


def views_at_end(graph_module: GraphModule) -> set[Node]:
    """Return the views of computed values or inputs that only results and other such views read."""
    found: set[Node] = set()
    for node in reversed(graph_module.graph.nodes):
        if node.op != "call_function":
            continue
        ends = all(user.op == "output" or user in found for user in node.users)
        if ends and (is_view(node) or (node.target is operator.getitem and is_view(node.args[0]))):  # type: ignore[arg-type]
            found.add(node)
    return found


def _give_bodies(graph_module: GraphModule) -> None:
    """Give each reader of an attribute of its own `get_attr` node, so that the node can be in the reader's region."""
    for node in graph_module.graph.find_nodes(op="get_attr"):
        for user in list(node.users)[1:]:
            with graph_module.graph.inserting_before(user):
                user.replace_input_with(node, graph_module.graph.node_copy(node))


def _give_views(graph_module: GraphModule) -> None:
    """Give results views of their own, where compiled operators read the same views.

    PyTorch makes such results: AOTAutograd tells from their strides and offsets where they lie in an input's memory.
    """
    graph = graph_module.graph
    output = graph.output_node()

    def given(node: Node) -> Node:
        source = node.args[0] if node.op == "call_function" and node.args else None
        member = node.target is operator.getitem and isinstance(source, Node) and is_view(source)
        if not isinstance(source, Node) or not (member or is_view(node)):
            return node
        own = given(source)
        if own is source and all(user is output for user in node.users):
            return node
        with graph.inserting_before(output):
            copy = graph.node_copy(node)
        copy.replace_input_with(source, own)
        return copy

    results = output.args[0]
    if isinstance(results, (list, tuple)):
        known = {node: given(node) for node in dict.fromkeys(results) if isinstance(node, Node)}
        output.args = (tuple(known.get(r, r) if isinstance(r, Node) else r for r in results),)
    for node in reversed(graph.nodes):  # views that only results read
        if node.op == "call_function" and not node.users and of_no_cost(node):
            graph.erase_node(node)


def _give_strides(graph_module: GraphModule, unsupported: Collection[Node]) -> set[Node]:
    """Copy results whose elements PyTorch has apart, such as every second one, to such memory; return the new nodes."""
    graph, aten = graph_module.graph, torch.ops.aten
    output, made = graph.output_node(), set()
    for node in dict.fromkeys(n for n in output.all_input_nodes if n.op == "call_function"):
        value = node.meta.get("val")
        if node in unsupported or of_no_cost(node) or not _is_apart(value):
            continue
        with graph.inserting_before(output):
            memory = graph.call_function(
                aten.new_empty_strided.default, (node, list(value.shape), list(value.stride()))
            )
            copy = graph.call_function(aten.copy.default, (memory, node))
        memory.meta["val"] = copy.meta["val"] = value
        output.replace_input_with(node, copy)
        made |= {memory, copy}
    return made


def _is_apart(value: object) -> bool:
    """Return whether a tensor of known lengths has memory between its elements, and each element its own."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    if not all(isinstance(n, int) for n in (*value.shape, *value.stride())) or not value.numel():
        return False
    span = 1
    for step, length in sorted((s, n) for s, n in zip(value.stride(), value.shape) if n > 1):
        if step < span:
            return False
        span = step * length
    return span > value.numel()


def _with_bodies(group: Collection[Node]) -> list[Node]:
    """Return the nodes of a region with the attributes that they read: bodies of branches and loops, and constants."""
    return [own for node in group for own in (*(x for x in node.all_input_nodes if x.op == "get_attr"), node)]


def _of_lengths(graph_module: GraphModule) -> list[Node]:
    """Return the nodes whose values are numbers of Python, such as symbolic lengths and their products."""
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    return [
        node
        for node in graph_module.graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), numbers)
    ]


def _inside(lengths: Sequence[Node], left: set[Node]) -> set[Node]:
    """Return the lengths that only compiled nodes read, among them copies of lengths that other nodes read, too.

    A region computes such lengths from its inputs: a length of an intermediate value would divide the graph.
    """
    found: set[Node] = set()
    for node in reversed(lengths):
        readers = [user for user in node.users if user in found or (user.op == "call_function" and user not in left)]
        if readers and len(readers) < len(node.users):
            with node.graph.inserting_after(node):
                copy = node.graph.node_copy(node)
            for reader in readers:
                reader.replace_input_with(node, copy)
            found.add(copy)
            left.add(copy)
        elif readers:
            found.add(node)
    return found


def _is_one_region(graph_module: GraphModule, compiled: set[Node]) -> bool:
    """Return whether ``compiled`` can be one region: no path between two of its nodes leaves it."""
    after: set[Node] = set()  # nodes that are left and read, directly or not, what is compiled
    for node in graph_module.graph.nodes:
        reads = node.all_input_nodes
        if node in compiled:
            if any(source in after for source in reads):
                return False
        elif any(source in compiled or source in after for source in reads):
            after.add(node)
    return True


def _groups(graph_module: GraphModule, left: set[Node]) -> list[list[Node]]:
    """Return groups of nodes that can each be one region, by PyTorch's partitioner."""
    partitioner = CapabilityBasedPartitioner(graph_module, _Support(left), allows_single_node_partition=True)
    order = {node: number for number, node in enumerate(graph_module.graph.nodes)}
    return [sorted(partition.nodes, key=order.__getitem__) for partition in partitioner.propose_partitions()]


class _Support(OperatorSupportBase):
    """Support of all operators except for given nodes."""

    def __init__(self, left: set[Node]) -> None:
        self._left = left

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        """Return whether a node is compiled."""
        return node.op == "call_function" and node not in self._left
