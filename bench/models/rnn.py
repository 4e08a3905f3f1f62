"""Two-layer bidirectional LSTM and GRU as PyTorch's exporter writes them, opset 14."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from bench.models.builder import GraphBuilder
from bench.models.layers import recurrent, zero_state


@dataclass(frozen=True)
class Config:
    steps: int
    features: int
    hidden: int


CONFIGS = {"full": Config(steps=64, features=256, hidden=256), "tiny": Config(steps=5, features=8, hidden=6)}
LAYERS = 2


def build_lstm(batch: int, scale: str) -> onnx.ModelProto:
    """Inputs x [steps, batch, features], h0 and c0 [4, batch, hidden]; outputs sequence, hn, cn."""
    c = CONFIGS[scale]
    g = GraphBuilder("lstm", opset=14)
    x = g.input("x", [c.steps, batch, c.features])
    states = [g.input(name, [2 * LAYERS, batch, c.hidden]) for name in ("h0", "c0")]
    features = c.features
    finals = []
    for layer in range(LAYERS):
        begin, end = g.ints(2 * layer), g.ints(2 * layer + 2)
        initial = [g.node("Slice", state, begin, end, g.ints(0)) for state in states]
        with g.scope(f"lstm.{layer}"):
            x, final = recurrent(g, "LSTM", x, features, c.hidden, initial)
        finals.append(final)
        features = 2 * c.hidden
    g.output("sequence", x, [c.steps, batch, 2 * c.hidden])
    for name, values in zip(("hn", "cn"), zip(*finals, strict=True), strict=True):
        g.output(name, g.node("Concat", *values, axis=0), [2 * LAYERS, batch, c.hidden])
    return g.model()


def build_gru(batch: int, scale: str) -> onnx.ModelProto:
    """Input x [steps, batch, features], initial state zero; outputs sequence and hn."""
    c = CONFIGS[scale]
    g = GraphBuilder("gru", opset=14)
    x = g.input("x", [c.steps, batch, c.features])
    initial = zero_state(g, batch, c.hidden)
    features = c.features
    finals = []
    for layer in range(LAYERS):
        with g.scope(f"gru.{layer}"):
            x, final = recurrent(g, "GRU", x, features, c.hidden, [initial])
        finals += final
        features = 2 * c.hidden
    g.output("sequence", x, [c.steps, batch, 2 * c.hidden])
    g.output("hn", g.node("Concat", *finals, axis=0), [2 * LAYERS, batch, c.hidden])
    return g.model()
