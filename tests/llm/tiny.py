"""A decoder of one layer with random weights, as a genai folder and as NumPy functions of all tokens at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

VOCABULARY, HEADS, SIZE, LONGEST = 50, 2, 16, 96
WIDTH = HEADS * SIZE
END = 3
KINDS = ("plain", "grouped")
"""A plain attention over concatenated caches with positions; and GroupQueryAttention with rotary embeddings."""


@dataclass
class Tiny:
    """The weights of a decoder."""

    kind: str
    embedding: np.ndarray
    positions: np.ndarray
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    head: np.ndarray

    def logits(self, tokens) -> np.ndarray:
        """Return the logits after each token, (tokens, vocabulary), in float64."""
        count = len(tokens)
        x = self.embedding[list(tokens)].astype(np.float64)
        if self.kind == "plain":
            x = x + self.positions[:count]
        q, k, v = ((x @ w).reshape(count, HEADS, SIZE).transpose(1, 0, 2) for w in (self.query, self.key, self.value))
        if self.kind == "grouped":
            q, k = _rotated(q), _rotated(k)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(SIZE)
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = (weights @ v).transpose(1, 0, 2).reshape(count, WIDTH)
        return (x + attended @ self.output) @ self.head


def _angles() -> np.ndarray:
    return np.arange(LONGEST)[:, None] / 10000.0 ** (np.arange(SIZE // 2) / (SIZE // 2))


def _rotated(x):
    angles = _angles()[: x.shape[1]]
    a, b = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def tiny(kind: str, seed: int = 0, vocabulary: int = VOCABULARY) -> Tiny:
    """Return a decoder with random weights."""
    rng = np.random.default_rng(seed)

    def weights(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    inner = [weights(WIDTH, WIDTH, scale=0.3) for _ in range(4)]
    return Tiny(
        kind,
        weights(vocabulary, WIDTH),
        weights(LONGEST, WIDTH, scale=0.5),
        *inner,
        weights(WIDTH, vocabulary, scale=0.4),
    )


def write(model: Tiny, folder: Path, vocabulary: int = VOCABULARY, end: int = END, **search) -> Path:
    """Write a genai folder of a decoder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    constants = {
        "embedding": model.embedding,
        "w_query": model.query,
        "w_key": model.key,
        "w_value": model.value,
        "w_output": model.output,
        "w_head": model.head,
    }
    n = helper.make_node
    nodes = [n("Gather", ["embedding", "input_ids"], ["embedded"])]
    inputs = {"input_ids": ["b", "s"], "attention_mask": ["b", "t"]}
    if model.kind == "plain":
        inputs["position_ids"] = ["b", "s"]
        nodes += _plain(constants, model)
    else:
        nodes += _grouped(constants)
    nodes += [
        n("MatMul", ["attended", "w_output"], ["projected"]),
        n("Add", ["x", "projected"], ["y"]),
        n("MatMul", ["y", "w_head"], ["logits"]),
    ]
    ids = [helper.make_tensor_value_info(k, TensorProto.INT64, d) for k, d in inputs.items()]
    size = SIZE if model.kind == "plain" else "kv_cache_dim"  # as onnxruntime-genai's builder leaves it open
    past = [
        helper.make_tensor_value_info(f"past_key_values.0.{k}", TensorProto.FLOAT, ["b", HEADS, "p", size])
        for k in ("key", "value")
    ]
    outs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", vocabulary])]
    outs += [
        helper.make_tensor_value_info(f"present.0.{k}", TensorProto.FLOAT, ["b", HEADS, "q", SIZE])
        for k in ("key", "value")
    ]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "tiny", ids + past, outs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(folder / "model.onnx"))
    settings = {
        "model": {
            "type": "tiny",
            "bos_token_id": 1,
            "eos_token_id": [end],
            "pad_token_id": 0,
            "vocab_size": vocabulary,
            "context_length": LONGEST,
            "decoder": {
                "filename": "model.onnx",
                "head_size": SIZE,
                "num_key_value_heads": HEADS,
                "inputs": {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
            },
        },
        "search": {"max_length": LONGEST, "top_k": 50, **search},
    }
    (folder / "genai_config.json").write_text(json.dumps(settings))
    return folder


def _plain(constants, model: Tiny):
    """Return the nodes of attention over all columns that the mask admits and that are not later than the row."""
    n = helper.make_node
    constants |= {
        "w_positions": model.positions,
        "heads": np.array([0, 0, HEADS, SIZE], np.int64),
        "flat": np.array([0, 0, WIDTH], np.int64),
        "scale": np.float32(1 / np.sqrt(SIZE)),
        "low": np.float32(-1e9),
        "one": np.float32(1),
        "at1": np.int64(1),
        "axis1": np.array([1], np.int64),
        "axes12": np.array([1, 2], np.int64),
        "zero": np.int64(0),
        "step": np.int64(1),
    }
    nodes = [
        n("Gather", ["w_positions", "position_ids"], ["placed"]),
        n("Add", ["embedded", "placed"], ["x"]),
    ]
    for kind in ("query", "key", "value"):
        nodes += [
            n("MatMul", ["x", f"w_{kind}"], [f"{kind}_flat"]),
            n("Reshape", [f"{kind}_flat", "heads"], [f"{kind}_4"]),
            n("Transpose", [f"{kind}_4"], [f"{kind}_now"], perm=[0, 2, 1, 3]),
        ]
    for kind in ("key", "value"):
        nodes.append(n("Concat", [f"past_key_values.0.{kind}", f"{kind}_now"], [f"present.0.{kind}"], axis=2))
    return [
        *nodes,
        n("Transpose", ["present.0.key"], ["key_t"], perm=[0, 1, 3, 2]),
        n("MatMul", ["query_now", "key_t"], ["scores"]),
        n("Mul", ["scores", "scale"], ["scaled"]),
        n("Shape", ["attention_mask"], ["mask_shape"]),
        n("Gather", ["mask_shape", "at1"], ["total"]),
        n("Shape", ["input_ids"], ["ids_shape"]),
        n("Gather", ["ids_shape", "at1"], ["count"]),
        n("Sub", ["total", "count"], ["before"]),
        n("Range", ["zero", "total", "step"], ["columns"]),
        n("Range", ["before", "total", "step"], ["rows"]),
        n("Unsqueeze", ["rows", "axis1"], ["rows2"]),
        n("LessOrEqual", ["columns", "rows2"], ["causal"]),
        n("Cast", ["attention_mask"], ["mask_bool"], to=TensorProto.BOOL),
        n("Unsqueeze", ["mask_bool", "axes12"], ["mask4"]),
        n("And", ["causal", "mask4"], ["admitted"]),
        n("Where", ["admitted", "scaled", "low"], ["masked"]),
        n("Softmax", ["masked"], ["weights"], axis=-1),
        n("MatMul", ["weights", "present.0.value"], ["mixed"]),
        n("Transpose", ["mixed"], ["mixed_t"], perm=[0, 2, 1, 3]),
        n("Reshape", ["mixed_t", "flat"], ["attended"]),
    ]


def _grouped(constants):
    n = helper.make_node
    angles = _angles().astype(np.float64)
    constants |= {
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "axis1": np.array([1], np.int64),
        "one": np.array([1], np.int64),
        "at1": np.int64(1),
    }
    past = ["past_key_values.0.key", "past_key_values.0.value"]
    return [
        n("Identity", ["embedded"], ["x"]),
        *(n("MatMul", ["x", f"w_{kind}"], [f"{kind}_flat"]) for kind in ("query", "key", "value")),
        n("ReduceSum", ["attention_mask", "axis1"], ["counted"], keepdims=1),
        n("Sub", ["counted", "one"], ["last"]),
        n("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32),
        n("Shape", ["attention_mask"], ["mask_shape"]),
        n("Gather", ["mask_shape", "at1"], ["total64"]),
        n("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        n(
            "GroupQueryAttention",
            ["query_flat", "key_flat", "value_flat", *past, "seqlens_k", "total", "cos", "sin"],
            ["attended", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=HEADS,
            do_rotary=1,
        ),
    ]
