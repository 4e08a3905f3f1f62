"""What the generator keeps clear of: this package's known defects, each a debt, and ONNX Runtime's.

Steps themselves leave out what nobody defines: conversions of NaN to integers, rows that a mask hides wholly, the order
of updates of one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from .builder import Value

__all__ = ["known_defect", "known_shape", "oracle_defect"]


def known_defect(node: onnx.NodeProto, inputs: Sequence[Value | None]) -> bool:
    """Whether the node would only meet a known defect of this package."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}
    if node.op_type == "GridSample":  # the border of cubic sampling
        return attributes.get("mode") in (b"cubic", b"bicubic")
    if node.op_type == "ConstantOfShape" and inputs[0] is not None:  # a vector of one element has no dimensions
        return inputs[0].array.tolist() == [1]
    if node.op_type == "Expand" and inputs[1] is not None and inputs[0] is not None:  # likewise
        return inputs[0].rank == 0 and inputs[1].array.tolist() == [1]
    if node.op_type == "Loop":  # scan outputs of values without dimensions
        return len(node.output) > len(inputs) - 2 and any(v is not None and v.rank == 0 for v in inputs[2:])
    if node.op_type == "Scan":  # likewise, and slices of one element
        return any(v is not None and (v.rank == 0 or (v.rank == 2 and 1 in v.lens)) for v in inputs)
    return False


def oracle_defect(node: onnx.NodeProto, inputs: Sequence[Value | None], opset: int) -> bool:
    """Whether ONNX Runtime is known to be wrong about the node by ONNX's own text."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}
    x = inputs[0]
    if node.op_type.startswith("Reduce") and x is not None and not x.array.size:
        return True  # axes counted from the end are not found, so that the result has other lengths
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


def known_shape(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """A result that differs only in that tensors without dimensions have one."""
    return got.reshape(wanted.shape) if {got.shape, wanted.shape} == {(), (1,)} else got
