"""Random models in lower precision stay valid, keep their types, lower to plans, and agree with ``ref``.

Nothing is compiled: passes and lowering alone are under test, on programs of all operator families.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.api.quantizing import quantize_8bits, quantize_int4, truncate
from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.graph.specialize import is_dynamic
from mgx_numba.graph.validate import validate
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.lowering.tuples import without_tuples
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from .generate import generate

BOUND = 0.1
"""Accepted error relative to a result's norm, for models of a few steps in 16 bits or less; faults mostly cause errors
of the result's size."""
KINDS: dict[str, Any] = {
    "fp16": lambda p, feeds: truncate(p, "fp16"),
    "bf16": lambda p, feeds: truncate(p, "bf16"),
    "int8": lambda p, feeds: quantize_8bits(p, "ref", [feeds]),
    "int4": lambda p, feeds: quantize_int4(p),
}


def arrays(results: Any) -> list[np.ndarray]:
    """Results, flat."""
    return [a for r in results for a in (arrays(r) if isinstance(r, (list, tuple)) else [np.asarray(r)])]


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of the difference over that of ``b``; 0 where either has something that is not finite."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 0.0
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) + 1e-6))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [*range(0, 24, 3), 59, 93, 98, 156])
def test_quantised(seed: int, kind: str) -> None:
    case = generate(seed)
    with np.errstate(all="ignore"):
        try:
            wide: Program = parse_onnx(case.model, map_input_dims={n: a.shape for n, a in case.feeds.items()})
            expected = arrays(evaluate(wide.clone(), case.feeds))
        except MgxError:
            pytest.skip("the model is an error in float32, too")
        narrow = wide.clone()
        KINDS[kind](narrow, case.feeds)
        validate(narrow)
        found = arrays(evaluate(narrow, case.feeds))
        assert [a.dtype for a in found] == [a.dtype for a in expected]
        for fast_math in () if is_dynamic(narrow) else (False, True):
            options = TargetOptions(fast_math=fast_math)
            optimized = optimize(without_tuples(narrow)[0], options, validate=True)
            assert lower(optimized, options).steps
            for own, same, other in zip(arrays(evaluate(optimized, case.feeds)), found, expected):
                assert own.dtype == same.dtype and own.shape in (same.shape, ())  # a scalar, as ref gives it
                if own.dtype.kind == "f":  # fast_math may be nearer to float32 than to what is rounded
                    assert min(apart(own, same), apart(own, other) if fast_math else 1) <= BOUND
