"""Move channel shuffles past depthwise convolutions, into the grouped convolution that reads them.

ShuffleNet (Zhang et al., 2018) shuffles channels between a grouped 1x1 convolution and a depthwise one, before the next
grouped convolution. Channel-wise operations accept any order of channels; a grouped 1x1 convolution can read them
through a permutation.
"""

from __future__ import annotations

import numpy as np

from ...core.dim import is_symbolic, known_equal, known_same
from ..constants import compact, constant_array
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .rewriter import remove_dead
from .rules.contractions import along_axis


def shuffled_groups(ins: Instruction, merge: str = "reshape") -> int:
    """Return the groups of a channel shuffle: ``merge`` of ``[n, groups, c / groups, ...]`` with axes 1 and 2
    exchanged; else 0."""
    if ins.name != merge or len(ins.inputs) != 1 or ins.shape.is_dynamic or ins.shape.ndim < 3:
        return 0
    turned = ins.inputs[0]
    if merge != "reshape" and turned.name == "layout":
        turned = turned.inputs[0]
    if turned.name != "transpose" or turned.shape.ndim != ins.shape.ndim + 1:
        return 0
    lens = turned.shape.lens
    if tuple(turned.op.attributes()["permutation"]) != (0, 2, 1, *range(3, turned.shape.ndim)):
        return 0
    same = known_same((lens[0], lens[1] * lens[2], *lens[3:]), ins.shape.lens)
    return lens[2] if same and not is_symbolic(lens[2]) else 0


class SinkShuffle(Pass):
    """``conv(f(depthwise(shuffle(x), w)), v) -> conv(shuffle(f'(depthwise(x, w'))), v)`` for a grouped 1x1 ``conv``;
    ``w`` and the operands of ``f`` are constants, which are permuted."""

    name = "sink_shuffle"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or not can.reads_shuffled:
            return
        for ins in list(module):
            if ins.module is module and _is_grouped(ins):
                self._sink(module, ins)

    def _sink(self, module: Module, ins: Instruction) -> None:
        chain: list[Instruction] = []
        value = ins.inputs[0]
        while len(value.users) == 1 and (found := _input_of_channels(value)) is not None:
            chain.append(value)
            value = found
        groups = shuffled_groups(value)
        if not chain or not groups or len(value.users) > 1 or len(value.inputs[0].users) > 1:
            return
        split = value.inputs[0].inputs[0]
        if (
            split.name != "reshape"
            or len(split.inputs) != 1
            or not known_same(split.inputs[0].shape.lens, value.shape.lens)
        ):
            return
        if any(i.module is not module for i in (value, *chain)):  # a branch reads what lies outside
            return
        self.log.apply(self.name, ins)
        before = ins.inputs[0]
        result = split.inputs[0]
        for step in reversed(chain):
            builder = RewriteBuilder(module, step)
            inputs = [
                result
                if i in (value, *chain)
                else _reordered(builder, i, groups, 0 if step.name == "convolution" else 1)
                for i in step.inputs
            ]
            result = builder.op(step.op, *inputs)
            result.debug_symbols = step.debug_symbols
        builder = RewriteBuilder(module, ins)
        apart = builder.reshape(result, (*split.shape.lens[:3], *before.shape.lens[2:]))
        turned = builder.op(value.inputs[0].op, apart)
        module.rewire(ins, [builder.reshape(turned, before.shape.lens), *ins.inputs[1:]])
        remove_dead(module, [before])


def _is_grouped(ins: Instruction) -> bool:
    """Return whether an instruction is a grouped 1x1 convolution with several channels per group."""
    if ins.name != "convolution" or ins.shape.is_dynamic or any(i.shape.is_dynamic for i in ins.inputs):
        return False
    attributes, lens = ins.op.attributes(), ins.inputs[1].shape.lens
    if attributes["group"] == 1 or known_equal(lens[1], 1) or not all(known_equal(n, 1) for n in lens[2:]):
        return False
    return not any(attributes["padding"]) and max(attributes["stride"]) == 1


def _input_of_channels(ins: Instruction) -> Instruction | None:
    """Return the only non-constant input of a channel-wise operation; None for other operations."""
    if ins.shape.is_dynamic or ins.shape.ndim < 3:
        return None
    if ins.name == "convolution":
        x, w = ins.inputs
        channels = x.shape.lens[1]
        depthwise = known_equal(channels, int(ins.op.attributes()["group"])) and known_equal(channels, w.shape.lens[0])
        return x if depthwise and constant_array(w) is not None else None
    if not ins.op.pointwise or ins.module_args:
        return None
    varying = [i for i in ins.inputs if constant_array(i) is None]
    if len(varying) != 1 or any(along_axis(i, 1) is None for i in ins.inputs if i is not varying[0]):
        return None
    return varying[0]


def _reordered(builder: RewriteBuilder, ins: Instruction, groups: int, axis: int) -> Instruction:
    """Return a constant with the channels along an axis in the order before the shuffle."""
    values = constant_array(ins)
    assert values is not None
    if axis:
        values = compact(values)
        if values.shape[axis] == 1:
            return ins
    parts = values.reshape(*values.shape[:axis], -1, groups, *values.shape[axis + 1 :])
    return builder.constant(np.ascontiguousarray(parts.swapaxes(axis, axis + 1)).reshape(values.shape), ins.shape)
