"""Language models of Llama's shapes with random 4-bit weights, for measurements of speed.

    python -m bench.language_shapes PATH --size 1b|3b|8b [--form gguf|genai] [--layout NAME] [--layers N]
                                    [--type float32|float16] [--bits 4|16]

``gguf`` writes a file with Q4_0 weights or those of another layout. ``genai`` writes a folder of onnxruntime-genai with
MatMulNBits of blocks of 32, or with 16 bits MatMul, over activations of a type. All weights are parts of one random
array, which no kernel notices. Then measure by ``mgx-numba-driver perf --llm PATH`` and ``python -m bench.language
PATH``, on a GPU by ``python -m bench.gpu_language``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mgx_numba.dataclass import dataclass
from mgx_numba.ops.block_layouts import LAYOUTS
from tests.llm.writing import random_blocks, write_gguf

BLOCK, CONTEXT, THETA = 32, 4096, 500000.0


@dataclass(frozen=True)
class Shape:
    """Lengths of a decoder."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    size: int
    inner: int


SHAPES = {
    "1b": Shape(2048, 16, 32, 8, 64, 8192),
    "3b": Shape(3072, 28, 24, 8, 128, 8192),
    "8b": Shape(4096, 32, 32, 8, 128, 14336),
}
"""Llama 3.2 1B and 3B, and Llama 3.1 8B."""


def matrices(s: Shape) -> dict[str, tuple[int, int]]:
    """Return the rows and columns of a layer's matrices by GGUF's names."""
    keys = s.key_heads * s.size
    return {
        "attn_q": (s.heads * s.size, s.hidden), "attn_k": (keys, s.hidden), "attn_v": (keys, s.hidden),
        "attn_output": (s.hidden, s.heads * s.size), "ffn_gate": (s.inner, s.hidden), "ffn_up": (s.inner, s.hidden),
        "ffn_down": (s.hidden, s.inner),
    }  # fmt: skip


def write_file(path: Path, s: Shape, vocabulary: int, kind: str) -> None:
    """Write a GGUF file whose matrices have a layout of `LAYOUTS`."""
    rng = np.random.default_rng(0)
    layout = LAYOUTS[kind]
    most = max(n * layout.row_bytes(k) for n, k in (*matrices(s).values(), (vocabulary, s.hidden)))
    pool = np.resize(random_blocks(kind, (4096, s.hidden), rng).reshape(-1), most)

    def matrix(n: int, k: int) -> tuple[str, np.ndarray]:
        return kind, pool[: n * layout.row_bytes(k)].reshape(n, -1)

    ones = "f32", np.ones(s.hidden, np.float32)
    tensors: dict[str, tuple[str, np.ndarray]] = {
        "token_embd.weight": matrix(vocabulary, s.hidden),
        "output.weight": matrix(vocabulary, s.hidden),
        "output_norm.weight": ones,
    }
    for i in range(s.layers):
        tensors |= {f"blk.{i}.{name}.weight": matrix(*lens) for name, lens in matrices(s).items()}
        tensors |= {f"blk.{i}.{name}.weight": ones for name in ("attn_norm", "ffn_norm")}
    metadata: dict[str, Any] = {
        "general.architecture": "llama", "general.name": "random", "llama.context_length": CONTEXT,
        "llama.block_count": s.layers, "llama.embedding_length": s.hidden, "llama.feed_forward_length": s.inner,
        "llama.attention.head_count": s.heads, "llama.attention.head_count_kv": s.key_heads,
        "llama.attention.key_length": s.size, "llama.attention.value_length": s.size,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": s.size,
        "llama.rope.freq_base": THETA, "llama.vocab_size": vocabulary, "tokenizer.ggml.model": "none",
    }  # fmt: skip
    write_gguf(path, metadata, tensors)


