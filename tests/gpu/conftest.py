"""Tests marked ``gpu`` need an NVIDIA device; elsewhere they are skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mgx_numba.codegen.gpu import machine as machines
from mgx_numba.codegen.gpu.driver import device as devices
from mgx_numba.codegen.gpu.driver.library import Driver, missing
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.engine import Engine

from .device_data import PLACES, place
from .programs import interpreter
from .two_devices import Library


@pytest.fixture(params=PLACES)
def on(request: pytest.FixtureRequest) -> Engine:
    """The interpreter, and where there is one a device."""
    return interpreter() if request.param == "interpreter" else cuda_engine()


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of the engine on which the target ``gpu`` runs during the test."""
    with place(request.param):
        yield request.param


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    lacking = missing() if marked else ""
    for item in marked if lacking else []:
        item.add_marker(pytest.mark.skip(reason=lacking))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """The driver's library during the test, with two devices."""
    made = Library()
    driver = Driver(made)
    monkeypatch.delenv("MGX_GPU_ARCH", raising=False)
    monkeypatch.setattr(devices, "driver", lambda: driver)
    caches = (devices._opened, devices.architecture_of, machines.machine_of_device)
    for cache in caches:
        cache.cache_clear()
    yield made
    for cache in caches:
        cache.cache_clear()
