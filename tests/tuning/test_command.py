"""``mgx-numba-driver tune``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.tuning.database import Database, default_path
from mgx_numba.codegen.tuning.files import read_records, write_records
from mgx_numba.driver.main import main
from mgx_numba.driver.records import describe
from mgx_numba.targets.cpu.measuring import Bench

from .support import THERE, network, problem, product, record


def test_tune_into_a_file_then_list_and_export(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Bench, "sample", lambda self, candidate: 1e-3)
    plain, tuned, exported = (str(tmp_path / name) for name in ("net.mxr", "tuned.mxr", "records.json"))
    migraphx.save(network(), plain)
    assert main(["tune", plain, "--num-threads", "2", "-o", tuned]) == 0
    assert len(migraphx.load(tuned).tuning_records) == len(Database(default_path()).records()) == 2
    out = capsys.readouterr().out
    assert "conv 1x8x9x9 -> 12, 3x3/1x1 + relu float32 2t" in out and "dot 1x10x972 float32 2t" in out
    for words in (["--list"], ["--list", tuned]):
        assert main(["tune", *words]) == 0
        out = capsys.readouterr().out
        assert out.count("this machine") == 2 and "of limit" in out and "%" in out
    assert main(["tune", tuned, "--export", exported]) == 0
    assert len(read_records(exported)) == 2
    assert main(["tune", "--diff", tuned, exported]) == 0
    assert main(["tune", "--diff", plain, exported]) == 1


def test_explaining_names_the_fields_that_differ(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Bench, "sample", lambda self, candidate: 1e-3)
    plain, tuned, other = (str(tmp_path / name) for name in ("net.mxr", "tuned.mxr", "other.json"))
    migraphx.save(product(), plain)
    assert main(["tune", "--explain", plain, "--num-threads", "2"]) == 0
    assert "cost model  no record of operation dot" in capsys.readouterr().out
    assert main(["tune", plain, "--num-threads", "2", "-o", tuned]) == 0
    capsys.readouterr()
    assert main(["tune", "--explain", tuned, "--num-threads", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("model")
    migraphx.save(product(m=4), plain)
    assert main(["tune", "--explain", plain, "--num-threads", "2"]) == 0
    assert "the nearest record differs: the problem in m (recorded 3, wanted 4)" in capsys.readouterr().out
    (found,) = migraphx.load(tuned).tuning_records
    write_records(other, [replace(found, fingerprint=replace(found.fingerprint, cpu="skylake", cores=96))])
    assert main(["tune", "--list", other]) == 0
    assert "the machine in cores (recorded 96, wanted" in capsys.readouterr().out
    assert main(["tune", "--diff", tuned, other]) == 1
    out = capsys.readouterr().out
    assert 'cpu (recorded "skylake", wanted' in out and ', wanted "skylake")' in out


def test_import_merge_diff_and_prune(tmp_path: Path, capsys: Any):
    a, b, both, other = (str(tmp_path / name) for name in ("a.json", "b.json", "both.json", "other.sqlite"))
    write_records(a, [record(4, 2.0), record(5), record(7, fingerprint=THERE)])
    write_records(b, [record(4, 1.0, solver="gemm_packing"), record(6)])
    assert main(["tune", "--import", a, b, "--database", other]) == 0
    assert len(Database(other).records()) == 4 and not default_path().exists()
    assert main(["tune", "--merge", a, b, "-o", both]) == 0
    assert {r.problem.fields["m"] for r in read_records(both)} == {4, 5, 6, 7}
    assert main(["tune", "--diff", a, b]) == 1
    out = capsys.readouterr().out
    assert "gemm rows=6 2000 ms" in out and "gemm_packing rows=6 1000 ms" in out and out.count("-") >= 3
    assert main(["tune", "--list", "--database", other]) == 0
    assert "skylake" in capsys.readouterr().out
    assert main(["tune", "--prune", "1", "--database", other]) == 0
    assert Database(other).records() == []


def test_errors_are_told_in_one_line(tmp_path: Path, capsys: Any):
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    for words, text in (
        (["--merge", str(bad)], "--output"),
        (["--import", str(bad)], "not a file of tuning records"),
        (["--diff", str(bad), str(tmp_path / "absent")], "bad.json"),
        (["--import", str(tmp_path / "absent")], "cannot be read"),
        ([], "a model file is needed"),
    ):
        assert main(["tune", *words]) == 2
        assert text in capsys.readouterr().err


def test_descriptions():
    assert describe(problem(3)) == "dot 3x8xNone float32 2t"
    strange = problem().of("convolution", 1, {"in_lens": 5, "groups": 2, "transposed": True, "epilogue": 3})
    assert "groups 2 transposed" in describe(strange)
