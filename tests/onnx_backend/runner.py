"""`onnx.backend.test.BackendTest` over this package's backend, with a runner for each target, and the manifest.

A line of the manifest is a test's name, the targets on which it does not pass, and the reason, separated by ``|``. The
reason ``constant: a b`` says that these inputs must be known while a model is parsed; with them as initializers the
test passes.
"""

from __future__ import annotations

import functools
import re
import unittest
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx.backend.test.runner as onnx_runner
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from mgx_numba.backend import MgxBackend, MgxBackendRep

from ..frontends.onnx_cases import node_cases

MANIFEST = Path(__file__).parent / "manifest.txt"
TARGETS = ("ref", "cpu")
CONSTANT = "constant:"

# ONNX compares with 1e-3 relative; of a mean of halves an ulp of the result is 1e-3.
HALF_TOLERANCE = {"rtol": 2e-3, "atol": 1e-3}
HALF_TESTS = (
    "test_attention_4d_causal_fp16",
    "test_attention_4d_causal_fp16_expanded",
    "test_attention_4d_fp16",
    "test_attention_4d_fp16_expanded",
)
# The expected values are those of a float32 transform, 2e-7 where the exact result is 0.
ROUNDED_TESTS = {name: {"atol": 1e-6} for name in ("test_dft_inverse", "test_dft_inverse_opset19")}
TOLERANCES: dict[str, dict[str, float]] = {**dict.fromkeys(HALF_TESTS, HALF_TOLERANCE), **ROUNDED_TESTS}


@dataclass(frozen=True)
class Exclusion:
    """A test that does not pass on some targets."""

    name: str
    targets: tuple[str, ...]
    reason: str

    @property
    def constants(self) -> list[str]:
        """Inputs that must be constant for it to pass."""
        return self.reason.removeprefix(CONSTANT).split() if self.reason.startswith(CONSTANT) else []

    @property
    def line(self) -> str:
        """The line of the manifest."""
        return f"{self.name} | {' '.join(self.targets)} | {self.reason}"


def backend_of(target: str) -> type[MgxBackend]:
    """The backend that compiles for a target, with one thread."""

    class TargetBackend(MgxBackend):
        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> MgxBackendRep:
            for name in ("rtol", "atol"):  # the runner hands a test's tolerances to the backend, too
                kwargs.pop(name, None)
            threads = {"num_threads": 1} if target == "cpu" else {}
            return super().prepare(model, device, target=target, **threads, **kwargs)

    return TargetBackend


class Runner(BackendTest):
    """ONNX's runner, which compares tensors in sequences as lists of numbers, and so cannot compare those without axes;
    here they are compared as all other tensors are."""

    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Any, outputs: Any, rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        np.testing.assert_equal(len(outputs), len(ref_outputs))
        for wanted, found in zip(ref_outputs, outputs, strict=True):
            if isinstance(wanted, (list, tuple)):
                assert isinstance(found, list), f"expected a list, got {type(found).__name__}"
                cls.assert_similar_outputs(wanted, found, rtol, atol, model_dir)
            else:
                assert isinstance(found, np.ndarray), f"expected an array, got {type(found).__name__}"
                super().assert_similar_outputs([wanted], [found], rtol, atol, model_dir)


def _load(kind: str) -> Iterable[Any]:
    return node_cases().values() if kind == "node" else load_model_tests(kind=kind)


@functools.cache
def cases(target: str) -> dict[str, unittest.TestCase]:
    """Every test that needs no download, by name, ready to be called; the light models have tests of their own."""
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        mock.patch.object(onnx_runner, "load_model_tests", _load),
    ):
        warnings.simplefilter("ignore")
        runner = Runner(backend_of(target), __name__, TOLERANCES)
        classes = [c for name, c in runner.test_cases.items() if name != "OnnxBackendRealModelTest"]
    suffix = "_cpu"
    return {
        name.removesuffix(suffix): case(name)
        for case in classes
        for name in dir(case)
        if name.startswith("test_") and name.endswith(suffix)
    }


def run_case(target: str, name: str) -> None:
    """Run one test.

    Raises:
        AssertionError: a result differs.
        MgxError: the model is refused.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        getattr(cases(target)[name], f"{name}_cpu")()


def manifest() -> dict[str, Exclusion]:
    """The tests that do not pass, by name."""
    rows = [line.split(" | ") for line in MANIFEST.read_text().splitlines() if line and not line.startswith("#")]
    return {name: Exclusion(name, tuple(targets.split()), reason) for name, targets, reason in rows}


def manifest_version() -> str:
    """The version of onnx whose tests the manifest is about."""
    found = re.match(r"# Backend tests of onnx (\S+)", MANIFEST.read_text())
    return found[1] if found else ""
