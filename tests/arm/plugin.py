"""pytest's plugin inside the emulator: `outside` works for it, and processes that tests start are emulated."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from mgx_numba.codegen.workers import batch
from mgx_numba.errors import OptionError

from .outside import Outside

WRAPPER, OUTSIDE, INSIDE = "MGX_TESTS_ARM_PYTHON", "MGX_TESTS_ARM_OUTSIDE", "MGX_TESTS_ARM_INSIDE"
"""Environment variables: the program that runs this Python emulated; this machine's Python; whether to compile here."""


def pytest_configure() -> None:
    sys.executable = os.environ[WRAPPER]
    batch.WORKER_COMMAND = (sys.executable, *batch.WORKER_COMMAND[1:])
    outside = Outside(os.environ[OUTSIDE])
    sys.modules["onnxruntime"] = outside.onnxruntime()
    if not os.environ.get(INSIDE):
        batch.compiled_here = outside.compile


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip tests that narrow the CPU to a level of x86-64."""
    try:
        return (yield)
    except OptionError as error:
        if "a level of x86-64" not in str(error):
            raise
        pytest.skip(str(error))
