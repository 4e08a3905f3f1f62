"""Look-up in layers: precedence, hints, and layers that cannot be read."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.cpu.backend import BACKEND
from mgx_numba.codegen.cpu.contraction.solver import NO_EPILOGUE
from mgx_numba.codegen.cpu.fingerprint import device_fingerprint
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.database import Database, default_path
from mgx_numba.codegen.tuning.files import read_records, write_records
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.codegen.tuning.session import Choice, Tuning, open_tuning
from mgx_numba.codegen.tuning.source import MemoryLayer, Sources, keep_in_file
from mgx_numba.errors import FormatError, MgxError, OptionError

from .support import HERE, THERE, problem, product, record

REQUEST = Request(GemmProblem(7, 9, 11), NO_EPILOGUE, (), 2, True)


def own(rows: int, **changes) -> TuningRecord:
    """A record of `REQUEST` on this machine."""
    values = {"fingerprint": device_fingerprint(), "solver": "gemm", **changes}
    configuration = {"rows": rows, "panels": 1, "taps": 1, "depth": 8}
    return TuningRecord(REQUEST.key(), configuration=configuration, seconds=1.0, **values)


def test_first_layer_wins():
    layers = [MemoryLayer("a", [record(4, 9.0)]), MemoryLayer("b", [record(4, 1.0), record(5, 1.0)])]
    found = Sources(layers).find(problem(4), HERE)
    assert found is not None and (found.origin, found.record.seconds, found.exact) == ("a", 9.0, True)
    found = Sources(layers).find(problem(5), HERE)
    assert found is not None and found.origin == "b"
    assert Sources(layers).find(problem(6), HERE) is None


def test_record_of_this_machine_wins_over_a_hint_of_an_earlier_layer():
    layers = [MemoryLayer("a", [record(4, 1.0, THERE)]), MemoryLayer("b", [record(4, 9.0)])]
    found = Sources(layers).find(problem(4), HERE)
    assert found is not None and (found.origin, found.exact) == ("b", True)
    found = Sources(layers[:1]).find(problem(4), HERE)
    assert found is not None and (found.origin, found.exact) == ("a", False)


def test_hint_of_the_same_number_of_threads_is_preferred():
    layer = MemoryLayer("a", [record(4, threads=8), record(4, fingerprint=THERE, threads=3), record(4, threads=1)])
    found = Sources([layer]).find(problem(4, threads=3), HERE)
    assert found is not None and found.record.problem == problem(4, threads=3) and not found.exact


def test_precedence_of_caller_variable_model_and_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given, variable = tmp_path / "given.json", tmp_path / "variable.db"
    Database(default_path()).put([own(6)])
    assert open_tuning(BACKEND).choose(REQUEST).configuration["rows"] == 6
    assert open_tuning(BACKEND, [own(12)]).choose(REQUEST).configuration["rows"] == 12
    keep_in_file(variable, [own(18)])
    monkeypatch.setenv("MIGRAPHX_PROBLEM_CACHE", str(variable))
    assert open_tuning(BACKEND, [own(12)]).choose(REQUEST).configuration["rows"] == 18
    write_records(given, [own(24)])
    tuning = open_tuning(BACKEND, [own(12)], [given])
    assert tuning.choose(REQUEST).configuration["rows"] == 24
    assert [(f.origin, f.exact) for f in tuning.used()] == [(str(given), True)]
    assert tuning.pending() == [] and "exists" in tuning.explain(REQUEST)


def test_without_records_the_cost_model_chooses():
    tuning = open_tuning(BACKEND)
    assert tuning.choose(REQUEST).configuration == {}
    assert [request for request, _ in tuning.pending()] == [REQUEST]
    assert "no record" in tuning.explain(REQUEST)
    assert not default_path().exists()


def test_hints_and_unusable_records_are_told_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_tuning(BACKEND, [own(6)]).tell()
    tuning = open_tuning(BACKEND, [own(6, fingerprint=THERE)])
    assert tuning.choose(REQUEST).configuration["rows"] == 6
    assert len(tuning.pending()) == 1
    with pytest.warns(RuntimeWarning, match=r"1 of 1 tuning records .* hints; .* cpu \(recorded"):
        tuning.tell()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuning.tell()
    for solver in ("no_such_solver", "gemm_packing"):
        tuning = open_tuning(BACKEND, [own(6, solver=solver)])
        assert tuning.choose(REQUEST).configuration == {}
        with pytest.warns(RuntimeWarning, match=f"do not apply here are ignored: {solver}"):
            tuning.tell()


def test_choices_say_what_decided_and_why():
    (choice,) = _choices(open_tuning(BACKEND))
    assert (choice.record, choice.origin, choice.configuration) == (None, "cost model", {})
    assert choice.miss == "no record of operation dot"
    (choice,) = _choices(open_tuning(BACKEND, [own(6)]))
    assert (choice.solver, choice.origin, choice.miss) == ("gemm", "model", "")
    assert choice.configuration["rows"] == 6 and choice.record == own(6)
    Database(default_path()).put([own(6, fingerprint=THERE)])
    (choice,) = _choices(open_tuning(BACKEND))
    assert choice.origin == "user database" and "machine in cores (recorded 4" in choice.miss
    (choice,) = _choices(open_tuning(BACKEND, [own(6, solver="gemm_packing")]))
    assert choice.origin == "cost model" and choice.miss == "the solver gemm_packing of its record does not apply here"


def _choices(tuning: Tuning) -> list[Choice]:
    tuning.choose(REQUEST)
    return tuning.choices()


def test_choices_of_a_program(tmp_path: Path):
    net = product()
    with pytest.raises(MgxError, match="not compiled"):
        net.tuning_choices()
    (choice,) = net.compile(num_threads=2).tuning_choices()
    assert choice.problem.fields["m"] == 3 and choice.origin == "cost model" and "no record" in choice.miss
    net.save(tmp_path / "net.mxr")
    assert migraphx.load(tmp_path / "net.mxr").tuning_choices() == [choice]  # by a plan that was kept, if there is one
    assert net.compile("ref").tuning_choices() == []


def test_files_that_the_caller_names(tmp_path: Path):
    with pytest.raises(OptionError, match="no file"):
        open_tuning(BACKEND, problem_cache=[tmp_path / "absent.json"])
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FormatError, match=r"bad\.json"):
        open_tuning(BACKEND, problem_cache=[tmp_path / "bad.json"])
    (tmp_path / "bad.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 200)
    with pytest.raises(FormatError, match=r"bad\.sqlite"):
        open_tuning(BACKEND, problem_cache=[tmp_path / "bad.sqlite"])
    open_tuning(BACKEND, problem_cache=[tmp_path / "new.json"], exhaustive=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_or_device_is_no_file_of_records(tmp_path: Path):
    """Opening a pipe waited for a writer; a device never ended."""
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", "/dev/zero"):
        for exhaustive in (False, True):
            with pytest.raises(FormatError, match="not a regular file"):
                open_tuning(BACKEND, problem_cache=[path], exhaustive=exhaustive)


@pytest.mark.parametrize("name", ["records.json", "records.sqlite"])
def test_new_records_are_added_to_a_file(tmp_path: Path, name: str):
    path = tmp_path / name
    keep_in_file(path, [record(4, 2.0)])
    keep_in_file(path, [record(4, 3.0), record(5)])
    records = read_records(path) if name.endswith("json") else Database(path).records()
    assert records == [record(4, 2.0), record(5)]


def test_damaged_user_database_is_told_once_and_left_alone():
    default_path().write_bytes(b"damaged" * 1000)
    tuning = open_tuning(BACKEND)
    with pytest.warns(RuntimeWarning, match="tuning records are ignored"):
        assert tuning.choose(REQUEST).configuration == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuning.choose(REQUEST)
    assert default_path().read_bytes() == b"damaged" * 1000
