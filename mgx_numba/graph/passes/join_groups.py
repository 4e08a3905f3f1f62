"""Join neighbouring groups of convolutions, with weights of 0 between them.

Kernels with tensor cores read and multiply whole vectors of channels: groups of few channels leave most of them empty.
"""

from __future__ import annotations

import numpy as np

from ...ops.base import make_op
from ..constants import constant_array
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .rewriter import remove_dead


class JoinGroups(Pass):
    """``conv[group=g](x, w)`` -> ``conv[group=g / f](x, w')`` where the target says that it is faster.

    Results are the same for finite inputs. A NaN or an infinity reaches the results of all joined groups, so the pass
    needs ``fast_math``.
    """

    name = "join_groups"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.joined_groups is None or not options.fast_math:
            return
        for ins in list(module.named(frozenset({"convolution"}))):
            group, (x, w) = ins.op.attributes()["group"], ins.inputs
            if group == 1 or any(i.shape.is_dynamic for i in (ins, *ins.inputs)):
                continue
            weights = constant_array(w)
            factor = 1 if weights is None else can.joined_groups(ins)
            if weights is None or factor == 1:
                self.log.refuse(self.name, ins, "the target has a kernel that is as fast, or weights are not constant")
                continue
            b = RewriteBuilder(module, ins)
            op = make_op(ins.name, **{**ins.op.attributes(), "group": group // factor})
            module.replace_instruction(ins, b.op(op, x, b.literal(joined_weights(weights, group, factor))))
            remove_dead(module, [ins])
            self.log.apply(self.name, ins)


def joined_weights(weights: np.ndarray, group: int, factor: int) -> np.ndarray:
    """Return the weights [out, in per group * factor, taps...] of ``factor`` groups in one, from [out, in per group,
    taps...]; 0 where an output channel does not read an input channel."""
    out, inside, *taps = weights.shape
    shape = (group // factor, factor, out // group, inside, *taps)
    joined = np.zeros((group // factor, factor, out // group, factor, inside, *taps), weights.dtype)
    for k in range(factor):
        joined[:, k, :, k] = weights.reshape(shape)[:, k]
    return joined.reshape(out, factor * inside, *taps)
