"""Fixtures that repeat tests for several sets of CPU features, and that choose solvers for another CPU."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.host import LEVELS
from mgx_numba.codegen.cpu.machine import Machine, using

__all__ = ["ARM", "VNNI", "choosing_for", "features"]

VNNI = frozenset({"avx512vnni", "avx512vbmi", "avx512bf16"})
"""Features that Zen 4 adds to x86-64-v4 and that tiles use."""


ARM = platform.machine() in ("aarch64", "arm64")


def features(forms: Sequence[str], autouse: bool = False, arm: Sequence[str] = ("",)) -> Callable[..., str]:
    """A fixture that sets ``MGX_CPU_FEATURES`` to each of ``forms``, on ARM of ``arm``, and whose value that is."""

    @pytest.fixture(params=arm if ARM else forms, autouse=autouse)
    def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("MGX_CPU_FEATURES", request.param)
        return str(request.param)

    return form


@contextlib.contextmanager
def choosing_for(level: str, more: frozenset[str] = frozenset(), **fields: Any) -> Iterator[Machine]:
    """Choose solvers inside this context for a CPU of a level (``x86-64-v3``, ``x86-64-v4``) with ``more`` features,
    and other ``fields`` of `Machine`.

    The machine record is complete, so choices do not depend on the test's machine. Kernels must not run in the context.
    """
    enabled = LEVELS[level] | more
    cpu = host.Host(level, "x86_64-unknown-linux-gnu", ",".join(f"+{name}" for name in sorted(enabled)), enabled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "host_within", lambda limits: cpu)
        with using(Machine(cpu, last_cache_bytes=32 << 20, **fields)) as machine:
            yield machine
