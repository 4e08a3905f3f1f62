"""Recurrent layers: each layer of PyTorch's stack is one operator of the IR."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.instruction import Instruction
from ...ops.base import make_op
from .builder import AtenBuilder, rank
from .control_flow import scan
from .node import AtenNode
from .registry import register

ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""Places of PyTorch's gates (i f g o; r z n) in the order of the IR (i o f c; z r h)."""
FUNCTIONS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
"""Activation functions of a direction."""


@register("lstm.input")
def lstm(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    states: Sequence[Instruction],
    params: Sequence[Instruction],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Instruction]:
    """Emit the hidden states of the last layer, and the last hidden and cell states of all layers."""
    stack = (params, has_biases, num_layers, bidirectional, batch_first)
    return _layers(g, "lstm", x, states[0], states[1], *stack)


@register("gru.input", "rnn_tanh.input", "rnn_relu.input")
def gru(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    state: Instruction,
    params: Sequence[Instruction],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Instruction]:
    """Emit the hidden states of the last layer, and the last hidden states of all layers."""
    kind = "gru" if node.base == "gru" else "rnn"
    functions = ("relu",) if node.base == "rnn_relu" else None
    return _layers(g, kind, x, state, None, params, has_biases, num_layers, bidirectional, batch_first, functions)


def _layers(
    g: AtenBuilder,
    kind: str,
    x: Instruction,
    hidden: Instruction,
    cell: Instruction | None,
    params: Sequence[Instruction],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
    functions: Sequence[str] | None = None,
) -> list[Instruction]:
    alone = rank(x) == 2
    if alone:
        x, hidden, cell = (None if v is None else g.unsqueeze(v, [1]) for v in (x, hidden, cell))  # type: ignore[assignment]
    elif batch_first:
        x = g.transpose(x, (1, 0, 2))
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    is_projected = each % 2 == 1
    last_hidden, last_cell = [], []
    for layer in range(num_layers):
        own = [params[(layer * directions + k) * each : (layer * directions + k + 1) * each] for k in range(directions)]
        first, last = layer * directions, (layer + 1) * directions
        start = g.slice(hidden, 0, first, last)
        cells = None if cell is None else g.slice(cell, 0, first, last)
        if is_projected:
            states, ends = _projected_layer(g, x, own, start, cells)
        else:
            states, ends = _layer(g, kind, x, own, has_biases, start, cells, functions)
        last_hidden.append(ends[0])
        last_cell += ends[1:]
        steps, d, batch, size = g.lens(states)
        x = g.reshape(g.transpose(states, (0, 2, 1, 3)), (steps, batch, d * size))
    joined = [g.op("concat", *v, axis=0) if len(v) > 1 else v[0] for v in (last_hidden, last_cell) if v]
    if alone:
        return [g.squeeze(v, [1]) for v in (x, *joined)]
    return [g.transpose(x, (1, 0, 2)) if batch_first else x, *joined]


def _layer(
    g: AtenBuilder,
    kind: str,
    x: Instruction,
    own: Sequence[Sequence[Instruction]],
    has_biases: bool,
    hidden: Instruction,
    cell: Instruction | None,
    functions: Sequence[str] | None,
) -> tuple[Instruction, list[Instruction]]:
    """Emit one layer, and return its hidden states and the last states."""
    size = g.lens(hidden)[2]
    gates = len(ORDERS[kind])

    def ordered(value: Instruction) -> Instruction:
        rest = g.lens(value)[1:]
        if gates == 1:
            return value
        split = g.reshape(value, (gates, size, *rest))
        picked = g.op("gather", split, g.literal(np.array(ORDERS[kind], np.int64)), axis=0)
        return g.reshape(picked, (gates * size, *rest))

    def stacked(values: Sequence[Instruction]) -> Instruction:
        rows = [g.unsqueeze(v, [0]) for v in values]
        return g.op("concat", *rows, axis=0) if len(rows) > 1 else rows[0]

    w, r = stacked([ordered(p[0]) for p in own]), stacked([ordered(p[1]) for p in own])
    bias = g.undefined()
    if has_biases:
        bias = stacked([g.op("concat", ordered(p[2]), ordered(p[3]), axis=0) for p in own])
    inputs = [x, w, r, bias, g.undefined(), hidden]
    attributes: dict[str, Any] = {
        "hidden_size": size,
        "actv_func": tuple(make_op(f) for f in tuple(functions or FUNCTIONS[kind]) * len(own)),
        "direction": "bidirectional" if len(own) == 2 else "forward",
    }
    if kind == "gru":
        attributes["linear_before_reset"] = 1
    if kind == "lstm" and cell is not None:
        inputs += [cell, g.undefined()]
    states = g.op(kind, *inputs, **attributes)
    ends = [g.op("rnn_last_hs_output", states)]
    if kind == "lstm":
        ends.append(g.op("rnn_last_cell_output", states))
    return states, ends


def _projected_layer(
    g: AtenBuilder,
    x: Instruction,
    own: Sequence[Sequence[Instruction]],
    hidden: Instruction,
    cell: Instruction | None,
) -> tuple[Instruction, list[Instruction]]:
    """Emit one layer whose hidden states are projections, as a loop for each direction; return what `_layer` returns.

    Args:
        own: of each direction the weights of inputs and hidden states, both biases if there are any, the projection.
    """
    assert cell is not None
    every, hiddens, cells = [], [], []
    for direction, (w, r, *biases, projection) in enumerate(own):
        gates = g.matmul(x, g.swap_last(w))
        for bias in biases:
            gates = g.pointwise("add", gates, bias)
        start = [g.squeeze(g.slice(v, 0, direction, direction + 1), [0]) for v in (hidden, cell)]
        inline = functools.partial(_projected_step, weights=(g.swap_last(r), g.swap_last(projection)))
        h, c, rows = scan(g, inline, None, start, [g.op("reverse", gates, axes=(0,)) if direction else gates])
        every.append(g.op("reverse", rows, axes=(0,)) if direction else rows)
        hiddens.append(h)
        cells.append(c)

    def stacked(values: Sequence[Instruction], axis: int) -> Instruction:
        wide = [g.unsqueeze(v, [axis]) for v in values]
        return g.op("concat", *wide, axis=axis) if len(wide) > 1 else wide[0]

    return stacked(every, 1), [stacked(hiddens, 0), stacked(cells, 0)]


def _projected_step(
    _: object, values: Sequence[Any], g: AtenBuilder, weights: tuple[Instruction, Instruction]
) -> list[Any]:
    """Emit a step of a direction: from the states and the inputs' part of the gates, the states and a row of results.

    Args:
        weights: those of hidden states [projected, 4 * size], and the projection [size, projected].
    """
    h, c, rows = values
    found, size = g.pointwise("add", rows, g.matmul(h, weights[0])), g.lens(c)[1]
    i, f, z, o = (g.slice(found, 1, k * size, (k + 1) * size) for k in range(4))
    i, f, o = (g.op("sigmoid", v) for v in (i, f, o))
    c = g.pointwise("add", g.pointwise("mul", f, c), g.pointwise("mul", i, g.op("tanh", z)))
    h = g.matmul(g.pointwise("mul", o, g.op("tanh", c)), weights[1])
    return [h, c, h]
