"""Shipped records: used last, only for their CPU, without a message, and never taken for measured ones."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from mgx_numba.codegen.cpu.backend import BACKEND
from mgx_numba.codegen.cpu.contraction.solver import NO_EPILOGUE
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning import source
from mgx_numba.codegen.tuning.files import read_records, write_records
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.codegen.tuning.session import Tuning
from mgx_numba.codegen.tuning.source import MemoryLayer, ShippedLayer, Sources
from tests.tuning.support import HERE, THERE, problem, record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_records(tmp_path / "znver4.json", [record(4, solver="shipped"), record(5)])
    return tmp_path


def test_a_shipped_record_decides_where_no_other_does(folder: Path) -> None:
    layer = ShippedLayer("znver4", folder)
    found = Sources([MemoryLayer("model", [record(5, solver="own")]), layer]).find(problem(4), THERE)
    assert found is not None and (found.record.solver, found.origin) == ("shipped", "shipped")
    assert not found.exact and not found.is_hint
    found = Sources([MemoryLayer("model", [record(5, solver="own", fingerprint=THERE)]), layer]).find(problem(5), HERE)
    assert found is not None and found.record.solver == "own" and found.is_hint


def test_it_is_for_its_cpu_and_number_of_threads(folder: Path) -> None:
    assert ShippedLayer("skylake", folder).similar(problem(4)) == []
    assert ShippedLayer("znver4", folder).similar(problem(4, threads=3)) == []
    assert ShippedLayer("znver4", folder).exact(problem(4), HERE) is None
    assert len(ShippedLayer("znver4", folder).records()) == 2


def test_a_miss_is_not_explained_by_what_the_package_ships(folder: Path) -> None:
    own = record(5, solver="own")
    assert Sources([MemoryLayer("model", [own]), ShippedLayer("znver4", folder)]).records() == [own]


def test_what_the_package_ships_can_be_read() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in source.SHIPPED.glob("*.json"):
            records = read_records(path)
            assert records and all(path.stem in (r.fingerprint.cpu, *r.fingerprint.features[:1]) for r in records)


def test_a_solver_that_this_cpu_lacks_is_passed_over_without_a_word(tmp_path: Path) -> None:
    """LLVM's name of a CPU does not say whether the system lets it use its tiles."""
    request = Request(GemmProblem(40, 50, 60), NO_EPILOGUE, (), 1, False)
    written = TuningRecord(request.key(), HERE, "gemm_tiles", {}, 1e-6)
    write_records(tmp_path / "znver4.json", [written])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuning = Tuning(BACKEND, Sources([ShippedLayer("znver4", tmp_path)]), lambda _: None)
        assert tuning.choose(request) == BACKEND.solvers.choose(request)
        tuning.tell()
        assert [choice.origin for choice in tuning.choices()] == ["cost model"]
