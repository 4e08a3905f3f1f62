"""One step of an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import ParseError
from ...graph.instruction import Instruction
from ..arithmetic import mul_scalar
from .activation import add_scalar
from .builder import Builder
from .node import Node
from .registry import register

TRAINING = "ai.onnx.preview.training"

Update = Callable[[Instruction, Instruction, "list[Instruction]"], "list[Instruction]"]


def _each(values: Sequence[Instruction], states: int, update: Update) -> list[Instruction]:
    """Update every tensor; inputs and results list all tensors, all gradients (inputs only), then all of each state."""
    groups = states + 2
    if not values or len(values) % groups:
        raise ParseError(f"got {len(values)} inputs after rate and count, expected {groups} for each tensor")
    count = len(values) // groups
    columns = [values[k * count : (k + 1) * count] for k in range(groups)]
    rows = [update(x, g, list(state)) for x, g, *state in zip(*columns, strict=True)]
    return [row[k] for k in range(states + 1) for row in rows]


def _regularized(g: Builder, node: Node, x: Instruction, gradient: Instruction) -> Instruction:
    return g.pointwise("add", mul_scalar(g, x, node.get_float("norm_coefficient", 0.0)), gradient)


def _from_second(g: Builder, count: Instruction, later: Instruction, first: Instruction) -> Instruction:
    """Emit ``later`` where the update count is above 0, else ``first``."""
    return g.pointwise("where", g.pointwise("greater", count, g.like(0, count)), later, first)


@register("Adagrad", domain=TRAINING)
def adagrad(g: Builder, node: Node, rate: Instruction, count: Instruction, *values: Instruction) -> list[Instruction]:
    """Emit ``x - r g / (sqrt(h + g * g) + epsilon)`` with ``r = rate / (1 + count * decay)``."""
    decayed = mul_scalar(g, g.convert(count, rate.shape.type), node.get_float("decay_factor", 0.0))
    r = g.pointwise("div", rate, add_scalar(g, decayed, 1))
    epsilon = node.get_float("epsilon", 1e-6)

    def update(x: Instruction, gradient: Instruction, state: list[Instruction]) -> list[Instruction]:
        slope = _regularized(g, node, x, gradient)
        squares = g.pointwise("add", state[0], g.op("mul", slope, slope))
        step = g.pointwise("div", g.pointwise("mul", g.convert(r, x.shape.type), slope), _root(g, squares, epsilon))
        return [g.pointwise("sub", x, step), squares]

    return _each(values, 1, update)


def _root(g: Builder, x: Instruction, epsilon: float) -> Instruction:
    return add_scalar(g, g.op("sqrt", x), epsilon)


@register("Adam", domain=TRAINING)
def adam(g: Builder, node: Node, rate: Instruction, count: Instruction, *values: Instruction) -> list[Instruction]:
    """Emit Adam: moving means of gradients and their squares, with bias correction from the second update on."""
    alpha, beta = node.get_float("alpha", 0.9), node.get_float("beta", 0.999)
    epsilon, post = node.get_float("epsilon", 1e-6), node.get_float("norm_coefficient_post", 0.0)
    t = g.convert(count, rate.shape.type)

    def rest(base: float) -> Instruction:
        return g.pointwise("sub", g.like(1, rate), g.pointwise("pow", g.like(base, rate), t))

    unbiased = g.pointwise("div", g.pointwise("mul", rate, g.op("sqrt", rest(beta))), rest(alpha))
    r = _from_second(g, count, unbiased, rate)

    def update(x: Instruction, gradient: Instruction, state: list[Instruction]) -> list[Instruction]:
        slope = _regularized(g, node, x, gradient)
        mean = g.pointwise("add", mul_scalar(g, state[0], alpha), mul_scalar(g, slope, 1 - alpha))
        squares = g.op("mul", slope, slope)
        square = g.pointwise("add", mul_scalar(g, state[1], beta), mul_scalar(g, squares, 1 - beta))
        step = g.pointwise("div", mean, _root(g, square, epsilon))
        moved = g.pointwise("sub", x, g.pointwise("mul", g.convert(r, x.shape.type), step))
        return [mul_scalar(g, moved, 1 - post), mean, square]

    return _each(values, 2, update)


@register("Momentum", domain=TRAINING)
def momentum(g: Builder, node: Node, rate: Instruction, count: Instruction, *values: Instruction) -> list[Instruction]:
    """Emit ``v = alpha v + beta g`` (beta is 1 at first), then ``x - rate v``; ``nesterov`` looks a step ahead."""
    ahead = node.get_choice("mode", ("standard", "nesterov")) == "nesterov"
    alpha = node.get_float("alpha")
    beta = _from_second(g, count, g.like(node.get_float("beta"), rate), g.like(1, rate))

    def update(x: Instruction, gradient: Instruction, state: list[Instruction]) -> list[Instruction]:
        slope = _regularized(g, node, x, gradient)
        scaled = g.pointwise("mul", g.convert(beta, x.shape.type), slope)
        speed = g.pointwise("add", mul_scalar(g, state[0], alpha), scaled)
        step = g.pointwise("add", slope, mul_scalar(g, speed, alpha)) if ahead else speed
        return [g.pointwise("sub", x, g.pointwise("mul", g.convert(rate, x.shape.type), step)), speed]

    return _each(values, 1, update)
