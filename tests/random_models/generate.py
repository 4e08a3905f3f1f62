"""Generate a random model from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

from .builder import FLOATS, INTEGERS, LENGTHS, MAX_ELEMENTS, Builder, random_array
from .families import STEPS

__all__ = ["Case", "generate", "operators_of"]

MAX_STEPS = 16
"""Most nodes or small groups of nodes: enough for several clusters, few enough to compile in about a second."""
LONG_EVERY, LONG_STEPS = 50, 100
"""Each so many seeds a model of so many steps: of more than 80 nodes, whatever steps come to nothing."""
KINDS = 6
"""Kinds of steps of a model that is made of few."""


@dataclass(frozen=True)
class Case:
    """A model and a value for each of its inputs.

    Attributes:
        model: the model.
        feeds: a value for each input, by name.
        wrong: for some inputs of indices, by name, values of which one is out of range, so that a run is an error.
    """

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    wrong: dict[str, np.ndarray] = field(default_factory=dict)


def generate(seed: int) -> Case:
    """The model of a seed: a few steps of any families, and as results what nothing else uses and a few more."""
    b = Builder(seed)
    for _ in range(b.integer(1, 3)):
        b.input(_first(b))
    if b.chance(2):  # few kinds of steps meet one another more often than all of them
        b.steps = [b.pick(STEPS) for _ in range(KINDS)]
    steps = b.integer(2, MAX_STEPS)
    for _ in range(LONG_STEPS if (seed + 1) % LONG_EVERY == 0 else steps):
        b.pick(b.steps or STEPS)(b)
    used = {n for node in b.nodes for n in node.input}
    made = [v for v in b.pool if v not in b.inputs and v not in b.constants]
    last = [v for v in made if v.name not in used]
    results = (last or made)[-b.integer(1, 5) :] + b.leaves
    if made and b.chance(3):
        results.append(b.pick(made))
    if not results:
        results = [b.node("Identity", [b.inputs[0]]) or b.inputs[0]]
    model = b.model(list(dict.fromkeys(results)))
    return Case(model, {v.name: v.array for v in b.inputs}, b.wrong)


def _first(b: Builder) -> np.ndarray:
    lens = () if b.chance(12) else b.lens((1, 4), MAX_ELEMENTS, LENGTHS)
    return random_array(b.pick(INTEGERS if b.chance(5) else FLOATS), lens, b.rng, b.special)


def operators_of(graph: onnx.GraphProto) -> list[str]:
    """Operators of a graph and of its nodes' bodies."""
    inner = [operators_of(a.g) for node in graph.node for a in node.attribute if a.HasField("g")]
    return [node.op_type for node in graph.node] + [op for ops in inner for op in ops]
