"""The models of `bench.start`: the models of the bench suite, and four of kinds that the suite lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.cases import Case, prepare
from bench.models import bert, gpt2, inputs

__all__ = ["START_MODELS", "prepare_start"]

START_MODELS = (
    "light_bvlc_alexnet", "light_densenet121", "light_inception_v1", "light_inception_v2", "light_resnet50",
    "light_shufflenet", "light_squeezenet", "mobilenet_v2", "efficientnet_b0", "vit", "crnn", "unet", "lstm", "gru",
    "mlp", "bert", "bert12", "decoder", "yolo", "trees",
)  # fmt: skip
"""Seven light convolution networks, nine models of the suite, BERT of 12 layers, a decoder, a detector, trees."""

Feeds = dict[str, np.ndarray]


def _bert12(scale: str) -> tuple[onnx.ModelProto, Feeds]:
    """Return BERT base: 12 layers, a vocabulary of 30,522 words."""
    model = bert.build(1, "base" if scale == "full" else scale)
    return model, inputs("bert", model)


def _decoder(scale: str) -> tuple[onnx.ModelProto, Feeds]:
    """Return a step of GPT-2 whose batch and numbers of tokens are open."""
    model = gpt2.build(1, scale)
    feeds = inputs("gpt2", model)
    open_axes = {"past_key_values": {0: "batch", 2: "past"}, "attention_mask": {0: "batch", 1: "total"}}
    for info in (*model.graph.input, *model.graph.output):
        of_past = info.name.startswith("past_key_values")
        axes = open_axes.get("past_key_values" if of_past else info.name, {0: "batch", 1: "tokens"})
        if info.name.startswith("present"):
            axes = {0: "batch", 2: "total"}
        for axis, symbol in axes.items():
            info.type.tensor_type.shape.dim[axis].dim_param = symbol
    return model, feeds


def _trees(scale: str) -> tuple[onnx.ModelProto, Feeds]:
    """Return a classifier of 100 balanced trees of 6 levels over 30 features, with an open number of rows."""
    trees, depth, features, classes = (100 if scale == "full" else 3), 6, 30, 3
    random = np.random.default_rng(0)
    ids = np.arange(2 ** (depth + 1) - 1)
    inner, count = ids < 2**depth - 1, trees * (2 ** (depth + 1) - 1)
    leaves = ids[~inner]
    attributes = {
        "nodes_treeids": np.repeat(np.arange(trees), ids.size),
        "nodes_nodeids": np.tile(ids, trees),
        "nodes_featureids": np.where(np.tile(inner, trees), random.integers(0, features, count), 0),
        "nodes_values": random.standard_normal(count).astype(np.float32),
        "nodes_truenodeids": np.tile(np.where(inner, 2 * ids + 1, 0), trees),
        "nodes_falsenodeids": np.tile(np.where(inner, 2 * ids + 2, 0), trees),
        "class_treeids": np.repeat(np.arange(trees), leaves.size),
        "class_nodeids": np.tile(leaves, trees),
        "class_ids": np.repeat(np.arange(trees) % classes, leaves.size),
        "class_weights": random.standard_normal(leaves.size * trees).astype(np.float32),
        "classlabels_int64s": np.arange(classes),
    }
    node = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        nodes_modes=np.tile(np.where(inner, "BRANCH_LEQ", "LEAF"), trees).tolist(),
        post_transform="SOFTMAX",
        **{name: values.tolist() for name, values in attributes.items()},
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", features])
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", classes]),
    ]
    graph = helper.make_graph([node], "trees", [x], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, {"x": random.standard_normal((8, features)).astype(np.float32)}


_OWN: dict[str, Callable[[str], tuple[onnx.ModelProto, Feeds]]] = {
    "bert12": _bert12,
    "decoder": _decoder,
    "trees": _trees,
}


def prepare_start(name: str, folder: Path, scale: str = "full") -> Case:
    """Write the files of a model to an existing folder.

    A light_* model gets random weights in its file: a file of uniform weights does not represent the cost of reading
    weights.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in _OWN:
        case = prepare(name, folder, scale)
        return Case(name, case.checked, case.feeds, case.feeds_path, case.checked) if "light" in name else case
    model, feeds = _OWN[name](scale)
    path, feeds_path = folder / f"{name}.onnx", folder / f"{name}.npz"
    onnx.save(model, path)
    np.savez(feeds_path, np.array(list(feeds), dtype=np.str_), *feeds.values())
    return Case(name, path, feeds, feeds_path, path)
