"""Shrink a differing model: fewer results, and constants in place of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .builder import free_names
from .generate import Case
from .oracle import OracleError, runtime

__all__ = ["describe", "minimise"]

SHOWN = 12
"""Elements of a tensor that are printed."""


def minimise(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return the smallest case found for which ``fails`` holds, as it does for ``case``.

    First one result is kept, of the earliest node that will do; otherwise as few of the results as will do. Then nodes
    are replaced by inputs with their values, in ever smaller runs. Nodes that no result needs stay only if the case
    does not fail without them.
    """
    values = _all_values(case)
    for name in values:
        tried = _with(case, case.model.graph.node, [name], values)
        if tried is not None and fails(tried):
            case = tried
            break
    else:
        case = _fewer_results(case, fails, values)
    pruned = _with(case, case.model.graph.node, [o.name for o in case.model.graph.output], values)
    unread = pruned is None or not fails(pruned)
    length = len(case.model.graph.node) // 2
    while length:
        start = 0
        while start < len(case.model.graph.node):
            nodes = list(case.model.graph.node)
            left = nodes[:start] + nodes[start + length :]
            tried = _with(case, left, [o.name for o in case.model.graph.output], values, unread)
            if tried is not None and len(tried.model.graph.node) < len(nodes) and fails(tried):
                case = tried
            else:
                start += length
        length //= 2
    return case


def _fewer_results(case: Case, fails: Callable[[Case], bool], values: dict[str, np.ndarray]) -> Case:
    for result in [o.name for o in case.model.graph.output]:
        kept = [o.name for o in case.model.graph.output if o.name != result]
        tried = kept and _with(case, case.model.graph.node, kept, values, unread=True)
        if tried and fails(tried):
            case = tried
    return case


def _all_values(case: Case) -> dict[str, np.ndarray]:
    """Every value of the main graph that NumPy can hold."""
    values = dict(case.feeds)
    names = [n for node in case.model.graph.node for n in node.output if n]
    for name in names:
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=name))
        try:
            values[name] = np.asarray(runtime(model, case.feeds)[0])
        except OracleError:
            continue
    return values


def _with(
    case: Case,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    values: dict[str, np.ndarray],
    unread: bool = False,
) -> Case | None:
    """Return the case with only these nodes and results, or ``None`` if a value is missing.

    Args:
        case: it has the constants, and the values of inputs with an index out of range.
        nodes: in their order.
        outputs: names of the results.
        values: values by name, for inputs in place of nodes.
        unread: whether nodes stay that no result needs.
    """
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if unread or needed & set(node.output):
            kept.append(node)
            needed |= free_names([node])
    kept.reverse()
    made = {n for node in kept for n in node.output}
    if not kept or not set(outputs) <= made:
        return None
    held = [t for t in case.model.graph.initializer if t.name in needed]
    given = sorted((needed - made - {t.name for t in held}) & values.keys())
    known = made | {t.name for t in held} | set(given)
    if not {n for node in kept for n in node.input if n} <= known:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    for field in (graph.node, graph.input, graph.output, graph.initializer):
        del field[:]
    graph.node.extend(kept)
    graph.initializer.extend(held)
    graph.input.extend(_info(n, values[n]) for n in given)
    graph.output.extend(
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype), [None] * values[n].ndim)
        if n in values
        else onnx.ValueInfoProto(name=n)
        for n in outputs
    )
    return Case(model, {n: values[n] for n in given}, {n: a for n, a in case.wrong.items() if n in given})


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def describe(case: Case) -> str:
    """The model as text, with the values of small tensors."""
    graph = case.model.graph
    lines = [f"opset {case.model.opset_import[0].version}"]
    lines += [_tensor("input", name, array) for name, array in case.feeds.items()]
    lines += [_tensor("constant", t.name, numpy_helper.to_array(t)) for t in graph.initializer]
    return "\n".join([*lines, *_nodes(graph, ""), f"results {', '.join(o.name for o in graph.output)}"])


def _tensor(kind: str, name: str, array: np.ndarray) -> str:
    values = f" = {array.tolist()}" if array.size <= SHOWN else ""
    return f"{kind} {name}: {array.dtype}{list(array.shape)}{values}"


def _nodes(graph: onnx.GraphProto, indent: str) -> list[str]:
    lines = []
    for node in graph.node:
        plain = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}
        shown = {
            k: numpy_helper.to_array(v).tolist() if isinstance(v, onnx.TensorProto) else v for k, v in plain.items()
        }
        text = "".join(f" {k}={v}" for k, v in shown.items())
        lines.append(f"{indent}{', '.join(node.output)} = {node.op_type}({', '.join(node.input)}){text}")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                g = attribute.g
                lines.append(f"{indent}  {attribute.name}({', '.join(i.name for i in g.input)}):")
                lines += [_tensor(f"{indent}    constant", t.name, numpy_helper.to_array(t)) for t in g.initializer]
                lines += _nodes(g, indent + "    ")
                lines.append(f"{indent}    results {', '.join(o.name for o in g.output)}")
    return lines
