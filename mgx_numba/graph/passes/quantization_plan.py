"""Plan 8-bit quantisation: which layers, what calibration must observe, and the parameters of each activation.

`channel_factors` divide activations before quantisation and multiply the weights. Channels of one tensor share a scale,
so a channel with a large range coarsens all others. Moving part of the range into the weights, ``(x / s) (s w) = x w``,
is SmoothQuant (Xiao et al., 2022) after a norm, and cross-layer equalisation (Nagel et al., 2019) for depthwise weights
with a scale per channel. The producer of x divides by s, so that no earlier layer is scaled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ..calibration import Calibration, ChannelStatistics, ValueStatistics
from ..constants import compact, constant_array, is_constant
from ..instruction import Instruction
from ..observers import QuantParameters, make_observer
from ..program import Program
from .base import CONTRACTIONS
from .selection import Selection

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Candidate exponents: the part of a channel's range that moves into the weights. 0.5 is SmoothQuant's; 1 makes all
channels alike."""
WORTH = 0.3
"""Largest remaining part of the expected error for factors to be used. One channel has few calibration elements, and
later values are clipped: for all-MiniLM-L6-v2 the lowest similarity to float32 over sentences is 0.9917 without
factors, 0.9955 with 0.3, 0.986 and 0.984 with 0.5 and 0.8."""
STEPS, WEIGHT_STEPS = 255, 254  # from the smallest to the largest value of 8 bits; weights are symmetric


def channel_factors(seen: ChannelStatistics, weights: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return float32 factors s > 0 of the channels, or None if they gain little.

    Args:
        seen: statistics of the activation's channels.
        weights: of each contraction that reads the activation, ``[out, in per group, taps]``; the number of groups is
            the number of channels divided by the inputs per group.
    """
    if not seen.seen.size or not (seen.seen > 0).all():
        return None
    sizes = np.maximum(np.abs(seen.low), np.abs(seen.high))
    largest = np.zeros_like(sizes)
    for w in weights:
        np.maximum.at(largest, _inputs(w, sizes.size), np.abs(w).max(2, initial=0))
    some = (sizes > 0) & (largest > 0)
    if not some.any():
        return None
    best, least = None, WORTH * _expected_error(np.ones_like(sizes), seen, weights)
    for share in SHARES:
        factors = np.ones_like(sizes)
        factors[some] = sizes[some] ** share / largest[some] ** (1 - share)
        factors /= np.exp(np.log(factors[some]).mean())
        factors[~some] = 1
        error = _expected_error(factors, seen, weights)
        if error < least:
            best, least = factors.astype(np.float32), error
    return best


def _inputs(w: np.ndarray, channels: int) -> np.ndarray:
    """Return the channel that each weight ``[out, in]`` multiplies."""
    out, inside, _ = w.shape
    groups = channels // inside
    return (np.arange(out) // (out // groups))[:, None] * inside + np.arange(inside)


def _expected_error(factors: np.ndarray, seen: ChannelStatistics, weights: Sequence[np.ndarray]) -> float:
    """Return the expected squared rounding error summed over outputs; a value's is its step squared over 12."""
    low = min(float((seen.low / factors).min()), 0.0)
    high = max(float((seen.high / factors).max()), 0.0)
    step = (high - low) / STEPS
    total = 0.0
    for w in weights:
        inputs = _inputs(w, factors.size)
        scaled = np.abs(w) * factors[inputs][:, :, None]
        own = 2 * scaled.max((1, 2), initial=0) / WEIGHT_STEPS
        squares = (seen.mean_squares / factors**2)[inputs].sum(1) * w.shape[2]
        total += float((step**2 * (scaled**2).sum() + (own**2 * squares).sum()) / 12)
    return total


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
