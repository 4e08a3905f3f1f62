"""ONNX Runtime without its optimiser, and ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from .rewriting import runnable

__all__ = ["OracleError", "reference_evaluator", "runtime"]


class OracleError(Exception):
    """ONNX Runtime refuses the model or its values."""


def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def runtime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Results of ONNX Runtime on one thread, its graph optimisations off, for the model as it can run it."""
    try:
        session = onnxruntime.InferenceSession(
            runnable(model).SerializeToString(), _options(), providers=["CPUExecutionProvider"]
        )
        log = onnxruntime.RunOptions()
        log.log_severity_level = 4
        return session.run(None, dict(feeds), log)
    except Exception as error:  # its exceptions have no common base
        raise OracleError(str(error)) from error


def reference_evaluator(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Results of ONNX's own evaluator, or ``None`` where it has none."""
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(r) for r in ReferenceEvaluator(model).run(None, dict(feeds))]
    except Exception:  # many operators and attributes are not implemented there
        return None
