"""Quantisation to 8-bit integers: ``quantizelinear`` and ``dequantizelinear`` before contractions with constant
weights.

Activations have one scale and zero point each, from calibration. Weights are symmetric, with a scale for each output
channel or column, and become int8 literals. Targets make integer contractions of the pairs (``simplify_qdq``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...core.shape import Shape
from ...core.types import Type
from ..constants import compact, constant_array, is_constant
from ..instruction import Instruction
from ..module import Module
from ..observers import QuantParameters
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .selection import Selection

__all__ = ["LayerChoice", "Quantize8Bits", "calibrated_values", "quantizable"]

CONTRACTIONS = ("dot", "convolution")
LARGEST = {Type.int8_type: 127, Type.fp8e4m3fn_type: 448}
"""Largest weight: of int8, symmetric, so that -128 is left out."""


def quantizable(ins: Instruction) -> bool:
    """Whether an instruction is a float32 contraction of fixed lengths, of something computed with constant weights."""
    if ins.name not in CONTRACTIONS or ins.shape.type is not Type.float_type or ins.shape.is_dynamic:
        return False
    x, w = ins.inputs
    return not is_constant(x) and is_constant(w)


def calibrated_values(program: Program, selection: Selection) -> list[Instruction]:
    """What is to be quantised and needs a range: values of the main module, each once, in order of first use."""
    return list(dict.fromkeys(i.inputs[0] for i in program.main if i in selection and quantizable(i)))


@dataclass(frozen=True)
class LayerChoice:
    """What became of one contraction.

    Attributes:
        layer: its node names, else its operator and place in the module.
        choice: ``int8`` or ``e4m3fn``, or why it stays as it is.
        parameters: of its activation.
        weight_error: root mean square of the change of the weights over that of the weights.
    """

    layer: str
    choice: str
    parameters: QuantParameters | None = None
    weight_error: float = 0.0

    def __str__(self) -> str:
        if self.parameters is None:
            return f"{self.layer}: {self.choice}"
        p = self.parameters
        return (
            f"{self.layer}: {self.choice}, scale {p.scale:.6g}, zero point {p.zero_point}, clipped {p.clipped:.3%}, "
            f"weights' error {self.weight_error:.3g}"
        )


class Quantize8Bits(Pass):
    """Quantises the contractions whose activation has parameters."""

    name = "quantize_8bits"

    def __init__(
        self, parameters: Mapping[Instruction, QuantParameters] | None = None, selection: Selection | None = None
    ) -> None:
        """``parameters`` is by value of the program's main module; `choices` then has what became of each layer."""
        self.parameters = dict(parameters or {})
        self.selection = selection or Selection(CONTRACTIONS)
        self.choices: list[LayerChoice] = []
        self._dequantized: dict[Instruction, Instruction] = {}

    def run(self, program: Program, options: Options) -> None:
        """The main module: what submodules compute is not observed."""
        self.apply(program, program.main, options)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for number, ins in enumerate(list(module)):
            if ins not in self.selection or ins.name not in CONTRACTIONS:
                continue
            layer = ", ".join(ins.debug_symbols) or f"{ins.name} {number}"
            self.choices.append(self._quantize(module, ins, layer))

    def _quantize(self, module: Module, ins: Instruction, layer: str) -> LayerChoice:
        if not quantizable(ins):
            return LayerChoice(
                layer, "as it is: its weights are computed, its lengths are open, or its type is not float32"
            )
        x, w = ins.inputs
        known = self.parameters.get(x)
        if known is None:
            return LayerChoice(layer, "as it is: its input was not observed")
        weights = constant_array(w)
        if weights is None or not np.isfinite(compact(weights)).all():
            return LayerChoice(layer, "as it is: weights are not finite")
        if x not in self._dequantized:
            self._dequantized[x] = _round_trip(module, ins, x, known)
        kind = known.type if known.type.is_floating else Type.int8_type
        dequantized, error = _quantized_weights(module, ins, weights, 0 if ins.name == "convolution" else -1, kind)
        module.set_inputs(ins, {0: self._dequantized[x], 1: dequantized})
        return LayerChoice(layer, kind.numpy.name.removeprefix("float8_") if kind.is_floating else "int8", known, error)


def _round_trip(module: Module, before: Instruction, x: Instruction, p: QuantParameters) -> Instruction:
    """``dequantizelinear(quantizelinear(x))``."""
    b = RewriteBuilder(module, before)
    scale = b.scalar(p.scale, x.shape)
    if p.type.is_floating:
        return b.op("dequantizelinear", b.op("quantizelinear", x, scale, out_type=p.type), scale)
    zero = b.scalar(p.zero_point, x.shape.with_type(p.type))
    return b.op("dequantizelinear", b.op("quantizelinear", x, scale, zero), scale, zero)


def _quantized_weights(
    module: Module, before: Instruction, weights: np.ndarray, axis: int, type: Type
) -> tuple[Instruction, float]:
    """The weights as a dequantised literal of a type, and the relative error of that."""
    axis %= weights.ndim
    small = compact(weights)
    others = tuple(a for a in range(weights.ndim) if a != axis)
    largest = np.abs(small).max(others, keepdims=True, initial=0)
    limit = LARGEST[type]
    steps = np.where(largest > limit * np.finfo(np.float32).tiny, largest / limit, 1).astype(np.float32)
    scaled = np.clip(small / steps, -limit, limit)
    q = (scaled if type.is_floating else np.rint(scaled)).astype(type.numpy)
    b = RewriteBuilder(module, before)
    lens = before.inputs[1].shape.lens
    values = b.constant(q, Shape(type, lens))
    scales = b.literal(np.broadcast_to(steps.reshape(-1), (weights.shape[axis],)))
    spread = b.op("broadcast", scales, axis=axis, out_lens=lens)
    apart = float(np.linalg.norm((q.astype(np.float32) * steps - small).reshape(-1)))
    size = float(np.linalg.norm(small.reshape(-1)))
    return b.op("dequantizelinear", values, spread), apart / size if size else 0.0