class _OnnxWriter:
    """Collects a decoder's nodes, and writes its weights to the external data file as they are made."""

    def __init__(self, file: BinaryIO, dtype: str, bits: int, seed: int = 0) -> None:
        self.file, self.rng, self.dtype, self.bits = file, np.random.default_rng(seed), dtype, bits
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def weight(self, name: str, array: np.ndarray) -> str:
        """Write an array and return its name."""
        from onnx import TensorProto, helper

        tensor = TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": Path(self.file.name).name, "offset": self.file.tell(), "length": array.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self.file.write(array.tobytes() + bytes(-array.nbytes % 64))
        self.tensors.append(tensor)
        return name

    def op(self, op_type: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its first result."""
        from onnx import helper

        self.nodes.append(helper.make_node(op_type, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def product(self, name: str, x: str, n: int, k: int) -> str:
        """Add a product with a matrix, of 4 bits or dense."""
        scale = k**-0.5  # so that results are about as large as rows, and float16 does not overflow after many layers
        if self.bits == 16:
            dense = np.resize((self.rng.standard_normal(1 << 20) * scale).astype(self.dtype), (k, n))
            return self.op("MatMul", [x, self.weight(f"{name}.dense", dense)], [f"{name}.y"])
        codes = np.resize(self.rng.integers(0, 256, 1 << 20).astype(np.uint8), (n, k // BLOCK, BLOCK // 2))
        scales = np.full((n, k // BLOCK), scale / 4.6, self.dtype)  # 4.6 is the deviation of codes
        inputs = [x, self.weight(f"{name}.codes", codes), self.weight(f"{name}.scales", scales)]
        options = {"K": k, "N": n, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        return self.op("MatMulNBits", inputs, [f"{name}.y"], "com.microsoft", **options)

    def norm(self, name: str, x: str, n: int) -> str:
        """Add a root mean square norm."""
        weight = self.weight(f"{name}.weight", np.ones(n, self.dtype))
        return self.op("SimplifiedLayerNormalization", [x, weight], [f"{name}.y"], axis=-1, epsilon=1e-5, stash_type=1)


def _layers(w: _OnnxWriter, s: Shape, x: str) -> str:
    """Add the layers and return the last sum."""
    names = ("attn_q", "attn_k", "attn_v")
    for i in range(s.layers):
        at, lens = f"{i}.", matrices(s)
        y = w.norm(f"{at}attn_norm", x, s.hidden)
        parts = [w.product(at + name, y, *lens[name]) for name in names]
        past = [f"past_key_values.{i}.key", f"past_key_values.{i}.value"]
        present = [f"present.{i}.key", f"present.{i}.value"]
        y = w.op(
            "GroupQueryAttention", [*parts, *past, "ends", "total", "cos", "sin"], [f"{at}attention", *present],
            "com.microsoft", num_heads=s.heads, kv_num_heads=s.key_heads, do_rotary=1,
        )  # fmt: skip
        x = w.op("Add", [x, w.product(f"{at}attn_output", y, *lens["attn_output"])], [f"{at}sum"])
        y = w.norm(f"{at}ffn_norm", x, s.hidden)
        gate, up = (w.product(at + name, y, *lens[name]) for name in ("ffn_gate", "ffn_up"))
        gate = w.op("Mul", [gate, w.op("Sigmoid", [gate], [f"{at}sigmoid"])], [f"{at}silu"])
        y = w.product(f"{at}ffn_down", w.op("Mul", [gate, up], [f"{at}gated"]), *lens["ffn_down"])
        x = w.op("Add", [x, y], [f"{at}out"])
    return x


def write_folder(folder: Path, s: Shape, vocabulary: int, dtype: str = "float32", bits: int = 4) -> None:
    """Write a folder of onnxruntime-genai."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "model.onnx.data").open("wb") as file:
        w = _OnnxWriter(file, dtype, bits)
        numbers = {"axis": np.array([1]), "one": np.array([1]), "at": np.int64(1)}
        w.op("ReduceSum", ["attention_mask", "axis"], ["counted"], keepdims=0)
        w.op("Cast", [w.op("Sub", ["counted", "one"], ["last"])], ["ends"], to=TensorProto.INT32)
        w.op("Gather", [w.op("Shape", ["attention_mask"], ["lens"]), "at"], ["total64"])
        w.op("Cast", ["total64"], ["total"], to=TensorProto.INT32)
        angles = np.arange(CONTEXT)[:, None] / THETA ** (np.arange(0, s.size, 2) / s.size)
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            w.weight(name, function(angles).astype(dtype))
        table = np.resize(w.rng.standard_normal(1 << 20).astype(dtype), (vocabulary, s.hidden))
        x = w.op("Gather", [w.weight("embedding", table), "input_ids"], ["embedded"])
        logits = w.product("output", w.norm("output_norm", _layers(w, s, x), s.hidden), vocabulary, s.hidden)
        w.op("Identity", [logits], ["logits"])
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", t]) for n, t in IDS.items()]
    floats = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = [helper.make_tensor_value_info("logits", floats, ["b", "s", vocabulary])]
    for i in range(s.layers):
        for kind in ("key", "value"):
            for listed, name, length in ((inputs, "past_key_values", "p"), (outputs, "present", "t")):
                lens: list[str | int | None] = ["b", s.key_heads, length, s.size]
                listed.append(helper.make_tensor_value_info(f"{name}.{i}.{kind}", floats, lens))
    small = [numpy_helper.from_array(np.asarray(v), n) for n, v in numbers.items()]
    graph = helper.make_graph(w.nodes, "llama", inputs, outputs, [*w.tensors, *small])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(folder / "model.onnx"))
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []}, "filename": "model.onnx",
        "head_size": s.size, "hidden_size": s.hidden, "num_attention_heads": s.heads, "num_hidden_layers": s.layers,
        "num_key_value_heads": s.key_heads, "inputs": {
            **{n: n for n in IDS}, "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"
        },
    }  # fmt: skip
    model = {
        "type": "llama", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": vocabulary,
        "context_length": CONTEXT, "decoder": decoder,
    }  # fmt: skip
    settings = {"model": model, "search": {"max_length": CONTEXT, "past_present_share_buffer": True}}
    (folder / "genai_config.json").write_text(json.dumps(settings, indent=1))


IDS = {"input_ids": "s", "attention_mask": "t"}
"""Inputs beside caches, with the symbol of their last length."""


def main() -> int:
    """Write a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", choices=SHAPES, default="1b")
    parser.add_argument("--form", choices=("gguf", "genai"), default="gguf")
    parser.add_argument("--layout", choices=LAYOUTS, default="q4_0", help="weights of a GGUF file")
    parser.add_argument("--layers", type=int, default=0, help="layers (default: of the size)")
    parser.add_argument("--vocabulary", type=int, default=32000, help="tokens of the vocabulary")
    parser.add_argument("--type", choices=("float32", "float16"), default="float32", help="activations of a folder")
    parser.add_argument("--bits", type=int, choices=(4, 16), default=4, help="weights of a folder")
    given = parser.parse_args()
    shape = SHAPES[given.size]
    if given.layers:
        shape = Shape(shape.hidden, given.layers, shape.heads, shape.key_heads, shape.size, shape.inner)
    if given.form == "gguf":
        write_file(given.path, shape, given.vocabulary, given.layout)
    else:
        write_folder(given.path, shape, given.vocabulary, given.type, given.bits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
