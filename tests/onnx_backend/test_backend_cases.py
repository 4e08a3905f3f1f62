"""ONNX's backend tests, one by one, on ``ref`` and ``cpu``, inputs given at run time; the manifest is exact."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import get_onnx_operators

from ..frontends.onnx_cases import node_cases, run_frozen
from .reasons import REASONS
from .runner import TARGETS, cases, manifest, manifest_version, run_case

EXCLUDED, VERSION = manifest(), manifest_version()
NAMES = sorted(cases("ref"))
FROZEN = sorted(name for name, e in EXCLUDED.items() if e.constants)
of_its_version = pytest.mark.skipif(
    onnx.__version__ != VERSION, reason=f"the manifest is about the tests of onnx {VERSION}"
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_a_case_passes_unless_the_manifest_has_it(name: str, target: str) -> None:
    """``python -m tests.onnx_backend`` writes the manifest."""
    excluded = EXCLUDED.get(name)
    if excluded is None or target not in excluded.targets:
        run_case(target, name)
        return
    if onnx.__version__ != VERSION:
        pytest.skip(f"the manifest is about the tests of onnx {VERSION}")
    with pytest.raises((AssertionError, MgxError)):
        run_case(target, name)


@pytest.mark.parametrize("name", FROZEN)
def test_a_case_passes_with_the_inputs_that_must_be_constant(name: str) -> None:
    if name not in node_cases():
        pytest.skip(f"no node test of onnx {onnx.__version__}")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        run_frozen(node_cases()[name], EXCLUDED[name].constants)


@of_its_version
def test_the_manifest_names_tests_and_targets_that_exist_and_has_a_reason_for_each() -> None:
    assert set(EXCLUDED) <= set(NAMES)
    assert all(e.targets and set(e.targets) <= set(TARGETS) for e in EXCLUDED.values())
    assert all(len(e.reason) > len("constant: ") for e in EXCLUDED.values())


@of_its_version
def test_reasons_are_of_tests_that_do_not_pass() -> None:
    assert set(REASONS) <= set(EXCLUDED)


@of_its_version
@pytest.mark.parametrize("target", TARGETS)
def test_most_cases_pass(target: str) -> None:
    passed = len(NAMES) - sum(target in e.targets for e in EXCLUDED.values())
    assert passed > 0.98 * len(NAMES)


def test_the_cases_cover_the_operators() -> None:
    passing = [case for name, case in node_cases().items() if name not in EXCLUDED or name in FROZEN]
    ops = {node.op_type for case in passing for node in case.model.graph.node}
    assert len(ops & set(get_onnx_operators())) > 170


def test_operators_are_listed_sorted_and_once() -> None:
    operators = get_onnx_operators()
    assert operators == sorted(set(operators))
    assert {"Add", "Conv", "LSTM", "GroupQueryAttention", "If", "Attention", "HannWindow"} <= set(operators)
