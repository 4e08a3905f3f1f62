"""The operators page is correct and current."""

from __future__ import annotations

import onnx
import onnx.defs
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state

from mgx_numba.frontends.onnx import registry
from mgx_numba.frontends.onnx.functions import EXPANDED

from .limits import LIMITS, REFUSED
from .page import PAGE, page


def test_the_page_is_current() -> None:
    """``python -m tests.operators_page`` writes it."""
    written = PAGE.read_text()
    if f"(onnx {onnx.__version__})" not in written:
        pytest.skip("the page is about another version of onnx")
    assert page() == written


def test_limits_are_of_operators_that_are_there() -> None:
    known = set(registry.handlers()) | {("", name) for name in EXPANDED}
    assert set(LIMITS) <= known
    assert not set(REFUSED) & known


def test_each_operator_of_onnx_is_there_or_has_a_reason() -> None:
    everything = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history() if not s.deprecated}
    missing = {k for k in everything - set(registry.handlers()) if k[1] not in EXPANDED}
    assert missing == {key for key in REFUSED if key[0] != "com.microsoft"}


def test_each_operator_of_onnxruntime_on_cpus_is_there_or_has_a_reason() -> None:
    kernels = onnxruntime_pybind11_state.get_all_opkernel_def()
    everything = {(k.domain, k.op_name) for k in kernels if k.domain == "com.microsoft" and "CPU" in k.provider}
    missing = everything - set(registry.handlers())
    if not onnxruntime.__version__.startswith("1.32."):
        pytest.skip("the list is about another version of onnxruntime")
    assert missing == {key for key in REFUSED if key[0] == "com.microsoft"}
