"""Tests marked ``gpu`` need an NVIDIA device; elsewhere they are skipped with what is missing."""

from __future__ import annotations

import pytest

from mgx_numba.codegen.gpu.driver.library import missing
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.engine import Engine

from .programs import interpreter


@pytest.fixture(params=["interpreter", pytest.param("device", marks=pytest.mark.gpu)])
def on(request: pytest.FixtureRequest) -> Engine:
    """The interpreter, and where there is one a device."""
    return interpreter() if request.param == "interpreter" else cuda_engine()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    lacking = missing() if marked else ""
    for item in marked if lacking else []:
        item.add_marker(pytest.mark.skip(reason=lacking))
