"""Layouts of a region's inputs and results: a dense tensor in another order is passed transposed, thus row-major.

A program's inputs and results are row-major. An image in ``torch.channels_last`` becomes an input of shape
(N, H, W, C), which the graph transposes back; the compiler makes a view of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from ..frontends.torch.hints import hint

Order = tuple[int, ...]


def transpose_inputs(graph_module: GraphModule) -> dict[str, Order]:
    """Make every dense input row-major, in place; return by name the order of axes of each input that was not."""
    found = {}
    graph = graph_module.graph
    for node in graph.find_nodes(op="placeholder"):
        order = _order(node)
        if order is None:
            continue
        value = node.meta["val"]
        node.meta["val"] = value.permute(order).contiguous() if _is_static(value) else value.permute(order)
        with graph.inserting_after(node):
            back = graph.call_function(torch.ops.aten.permute.default, (node, _inverse(order)))
        back.meta["val"] = value
        node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
        found[node.name] = order
    _moved_behind_inputs(graph_module)
    return found


def transpose_results(graph_module: GraphModule, results: Sequence[Node]) -> tuple[list[Node], list[Order | None]]:
    """Return the results with a transposition behind each that PyTorch has dense and not row-major.

    Returns:
        The new results, and for each the order of axes that gives its value back; None for none.
    """
    graph, found, orders = graph_module.graph, [], []
    for node in results:
        order = _order(node)
        if order is not None:
            with graph.inserting_before(graph.output_node()):
                turned = graph.call_function(torch.ops.aten.permute.default, (node, list(order)))
            turned.meta["val"] = node.meta["val"].permute(order)
            node, order = turned, tuple(_inverse(order))
        found.append(node)
        orders.append(order)
    return found, orders


def _order(node: Node) -> Order | None:
    """Return the axes from the slowest to the quickest of a dense tensor that is not row-major; else None."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.layout is not torch.strided:
        return None
    lens, strides = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
    if None in lens or None in strides or 0 in lens:
        return None
    axes = sorted(range(len(lens)), key=lambda axis: (-strides[axis], lens[axis] == 1, axis))  # type: ignore[operator]
    axes_of_many = [axis for axis in axes if lens[axis] != 1]
    expected = 1
    for axis in reversed(axes_of_many):
        if strides[axis] != expected:
            return None
        expected *= lens[axis]  # type: ignore[operator]
    return None if axes_of_many == sorted(axes_of_many) else tuple(axes)


def _inverse(order: Order) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in value.shape)


def _moved_behind_inputs(graph_module: GraphModule) -> None:
    """Put all inputs before all other nodes, as a graph has them."""
    graph = graph_module.graph
    inputs = graph.find_nodes(op="placeholder")
    for before, node in itertools.pairwise(inputs):
        before.append(node)
