"""Machine records: shipped, measured once and kept, or generic; and choices of solvers that noise does not change."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mgx_numba.codegen.cpu import host, machine_record
from mgx_numba.codegen.cpu.contraction import solvers
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.strassen.solver import GemmStrassen
from mgx_numba.codegen.cpu.machine import machine, machine_of, using
from mgx_numba.codegen.cpu.machine_record import (
    ESTIMATED,
    GENERIC,
    LEVELS,
    MEASURED,
    SHIPPED,
    MachineRecord,
    generic_record,
    keep_record,
    named_record,
    record_for,
    to_be_measured,
)
from mgx_numba.codegen.platform import platform
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.errors import OptionError
from mgx_numba.runtime.cpu import rates
from mgx_numba.targets.registry import target

NAMES = sorted(path.stem for path in SHIPPED.glob("*.json"))
STATED = json.loads((SHIPPED / "stated" / "arm.json").read_bytes())
BYTES = element_types("uint8 int8 int32 int32")
PROBLEMS = [
    *(GemmProblem(m, n, k, fast_math=True) for m in (1, 32, 197) for n, k in ((768, 768), (3072, 768), (1000, 2048))),
    *(
        ConvProblem(1, c, c, (side, side), (k, k), pads_begin=(k // 2,) * 2, pads_end=(k // 2,) * 2, fast_math=True)
        for c, side in ((16, 112), (64, 56), (256, 14), (512, 7))
        for k in (1, 3, 5)
    ),
]


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[host.Host]:
    """A CPU without a shipped record, in a process that has measured nothing and has an empty cache folder."""
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("MGX_MACHINE", raising=False)
    here = replace(platform(), cpu="unheard-of")
    monkeypatch.setattr(machine_record, "platform", lambda: here)
    monkeypatch.setattr(rates, "_begun", [])
    yield host.host()


def noisy(record: MachineRecord, factor: float, seed: int) -> MachineRecord:
    rng = random.Random(seed)
    return record.mapped(lambda _, value: value * rng.uniform(1 / factor, factor))


def chosen(record: MachineRecord) -> list[str]:
    """Return the solvers of `PROBLEMS`, and the identities of their plans' kernels."""
    found = []
    with using(machine_of(record, host.host())):
        for problem in PROBLEMS:
            solver = solvers.select(problem, 2)
            found += [solver.name, *(k.symbol for k in solver.plan(problem, threads=2).kernels)]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_record_is_whole(name: str) -> None:
    record = named_record(name, host.host())
    assert record.name == name and MachineRecord.from_json(record.to_json()) == record
    assert set(record.load) == set(record.store) == set(LEVELS)
    assert record.quantised().quantised() == record.quantised() and "winograd" in record.methods
    assert all(name in str(record) for name in ("barrier", "claim", "load memory"))


def test_an_unknown_cpu_is_measured_once_and_its_record_kept(unknown: host.Host) -> None:
    assert to_be_measured(unknown) and record_for(unknown).name == GENERIC
    thread = rates.measure_in_background()
    assert thread is not None and rates.measure_in_background() is None
    thread.join()
    record = record_for(unknown)
    assert record.name in (MEASURED, ESTIMATED) and record == record.quantised()
    assert not to_be_measured(unknown)  # other processes may disturb it, which is no reason to measure at once
    assert set(record.load) == set(record.store) == set(LEVELS)
    assert str(host.host().vector_bits) in record.fma and record.tiles
    assert record.name in target("cpu").machine()["record"]


