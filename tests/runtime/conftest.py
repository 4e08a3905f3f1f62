"""Runtime tests share their own object store, which starts empty and is deleted afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.kernel import KernelSource

ADD = """
def kernel(args, begin, end):
    x = words_at(args, 0)
    y = words_at(args, 1)
    for tile in range(begin, end):
        for i in range(tile * 8, tile * 8 + 8):
            y[i] = x[i] + args[2]
"""


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(autouse=True)
def object_folder(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MGX_CACHE_DIR", str(shared_folder))
    return shared_folder


@pytest.fixture
def add_kernel() -> KernelSource:
    """Tile t: eight int64 elements, ``y = x + args[2]``."""
    return cpu_kernel("add_kernel", ADD)


@pytest.fixture
def distinct() -> Callable[[int], KernelSource]:
    """Kernels that differ from one another: number n writes n into its first slot's first word."""

    def make(number: int) -> KernelSource:
        text = f"def kernel(args, begin, end):\n    words_at(args, 0)[0] = {number}\n"
        return cpu_kernel(f"set_{number}_kernel", text)

    return make
