"""Graphs that write to shared memory, where AOTAutograd's operators in place of the writes may be wrong.

- `with_alias_check`: AOTAutograd compiles a graph that writes to its inputs for the shared memory of the first call's
  inputs, and Dynamo's guards do not see where in a storage an input lies. Other calls run in eager mode.
- `overlapping_write`: a write to a tensor whose elements share memory, such as an expanded one, adds a sum once for
  each element that shares memory, or does not raise the error of eager mode. Such graphs run in eager mode.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .logs import warn_once

Run = Callable[..., object]
Place = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]
"""Of an input that shares memory: position, first element and bytes of its storage, lengths, strides."""


def with_alias_check(compiled: Run, eager: Run, example_inputs: Sequence[object]) -> Run:
    """Return a function that runs ``compiled``, and ``eager`` if inputs share memory otherwise than at the first call.

    Parameters are not compared: they stay the same tensors.
    """
    places = [k for k, x in enumerate(example_inputs) if isinstance(x, torch.Tensor) and _is_compared(x)]
    if len(places) < 2:
        return compiled
    first: list[frozenset[Place]] = []

    def run(*args: object) -> Any:
        shared = _shared(args, places)
        if not first:
            first.append(shared)
        if shared == first[0]:
            return compiled(*args)
        warn_once("a call runs in eager mode: it writes to inputs that share memory otherwise than at the first call")
        return eager(*args)

    return run


def _is_compared(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and not isinstance(x, torch.nn.Parameter) and not is_traceable_wrapper_subclass(x)


def _shared(args: Sequence[object], places: Sequence[int]) -> frozenset[Place]:
    """Return the inputs whose range of memory overlaps that of another one."""
    spans = sorted([(*_span(args[k]), k) for k in places])
    found: set[int] = set()
    last = spans[0]
    for span in spans[1:]:
        if span[0] < last[1]:
            found |= {last[2], span[2]}
        last = max(last, span, key=lambda s: s[1])
    return frozenset(_place(k, args[k]) for k in found) if found else _NONE


_NONE: frozenset[Place] = frozenset()


def _span(x: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and of the byte behind its last one."""
    start = x.data_ptr()
    if x.is_contiguous() or not x.numel():
        return start, start + x.nbytes
    reach = 1 + sum((length - 1) * stride for length, stride in zip(x.shape, x.stride()))
    return start, start + reach * x.element_size()


def _place(place: int, x: torch.Tensor) -> Place:
    return place, x.storage_offset(), x.untyped_storage().nbytes(), tuple(x.shape), x.stride()


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
