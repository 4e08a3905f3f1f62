"""Graphs that write to their inputs, such as the key and value caches of a decoder.

AOTAutograd leaves such a write in the graph of a call that needs no gradients, as ``copy_`` at its end. Here the value
becomes a result, which is copied to the input after the call, unless the program has computed it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

__all__ = ["take_updates", "with_updates"]

Boxed = Callable[["list[Any]"], Any]


def take_updates(graph_module: GraphModule) -> list[int]:
    """Make the values that a graph copies to its inputs further results; return the positions of these inputs."""
    graph = graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    writes = [node for node in copies if node.args[0] in placeholders]
    output = graph.output_node()
    if not writes or not isinstance(output.args[0], (list, tuple)):
        return []
    results, places = list(output.args[0]), []
    for node in writes:
        target, value = node.args[:2]
        places.append(placeholders.index(target))
        if value in placeholders:  # which another write may change first
            with graph.inserting_before(node):
                kept = graph.call_function(torch.ops.aten.clone.default, (value,))
            kept.meta.update(value.meta)  # type: ignore[union-attr]
            value = kept
        results = [value if result is node else result for result in results]
        node.replace_all_uses_with(value)  # type: ignore[arg-type]
        graph.erase_node(node)
        results.append(value)
    output.args = (tuple(results),)
    graph_module.recompile()
    return places


def with_updates(run: Boxed, places: Sequence[int]) -> Boxed:
    """Return ``run`` without its last results, which are copied to the inputs at some positions."""

    def call(args: list[Any]) -> Any:
        targets = [args[place] for place in places]
        results = list(run(args))
        own = len(results) - len(places)
        made = [(to, new) for to, new in zip(targets, results[own:]) if new is not to]
        if made:
            with torch.no_grad():
                torch._foreach_copy_(*map(list, zip(*made)))
        return results[:own]

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
