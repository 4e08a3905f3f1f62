"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ParseError, UnsupportedError
from ...graph.instruction import Instruction
from ...ops.base import Operator, make_op
from .builder import Builder, rank
from .node import Node
from .registry import register

FUNCTIONS: dict[str, tuple[str, dict[str, float]]] = {
    "relu": ("relu", {}),
    "tanh": ("tanh", {}),
    "sigmoid": ("sigmoid", {}),
    "softsign": ("softsign", {}),
    "softplus": ("softplus", {}),
    "affine": ("affine", {"alpha": 1.0, "beta": 0.0}),
    "leakyrelu": ("leaky_relu", {"alpha": 0.01}),
    "thresholdedrelu": ("thresholded_relu", {"alpha": 1.0}),
    "scaledtanh": ("scaled_tanh", {"alpha": 1.0, "beta": 1.0}),
    "hardsigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "elu": ("elu", {"alpha": 1.0}),
}
"""IR operator of each activation function, and the defaults of its parameters."""

DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}  # by definition
LAST = ("rnn_last_hs_output", "rnn_last_cell_output")
"""IR operators of the outputs after the hidden states."""


def activations(node: Node, kind: str, directions: int) -> tuple[Operator, ...]:
    """Return the activation functions of every direction of a layer.

    Parameters are taken in order from the parameter lists, by the functions that have parameters.

    Raises:
        ParseError: a name is unknown, or the number of names is wrong.
    """
    default = DEFAULTS[kind] * directions
    names = node.get_strs("activations", default) or default
    if len(names) != len(default):
        raise ParseError(f"activations {names} must be {len(default)} names")
    lists = {p: iter(node.get_floats(f"activation_{p}", ())) for p in ("alpha", "beta")}
    result = []
    for name in names:
        if name.lower() not in FUNCTIONS:
            raise ParseError(f"activation {name!r} is unknown")
        op, parameters = FUNCTIONS[name.lower()]
        result.append(make_op(op, **{p: next(lists[p], value) for p, value in parameters.items()}))
    return tuple(result)


def clip_threshold(node: Node) -> float:
    """Return the bound on the inputs of activations, 0 for no bound.

    A node's bound of 0 becomes float32's smallest normal number.

    Raises:
        ParseError: the threshold is negative or NaN.
    """
    if not node.has("clip"):
        return 0.0
    clip = node.get_float("clip")
    if not clip >= 0:
        raise ParseError(f"attribute 'clip' is {clip}, expected a threshold of at least 0")
    return max(clip, float(np.finfo(np.float32).tiny))


@register("RNN", "GRU", "LSTM")
def recurrent(
    g: Builder,
    node: Node,
    x: Instruction,
    w: Instruction,
    r: Instruction,
    bias: Instruction | None = None,
    lengths: Instruction | None = None,
    hidden: Instruction | None = None,
    cell: Instruction | None = None,
    peephole: Instruction | None = None,
) -> list[Instruction]:
    """Emit all hidden states, the last hidden states, and for LSTM the last cells; ``layout`` 1 is batch-first."""
    kind = node.op_type
    direction = node.get_choice("direction", ("forward", "reverse", "bidirectional"), "forward")
    directions = 2 if direction == "bidirectional" else 1
    if rank(x) != 3 or rank(w) != 3 or rank(r) != 3:
        raise ParseError(f"X, W and R have {rank(x)}, {rank(w)} and {rank(r)} dimensions, expected 3 each")
    size = node.get_int("hidden_size", g.lens(r)[2])
    if size < 1 or g.lens(w)[1] != GATES[kind] * size:
        raise ParseError(f"hidden_size {size} does not fit weights {list(g.lens(w))}")
    batch_first = node.get_bool("layout")
    if batch_first:
        x = g.transpose(x, (1, 0, 2))
        hidden, cell = (None if s is None else g.transpose(s, (1, 0, 2)) for s in (hidden, cell))
    attributes: dict[str, Any] = {
        "hidden_size": size,
        "actv_func": activations(node, kind, directions),
        "direction": direction,
        "clip": clip_threshold(node),
    }
    if kind == "GRU":
        attributes["linear_before_reset"] = node.get_int("linear_before_reset", 0)
    if kind == "LSTM":
        attributes["input_forget"] = node.get_int("input_forget", 0)
    optional = [bias, lengths, hidden]
    if kind == "LSTM":
        optional += [cell, peephole]
    elif cell is not None or peephole is not None:
        raise UnsupportedError("only LSTM has a cell state and peepholes")
    inputs = [v if v is not None else g.undefined() for v in optional]
    states = g.op(kind.lower(), x, w, r, *inputs, **attributes)
    # an unused output before a used output may have any value
    results = [g.transpose(states, (2, 0, 1, 3)) if batch_first else states] * max(1, len(node.outputs))
    for k, name in enumerate(LAST[: len(results) - 1], 1):
        if node.wants(k):
            last = g.op(name, states)
            results[k] = g.transpose(last, (1, 0, 2)) if batch_first else last
    return results
