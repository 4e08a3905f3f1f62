"""A solver with a new revision is measured again where it applies; other records stay."""

from __future__ import annotations

import sqlite3
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.backend import backend
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.gemm_int8 import GemmInt8
from mgx_numba.codegen.gpu.contraction import solvers
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.database import Database, default_path
from mgx_numba.codegen.tuning.record import DeviceFingerprint, TuningRecord
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.driver.records import write_table
from mgx_numba.targets.cpu.measuring import Bench

from .support import HERE, THERE, check, network, record


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operations of the problems that are measured; their samples are made up."""
    found: list[str] = []

    def sample(self: Bench, candidate: Any) -> float:
        operation = self.request.key().operation
        if operation not in found:
            found.append(operation)
        return 1e-3

    monkeypatch.setattr(Bench, "sample", sample)
    return found


def tuned(**options: Any) -> migraphx.program:
    net = network()
    net.compile(num_threads=2, **options)
    check(net)
    return net


def test_records_stayed_whatever_became_of_the_kernels(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(exhaustive_tune=True)
    assert sorted(measured) == ["convolution", "dot"]
    before = Database(default_path()).records()
    measured.clear()
    monkeypatch.setattr(GemmPacked, "revision", 1)
    with pytest.warns(RuntimeWarning, match=r"hints.* versions.solver gemm \(recorded null, wanted \"1\"\)"):
        hinted = tuned()
    assert sorted(hinted.tuning_records, key=repr) == sorted(before, key=repr) and not measured
    tuned(exhaustive_tune=True)
    assert measured == ["dot"]
    records = Database(default_path()).records()
    assert all(r in records for r in before) and len(records) == 3
    (new,) = (r for r in records if r not in before)
    assert dict(new.fingerprint.versions)["solver gemm"] == "1"
    assert new.fingerprint.machine == before[0].fingerprint.machine and TuningRecord.from_json(new.to_json()) == new
    measured.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = tuned(exhaustive_tune=True)
    assert not measured and new in again.tuning_records
    write_table([new], "here")
    assert "this machine" in capsys.readouterr().out


def test_records_travel_to_packages_with_other_kernels(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for revision in (0, 2):
        monkeypatch.setattr(GemmPacked, "revision", revision)
        migraphx.save(tuned(exhaustive_tune=True), str(tmp_path / f"{revision}.mxr"))
    Database(default_path()).path.unlink()
    measured.clear()
    for revision in (0, 2):
        monkeypatch.setattr(GemmPacked, "revision", 2 - revision)
        with pytest.warns(RuntimeWarning, match="versions.solver gemm "):
            net = migraphx.load(str(tmp_path / f"{revision}.mxr"))
        assert len(net.tuning_records) == 2
        check(net)
    assert not measured


def test_revisions_are_those_of_solvers_that_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = GemmProblem(8, 16, 32, (), (32, 1), (16, 1))
    request = Request(problem, Epilogue(), (), 1, False)
    placed = GpuContraction(request)
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    assert backend("cpu").solvers.revisions(request) == {} and backend("gpu").solvers.revisions(placed) == {}
    for solver in (GemmPacked, GemmInt8, solvers.Tiles, solvers.Depthwise):
        monkeypatch.setattr(solver, "revision", 3)
    assert backend("cpu").solvers.revisions(request)["gemm"] == 3
    assert backend("gpu").solvers.revisions(placed) == {"tiled": 3}


def test_fingerprints_with_revisions() -> None:
    assert HERE.with_revisions({}) is HERE and HERE.machine == HERE
    revised = HERE.with_revisions({"tiled": 2, "fma": 1})
    assert revised != HERE and revised.machine == HERE and revised.key != HERE.key
    assert DeviceFingerprint.from_json(revised.to_json()) == revised


def test_pruning_kept_no_records_of_solvers_with_revisions(tmp_path: Path) -> None:
    database = Database(tmp_path / "a")
    revised = HERE.with_revisions({"tiled": 2})
    kept = [record(4), record(5, fingerprint=revised), replace(record(4), fingerprint=revised)]
    database.put([*kept, record(7, fingerprint=THERE), record(8, fingerprint=THERE.with_revisions({"tiled": 2}))])
    assert database.prune(keep=HERE) == 2
    assert sorted(database.records(), key=repr) == sorted(kept, key=repr)
    assert database.prune(keep=THERE) == 3


def test_pruning_failed_where_a_record_is_damaged(tmp_path: Path) -> None:
    """A record with a damaged fingerprint is deleted; other damage in a record of the kept machine does not matter."""
    database = Database(tmp_path / "a")
    kept = [record(4), record(5, fingerprint=HERE.with_revisions({"tiled": 2}))]
    database.put([*kept, record(6), record(7, fingerprint=THERE)])
    with sqlite3.connect(database.path) as connection:
        connection.execute("UPDATE records SET fingerprint = '{' WHERE fingerprint = ?", (THERE.key,))
        connection.execute("UPDATE records SET configuration = '{' WHERE problem = ?", (record(6).problem.key,))
    assert database.prune(keep=HERE) == 1
    with sqlite3.connect(database.path) as connection:
        connection.execute("DELETE FROM records WHERE configuration = '{'")
    assert sorted(database.records(), key=repr) == sorted(kept, key=repr)
