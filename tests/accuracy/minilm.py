"""The sentence encoder all-MiniLM-L6-v2 as an ONNX model, with the real weights of a package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["encoder", "similarity", "tokens"]

LAYERS, HEADS, WIDTH = 6, 12, 384  # of the model, by its configuration
LENGTH = 24
"""Tokens of a sentence: longer ones are cut, shorter ones end in padding that attention and mean leave out."""


def tokens(folder: Path, sentences: list[str]) -> dict[str, np.ndarray]:
    """The model's inputs: word pieces of lower-cased words, the longest first, and which tokens there are."""
    names = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {name: k for k, name in enumerate(names)}
    ids = np.full((len(sentences), LENGTH), vocabulary["[PAD]"], np.int64)
    for row, sentence in zip(ids, sentences):
        pieces = ["[CLS]"]
        for word in re.findall(r"\w+|[^\w\s]", sentence.lower()):
            pieces += _pieces(word, vocabulary)
        pieces = [*pieces[: LENGTH - 1], "[SEP]"]
        row[: len(pieces)] = [vocabulary[piece] for piece in pieces]
    return {"ids": ids, "mask": (ids != vocabulary["[PAD]"]).astype(np.float32)}


def similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The cosine between rows."""
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


def encoder(folder: Path, count: int) -> onnx.ModelProto:
    """From ``ids`` and ``mask`` [count, LENGTH] to the mean of the last layer's tokens, ``y`` [count, WIDTH]."""
    return _Writer(_tensors(folder / "model.safetensors"), count).model()


def _pieces(word: str, vocabulary: dict[str, int]) -> list[str]:
    found, start = [], 0
    while start < len(word):
        ends = range(len(word), start, -1)
        piece = next((p for end in ends if (p := "##" * (start > 0) + word[start:end]) in vocabulary), None)
        if piece is None:
            return ["[UNK]"]
        found.append(piece)
        start += len(piece) - 2 * (start > 0)
    return found


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """A safetensors file: the length of a header, the header in JSON, and the data."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, end = (8 + size + at for at in entry["data_offsets"])
            found[name] = np.frombuffer(data[first:end], np.float32).reshape(entry["shape"])
    return found


class _Writer:
    """BERT, node by node."""

    def __init__(self, tensors: dict[str, np.ndarray], count: int) -> None:
        self.tensors, self.count = tensors, count
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def dense(self, x: str, name: str) -> str:
        product = self.op("MatMul", x, self.constant(self.tensors[f"{name}.weight"].T))
        return self.op("Add", product, self.constant(self.tensors[f"{name}.bias"]))

    def norm(self, x: str, name: str) -> str:
        parts = [self.constant(self.tensors[f"{name}.{part}"]) for part in ("weight", "bias")]
        return self.op("LayerNormalization", x, *parts, axis=-1, epsilon=1e-12)

    def heads(self, x: str, order: list[int]) -> str:
        apart = self.op("Reshape", x, self.constant([self.count, LENGTH, HEADS, WIDTH // HEADS], np.int64))
        return self.op("Transpose", apart, perm=order)

    def layer(self, x: str, masked: str, name: str) -> str:
        q, k, v = (self.dense(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        scores = self.op("MatMul", self.heads(q, [0, 2, 1, 3]), self.heads(k, [0, 2, 3, 1]))
        scores = self.op("Mul", scores, self.constant((WIDTH // HEADS) ** -0.5))
        weights = self.op("Softmax", self.op("Add", scores, masked), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", weights, self.heads(v, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        mixed = self.op("Reshape", mixed, self.constant([self.count, LENGTH, WIDTH], np.int64))
        x = self.norm(
            self.op("Add", self.dense(mixed, f"{name}.attention.output.dense"), x), f"{name}.attention.output.LayerNorm"
        )
        inner = self.op("Gelu", self.dense(x, f"{name}.intermediate.dense"))
        return self.norm(self.op("Add", self.dense(inner, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")

    def model(self) -> onnx.ModelProto:
        table = self.constant(self.tensors["embeddings.word_embeddings.weight"])
        places = self.tensors["embeddings.position_embeddings.weight"][:LENGTH]
        places = places + self.tensors["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(self.op("Add", self.op("Gather", table, "ids"), self.constant(places)), "embeddings.LayerNorm")
        absent = self.op("Mul", self.op("Sub", "mask", self.constant(1)), self.constant(1e4))
        absent = self.op("Reshape", absent, self.constant([self.count, 1, 1, LENGTH], np.int64))
        for k in range(LAYERS):
            x = self.layer(x, absent, f"encoder.layer.{k}")
        present = self.op("Unsqueeze", "mask", self.constant([2], np.int64))
        axis = self.constant([1], np.int64)
        total = self.op("ReduceSum", self.op("Mul", x, present), axis, keepdims=0)
        mean = self.op("Div", total, self.op("ReduceSum", present, axis, keepdims=0))
        graph = helper.make_graph(
            self.nodes,
            "minilm",
            [
                helper.make_tensor_value_info("ids", TensorProto.INT64, [self.count, LENGTH]),
                helper.make_tensor_value_info("mask", TensorProto.FLOAT, [self.count, LENGTH]),
            ],
            [helper.make_tensor_value_info(mean, TensorProto.FLOAT, [self.count, WIDTH])],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
