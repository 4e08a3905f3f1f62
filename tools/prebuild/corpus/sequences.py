"""Models of sequences with open lengths: transformer blocks as exporters write them, and recurrent layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from tools.prebuild.corpus.item import Item, parsed
from tools.prebuild.corpus.layers import EPILOGUES, FLOAT, INT64, Graph

__all__ = ["items"]

LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Block:
    """A decoder or an encoder of one layer.

    Attributes:
        norm: ``layer`` (one node), ``nodes`` (layer normalisation in nodes) or ``rms``.
        mlp: the epilogue between the two products (`EPILOGUES`), ``gate`` for a gated unit.
        rotary: positions turn queries and keys; otherwise they are embedded.
        cache: keys and values of earlier tokens are inputs.
        heads: of the queries.
        shared: queries that share a key.
        size: length of a head.
        bits: of the weights; 32, or 4 in blocks of 32 (``MatMulNBits``).
        accuracy: ``accuracy_level`` of these products; 4 lets rows be rounded to 8 bits.
    """

    norm: str = "layer"
    mlp: str = "gelu tanh"
    rotary: bool = False
    cache: bool = True
    heads: int = 8
    shared: int = 1
    size: int = 64
    bits: int = 32
    accuracy: int = 0


BLOCKS = {
    "gpt2": Block(),
    "gpt2 nodes": Block(norm="nodes"),
    "llama": Block("rms", "gate", True),
    "llama shared": Block("rms", "gate", True, shared=4),
    "llama 128": Block("rms", "gate", True, heads=4, size=128, shared=2),
    "llama no cache": Block("rms", "gate", True, cache=False),
    "llama 4 bits": Block("rms", "gate", True, bits=4),
    "llama 4 bits, 8-bit rows": Block("rms", "gate", True, bits=4, accuracy=4),
    "bert": Block(mlp="gelu", cache=False),
    "bert nodes": Block("nodes", "gelu", cache=False),
    "small bert": Block("nodes", "gelu", cache=False, heads=12, size=32),
}


def items() -> Iterator[Item]:
    """Return all models."""
    for name, block in BLOCKS.items():
        make = partial(_program, block)
        yield Item(name, make, threads=(1, 4), narrow=block.bits < 16)
        yield Item(f"{name}, exact", make, threads=(4,), options={"fast_math": False}, narrow=block.bits < 16)
    batches: tuple[int | str, ...] = (1, "b")
    for op, direction, hidden, batch in itertools.product(
        ("GRU", "LSTM", "RNN"), ("forward", "bidirectional"), (64, 100, 256), batches
    ):
        yield Item(f"{op} {direction} {hidden} {batch}", partial(_layer, op, direction, hidden, batch), threads=(1, 4))


def _program(block: Block) -> object:
    return parsed(_model(block))


def _layer(op: str, direction: str, hidden: int, batch: int | str) -> object:
    g = Graph()
    x = g.op("Transpose", g.input(batch, "t", 64), perm=[1, 0, 2])
    count, gates = 1 + (direction == "bidirectional"), {"GRU": 3, "LSTM": 4, "RNN": 1}[op]
    attributes = {"linear_before_reset": 1} if op == "GRU" else {}
    weights = (
        g.weights(count, gates * hidden, 64),
        g.weights(count, gates * hidden, hidden),
        g.weights(count, 2 * gates * hidden),
    )
    y = g.op(op, x, *weights, direction=direction, hidden_size=hidden, **attributes)
    y = g.op("Reshape", g.op("Transpose", y, perm=[2, 0, 1, 3]), g.ints(0, 0, -1))
    y = g.op("Add", g.op("MatMul", y, g.weights(count * hidden, 40)), g.weights(40))
    return parsed(g.model(g.op("Softmax", y, axis=-1), y))


def _model(block: Block) -> onnx.ModelProto:
    g = Graph()
    width = block.heads * block.size
    ids = g.input("batch", "tokens", dtype=INT64)
    mask = g.input("batch", "all" if block.cache else "tokens", dtype=INT64)
    past = [g.input("batch", block.heads // block.shared, "past", block.size) for _ in range(2 * block.cache)]
    positions = g.input("batch", "tokens", dtype=INT64)
    x = g.op("Gather", g.weights(1000, width), ids)
    if not block.rotary:
        x = g.op("Add", x, g.op("Gather", g.weights(512, width), positions))
    hidden = _bias(g, block, ids, mask, past)
    results: list[str] = []
    for first in (True, False):
        own = past if first or not past else []
        attended = _attention(g, block, _norm(g, block, x, width), positions, hidden, own, results if own else [])
        x = g.op("Add", x, attended)
        y = _norm(g, block, x, width)
        if block.mlp == "gate":
            gate = _product(g, block, y, width, 2 * width)
            y = g.op("Mul", EPILOGUES["silu"](g, gate, str), _product(g, block, y, width, 2 * width))
        else:
            y = EPILOGUES[block.mlp](g, _biased(g, block, y, width, 4 * width), str)
        wide = (2 if block.mlp == "gate" else 4) * width
        x = g.op("Add", x, (_product if block.mlp == "gate" else _biased)(g, block, y, wide, width))
        if past:
            break
    scores = _product(g, block, _norm(g, block, x, width), width, 1000)
    return g.model(scores, *results)


def _norm(g: Graph, block: Block, x: str, width: int) -> str:
    if block.norm == "layer":
        return g.op("LayerNormalization", x, g.weights(width), g.weights(width), epsilon=1e-5)
    two, last = g.const(2.0), g.ints(-1)
    if block.norm == "rms":
        mean = g.op("ReduceMean", g.op("Pow", x, two), last)
        scale = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean, g.const(1e-6))))
        return g.op("Mul", g.weights(width), g.op("Mul", x, scale))
    centred = g.op("Sub", x, g.op("ReduceMean", x, last))
    variance = g.op("ReduceMean", g.op("Pow", centred, two), last)
    scaled = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.const(1e-5))))
    return g.op("Add", g.op("Mul", scaled, g.weights(width)), g.weights(width))


def _product(g: Graph, block: Block, x: str, k: int, n: int) -> str:
    if block.bits == 32:
        return g.op("MatMul", x, g.weights(k, n))
    blocks = k // 32
    packed = g.const(np.random.default_rng(0).integers(0, 256, (n, blocks, 16)), np.uint8)
    attributes = {"K": k, "N": n, "bits": 4, "block_size": 32, "accuracy_level": block.accuracy}
    scales = g.const(np.full(n * blocks, 0.01))
    return g.op("MatMulNBits", x, packed, scales, domain="com.microsoft", **attributes)


def _biased(g: Graph, block: Block, x: str, k: int, n: int) -> str:
    return g.op("Add", _product(g, block, x, k, n), g.weights(n))


def _bias(g: Graph, block: Block, ids: str, mask: str, past: list[str]) -> str:
    """Return what is added to scores: of later tokens, if the block has a cache or turns, and of padding."""
    keep = g.op("Unsqueeze", g.op("Cast", mask, to=FLOAT), g.ints(1, 2))
    padding = g.op("Mul", g.op("Sub", g.const(1.0), keep), g.const(LOWEST))
    if not (block.cache or block.rotary):
        return padding
    zero, one = g.const(0, np.int64), g.const(1, np.int64)
    tokens = g.op("Gather", g.op("Shape", ids), one, axis=0)
    before = g.op("Gather", g.op("Shape", past[0]), g.const(2, np.int64), axis=0) if past else zero
    every = g.op("Add", before, tokens)
    rows = g.op("Unsqueeze", g.op("Range", before, every, one), g.ints(-1))
    later = g.op("Greater", g.op("Range", zero, every, one), rows)
    return g.op("Add", padding, g.op("Where", later, g.const(LOWEST), g.const(0.0)))


def _turned(g: Graph, x: str, cosine: str, sine: str, size: int) -> str:
    half = g.ints(size // 2)
    left, right = g.op("Slice", x, g.ints(0), half, g.ints(3)), g.op("Slice", x, half, g.ints(1 << 40), g.ints(3))
    swapped = g.op("Concat", g.op("Neg", right), left, axis=-1)
    return g.op("Add", g.op("Mul", x, cosine), g.op("Mul", swapped, sine))


def _attention(g: Graph, block: Block, x: str, positions: str, bias: str, past: list[str], results: list[str]) -> str:
    width, keys = block.heads * block.size, block.heads // block.shared
    product = _product if block.rotary else _biased
    parts = []
    for heads in (block.heads, keys, keys):
        y = product(g, block, x, width, heads * block.size)
        parts.append(g.op("Transpose", g.op("Reshape", y, g.ints(0, 0, heads, block.size)), perm=[0, 2, 1, 3]))
    q, k, v = parts
    if block.rotary:
        angles = g.op(
            "Mul", g.op("Unsqueeze", g.op("Cast", positions, to=FLOAT), g.ints(-1)), g.weights(block.size // 2)
        )
        angles = g.op("Unsqueeze", g.op("Concat", angles, angles, axis=-1), g.ints(1))
        cosine, sine = g.op("Cos", angles), g.op("Sin", angles)
        q, k = _turned(g, q, cosine, sine, block.size), _turned(g, k, cosine, sine, block.size)
    if past:
        k, v = g.op("Concat", past[0], k, axis=2), g.op("Concat", past[1], v, axis=2)
        results += [k, v]
    if block.shared > 1:
        k, v = (_repeated(g, y, block) for y in (k, v))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Add", g.op("Mul", scores, g.const(block.size**-0.5)), bias)
    y = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints(0, 0, width))
    return product(g, block, y, width, width)


def _repeated(g: Graph, x: str, block: Block) -> str:
    """Return keys or values for each head."""
    lens = g.op("Shape", x)
    b, t = (g.op("Gather", lens, g.ints(axis), axis=0) for axis in (0, 2))
    keys = block.heads // block.shared
    wide = g.op("Concat", b, g.ints(keys, block.shared), t, g.ints(block.size), axis=0)
    joined = g.op("Concat", b, g.ints(block.heads), t, g.ints(block.size), axis=0)
    return g.op("Reshape", g.op("Expand", g.op("Unsqueeze", x, g.ints(2)), wide), joined)
