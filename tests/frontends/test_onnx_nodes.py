"""ONNX's node tests, one by one, on ``ref`` and on ``cpu``."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

from mgx_numba.frontends.onnx import get_onnx_operators

from .onnx_cases import failing, is_random, manifest, manifest_version, node_cases, passes, run_case

NAMES, OTHERS, VERSION = manifest(), failing(), manifest_version()
of_its_version = pytest.mark.skipif(
    onnx.__version__ != VERSION, reason=f"the manifest is of the node tests of onnx {VERSION}"
)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_node_tests_of_the_manifest_pass_on_ref_and_cpu(name: str) -> None:
    if name not in node_cases():
        assert onnx.__version__ != VERSION, "no such node test"
        pytest.skip(f"no node test of onnx {onnx.__version__}")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        run_case(node_cases()[name], NAMES[name], compiled=True)


@of_its_version
@pytest.mark.parametrize("name", sorted(n for n in OTHERS if not is_random(n)))
def test_no_other_node_test_passes(name: str) -> None:
    """One that does belongs to the others: ``python -m tests.frontends.onnx_cases`` puts it there."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        assert passes(node_cases()[name]) is None


@of_its_version
def test_the_manifest_has_every_node_test_once() -> None:
    assert sorted([*NAMES, *OTHERS]) == sorted(node_cases())


def test_the_manifest_covers_the_operators() -> None:
    known = [node_cases()[name] for name in NAMES if name in node_cases()]
    ops = {node.op_type for case in known for node in case.model.graph.node}
    assert len(NAMES) > 1700
    assert len(ops & set(get_onnx_operators())) > 170


def test_operators_are_listed_sorted_and_once() -> None:
    operators = get_onnx_operators()
    assert operators == sorted(set(operators))
    assert {"Add", "Conv", "LSTM", "GroupQueryAttention", "If", "Attention", "HannWindow"} <= set(operators)
