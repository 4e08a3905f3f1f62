"""What is to be quantised to 8 bits, what calibration must see of it, and how each value then is quantised."""

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

__all__ = [
    "CONTRACTIONS",
    "LAYERS_IN_8_BITS",
    "ValuePlan",
    "calibrated_values",
    "channel_axis",
    "constant_weights",
    "layer_name",
    "layers_of",
    "make_calibration",
    "make_plans",
    "quantizable",
    "quantizable_steps",
]

CONTRACTIONS = ("dot", "convolution")
LAYERS_IN_8_BITS = (*CONTRACTIONS, "convolution_backwards")
"""What is quantised to 8 bits besides the steps of recurrent layers."""
FEWEST_UNITS = 64
"""Hidden units from which on states are brought to 8 bits in less time than 8-bit weights save. Zen 5, one thread, 1 to
16 sequences, times of float32 over those of int8: 16 units 0.75 to 1.1, 32 units 0.8 to 1.6, 64 units 1.1 to 2.2, as it
is and without VNNI; 512 units 1.4 to 4.3."""
HEADROOM = 1.15
"""By how much ranges of channels made alike are widened, any of which may be the first to be passed: mean similarity is
0.9965 without, 0.9968 with 1.15 and 1.3 on the sentences that `channel_factors` was measured on."""


WIDE = frozenset({Type.float_type})
"""The type in which layers are quantised; `widen_layers` converts layers of other types to it."""


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
    """Constant weights, also where they are repeated along lengths that are open: then the matrix alone."""
    if w.name in ("multibroadcast", "broadcast_for_dot") and w.shape.is_dynamic:
        w = w.inputs[0]
    return constant_array(w) if is_constant(w) else None


def layers_of(program: Program, selection: Selection) -> list[Instruction]:
    """The contractions and steps of the main module that can be quantised and are chosen."""
    return [i for i in program.main if i in selection and (quantizable(i) or quantizable_steps(i))]


def calibrated_values(program: Program, selection: Selection) -> list[Instruction]:
    """What is to be quantised and needs a range: values of the main module, each once, in order of first use."""
    return list(dict.fromkeys(i.inputs[0] for i in layers_of(program, selection) if quantizable(i)))


def layer_name(ins: Instruction, number: int) -> str:
    """Its node names, else its operator and place in the module."""
    return ", ".join(ins.debug_symbols) or f"{ins.name} {number}"


def make_calibration(program: Program, selection: Selection, observer: str) -> Calibration:
    """A calibration of the program's values that has seen nothing.

    Raises:
        OptionError: an unknown observer.
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
    """Of a contraction's input and result."""
    return ins.inputs[0].shape.ndim - 1 if ins.name == "dot" else 1


@dataclass(frozen=True)
class ValuePlan:
    """How one value is quantised.

    Attributes:
        parameters: scale and zero point, of the value after it is divided by ``factors``.
        factors: of its channels, float32, or None for ones.
        means: of its channels, or None where nothing is to be corrected by them.
        axis: that of the channels that means are of: a convolution and a product that read a value have others.
        low, high: what calibration saw.
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
    correct: bool = True,
) -> dict[Instruction, ValuePlan]:
    """How each value of `calibrated_values` is quantised, by what calibration has seen of it.

    Args:
        type: of activations: uint8_type (with zero points), int8_type (symmetric) or fp8e4m3fn_type.
        equalize: divide channels by factors where that pays; float8, whose steps are relative, needs none.
        correct: plan corrections of means.
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
        means = seen.channels.means if correct and seen.channels.seen.size else None
        ends = seen.observer.low, seen.observer.high
        plans[x] = ValuePlan(observer.parameters(type), factors, means, seen.axis, *ends)
    return plans


def _by_taps(ins: Instruction) -> np.ndarray | None:
    """Weights of a contraction as ``[out, in of a group, taps]``; None if they differ from matrix to matrix."""
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
