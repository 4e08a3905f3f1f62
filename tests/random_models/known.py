"""Cases that the generator avoids: known defects of ONNX Runtime.

Steps themselves avoid undefined behaviour: conversions of NaN to integers, the order of updates of one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from .builder import Value

__all__ = ["oracle_defect"]


def oracle_defect(node: onnx.NodeProto, inputs: Sequence[Value | None], opset: int) -> bool:
    """Whether ONNX Runtime is known to be wrong about the node by ONNX's own text."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}
    x = inputs[0]
    if node.op_type.startswith("Reduce") and x is not None and not x.array.size:
        return True  # axes counted from the end are not found, so that the result has other lengths
    if node.op_type == "MatMul" and x is not None and not x.array.size:  # it leaves the memory of sums as it was
        return inputs[1] is not None and inputs[1].array.ndim == 1
    if node.op_type == "MatMul" and x is not None and x.rank and inputs[1] is not None and inputs[1].rank:
        inner = inputs[1].lens[-2] if inputs[1].rank > 1 else inputs[1].lens[0]
        if x.lens[-1] != inner:
            return True  # it takes any lengths where the result is empty
    if node.op_type == "Einsum" and any(v is not None and not v.array.size for v in inputs):
        return True  # it divides by zero, which ends the process
    if node.op_type == "Shrink" and x is not None and x.type == np.float64:
        return True  # it computes in float32
    if node.op_type == "Gelu" and x is not None and x.type == np.float64:
        return attributes.get("approximate") == b"tanh"  # its constants are those of float32, as in ONNX's function
    if node.op_type == "Resize" and x is not None and not x.floating:
        # results are truncated, and which side of an integer a sum lies on is left to rounding
        return attributes.get("mode", b"nearest") != b"nearest"
    if node.op_type == "Loop" and x is not None and not x.array.any():  # scan outputs of no iteration
        return len(node.output) > len(inputs) - 2  # lengths that its shape inference does not find are 0
    if node.op_type == "AveragePool" and opset < 19:  # it counts places beyond the padding
        return bool(attributes.get("ceil_mode") and attributes.get("count_include_pad"))
    if node.op_type == "Gemm" and x is not None and not x.array.size:  # it adds C without beta
        return attributes.get("beta", 1.0) != 1.0
    if node.op_type == "TopK" and x is not None:  # of equal elements, it does not always take the first
        axis = attributes.get("axis", -1)
        ordered = np.sort(x.array, axis)
        return bool(ordered.shape[axis] and (np.diff(ordered.astype(np.float64), axis=axis) == 0).any())
    if node.op_type == "LRN" and x is not None:  # running sums, in which infinity leaves NaN behind
        return not x.finite
    if any(v is not None and v.floating and np.isnan(v.array).any() for v in inputs):  # maxima that lose NaN
        double = x is not None and x.type == np.float64
        return (
            node.op_type in ("ReduceMax", "ReduceMin", "ReduceLogSumExp")
            or (node.op_type in ("Softmax", "LogSoftmax") and double)
            or attributes.get("reduction") in (b"max", b"min")
        )
    return False