def test_a_busy_machine_has_an_estimated_record_until_a_measurement_is_undisturbed(
    unknown: host.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([2.0, 1.0] * 1000)
    monkeypatch.setattr(rates, "best_and_repeated", lambda *_: (next(times), False))
    thread = rates.measure_in_background()
    assert thread is not None
    thread.join()
    estimated = record_for(unknown)
    assert estimated.name == ESTIMATED and not to_be_measured(unknown)
    os.utime(machine_record.record_path(unknown), (0, 0))
    assert to_be_measured(unknown)
    assert keep_record(unknown, replace(estimated, barrier=1.0)) == estimated and not to_be_measured(unknown)
    keep_record(unknown, replace(estimated, name=MEASURED, barrier=1.0))
    assert record_for(unknown).name == MEASURED and record_for(unknown).barrier == 1.0
    keep_record(unknown, estimated)
    assert record_for(unknown).name == MEASURED


def test_a_folder_that_cannot_be_written_is_no_error(unknown: host.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", "/proc/nowhere")
    keep_record(unknown, generic_record(unknown))
    assert record_for(unknown).name == GENERIC


WITHOUT_SETS = '{"name": "x", "fma": {"512": 1.0}, "load": {"memory": [1, 1]}, "l1_sets": 0}'


@pytest.mark.parametrize(
    "text", [WITHOUT_SETS, "", "[]", "{}", '{"name": "x"}', '{"name": "x", "fma": {"512": -1.0}}', "\xff"]
)
def test_a_damaged_record_is_not_used(unknown: host.Host, text: str) -> None:
    keep_record(unknown, replace(generic_record(unknown), name=MEASURED))
    assert record_for(unknown).name == MEASURED
    machine_record.record_path(unknown).write_text(text)
    assert record_for(unknown).name == GENERIC


@pytest.mark.parametrize("cpu", [*STATED, "neoverse-n3"])
def test_an_arm_cpu_that_nobody_measured_has_stated_rates(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MGX_MACHINE", raising=False)
    monkeypatch.setenv(host.ENVIRONMENT, "")
    own = STATED.get(cpu, STATED["neoverse-n1"])
    fake = replace(platform(), cpu=cpu, triple="aarch64-unknown-linux-gnu", features={"neon": True, "dotprod": True})
    with host.pretending(fake):
        record = record_for(host.host())
        assert record.name == GENERIC and record.model == own["model"]
        assert set(record.load) == set(record.store) == set(LEVELS)
        assert machine().clock == 1e9 * own["fma"]["128"] / 2 and machine().l2_bytes == own["l2_bytes"]
        assert solvers.select(GemmProblem(197, 768, 768, types=BYTES), 2).name == "gemm_int8"
        assert solvers.select(GemmProblem(197, 768, 768), 2).name == "gemm"


def test_a_variable_names_the_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MGX_MACHINE", "znver3")
    assert record_for(host.host()).name == "znver3" and machine().l2_bytes == 512 << 10
    path = tmp_path / "own.json"
    path.write_text(replace(named_record("znver3", host.host()), name="own").to_json())
    monkeypatch.setenv("MGX_MACHINE", str(path))
    assert record_for(host.host()).name == "own" and not to_be_measured(host.host())
    monkeypatch.setenv("MGX_MACHINE", "pentium")
    with pytest.raises(OptionError, match="expected one of generic, .*znver5"):
        machine()


@pytest.mark.parametrize("name", NAMES)
def test_another_measurement_changes_no_plan_and_no_kernel(name: str, unknown: host.Host) -> None:
    measured = replace(named_record(name, unknown), name=MEASURED, methods={})
    first = keep_record(unknown, noisy(measured, 1.04, 0))
    plans = chosen(first)
    for seed in range(1, 4):
        assert keep_record(unknown, noisy(measured, 1.04, seed)) == first
    for seed in range(4, 8):  # in a container that keeps no folder
        assert chosen(noisy(measured, 1.04, seed).quantised()) == plans


def test_rewritten_arithmetic_has_to_gain_five_percent(
    monkeypatch: pytest.MonkeyPatch, given_machine: Callable[..., None]
) -> None:
    """Estimates are a few percent off: a method that rounds more was taken for a gain of 1%, on any CPU."""
    monkeypatch.setenv("MGX_CPU_FEATURES", "x86-64-v3")  # matrix units would be faster than both methods
    problem = GemmProblem(300, 640, 768, fast_math=True)
    if GemmStrassen(1).refusal(problem):
        pytest.skip(f"not here: {GemmStrassen(1).refusal(problem)}")

    def rewritten(gain: float, **methods: float) -> bool:
        given_machine(methods=tuple(methods.items()))
        monkeypatch.setattr(GemmStrassen, "estimate", lambda s, p, t=1: GemmPacked().estimate(p, t) / gain)
        solvers._cost.cache_clear()
        found = solvers.select(problem, 1)
        solvers._cost.cache_clear()
        return isinstance(found, GemmStrassen)

    assert not rewritten(1.04, strassen=1.0) and rewritten(1.06, strassen=1.0)
    assert not rewritten(1.2, strassen=1.15) and rewritten(1.3, strassen=1.15)
    assert not rewritten(2.0, winograd=1.0)  # the record has no times of the method on this CPU


def test_zen3_computes_small_products_by_the_plain_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """128x768x768 and a 1x1 convolution of 256 to 64 channels: with and without fast_math the kernels are the same."""
    if not host.has("avx2", "fma"):
        pytest.skip("needs AVX2")
    monkeypatch.setenv("MGX_CPU_FEATURES", "x86-64-v3")
    monkeypatch.setenv("MGX_MACHINE", "znver3")
    problems: list[Any] = [GemmProblem(128, 768, 768), ConvProblem(1, 256, 64, (56, 56), (1, 1))]
    for problem in problems:
        plans = [replace(problem, fast_math=fast) for fast in (True, False)]
        chosen = [solvers.select(p, 1) for p in plans]
        assert chosen[0] is chosen[1] and chosen[0].name in ("gemm", "conv_1x1")
        assert chosen[0].plan(plans[0]).launches == chosen[1].plan(plans[1]).launches
