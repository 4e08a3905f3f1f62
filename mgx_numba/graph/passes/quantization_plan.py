"""Plan 8-bit quantisation: which layers, what calibration must observe, and the parameters of each activation."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ..calibration import Calibration, ValueStatistics
from ..constants import compact, constant_array, is_constant
from ..instruction import Instruction
from ..observers import QuantParameters, make_observer
from ..program import Program
from .channel_factors import channel_factors
from .selection import Selection

CONTRACTIONS = ("dot", "convolution")
LAYERS_IN_8_BITS = (*CONTRACTIONS, "convolution_backwards")
"""Operators that are quantised to 8 bits, beside the steps of recurrent layers."""
FEWEST_UNITS = 64
"""Least hidden units of a recurrent layer for 8-bit weights to gain more than quantising its states costs. Zen 5, one
thread, 1 to 16 sequences, float32 time over int8 time: 16 units 0.75 to 1.1, 32 units 0.8 to 1.6, 64 units 1.1 to 2.2,
with and without VNNI; 512 units 1.4 to 4.3."""
HEADROOM = 1.15
"""Widening of ranges of equalised channels, any of which may be exceeded first. Mean similarity is 0.9965 without,
0.9968 with 1.15 and 1.3, for the sentences of `channel_factors`."""


WIDE = frozenset({Type.float_type})
"""Element type in which layers are quantised; `widen_layers` converts other layers to it."""


def quantizable(ins: Instruction, types: Collection[Type] = WIDE) -> bool:
    """Return whether an instruction is a contraction of a computed value and constant weights, of a type in ``types``.

    A transposed convolution must have one group.
    """
    if ins.name not in LAYERS_IN_8_BITS or ins.shape.type not in types:
        return False
    if ins.name == "convolution_backwards" and ins.op.attributes()["group"] > 1:
        return False
    x, w = ins.inputs
    return not is_constant(x) and constant_weights(w) is not None


def quantizable_steps(ins: Instruction, types: Collection[Type] = WIDE) -> bool:
    """Return whether an instruction is the steps of a large recurrent layer with constant finite weights.

    The weights have a type in ``types`` and are quantised in advance; states are quantised in each step.
    """
    if ins.name != "recurrent_steps" or ins.inputs[1].shape.type not in types:
        return False
    if ins.inputs[1].shape.lens[-1] < FEWEST_UNITS:
        return False
    weights = constant_weights(ins.inputs[1])
    return weights is not None and bool(np.isfinite(weights).all())


def constant_weights(w: Instruction) -> np.ndarray | None:
    """Return constant weights; of weights that are broadcast along dynamic axes the matrix alone; None if they are not
    constant."""
    if w.name in ("multibroadcast", "broadcast_for_dot") and w.shape.is_dynamic:
        w = w.inputs[0]
    return constant_array(w) if is_constant(w) else None


def layers_of(program: Program, selection: Selection) -> list[Instruction]:
    """Return the selected contractions and recurrent steps of the main module that can be quantised."""
    return [i for i in program.main if i in selection and (quantizable(i) or quantizable_steps(i))]


def calibrated_values(program: Program, selection: Selection) -> list[Instruction]:
    """Return the activations to calibrate: values of the main module, each once, in order of first use."""
    return list(dict.fromkeys(i.inputs[0] for i in layers_of(program, selection) if quantizable(i)))


def layer_name(ins: Instruction, number: int) -> str:
    """Return a layer's node names, else its operator and index in the module."""
    return ", ".join(ins.debug_symbols) or f"{ins.name} {number}"


def make_calibration(program: Program, selection: Selection, observer: str) -> Calibration:
    """Return an empty calibration of the program's activations.

    Raises:
        OptionError: the observer is unknown.
    """
    make_observer(observer)
    readers: dict[Instruction, list[str]] = {}
    axes: dict[Instruction, int] = {}
    for number, ins in enumerate(program.main):
        if ins in selection and quantizable(ins):
            x = ins.inputs[0]
            readers.setdefault(x, []).append(layer_name(ins, number))
            axes[x] = channel_axis(ins)
    return Calibration(
        [ValueStatistics("; ".join(names), axes[x], make_observer(observer)) for x, names in readers.items()]
    )


def channel_axis(ins: Instruction) -> int:
    """Return the channel axis of a contraction's input and result."""
    return ins.inputs[0].shape.ndim - 1 if ins.name == "dot" else 1


@dataclass(frozen=True)
class ValuePlan:
    """Quantisation of one activation.

    Attributes:
        parameters: scale and zero point, after division by ``factors``.
        factors: float32 factors of its channels, or None.
        means: means of its channels, or None without bias correction.
        axis: channel axis of ``means``; a convolution and a product that read one value have different ones.
        low, high: calibrated range.
    """

    parameters: QuantParameters
    factors: np.ndarray | None = None
    means: np.ndarray | None = None
    axis: int = 1
    low: float = 0.0
    high: float = 0.0


def make_plans(
    program: Program,
    selection: Selection,
    calibration: Calibration,
    type: Type,
    equalize: bool = True,
) -> dict[Instruction, ValuePlan]:
    """Return the quantisation of each value of `calibrated_values`.

    Args:
        type: of activations: uint8_type (with zero points), int8_type (symmetric) or fp8e4m3fn_type.
        equalize: divide channels by factors where it pays; unnecessary for float8, whose precision is relative.
    """
    plans = {}
    for x, seen in zip(calibrated_values(program, selection), calibration.values, strict=True):
        observer = seen.observer
        factors = None
        users = [i for i in x.users if i in selection and quantizable(i) and i.inputs[0] is x]
        if equalize and not type.is_floating and len({channel_axis(i) for i in users}) == 1:
            matrices = [_by_taps(i) for i in users]
            if all(m is not None for m in matrices):
                factors = channel_factors(seen.channels, [m for m in matrices if m is not None])
        if factors is not None:
            low, high = (HEADROOM * ends / factors for ends in (seen.channels.low, seen.channels.high))
            observer = observer.divided(low, high)
        means = seen.channels.means if seen.channels.seen.size else None
        ends = seen.observer.low, seen.observer.high
        plans[x] = ValuePlan(observer.parameters(type), factors, means, seen.axis, *ends)
    return plans


def _by_taps(ins: Instruction) -> np.ndarray | None:
    """Return a contraction's weights as ``[out, in per group, taps]``; None if they differ along the batch."""
    weights = constant_weights(ins.inputs[1])
    if weights is None:
        return None
    if ins.name != "dot":
        weights = weights if ins.name == "convolution" else weights.swapaxes(0, 1)
        return weights.reshape(*weights.shape[:2], -1)
    small = compact(weights)
    if any(n != 1 for n in small.shape[:-2]):
        return None
    matrix = np.broadcast_to(small, (*small.shape[:-2], *weights.shape[-2:])).reshape(weights.shape[-2:])
    return matrix.T[:, :, None]
