"""Values beyond the range of float16: constants, operands of norms, and scores before they are scaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.types import Type, finfo
from ..constants import compact, constant_array, is_constant, uniform, uniform_value
from ..instruction import Instruction
from ..module import Module
from .build import RewriteBuilder

VIEWS = frozenset(
    "broadcast multibroadcast scalar reshape squeeze unsqueeze transpose flatten contiguous slice".split()
)
_SPREADS = VIEWS | {"broadcast_for_dot"}
_FACTORS = frozenset({"mul", "div", "dot", "convolution", "convolution_backwards"})
"""Operators that multiply by a constant and need all its bits."""
_LIFTED = -3
"""Binary exponent of the largest of lifted weights: 1/16 to 1/8, as usual weights of layers are."""


def origin(ins: Instruction) -> Instruction:
    """Return the instruction below views; the second input of a view gives lengths only."""
    while ins.name in _SPREADS and ins.inputs:
        ins = ins.inputs[0]
    return ins


def loses_constants(ins: Instruction, type: Type) -> bool:
    """Return whether a finite constant operand does not fit a type.

    It would become infinite, or a single number would become 0, or a factor's largest magnitude would be subnormal.
    """
    return ins.name not in VIEWS and any(_loses(ins, i, type) for i in dict.fromkeys(ins.inputs))


def _loses(ins: Instruction, value: Instruction, type: Type) -> bool:
    literal = origin(value).literal
    if value.shape.type not in (Type.float_type, Type.double_type) or literal is None or literal.array is None:
        return False
    array = constant_array(value)
    array = compact(literal.array if array is None else array)
    largest = max(abs(array.min(initial=0)), abs(array.max(initial=0)))
    if not np.isfinite(largest):
        largest = np.abs(array).max(initial=0, where=np.isfinite(array))
    if not largest:
        return False
    with np.errstate(all="ignore"):
        narrow = largest.astype(type.numpy)
    if ins.name in _FACTORS:
        return not np.isfinite(narrow) or float(largest) < float(finfo(type.numpy).smallest_normal)
    return not np.isfinite(narrow) or (not narrow and ins.op.pointwise and uniform(array))


def lift_weights(module: Module, ins: Instruction, type: Type) -> Instruction | None:
    """Rewrite ``dot(x, w)`` as ``dot(x, w * 2**n) * 2**-n`` if all weights of a product would be subnormal; return the
    multiplication.

    Weights have such magnitudes where a layer scale was multiplied into them, as in ConvNeXt, whose training starts
    with scales of 1e-6. Powers of two change no bits. Returns None, and changes nothing, for other weights.
    """
    value = ins.inputs[1]
    if ins.shape.type is not Type.float_type or ins.shape.is_dynamic or not _loses(ins, value, type):
        return None
    array = constant_array(value)
    if array is None:
        return None
    few = compact(array)
    largest = np.abs(few).max(initial=0, where=np.isfinite(few))
    if largest >= float(finfo(type.numpy).smallest_normal):
        return None
    power = _LIFTED - int(np.frexp(largest)[1])
    build = RewriteBuilder(module, ins)
    with np.errstate(over="ignore"):
        lifted = np.ldexp(few, power)
    weights = build.constant(lifted, value.shape)
    product = module.insert_instruction(ins, ins.op, [ins.inputs[0], weights, *ins.inputs[2:]])
    product.debug_symbols, product.normalized = ins.debug_symbols, ins.normalized
    number = module.add_literal(np.asarray(np.ldexp(np.float32(1), -power)))
    spread = module.insert_instruction(ins, "multibroadcast", [number], out_lens=ins.shape.lens)
    lowered = module.insert_instruction(ins, "mul", [product, spread])
    module.replace_instruction(ins, lowered)
    module.remove_instruction(ins)
    return lowered


def combine_with_reductions(order: Sequence[Instruction]) -> tuple[set[Instruction], set[Instruction]]:
    """Return pointwise instructions that combine a value with its own reduction, as norms do, and the reductions.

    ``x - mean(x)`` and ``x / sqrt(mean(x * x))`` may be small although their operands exceed the range of float16.
    """
    reduced: dict[Instruction, dict[Instruction, list[Instruction]]] = {}
    """For each value computed from reductions: what is reduced, and by which instructions."""
    found: set[Instruction] = set()
    reductions: set[Instruction] = set()
    for ins in order:
        if ins.name.startswith("reduce_"):
            reduced[ins] = {source: [ins] for source in _sources(ins.inputs[0], reduced)}
            continue
        if not ins.op.pointwise:
            continue
        varying = [v for i in ins.inputs if not is_constant(v := origin(i))]
        if varying and all(v in reduced for v in varying):
            sums: dict[Instruction, list[Instruction]] = {}
            for v in varying:
                for source, by in reduced[v].items():
                    sums.setdefault(source, []).extend(b for b in by if b not in sums[source])
            reduced[ins] = sums
            continue
        if not any(v in reduced for v in varying):
            continue
        own = {s for v in varying if v not in reduced for s in _sources(v, reduced)}
        by = [b for v in varying for source in own & reduced.get(v, {}).keys() for b in reduced[v][source]]
        if by:
            found.add(ins)
            reductions.update(by)
    return found, reductions


def _sources(value: Instruction, reduced: dict[Instruction, dict[Instruction, list[Instruction]]]) -> list[Instruction]:
    """Return a value and the values it is computed from by pointwise instructions with one varying operand."""
    found = [origin(value)]
    while found[-1].op.pointwise:
        varying = dict.fromkeys(v for i in found[-1].inputs if not is_constant(v := origin(i)) and v not in reduced)
        if len(varying) != 1:
            break
        found.extend(varying)
    return found


def scaled_product(ins: Instruction) -> tuple[Instruction, Instruction, np.float32] | None:
    """Return ``(dot, value, s)`` if an instruction is ``value * s`` or ``value / (1 / s)``, where ``value`` is a dot or
    a view of it.

    The scale is below 1, the dot has no other users, and neither operand of it is constant.
    """
    if ins.name not in ("mul", "div") or ins.shape.type is not Type.float_type:
        return None
    value, other = ins.inputs
    if origin(value).name != "dot" and ins.name == "mul":
        value, other = other, value
    dot, factor = origin(value), uniform_value(origin(other))
    if dot.name != "dot" or factor is None or any(is_constant(origin(i)) for i in dot.inputs):
        return None
    with np.errstate(all="ignore"):
        scale = np.float32(factor) if ins.name == "mul" else np.float32(1) / np.float32(factor)
    if not 0 < abs(scale) < 1:
        return None
    taker, current = ins, value
    while True:
        if any(u is not taker and not (u.name in _SPREADS and u.inputs[0] is not current) for u in current.users):
            return None
        if current is dot:
            return dot, value, scale
        taker, current = current, current.inputs[0]


def scale_first(module: Module, ins: Instruction, dot: Instruction, value: Instruction, scale: np.float32) -> None:
    """``dot(q, k) * s -> dot(q * s, k)``, for a match of `scaled_product`."""
    left, right = dot.inputs
    number = module.add_literal(np.asarray(scale))
    if left.shape.is_dynamic:
        spread = module.insert_instruction(dot, "multibroadcast", [number, left])
    else:
        spread = module.insert_instruction(dot, "multibroadcast", [number], out_lens=left.shape.lens)
    scaled = module.insert_instruction(dot, "mul", [left, spread])
    product = module.insert_instruction(dot, dot.op, [scaled, right])
    product.debug_symbols = dot.debug_symbols
    module.replace_instruction(ins, product if value is dot else value)
    module.remove_instruction(ins)
    module.replace_instruction(dot, product)
    module.remove_instruction(dot)
