"""Recurrent layers with 8-bit weights."""

from __future__ import annotations

from typing import Any

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .matmul import scaled_integer_product
from .node import Node
from .quantization import dynamic_quantize
from .recurrent import activations, clip_threshold
from .registry import MICROSOFT, register

DIRECTIONS = ("forward", "reverse", "bidirectional")
"""Values of ``direction``; the index is a bit mask of the directions that read the sequence backward."""


@register("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
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
    w_scale: Instruction | None = None,
    w_zero: Instruction | None = None,
    r_scale: Instruction | None = None,
    r_zero: Instruction | None = None,
) -> list[Instruction]:
    """Parse an LSTM with 8-bit weights ``[directions, terms, 4 * hidden]``; scales are per direction or per column.

    The inputs of all steps are quantised to uint8 together, as by DynamicQuantizeLinear. In each step the hidden states
    of all sequences of a direction are quantised together, as ONNX Runtime does on one thread.
    """
    if w_scale is None or w_zero is None or r_scale is None or r_zero is None:
        raise ParseError("a scale or zero point of weights (inputs 8 to 11) is missing")
    if rank(x) != 3 or rank(w) != 3 or rank(r) != 3:
        raise ParseError(f"X, W and R have {rank(x)}, {rank(w)} and {rank(r)} dimensions, expected 3 each")
    directions, size, rows = g.lens(r)
    if node.get_int("hidden_size", size) != size or rows != 4 * size or g.lens(w)[::2] != (directions, rows):
        wanted = node.get_int("hidden_size", size)
        raise ParseError(f"hidden_size {wanted} does not fit weights {list(g.lens(w))} and {list(g.lens(r))}")
    direction = node.get_choice("direction", DIRECTIONS, "forward")
    if directions != 1 + (direction == "bidirectional"):
        raise ParseError(f"weights are of {directions} directions, direction is {direction!r}")
    scale, zero = _per_column(g, w_scale, w), _per_column(g, w_zero, w)
    scales, points = _per_column(g, r_scale, r), g.convert(_per_column(g, r_zero, r), Type.int32_type)
    functions = activations(node, "LSTM", directions)
    projected = _projected(g, x, w, scale, zero, bias)
    codes = g.transpose(r, (0, 2, 1))
    if r.shape.type is Type.uint8_type:  # kernels multiply by int8
        middle = g.like(128, points)
        codes = g.convert(g.pointwise("sub", g.convert(codes, Type.int32_type), middle), Type.int8_type)
        points = g.pointwise("sub", points, middle)
    given = {"lengths": lengths, "hidden": hidden, "state": cell, "peephole": peephole}
    given |= {"scales": scales, "points": points}
    lanes = [(slice(0, directions), DIRECTIONS.index(direction))]
    if directions == 2 and functions[:3] != functions[3:]:
        lanes = [(slice(0, 1), 0), (slice(1, 2), 1)]
    attributes: dict[str, Any] = {"cell": "lstm", "hidden_size": size, "clip": clip_threshold(node), "dynamic": True}
    attributes["input_forget"] = node.get_bool("input_forget")
    groups = []
    for lane, backward in lanes:
        named = {name: _lanes(g, name, v, lane, directions) for name, v in given.items() if v is not None}
        inputs, own = projected[lane], functions[3 * lane.start : 3 * lane.start + 3]
        whole = g.op("concat", *inputs, axis=2) if len(inputs) > 1 else inputs[0]
        attributes |= {"actv_func": own, "given": " ".join(named), "backward": backward}
        weights = _lanes(g, "r", codes, lane, directions)
        groups.append(g.op("recurrent_steps", whole, weights, *named.values(), **attributes))
    results = []
    for k, axis in enumerate((1, 0, 0)[: max(1, len(node.outputs))]):
        parts = [g.op("get_tuple_elem", group, index=k) for group in groups]
        results.append(parts[0] if len(parts) == 1 else g.op("concat", *parts, axis=axis))
    return results


def _projected(
    g: Builder, x: Instruction, w: Instruction, scale: Instruction, zero: Instruction, bias: Instruction | None
) -> list[Instruction]:
    """Return, for each direction, the input products ``[steps, batch, 1, columns]`` of all steps plus the biases."""
    codes, step, point = dynamic_quantize(g, x)
    result = []
    for k in range(g.lens(w)[0]):
        own, *sides = (g.squeeze(g.slice(v, 0, k, k + 1), [0]) for v in (w, scale, zero))
        both = None
        if bias is not None:
            columns = g.lens(w)[2]
            whole = g.squeeze(g.slice(bias, 0, k, k + 1), [0])
            both = g.op("add", g.slice(whole, 0, 0, columns), g.slice(whole, 0, columns, 2 * columns))
        product = scaled_integer_product(g, codes, own, step, sides[0], point, sides[1], both)
        result.append(g.unsqueeze(product, [2]))
    return result


def _lanes(g: Builder, name: str, value: Instruction, lane: slice, directions: int) -> Instruction:
    """Return the slice ``lane`` of the directions of an input; ``lengths`` has no directions and is returned whole."""
    whole = name == "lengths" or lane == slice(0, directions)
    return value if whole else g.slice(value, 0, lane.start, lane.stop)


def _per_column(g: Builder, part: Instruction, codes: Instruction) -> Instruction:
    """Broadcast a scale or zero point of weights ``[directions, terms, columns]`` to ``[directions, columns]``."""
    directions, _, columns = g.lens(codes)
    if part.shape.elements not in (directions, directions * columns):
        expected = f"{directions} or {directions} x {columns}"
        raise ParseError(f"a scale or zero point of weights has lengths {list(g.lens(part))}, expected {expected}")
    return g.broadcast(g.reshape(part, (directions, part.shape.elements // directions)), (directions, columns))
