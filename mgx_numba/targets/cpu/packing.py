"""Steps that pack weights in every run, because they are not constant."""

from __future__ import annotations

import numpy as np

from ...codegen.cpu.data.packing import packing_launch, packing_places
from ...core.shape import Shape
from ...core.types import from_numpy
from ...graph.instruction import Instruction
from ..lowering.buffers import View
from ..lowering.function_call import FunctionCall
from ..lowering.lowering import Lowering
from ..lowering.slow_steps import warn_if_slow
from ..lowering.steps import function_step


def pack_in_every_run(low: Lowering, ins: Instruction, name: str, call: FunctionCall, weights: View) -> View:
    """Append a step that packs weights; return the packed weights.

    The step is a kernel if packing only moves elements, else a fallback step.

    Args:
        name: names the fallback step.
        call: packs an array of the weights' lengths, which are known.
    """
    dtype = weights.type.numpy
    places = packing_places(lambda array: call([array])[0], weights.lens, weights.strides, dtype)
    if places is not None:
        target = low.allocate(Shape(weights.type, places.shape))
        operands = {"w": weights, "places": low.constant(places), "out": target}
        low.launch(packing_launch(places.size, dtype.name, low.origin(ins)), operands, ins)
        return target
    form = call([np.zeros(weights.lens, dtype)])[0]
    target = low.allocate(Shape(from_numpy(form.dtype), form.shape))
    reason = "the weights are not constant, and no kernel packs them"
    warn_if_slow(ins, reason)
    low.draft.steps.append(function_step(name, ins, call, [weights], target, reason))
    return target
