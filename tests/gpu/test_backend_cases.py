"""ONNX's backend tests on ``gpu``: all of them on a device, a sample on the interpreter."""

from __future__ import annotations

import pytest

from ..onnx_backend.runner import cases, manifest, run_case
from .device_data import on_devices, place

NAMES = sorted(set(cases("gpu")) - set(manifest()))
SAMPLED = NAMES[::40]
"""One test in forty, since the interpreter takes half a second for each."""


@pytest.mark.parametrize("name", SAMPLED)
def test_a_case_passes_on_the_interpreter(name: str) -> None:
    with place("interpreter"):
        run_case("gpu", name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", on_devices(NAMES))
def test_a_case_passes_on_a_device(name: str) -> None:
    run_case("gpu", name)
