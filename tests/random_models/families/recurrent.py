"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder
from .registry import step

__all__ = []

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@step()
def recurrent(b: Builder) -> Any:
    op = b.pick(tuple(GATES))
    steps, batch, width, hidden = b.integer(1, 4), b.integer(1, 3), b.pick((1, 3, 8)), b.pick((1, 4, 5))
    direction = b.pick(("forward", "reverse", "bidirectional"))
    d = 2 if direction == "bidirectional" else 1
    layout = b.integer(0, 1) if b.outer is None and b.opset >= 14 and b.chance(3) else 0

    def ordered(first: int, second: int, last: int) -> tuple[int, ...]:
        return (second, first, last) if layout else (first, second, last)

    x = b.new(ordered(steps, batch, width), np.float32, False)
    rows = GATES[op] * hidden
    w, r = (b.constant(b.rng.standard_normal((d, rows, k)) / 2, np.float32) for k in (width, hidden))
    bias = b.constant(b.rng.standard_normal((d, 2 * rows)) / 2, np.float32) if b.chance(2) else None
    lengths = b.constant(b.rng.integers(1, steps + 1, batch), np.int32) if b.chance(3) else None
    first = [
        b.new(ordered(d, batch, hidden), np.float32, False) if b.chance(2) else None
        for _ in range(2 if op == "LSTM" else 1)
    ]
    peephole = [b.constant(b.rng.standard_normal((d, 3 * hidden)), np.float32)] if op == "LSTM" and b.chance(4) else []
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if layout:
        attributes["layout"] = 1
    if b.chance(3):
        attributes["clip"] = b.pick((0.1, 0.75, 3.0))
    if op == "GRU":
        attributes["linear_before_reset"] = b.integer(0, 1)
    if op == "LSTM" and b.chance(4):
        attributes["input_forget"] = 1
    return b.outputs(
        op, [x, w, r, bias, lengths, *first, *peephole], b.integer(1, 3 if op == "LSTM" else 2), **attributes
    )
