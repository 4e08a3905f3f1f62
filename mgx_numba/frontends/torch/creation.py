"""Constants, and tensors that follow from lengths."""

from __future__ import annotations

import numpy as np

from ...core.dim import Dim
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import AtenBuilder
from .node import AtenNode
from .registry import register
from .types import Lens, Number, Operand


@register("full")
def full(g: AtenBuilder, node: AtenNode, size: Lens, fill_value: Operand, **_: object) -> Instruction:
    """Emit a tensor of one value."""
    return g.zeros(size, node.type, fill_value)


@register("full_like", "fill.Scalar", "fill.Tensor")
def full_like(g: AtenBuilder, node: AtenNode, x: Instruction, fill_value: Operand, **_: object) -> Instruction:
    """Emit a tensor filled with a value, in the shape of ``x``."""
    return g.zeros(g.lens(x), node.type, fill_value)


@register("zeros", "ones", "empty.memory_format", "empty_strided", "empty_permuted")
def filled(g: AtenBuilder, node: AtenNode, size: Lens, *_: object, **options: object) -> Instruction:
    """Emit zeros or ones; memory without contents has zeros."""
    return g.zeros(size, node.type, int(node.base == "ones"))


@register("scalar_tensor")
def scalar_tensor(g: AtenBuilder, node: AtenNode, value: Operand, **_: object) -> Instruction:
    """Emit a tensor without axes."""
    return g.value(value, node.type)


@register("lift_fresh_copy", "lift_fresh", "lift")
def lift(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Return the input."""
    return x


@register("arange.start", "arange.start_step")
def arange_from(
    g: AtenBuilder, node: AtenNode, start: Number, end: Number, step: Number = 1, **_: object
) -> Instruction:
    """Emit the range from ``start`` to before ``end``."""
    if not any(isinstance(v, Dim) for v in (start, end, step)):
        first, by = (start, step) if node.type.is_floating else (int(start), int(step))
        if node.type is Type.int64_type:  # PyTorch counts int64 after truncation, and shorter integers before it
            start, end, step = first, int(end), by
        count = max(0, int(np.ceil((end - start) / step)))
        g.limit(count, "a range")
        wide = np.float64 if node.type.is_floating else np.int64
        return g.literal(first + np.arange(count).astype(wide) * by, node.type)
    return g.progression(g.value(start, node.type), g.value(step, node.type), (start, end, step))


@register("linspace")
def linspace(g: AtenBuilder, node: AtenNode, start: float, end: float, steps: int, **_: object) -> Instruction:
    """Emit evenly spaced numbers, both ends included."""
    if isinstance(start, Instruction) or isinstance(end, Instruction):
        return _between(g, node.type, start, end, steps)
    if any(isinstance(v, Dim) for v in (start, end, steps)):
        raise UnsupportedError("linspace between lengths is not supported")
    if node.type.is_integral:
        start, end = int(start), int(end)
    end = start if steps == 1 else end
    step = (end - start) / max(steps - 1, 1)
    after = np.arange(steps)
    before = after[::-1]
    return g.literal(np.where(after < before, start + step * after, end - step * before), node.type)


def _between(g: AtenBuilder, type: Type, start: Operand, end: Operand, steps: int) -> Instruction:
    """Emit `linspace` between computed numbers."""
    wide = Type.double_type if type.is_integral else type
    low, high = (g.cast(g.value(v, type), wide) for v in (start, end))
    high = low if steps == 1 else high
    step = g.pointwise("div", g.pointwise("sub", high, low), g.like(max(steps - 1, 1), low))
    after = np.arange(steps)
    up, down = (g.pointwise("mul", step, g.literal(k, wide)) for k in (after, after[::-1]))
    halves = g.pointwise("add", low, up), g.pointwise("sub", high, down)
    return g.cast(g.pointwise("where", g.literal(after < after[::-1]), *halves), type)


@register("tril_indices", "triu_indices")
def triangle_indices(g: AtenBuilder, node: AtenNode, row: int, col: int, offset: int = 0, **_: object) -> Instruction:
    """Emit the rows and columns of the elements of a triangle."""
    made = (np.tril_indices if node.base == "tril_indices" else np.triu_indices)(row, offset, col)
    return g.literal(np.stack(made), node.type)
