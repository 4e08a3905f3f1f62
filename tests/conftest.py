"""Isolate tests from the user's tuning records: the run has its own cache folder and shares only compiled kernels.

Tests compile what they compile: no plan is kept or found, except where a test is about kept plans.

Kernels are compiled in the process that wants them: the run has a process for each core, and one that compiled for
another would first import Numba.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mgx_numba.api.lineage import PLAN_CACHE
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.files import ENVIRONMENT
from mgx_numba.codegen.gpu.driver import library
from mgx_numba.codegen.tuning.source import ENVIRONMENT as PROBLEM_CACHE
from mgx_numba.codegen.workers import batch
from mgx_numba.core.dim import forget_expressions
from tests.caches import kept_folder, with_kernels

_KEPT = pytest.StashKey[contextlib.ExitStack]()


def keep_byte_code(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep the byte code of modules that this process and its child processes import in a folder."""
    patch.setattr(sys, "dont_write_bytecode", False)
    patch.setattr(sys, "pycache_prefix", str(folder))
    patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    patch.setenv("PYTHONPYCACHEPREFIX", str(folder))


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported, so that processes that tests start inherit it too."""
    gc.disable()  # until tests are collected: they stay, and looking for garbage among them took a quarter of the time
    kept = config.stash[_KEPT] = contextlib.ExitStack()
    patch = kept.enter_context(pytest.MonkeyPatch.context())
    if sys.dont_write_bytecode:  # beside the source; yet not every worker and process of every run need compile it
        keep_byte_code(patch, kept_folder() / "bytecode")
    folder = kept.enter_context(tempfile.TemporaryDirectory(prefix="mgx_numba_tests_"))
    with contextlib.suppress(OSError):  # else every run compiles for itself
        with_kernels(Path(folder))
    logging.getLogger().addHandler(logging.NullHandler())  # else Python writes warnings to standard error
    patch.setenv(ENVIRONMENT, folder)
    patch.setenv(PLAN_CACHE, "0")
    patch.delenv(PROBLEM_CACHE, raising=False)
    kept_constants = kept_folder() / "hypothesis"  # those of this package, which every process of every run looked for
    patch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(kept_constants))
    patch.setattr(batch, "_affinity", lambda: range(1))
    patch.setenv("OPENBLAS_NUM_THREADS", "1")  # of workers: NumPy's threads wait for the next product by spinning


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules stay, and what models allocate is rarely garbage after Python's 700 objects:
    looking for it in both took a tenth of a run. With 10,000 the most memory that tests have is the same."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 10, 10)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_KEPT].close()


@pytest.fixture(autouse=True)
def no_kept_answers() -> None:
    """A test may change what planners do; no earlier test has made its plans."""
    forget_expressions()


class Captured(logging.Handler):
    """What is logged while a test runs.

    pytest's own plugin, which `setup.cfg` leaves out, adds and removes two handlers three times for each test: 2% of
    the suite, in which five files have use for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(record.getMessage() for record in self.records)

    @contextlib.contextmanager
    def at_level(self, level: int, logger: str) -> Iterator[None]:
        """Set a logger's level."""
        named = logging.getLogger(logger)
        before = named.level
        named.setLevel(level)
        try:
            yield
        finally:
            named.setLevel(before)


@pytest.fixture
def caplog() -> Iterator[Captured]:
    captured = Captured()
    logging.getLogger().addHandler(captured)
    yield captured
    logging.getLogger().removeHandler(captured)


@pytest.fixture
def given_machine() -> Iterator[Callable[..., None]]:
    """A function that makes this machine another one for plans until the test ends: ``Machine`` fields by name."""
    with contextlib.ExitStack() as uses:

        def give(**fields: Any) -> None:
            uses.enter_context(using(replace(machine(), **fields)))

        yield give


@pytest.fixture
def vector_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's tiles that read whole matrices (AMX), if it has any, are not used."""
    monkeypatch.setenv("MGX_CPU_FEATURES", "-amx-tile")


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """NVIDIA's driver cannot be loaded, as on a machine without a GPU."""
    monkeypatch.setattr(library, "_NAMES", ("no_such_library.so",))
    library.driver.cache_clear()
    yield
    library.driver.cache_clear()
