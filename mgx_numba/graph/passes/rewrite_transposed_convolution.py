"""Rewrite transposed convolutions as convolutions, which compute all results of one stride as channels.

A result at ``s q + r`` of a transposed convolution with stride ``s`` takes every s-th tap alone. A kernel that goes
through all taps for each result multiplies by zeros ``s - 1`` times of ``s``.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from ...core.types import Type
from ...ops.convolution import ConvolutionBackwards
from ..constants import is_constant
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .rewriter import remove_dead
from .rules.contractions import along_axis
from .rules.horizontal import is_activation, only_user

TYPES = (Type.float_type, Type.half_type, Type.bf16_type)


class RewriteTransposedConvolution(Pass):
    """``convolution_backwards(x, w)`` -> ``slice(reshape(transpose(reshape(convolution(x, w')))))``.

    ``w'`` has for each tap of the new convolution and each phase ``r`` of a stride the channels of ``w``.
    """

    name = "rewrite_transposed_convolution"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in list(module.named(frozenset({ConvolutionBackwards.name}))):
            reason = _refused(ins)
            if reason:
                self.log.refuse(self.name, ins, reason)
                continue
            last, bias = _bias(ins)
            user = only_user(last)
            activation = user if user is not None and is_activation(user) else None
            last = activation or last
            module.replace_instruction(last, _convolution(RewriteBuilder(module, last), ins, bias, activation))
            self.log.apply(self.name, ins)
            remove_dead(module, [last])


def _refused(ins: Instruction) -> str:
    """Return the reason to keep a transposed convolution; "" for none."""
    op, (x, w) = ins.operator(ConvolutionBackwards), ins.inputs
    if any(i.shape.is_dynamic or i.shape.symbolic for i in (ins, x, w)) or not ins.shape.elements:
        return "its lengths are open, or it is empty"
    if op.group != 1 or not is_constant(w) or ins.shape.type not in TYPES:
        return "it has groups, computed weights, or a type other than floats"
    spread = any(s > 1 and d > 1 and k > 1 for s, d, k in zip(op.stride, op.dilation, w.shape.lens[2:]))
    return "its taps lie apart, and so do its results" if spread else ""


def _bias(ins: Instruction) -> tuple[Instruction, np.ndarray | None]:
    """Return the sum with a constant for each output channel, if that is what reads the result, and the constant."""
    user = only_user(ins)
    if user is None or user.name != "add" or user.inputs[0] is user.inputs[1]:
        return ins, None
    values = along_axis(user.inputs[1] if user.inputs[0] is ins else user.inputs[0], 1)
    return (ins, None) if values is None else (user, values)


class _PhaseAxis(NamedTuple):
    """One axis: the result at ``o`` is that of phase ``o + shift - stride q`` at ``q``, the shifted quotient.

    Attributes:
        stride: phases.
        taps: taps of the new convolution.
        reach: distance of its first and last tap.
        results: its results.
        begin, end: its padding; negative numbers cut elements off.
        shift: results before the first that is wanted.
    """

    stride: int
    taps: int
    reach: int
    results: int
    begin: int
    end: int
    shift: int

    @classmethod
    def of(cls, length: int, taps: int, stride: int, dilation: int, cropped: int, results: int) -> _PhaseAxis:
        """Return the axis of a transposed convolution that crops ``cropped`` elements before its results."""
        own = -(-taps // stride)
        reach = (own - 1) * (dilation if stride == 1 else 1)
        first, last = cropped // stride, (results - 1 + cropped) // stride
        count, begin = last - first + 1, reach - first
        return cls(stride, own, reach, count, begin, count - length - begin + reach, cropped - first * stride)


def _convolution(
    b: RewriteBuilder, ins: Instruction, bias: np.ndarray | None, activation: Instruction | None
) -> Instruction:
    op, (x, w) = ins.operator(ConvolutionBackwards), ins.inputs
    lens, kernel, results = x.shape.lens[2:], w.shape.lens[2:], ins.shape.lens[2:]
    cropped = (begin for begin, _ in op.pads(lens, kernel))
    axes = [_PhaseAxis.of(*each) for each in zip(lens, kernel, op.stride, op.dilation, cropped, results)]
    dilation = tuple(d if a.stride == 1 else 1 for a, d in zip(axes, op.dilation))
    image, padding = _cut(b, x, axes)
    made = b.op("convolution", image, _weights(b, w, axes), padding=padding, stride=(1,) * len(axes), dilation=dilation)
    if bias is not None:
        channels = np.tile(np.broadcast_to(bias, w.shape.lens[1]), prod(a.stride for a in axes))
        made = b.op("add", made, b.constant(channels.reshape(-1, *(1 for _ in axes)), made.shape))
    if activation is not None:
        made = b.op(activation.op, made)
    return _phases_in_order(b, made, axes, results)


def _cut(b: RewriteBuilder, x: Instruction, axes: list[_PhaseAxis]) -> tuple[Instruction, tuple[int, ...]]:
    """Return the image without elements that negative padding cuts off, and the other padding."""
    begins, ends = [a.begin for a in axes], [a.end for a in axes]
    if min(*begins, *ends) < 0:
        lens = x.shape.lens[2:]
        starts = [max(-n, 0) for n in begins]
        stops = [n + min(end, 0) for n, end in zip(lens, ends)]
        x = b.op("slice", x, axes=tuple(range(2, 2 + len(axes))), starts=tuple(starts), ends=tuple(stops))
    return x, tuple(max(n, 0) for n in (*begins, *ends))


def _weights(b: RewriteBuilder, w: Instruction, axes: list[_PhaseAxis]) -> Instruction:
    """Return the weights [phases and output channels, input channels, taps in reverse order]."""
    count, (inputs, outputs, *kernel) = len(axes), w.shape.lens
    whole = [a.taps * a.stride for a in axes]
    if whole != kernel:
        after = (n - k for n, k in zip(whole, kernel))
        w = b.op("pad", w, pads=(*(0,) * (count + 4), *after), value=0.0, mode=0)
    # [input, output, (taps, phase) of each axis] -> [phase of each axis, output, input, taps of each axis]
    w = b.reshape(w, (inputs, outputs, *(n for a in axes for n in (a.taps, a.stride))))
    w = b.transpose(w, (*(3 + 2 * k for k in range(count)), 1, 0, *(2 + 2 * k for k in range(count))))
    w = b.reshape(w, (prod(a.stride for a in axes) * outputs, inputs, *(a.taps for a in axes)))
    return b.op("reverse", w, axes=tuple(range(2, 2 + count)))


def _phases_in_order(
    b: RewriteBuilder, made: Instruction, axes: list[_PhaseAxis], results: tuple[int, ...]
) -> Instruction:
    """Return the results of all phases side by side, without those that are not wanted."""
    count, phases = len(axes), [a.stride for a in axes]
    (n, channels), counts = made.shape.lens[:2], [a.results for a in axes]
    if prod(phases) > 1:
        outputs = channels // prod(phases)
        made = b.reshape(made, (n, *phases, outputs, *counts))
        order = (axis for k in range(count) for axis in (2 + count + k, 1 + k))
        made = b.transpose(made, (0, 1 + count, *order))
        made = b.reshape(made, (n, outputs, *(p * q for p, q in zip(phases, counts))))
    if made.shape.lens[2:] == results:
        return made
    starts = tuple(a.shift for a in axes)
    ends = tuple(start + length for start, length in zip(starts, results))
    return b.op("slice", made, axes=tuple(range(2, 2 + count)), starts=starts, ends=ends)
