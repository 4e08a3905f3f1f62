"""Rates that ``tune --gpu`` measures: kept in the cache folder, and read by all cost models from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mgx_numba.codegen.gpu import machine as machines
from mgx_numba.codegen.gpu.machine import H200, machine
from mgx_numba.driver.main import main
from mgx_numba.errors import DeviceError
from mgx_numba.targets.gpu import machine_rates

from ..interpreter.engine import interpreted
from .two_devices import NAMES, Library


class Slow:
    """A device, as an engine, a queue and a bench, at two thirds of an H200's rates, and with half of its memory's."""

    name, number = "slow", 1

    def __init__(self, *given: Any) -> None:
        self.contraction = given[-1] if given else None
        self.freed: list[int] = []

    def queue(self) -> Slow:
        return self

    def allocate(self, size: int, name: str) -> int:
        return size

    def free(self, address: int) -> None:
        self.freed.append(address)

    def copy(self, address: int, source: int, size: int) -> None: ...

    def timed(self, ask: Any) -> float:
        ask()
        return 2 * machine_rates.COPIED / (H200.bandwidth / 2)

    def sample(self, candidate: Any) -> float:
        with machines.planning_for(H200):
            return 1.5 * float(candidate.solver.estimate(self.contraction))


def test_measured_rates_are_kept_and_read(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path))
    slow = Slow()
    monkeypatch.setattr(machine_rates, "engine", lambda number: slow)
    monkeypatch.setattr(machine_rates, "DeviceBench", Slow)
    assert machine(1) == H200
    main(["tune", "--gpu", "--device-id", "1"])
    found = machine(1)
    assert found.clock == pytest.approx(H200.clock / 1.5, rel=0.1)
    assert found.clock * found.warp_products == pytest.approx(H200.clock * H200.warp_products / 1.5, rel=0.1)
    assert found.bandwidth == pytest.approx(H200.bandwidth / 2) and len(slow.freed) == 2
    assert (found.multiprocessors, found.architecture) == (132, "sm_90a")
    shown = capsys.readouterr().out
    assert "bandwidth        4.2e+12 -> 2.1e+12" in shown and str(tmp_path) in shown
    assert machine(0).name == "A100" and machine(0).name in NAMES[0]


def test_a_damaged_record_is_passed_over(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path))
    path = machines.keep_machine(H200, f"{NAMES[1]}, 132 multiprocessors")
    for text in ("{", "{}", '{"speed": 1}', "[]"):
        path.write_text(text)
        machines.machine_of_device.cache_clear()
        assert machine(1) is H200


def test_the_interpreter_has_no_rates() -> None:
    with interpreted(), pytest.raises(DeviceError, match="has no rates"):
        machine_rates.fit_machine()
