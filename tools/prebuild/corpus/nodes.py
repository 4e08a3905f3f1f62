"""ONNX's node tests: each operator by itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto
from onnx.backend.test.case.node import collect_testcases

from tools.prebuild.corpus.item import Item, parsed

__all__ = ["items"]


TYPES = {
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.BOOL,
}
"""Element types of inputs. Networks seldom have other ones."""
NARROW = {TensorProto.FLOAT16, TensorProto.UINT8, TensorProto.INT8}


def items() -> Iterator[Item]:
    """Return the node tests of tensors of usual types. Those of expanded functions have no kernels of their own."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = sorted(collect_testcases(None), key=lambda case: case.name)
    for case in cases:
        model = case.model
        if model is None or "_expanded" in case.name:
            continue
        types = [info.type.tensor_type.elem_type for info in model.graph.input if info.type.HasField("tensor_type")]
        if len(types) == len(model.graph.input) and TYPES.issuperset(types):
            yield Item(case.name, partial(parsed, model), threads=(1,), narrow=not NARROW.isdisjoint(types))
