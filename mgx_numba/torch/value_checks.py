"""Checks of values that PyTorch runs beside the compiled regions of a graph: integer divisors of 0, and matrices
without an inverse."""

from __future__ import annotations

import operator

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from .partition import is_view

_DIVISIONS = frozenset(("div", "floor_divide", "remainder", "fmod"))
_COPIES = frozenset((torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.clone.default))
_FILLED = frozenset((torch.ops.aten.full.default, torch.ops.aten.full_like.default))
_LIMITED = frozenset((torch.ops.aten.clamp.default, torch.ops.aten.clamp_min.default))
_ERROR = "ZeroDivisionError"
"""The text of eager mode's RuntimeError."""


_EFFECT = torch.ops.higher_order.with_effects
_OF_MATRICES = torch.ops.aten._linalg_check_errors.default


def unwrap_checks(graph_module: GraphModule) -> None:
    """Call the checks of ``torch.linalg`` without their wrapper, which takes longer and only keeps the order of calls.

    The wrapper takes and gives a token of the order; readers of the token get the token before.
    """
    graph = graph_module.graph
    for node in graph.find_nodes(op="call_function", target=_EFFECT):
        token, operator_, *args = node.args
        if operator_ is not _OF_MATRICES:
            continue
        with graph.inserting_before(node):
            graph.call_function(_OF_MATRICES, tuple(args), node.kwargs).meta["val"] = None
        for member in list(node.users):
            member.replace_all_uses_with(token)  # type: ignore[arg-type]
            graph.erase_node(member)
        graph.erase_node(node)


def check_divisors(graph_module: GraphModule) -> None:
    """Add a check beside each division of integers whose divisor may be 0; PyTorch runs the checks.

    Divisions in the bodies of higher-order operators have no check.
    """
    graph, aten = graph_module.graph, torch.ops.aten
    checked: set[Node | None] = set()
    for node in list(graph.nodes):
        if not _is_integer_division(node) or _differs_from_zero(graph_module, node.args[1]):
            continue
        divisor = node.args[1] if isinstance(node.args[1], Node) else None
        if divisor in checked:
            continue
        checked.add(divisor)
        with graph.inserting_before(node):
            if divisor is None:
                holds = graph.call_function(aten.full.default, ([], False), {"dtype": torch.bool})
            else:
                unlike = graph.call_function(aten.ne.Scalar, (divisor, 0))
                unlike.meta["val"] = divisor.meta["val"] != 0
                holds = graph.call_function(aten.all.default, (unlike,))
            holds.meta["val"] = node.meta["val"].new_empty((), dtype=torch.bool)
            graph.call_function(aten._assert_async.msg, (holds, _ERROR)).meta["val"] = None


def _is_integer_division(node: Node) -> bool:
    """Return whether a node divides integers on a CPU, and is no part of another operator's decomposition."""
    value = node.meta.get("val")
    return (
        all(map(_is_division, (node.target, node.meta.get("original_aten") or node.target)))
        and isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and not (value.is_floating_point() or value.is_complex())
        and 0 not in [n for n in value.shape if isinstance(n, int)]
    )


def _is_division(target: object) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target._schema.name.partition("::")[2].removesuffix("_") in _DIVISIONS


def _differs_from_zero(graph_module: GraphModule, divisor: object) -> bool:
    """Return whether a divisor is known to have no element of 0."""
    if not isinstance(divisor, Node):
        return divisor != 0
    if not isinstance(divisor.meta.get("val"), torch.Tensor):  # a length, of which PyTorch knows the range
        return True
    if divisor.target in _COPIES or is_view(divisor):
        return _differs_from_zero(graph_module, divisor.args[0])
    if divisor.op == "get_attr":
        value = operator.attrgetter(str(divisor.target))(graph_module)
        with unset_fake_temporarily():
            return isinstance(value, torch.Tensor) and bool(value.all())
    if divisor.target in _FILLED:
        return not isinstance(divisor.args[1], Node) and divisor.args[1] != 0
    if divisor.target in _LIMITED:
        least = divisor.args[1] if len(divisor.args) > 1 else divisor.kwargs.get("min")
        return isinstance(least, (int, float)) and least >= 1
    return False
