"""Detection of writes to tensors whose elements share memory, such as expanded ones, in a graph of Dynamo's.

AOTAutograd's operators in place of such writes are right only where each element has memory of its own: they add a sum
once for each element that shares memory, or do not raise the error of eager mode.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node


def overlapping_write(graph_module: GraphModule) -> Node | None:
    """Return the first node that writes to a tensor with overlapping elements; None if there is none."""
    for node in graph_module.graph.nodes:
        for target in _written(node):
            value = target.meta.get("example_value", target.meta.get("val"))
            if isinstance(value, torch.Tensor) and _overlaps(value):
                return node
    return None


def _written(node: Node) -> list[Node]:
    """Return the nodes whose tensors a node writes to, by the names of PyTorch's operators."""
    if node.op not in ("call_function", "call_method"):
        return []
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = node.target is operator.setitem or (name.endswith("_") and not name.endswith("__"))
    in_place = in_place or name in _ASSIGNMENTS or bool(node.kwargs.get("inplace"))
    found = [node.kwargs.get("out"), *(node.args[:1] if in_place else ())]
    return [x for x in found if isinstance(x, Node)]


_ASSIGNMENTS = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul __setitem__".split()
)
"""Assignments of Python that write to their first operand."""


def _overlaps(tensor: torch.Tensor) -> bool:
    """Return whether elements share memory, for all that lengths and strides of numbers tell."""
    if tensor.layout is not torch.strided:
        return False
    axes = [(s, n) for n, s in zip(tensor.shape, tensor.stride()) if not (isinstance(n, int) and n <= 1)]
    if any(isinstance(s, int) and s == 0 for s, _ in axes):
        return all(not isinstance(n, int) or n for n in tensor.shape)
    span = 0
    for step, length in sorted((s, n) for s, n in axes if isinstance(s, int) and isinstance(n, int)):
        if step <= span:
            return True
        span += (length - 1) * step
    return False
