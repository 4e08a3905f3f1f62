"""Values that are quantised for a contraction and read otherwise, too, are stored in few bits alone.

Of the sums of a residual stream there would be two forms in memory, of which the one in 8 bits is the smaller part.
What reads such a value besides takes it dequantised where it is an image, as ONNX Runtime's quantiser and TensorRT let
additions; elsewhere in float16, on targets whose kernels do best so. What quantises it otherwise reads all bits: it may
have been given other steps for what these clip.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.types import Type
from ..constants import is_constant
from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .rules.quantized import Parameters, largest_dequantized, pair_like, parameters

__all__ = ["NarrowResiduals"]

IMAGE = 4
"""Axes of the values of convolutional networks, whose additions are quantised by custom."""
SHORT = (Type.half_type, Type.bf16_type)
"""What has such a value is stored in few bits already, mostly for a contraction in 16 bits, whose operands stay."""
LARGEST_HALF = float(np.finfo(np.float16).max)


class NarrowResiduals(Pass):
    """``quantize(x)``, ``f(x)`` -> ``f(dequantize(quantize(x)))`` of images, ``f(float(half(x)))`` of other values.

    Only with ``fast_math``, since ``f`` sees fewer bits, and in float8 only where kernels multiply that. Results of the
    program keep all bits.
    """

    name = "narrow_residuals"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        if not options.fast_math:
            return
        order = {ins: k for k, ins in enumerate(module)}
        for ins in order:
            if ins.name == "quantizelinear" and ins.module is module and not ins.shape.is_dynamic:
                self._narrow(module, ins, order, options)

    def _narrow(
        self, module: Module, quantized: Instruction, order: Mapping[Instruction, int], options: Options
    ) -> None:
        source, known = quantized.inputs[0], parameters(quantized)
        if known is None or isinstance(source.op, Parameter) or is_constant(source):
            return
        users = list(source.users)
        same = [u for u in users if u.name == "quantizelinear" and parameters(u) == known]
        others = [u for u in users if u.name != "quantizelinear" and u.shape.type not in SHORT]
        if not others or any(isinstance(u.op, Return) or not u.op.pointwise or u.module is not module for u in users):
            return
        can = options.capabilities
        if source.shape.ndim != IMAGE and (can is None or not can.float16_residuals):
            return
        if quantized.shape.type.is_floating and (can is None or not can.float8_products):
            return
        b = RewriteBuilder(module, min(users, key=order.__getitem__))
        wide = _rounded(b, source, known, same)
        if wide is None:
            self.log.refuse(self.name, quantized, "its range is beyond that of float16")
            return
        self.log.apply(self.name, quantized)
        for user in others:
            module.set_inputs(user, {k: wide for k, i in enumerate(user.inputs) if i is source})


def _rounded(b: RewriteBuilder, source: Instruction, known: Parameters, same: list[Instruction]) -> Instruction | None:
    """The value as others read it, None if float16 has no room for it; what quantises it alike becomes one."""
    if source.shape.ndim == IMAGE:
        narrow = pair_like(b, "quantizelinear", source, known)
        wide = pair_like(b, "dequantizelinear", narrow, known)
        for user in same:
            b.module.replace_instruction(user, narrow)
            b.module.remove_instruction(user)
        return wide
    if largest_dequantized(known) > LARGEST_HALF:
        return None
    return b.convert(b.convert(source, Type.half_type), source.shape.type)
