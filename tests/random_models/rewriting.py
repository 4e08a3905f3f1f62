"""Rewrite nodes that ONNX Runtime does not support into nodes that it supports."""

from __future__ import annotations

import onnx
from onnx import helper

__all__ = ["runnable"]

RECURRENT = {"RNN", "GRU", "LSTM"}


def runnable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, if need be a copy: recurrent layers that have the batch first between transpositions, and the mean
    that a skipping RMS normalisation tells computed from the sum."""
    if not any(map(_refused, model.graph.node)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = [made for node in model.graph.node for made in _rewritten(node, model.opset_import[0].version)]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def _batch_first(node: onnx.NodeProto) -> bool:
    return node.op_type in RECURRENT and any(a.name == "layout" and a.i == 1 for a in node.attribute)


def _tells_mean(node: onnx.NodeProto) -> bool:
    return node.op_type == "SkipSimplifiedLayerNormalization" and len(node.output) > 1 and node.output[1] != ""


def _refused(node: onnx.NodeProto) -> bool:
    return _batch_first(node) or _tells_mean(node)


def _rewritten(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    if _batch_first(node):
        return _steps_first(node)
    return _with_mean(node, opset) if _tells_mean(node) else [node]


def _steps_first(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    attributes = [a for a in node.attribute if a.name != "layout"]
    del inner.attribute[:]
    inner.attribute.extend(attributes)
    before, after = [], []
    for k in (0, 5, 6):  # X, initial_h, initial_c
        if k < len(node.input) and node.input[k]:
            inner.input[k] = f"{node.output[0] or node.output[-1]}_in{k}"
            before.append(helper.make_node("Transpose", [node.input[k]], [inner.input[k]], perm=[1, 0, 2]))
    for k, name in enumerate(node.output):
        if name:
            inner.output[k] = f"{name}_out"
            perm = [2, 0, 1, 3] if k == 0 else [1, 0, 2]
            after.append(helper.make_node("Transpose", [inner.output[k]], [name], perm=perm))
    return [*before, inner, *after]


def _with_mean(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    mean, total = node.output[1], node.output[3]
    inner.output[1] = ""
    if opset < 18:
        return [inner, helper.make_node("ReduceMean", [total], [mean], axes=[-1])]
    last = helper.make_node("Constant", [], [f"{mean}_axes"], value_ints=[-1])
    return [inner, last, helper.make_node("ReduceMean", [total, f"{mean}_axes"], [mean])]
