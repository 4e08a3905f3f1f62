"""Small models with ONNX Runtime's searches: a decoder, or an encoder and a decoder, with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

VOCABULARY, HEADS, SIZE, LAYERS = 17, 2, 4, 2
HIDDEN = HEADS * SIZE
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT32


class _Writer:
    """Nodes of a transformer's layers and their weights."""

    def __init__(self, seed: int, prefix: str = "") -> None:
        self.rng, self.prefix = np.random.default_rng(seed), prefix
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}

    def weight(self, *lens: int) -> str:
        return self.constant(self.rng.standard_normal(lens).astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"{self.prefix}w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = to or f"{self.prefix}t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def heads(self, x: str) -> str:
        lens = self.constant(np.array([0, 0, HEADS, SIZE]))
        return self.op("Transpose", self.op("Reshape", x, lens), perm=[0, 2, 1, 3])

    def dense(self, x: str, out: int = HIDDEN) -> str:
        return self.op("MatMul", x, self.weight(HIDDEN, out))

    def attention(self, x: str, keys: str, values: str, mask: str) -> str:
        """Attend from x to the keys that a mask [batch, keys] shows; add x."""
        scores = self.op("MatMul", self.heads(self.dense(x)), self.op("Transpose", keys, perm=[0, 1, 3, 2]))
        hidden = self.op("Sub", self.constant(np.float32(1)), mask)
        bias = self.op("Mul", hidden, self.constant(np.float32(-1e4)))
        axes = self.constant(np.array([1, 2]))
        weights = self.op("Softmax", self.op("Add", scores, self.op("Unsqueeze", bias, axes)), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", weights, values), perm=[0, 2, 1, 3])
        return self.op("Add", x, self.op("Reshape", mixed, self.constant(np.array([0, 0, HIDDEN]))))

    def embedded(self, ids: str, count: int = VOCABULARY) -> str:
        return self.op("Gather", self.weight(count, HIDDEN), ids)

    def floats(self, x: str) -> str:
        name = f"{self.prefix}t{len(self.nodes)}"
        self.nodes.append(helper.make_node("Cast", [x], [name], to=FLOAT))
        return name

    def logits(self, x: str) -> str:
        return self.op("MatMul", x, self.weight(HIDDEN, VOCABULARY), to="logits")

    def graph(self, name: str, inputs: list[Any], outputs: list[Any]) -> GraphProto:
        weights = [numpy_helper.from_array(w, n) for n, w in self.weights.items()]
        return helper.make_graph(self.nodes, name, inputs, outputs, weights)


def _info(name: str, kind: int, *dims: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def gpt(seed: int = 0) -> GraphProto:
    """Return a decoder of GPT-2's form."""
    w = _Writer(seed)
    inputs = [_info(n, INT, "b", d) for n, d in (("input_ids", "s"), ("position_ids", "s"), ("attention_mask", "t"))]
    outputs = [_info("logits", FLOAT, "b", "s", VOCABULARY)]
    x = w.op("Add", w.embedded("input_ids"), w.embedded("position_ids", 64))
    mask = w.floats("attention_mask")
    for k in range(LAYERS):
        inputs.append(_info(f"past_{k}", FLOAT, 2, "b", HEADS, "p", SIZE))
        outputs.append(_info(f"present_{k}", FLOAT, 2, "b", HEADS, "t", SIZE))
        both = [w.op("Unsqueeze", w.heads(w.dense(x)), w.constant(np.array([0]))) for _ in range(2)]
        w.op("Concat", f"past_{k}", w.op("Concat", *both, axis=0), to=f"present_{k}", axis=3)
        keys, values = (w.op("Gather", f"present_{k}", w.constant(np.int64(i)), axis=0) for i in range(2))
        x = w.attention(x, keys, values, mask)
    w.logits(x)
    return w.graph("gpt", inputs, outputs)


def t5(seed: int = 0, hidden: bool = True, every: bool = False, older: bool = True) -> tuple[GraphProto, GraphProto]:
    """Return an encoder and a decoder of T5's form.

    Args:
        hidden: the decoder has the input ``encoder_hidden_states``.
        every: the decoder declares any number of tokens.
        older: the encoder computes the first logits, too.
    """
    e = _Writer(seed, "e_")
    ids = [_info(n, INT, "b", "e") for n in ("encoder_input_ids", "encoder_attention_mask")]
    x = e.embedded("encoder_input_ids")
    mask = e.floats("encoder_attention_mask")
    x = e.attention(x, e.heads(e.dense(x)), e.heads(e.dense(x)), mask)
    names = [f"{a}_{b}" for b in ("self", "cross") for k in range(LAYERS) for a in ("key", "value")]
    names = [f"{n}_{k % (2 * LAYERS) // 2}" for k, n in enumerate(names)]
    for name in names[2 * LAYERS :]:
        e.op("Identity", e.heads(e.dense(x)), to=f"present_{name}")
    cache = {n: "e" if "cross" in n else "p" for n in names}

    def decode(w: _Writer, tokens: str, shown: str, self_cache: bool, cross: str) -> None:
        place = w.constant(np.array([0]))
        if self_cache:
            place = w.op("Gather", w.op("Shape", "past_key_self_0"), w.constant(np.array([2])))
        y = w.op("Add", w.embedded(tokens), w.embedded(place, 64))
        for k in range(LAYERS):
            made = []
            for kind in ("key", "value"):
                fresh = w.heads(w.dense(y))
                past = [f"past_{kind}_self_{k}"] if self_cache else []
                made.append(w.op("Concat", *past, fresh, axis=2, to=f"present_{kind}_self_{k}"))
            ones = w.op("Shape", made[0])
            count = w.op("Gather", ones, w.constant(np.array([0, 2])))
            y = w.attention(y, *made, w.op("Expand", w.constant(np.float32(1)), count))
            y = w.attention(y, f"{cross}_key_cross_{k}", f"{cross}_value_cross_{k}", w.floats(shown))
        w.logits(y)

    d = _Writer(seed + 1, "d_")
    if older:
        first = _Writer(seed + 1, "f_")
        decode(first, "decoder_input_ids", "encoder_attention_mask", False, "present")
        e.op("Identity", x, to="encoder_hidden_states")
        e.nodes += first.nodes
        e.weights |= first.weights
        ids.append(_info("decoder_input_ids", INT, "b", 1))
        outputs = [_info("logits", FLOAT, "b", 1, VOCABULARY), _info("encoder_hidden_states", FLOAT, "b", "e", HIDDEN)]
        outputs += [_info(f"present_{n}", FLOAT, "b", HEADS, cache[n] if "cross" in n else 1, SIZE) for n in names]
    else:
        outputs = [_info(f"present_{n}", FLOAT, "b", HEADS, "e", SIZE) for n in names[2 * LAYERS :]]
    encoder = e.graph("encoder", ids, outputs)
    tokens = "input_ids"
    if every:
        tokens = d.op("Gather", "input_ids", d.constant(np.array([-1])), axis=1)
    decode(d, tokens, "encoder_attention_mask", True, "past")
    inputs = [_info("input_ids", INT, "b", "s" if every else 1), _info("encoder_attention_mask", INT, "b", "e")]
    if hidden:
        inputs.append(_info("encoder_hidden_states", FLOAT, "b", "e", HIDDEN))
    inputs += [_info(f"past_{n}", FLOAT, "b", HEADS, cache[n], SIZE) for n in names]
    outputs = [_info("logits", FLOAT, "b", 1, VOCABULARY)]
    outputs += [_info(f"present_{n}", FLOAT, "b", HEADS, "t", SIZE) for n in names[: 2 * LAYERS]]
    return encoder, d.graph("decoder", inputs, outputs)


def search(
    kind: str, graphs: dict[str, GraphProto], inputs: list[str], feeds: dict[str, np.ndarray], outputs: int = 1,
    opset: int = 17, open_lengths: bool = False, **attributes: Any,
) -> ModelProto:  # fmt: skip
    """Return a model of one search node; ``inputs`` names its inputs by position ("": absent)."""
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
    infos = [
        helper.make_tensor_value_info(n, kinds[n], [f"{n}{k}" for k in range(a.ndim)] if open_lengths else a.shape)
        for n, a in feeds.items()
    ]
    names = ["sequences", "sequences_scores", "scores"][:outputs]
    results = [_info(n, INT if n == "sequences" else FLOAT) for n in names]
    for r in results:
        r.type.tensor_type.ClearField("shape")
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    node = helper.make_node(kind, inputs, names, domain="com.microsoft", **graphs, **attributes)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", infos, results), opset_imports=opsets, ir_version=8)
