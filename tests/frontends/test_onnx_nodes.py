"""Every ONNX node test of the manifest still passes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from mgx_numba.frontends.onnx import get_onnx_operators

from .onnx_cases import manifest, node_cases, run_case

NAMES = manifest()
GROUPS = 16


@pytest.mark.parametrize("group", range(GROUPS))
def test_node_tests_of_the_manifest_pass(group: int) -> None:
    cases = node_cases()
    failed = {}
    for name in sorted(NAMES)[group::GROUPS]:
        if name not in cases:
            continue
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                run_case(cases[name], NAMES[name])
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    assert not failed


def test_the_manifest_covers_the_operators() -> None:
    ops = {node.op_type for name in NAMES if name in node_cases() for node in node_cases()[name].model.graph.node}
    assert len(NAMES) > 1700
    assert len(ops & set(get_onnx_operators())) > 170


def test_operators_are_listed_sorted_and_once() -> None:
    operators = get_onnx_operators()
    assert operators == sorted(set(operators))
    assert {"Add", "Conv", "LSTM", "GroupQueryAttention", "If", "Attention", "HannWindow"} <= set(operators)
