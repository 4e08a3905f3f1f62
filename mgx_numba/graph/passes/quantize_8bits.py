"""Quantisation to 8-bit integers: ``quantizelinear`` and ``dequantizelinear`` before contractions with constant
weights.

An activation has one scale and zero point from calibration, maybe after per-channel factors that the weights absorb
(`channel_factors`). Weights are symmetric int8 literals with a scale per output channel or column. The shift of an
output channel's mean by their rounding is corrected (Nagel et al., 2019). Recurrent weights are quantised, too; their
states are quantised at run time. Targets turn the pairs into integer contractions (``simplify_qdq``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...core.shape import Shape
from ...core.types import Type, from_numpy
from ...dataclass import dataclass
from ..constants import compact, is_constant
from ..instruction import Instruction
from ..module import Module
from ..observers import QuantParameters
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .merge_rnn_outputs import RECURRENT
from .quantization_plan import (
    LAYERS_IN_8_BITS,
    ValuePlan,
    channel_axis,
    constant_weights,
    layer_name,
    quantizable,
    quantizable_steps,
)
from .rules.contractions import along_axis
from .selection import Selection

LARGEST = {Type.int8_type: 127, Type.fp8e4m3fn_type: 448}
"""Largest weight magnitude; symmetric int8 omits -128."""
IMAGE = 4
"""Rank of activations of convolutional networks, whose residual sums customarily read 8-bit operands."""
LIMITS = frozenset({"relu", "clip"})
"""Operators allowed between a sum and its quantisation: they do not increase differences."""


@dataclass(frozen=True)
class LayerChoice:
    """The result for one layer.

    Attributes:
        layer: its node names, else its operator and index in the module.
        choice: ``int8`` or ``e4m3fn``, or the reason why it stays as it is.
        plan: of its activation; None for recurrent steps, whose states are quantised at run time.
        weight_error: relative root mean square error of the weights.
        error: relative root mean square error of its result by its own quantisation; NaN if not measured.
    """

    layer: str
    choice: str
    plan: ValuePlan | None = None
    weight_error: float = 0.0
    error: float = float("nan")

    @property
    def parameters(self) -> QuantParameters | None:
        """Return scale and zero point of its activation; None for a layer that stays as it is."""
        return None if self.plan is None else self.plan.parameters

    def __str__(self) -> str:
        error = "" if np.isnan(self.error) else f", error {self.error:.3g}"
        if self.plan is None:
            weights = f", weights' error {self.weight_error:.3g}" if self.weight_error else ""
            return f"{self.layer}: {self.choice}{error}{weights}"
        p = self.plan.parameters
        equalised = "" if self.plan.factors is None else "channels equalised, "
        return (
            f"{self.layer}: {self.choice}{error}, range {self.plan.low:.4g} to {self.plan.high:.4g}, "
            f"scale {p.scale:.6g}, zero point {p.zero_point}, clipped {p.clipped:.3%}, {equalised}"
            f"weights' error {self.weight_error:.3g}"
        )


class Quantize8Bits(Pass):
    """Quantise the contractions whose activation has a plan."""

    name = "quantize_8bits"

    def __init__(
        self,
        plans: Mapping[Instruction, ValuePlan] | None = None,
        selection: Selection | None = None,
        kept: Mapping[Instruction, str] | None = None,
        steps: bool = True,
    ) -> None:
        """Store the settings.

        Args:
            plans: by value of the program's main module.
            kept: layers that stay as they are, with reasons.
            steps: whether recurrent steps are quantised.

        After `run`, ``choices`` has the result for each layer.
        """
        self.plans = dict(plans or {})
        self.selection = selection or Selection(LAYERS_IN_8_BITS)
        self.kept = dict(kept or {})
        self.steps = steps
        self.choices: list[LayerChoice] = []
        self._dequantized: dict[Instruction, Instruction] = {}

    def run(self, program: Program, options: Options) -> None:
        """Rewrite the main module; submodules are not calibrated."""
        self.apply(program, program.main, options)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for number, ins in enumerate(list(module)):
            if ins not in self.selection:
                continue
            layer = layer_name(ins, number)
            if ins.name in LAYERS_IN_8_BITS:
                self.choices.append(self._quantize(module, ins, layer))
            elif ins.name == "recurrent_steps":
                self.choices.append(self._quantize_steps(module, ins, layer))
            elif ins.name in RECURRENT:
                self.choices.append(LayerChoice(layer, "as it is: its lengths are not known"))
        self._share_with_sums(module)

    def _share_with_sums(self, module: Module) -> None:
        """Let quantised residual sums of images read an addend in 8 bits if a contraction does.

        ONNX Runtime's quantiser and TensorRT do the same; the addend is then stored in 8 bits only. Its rounding adds
        at most one step of the sum's quantisation, and no calibrated addend is clipped.
        """
        order = {ins: k for k, ins in enumerate(module)}
        for x, wide in self._dequantized.items():
            plan = self.plans[x]
            p = plan.parameters
            if x.shape.ndim != IMAGE or p.type.is_floating or p.clipped or plan.factors is not None:
                continue
            for user in list(x.users):
                own = self._quantized_sum(user)
                if own is not None and p.scale <= 2 * own.scale and order[wide] < order[user]:
                    module.set_inputs(user, {k: wide for k, i in enumerate(user.inputs) if i is x})

    def _quantized_sum(self, ins: Instruction) -> QuantParameters | None:
        """Return the quantisation of a sum of two computed values; None unless all its readers read it quantised."""
        if ins.name != "add" or any(map(is_constant, ins.inputs)):
            return None
        while ins not in self._dequantized:
            if len(ins.users) != 1:
                return None
            (ins,) = ins.users
            if ins.name not in LIMITS:
                return None
        plan = self.plans[ins]
        return None if plan.factors is not None else plan.parameters

    def _quantize(self, module: Module, ins: Instruction, layer: str) -> LayerChoice:
        if ins in self.kept:
            return LayerChoice(layer, self.kept[ins])
        if not quantizable(ins):
            told = "as it is: its weights are computed, its input is constant, or it is transposed in groups"
            return LayerChoice(layer, told)
        x, w = ins.inputs
        plan = self.plans.get(x)
        if plan is None:
            return LayerChoice(layer, "as it is: its input was not observed")
        weights = constant_weights(w)
        if weights is None or not np.isfinite(compact(weights)).all():
            return LayerChoice(layer, "as it is: weights are not finite")
        type = plan.parameters.type
        kind = type if type.is_floating else Type.int8_type
        axis = {"convolution": 0, "convolution_backwards": 1}.get(ins.name, -1)
        if plan.factors is not None:
            weights = _scaled(ins, weights, plan.factors)
        if x not in self._dequantized:
            self._dequantized[x] = _round_trip(module, ins, x, plan, channel_axis(ins))
        q, steps = _rounded(weights, axis, kind)
        apart = q.astype(np.float32) * steps - compact(weights)
        module.set_inputs(ins, {0: self._dequantized[x], 1: _dequantized_weights(module, ins, q, steps, axis)})
        corrected = _corrected(module, ins, apart, plan)
        if ins in self.plans and corrected is not ins:
            self.plans[corrected] = self.plans[ins]
        name = kind.numpy.name.removeprefix("float8_") if kind.is_floating else "int8"
        return LayerChoice(layer, name, plan, _share(apart, compact(weights)))

    def _quantize_steps(self, module: Module, ins: Instruction, layer: str) -> LayerChoice:
        """Quantise recurrent weights with a scale per unit and gate."""
        if ins in self.kept:
            return LayerChoice(layer, self.kept[ins])
        if not self.steps:
            return LayerChoice(layer, "as it is: recurrent weights are quantised to int8 alone")
        if not quantizable_steps(ins):
            return LayerChoice(layer, "as it is: it has few units, or weights are not constant and finite")
        weights = constant_weights(ins.inputs[1])
        assert weights is not None
        lanes, rows, hidden = weights.shape
        q, steps = _rounded(weights.reshape(lanes * rows, hidden), 0, Type.int8_type)
        b = RewriteBuilder(module, ins)
        codes = b.constant(q.reshape(weights.shape), Shape(Type.int8_type, weights.shape))
        scales = b.literal(steps.reshape(lanes, rows))
        op = ins.op.with_attributes(given=f"{ins.op.attributes()['given']} scales".strip())
        new = module.replace_instruction(ins, b.op(op, ins.inputs[0], codes, *ins.inputs[2:], scales))
        new.debug_symbols = ins.debug_symbols
        apart = q.astype(np.float32) * steps - weights.reshape(q.shape)
        return LayerChoice(layer, "int8", weight_error=_share(apart, weights))


def _share(apart: np.ndarray, whole: np.ndarray) -> float:
    """Return the root mean square of a difference relative to the whole."""
    size = float(np.linalg.norm(whole.reshape(-1)))
    return float(np.linalg.norm(apart.reshape(-1))) / size if size else 0.0


def _round_trip(module: Module, before: Instruction, x: Instruction, plan: ValuePlan, axis: int) -> Instruction:
    """Insert ``dequantizelinear(quantizelinear(x / factors))``."""
    b, p = RewriteBuilder(module, before), plan.parameters
    if plan.factors is not None:
        x = b.op("mul", x, b.broadcast_axis(b.literal(1 / plan.factors), axis, x))

    def everywhere(value: float, type: Type) -> Instruction:
        if not x.shape.is_dynamic:
            return b.scalar(value, x.shape.with_type(type))
        return b.op("multibroadcast", b.literal([value], type), x)

    scale = everywhere(p.scale, x.shape.type)
    if p.type.is_floating:
        return b.op("dequantizelinear", b.op("quantizelinear", x, scale, out_type=p.type), scale)
    zero = everywhere(p.zero_point, p.type)
    return b.op("dequantizelinear", b.op("quantizelinear", x, scale, zero), scale, zero)


def _scaled(ins: Instruction, weights: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the weights times their channels' factors."""
    if ins.name == "dot":
        return (compact(weights) * factors[:, None]).astype(np.float32)
    if ins.name == "convolution_backwards":
        return (weights * factors.reshape(-1, *(1,) * (weights.ndim - 1))).astype(np.float32)
    out, inside = weights.shape[:2]
    groups = factors.size // inside
    own = np.repeat(factors.reshape(groups, inside), out // groups, 0)
    return (weights * own.reshape(out, inside, *(1,) * (weights.ndim - 2))).astype(np.float32)


def _rounded(weights: np.ndarray, axis: int, type: Type) -> tuple[np.ndarray, np.ndarray]:
    """Return quantised weights, and their scales along ``axis`` (float32, same rank)."""
    axis %= weights.ndim
    small = compact(weights)
    others = tuple(a for a in range(weights.ndim) if a != axis)
    largest = np.abs(small).max(others, keepdims=True, initial=0)
    limit = LARGEST[type]
    steps = np.where(largest > limit * np.finfo(np.float32).tiny, largest / limit, 1).astype(np.float32)
    scaled = np.clip(small / steps, -limit, limit)
    return (scaled if type.is_floating else np.rint(scaled)).astype(type.numpy), steps


def _dequantized_weights(
    module: Module, before: Instruction, q: np.ndarray, steps: np.ndarray, axis: int
) -> Instruction:
    """Insert the weights as a dequantised literal."""
    b, w = RewriteBuilder(module, before), before.inputs[1]
    lens = q.shape if w.shape.is_dynamic else w.shape.lens
    axis %= len(lens)
    values = b.constant(q, Shape(from_numpy(q.dtype), lens))
    scales = b.literal(np.broadcast_to(steps.reshape(-1), (lens[axis],)))
    dequantized = b.op("dequantizelinear", values, b.op("broadcast", scales, axis=axis, out_lens=lens))
    return b.op(w.op, dequantized, *w.inputs[1:]) if w.shape.is_dynamic else dequantized


def _joined_bias(module: Module, ins: Instruction, moved: np.ndarray) -> bool:
    """Subtract ``moved`` from the bias that alone reads a contraction's result; return whether there is one."""
    if len(ins.users) != 1 or ins.shape.is_dynamic:
        return False
    (added,) = ins.users
    constants = [k for k, i in enumerate(added.inputs) if is_constant(i)]
    if added.name != "add" or added.module is not module or len(constants) != 1:
        return False
    axis = channel_axis(ins)
    bias = along_axis(added.inputs[constants[0]], axis)
    if bias is None or added.inputs[1 - constants[0]] is not ins:
        return False
    b = RewriteBuilder(module, added)
    joined = b.broadcast_axis(b.literal(np.broadcast_to(bias, moved.shape) - moved, Type.float_type), axis, ins)
    module.set_inputs(added, {constants[0]: joined})
    return True


def _corrected(module: Module, ins: Instruction, apart: np.ndarray, plan: ValuePlan) -> Instruction:
    """Return a contraction's result minus the mean shift of each channel that the weights' rounding causes. Padding
    pixels count like others: they are few."""
    if plan.means is None or plan.axis != channel_axis(ins):
        return ins
    means, weights = plan.means if plan.factors is None else plan.means / plan.factors, ins.inputs[1].shape
    if not weights.is_dynamic:  # equal weights have axes of length 1
        batch = apart.shape[:-2] if ins.name == "dot" else ()
        apart = np.broadcast_to(apart, (*batch, *weights.lens[len(batch) :]))
    if ins.name == "dot":
        if any(n != 1 for n in apart.shape[:-2]):
            return ins
        moved = means @ np.broadcast_to(apart, (*apart.shape[:-2], means.size, apart.shape[-1])).reshape(means.size, -1)
    elif ins.name == "convolution_backwards":  # of the taps that a result may receive the mean of all results
        taps = apart.reshape(*apart.shape[:2], -1).sum(2) / math.prod(ins.op.attributes()["stride"])
        moved = means @ taps
    else:
        out, inside = apart.shape[:2]
        groups = means.size // inside
        own = np.repeat(means.reshape(groups, inside), out // groups, 0)
        moved = (apart.reshape(out, inside, -1).sum(2) * own).sum(1)
    if not moved.any() or not np.isfinite(moved).all() or _joined_bias(module, ins, moved):
        return ins
    members = list(module)
    b = RewriteBuilder(module, members[members.index(ins) + 1])
    offsets = b.broadcast_axis(b.literal(-moved, Type.float_type), channel_axis(ins), ins)
    added = module.replace_instruction(ins, b.op("add", ins, offsets))
    added.debug_symbols = ins.debug_symbols
    if ins.shape.is_dynamic:  # its lengths are those of the offsets, too
        module.set_input(offsets, 1, ins)
    return added
