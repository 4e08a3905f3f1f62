"""Slices along several axes, with the semantics shared by ONNX and TensorFlow."""

from __future__ import annotations

from ..core.dim import maximum, minimum
from ..core.integers import slice_bounds
from ..errors import UnsupportedError
from ..graph.instruction import Instruction
from .builder import GraphBuilder


def strided_slice(
    g: GraphBuilder, x: Instruction, axes: list[int], starts: list[int], ends: list[int], steps: list[int]
) -> Instruction:
    """Emit ONNX's Slice along several axes, by ``slice``, ``reverse`` and ``step``.

    Negative bounds count from the end and are then clamped. Unlike in Python, with a negative step a start before the
    axis selects the first element.
    """
    low, high = list(starts), list(ends)
    for k, (axis, step) in enumerate(zip(axes, steps, strict=False)):
        dim = x.shape.dims[axis]
        if not dim.is_fixed:
            if step < 0:
                raise UnsupportedError(f"axis {axis} has length {dim}: a negative step needs a fixed length")
            continue
        begin, end = slice_bounds(starts[k], ends[k], dim.min, step)
        if step < 0:
            begin, end = end + 1, minimum(maximum(begin, 0), dim.min - 1) + 1
        low[k], high[k] = begin, begin + maximum(end - begin, 0)
    result = g.op("slice", x, axes=tuple(axes), starts=tuple(low), ends=tuple(high)) if axes else g.op("identity", x)
    backwards = tuple(axis for axis, step in zip(axes, steps, strict=False) if step < 0)
    if backwards:
        result = g.op("reverse", result, axes=backwards)
    wide = [(axis, abs(step)) for axis, step in zip(axes, steps, strict=False) if abs(step) != 1]
    if wide:
        result = g.op("step", result, axes=tuple(a for a, _ in wide), steps=tuple(s for _, s in wide))
    return result
