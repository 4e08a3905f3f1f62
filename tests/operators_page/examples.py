"""Models of one operator each, from ONNX's node tests and this package's own tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.frontends.onnx.model import canonical_domain
from mgx_numba.graph.program import Program

from ..frontends import (
    test_onnx_contrib,
    test_onnx_contrib_quantized,
    test_onnx_language_operators,
    test_onnx_ml,
)
from ..frontends.onnx_cases import node_cases, parse_frozen
from ..frontends.support import single

__all__ = ["MOST", "Key", "examples"]

Key = tuple[str, str]

MOST = 2
"""Models of an operator that are looked at: as many as are planned in a few seconds."""
OF_LENGTHS = frozenset("BlackmanWindow ConstantFill ConstantOfShape HammingWindow HannWindow Range".split())
"""Operators whose first input says how long the result is: models have it as an initializer, too."""


def examples() -> dict[Key, list[Program]]:
    """Programs by domain and operator."""
    found: dict[Key, list[Program]] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for key, make in [*_node_tests(), *_own_tests()]:
            if len(found.setdefault(key, [])) < MOST:
                try:
                    found[key].append(make())
                except MgxError:  # a test of what is refused
                    continue
    return found


def _node_tests() -> Iterator[tuple[Key, Any]]:
    cases = [c for c in node_cases().values() if len(c.model.graph.node) == 1]
    for case in sorted(cases, key=_usual):
        node = case.model.graph.node[0]
        inputs = zip([i.name for i in case.model.graph.input], case.data_sets[0][0], strict=False)
        first = 0 if node.op_type in OF_LENGTHS else 1
        names = [n for n, v in list(inputs)[first:] if isinstance(v, (np.ndarray, np.generic))]
        yield (canonical_domain(node.domain), node.op_type), lambda c=case, n=names: parse_frozen(c, n)[0]


def _usual(case: Any) -> tuple[bool, int, int, str]:
    """Sorts tests: floats first, then integers, small ones first, those with an empty input last."""
    arrays = [v for v in case.data_sets[0][0] if isinstance(v, np.ndarray)]
    kind = "fiub".find(arrays[0].dtype.kind) % len("fiub?") if arrays else 0
    return any(not a.size for a in arrays), kind, sum(a.size for a in arrays), case.name


def _own_tests() -> Iterator[tuple[Key, Any]]:
    for module in (test_onnx_contrib, test_onnx_contrib_quantized, test_onnx_language_operators):
        for op_type, inputs, options in module.CASES.values():
            arrays = [None if x is None else np.asarray(x) for x in inputs]
            given = {name: value for name, value in options.items() if name != "opset_"}
            given["constant"] = [k for k, x in enumerate(arrays) if k and x is not None]
            yield (
                ("com.microsoft", op_type),
                lambda o=op_type, a=arrays, g=given: parse_onnx(single(o, a, domain="com.microsoft", **g)[0]),
            )
    for op_type, inputs, options in test_onnx_ml.CASES.values():
        yield (
            ("ai.onnx.ml", op_type),
            lambda o=op_type, i=inputs, g=options: parse_onnx(test_onnx_ml.model(o, i, **g)[0]),
        )
