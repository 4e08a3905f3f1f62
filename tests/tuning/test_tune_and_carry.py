"""Tuning a network, saving it with its records, and using them elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.cpu.backend import BACKEND
from mgx_numba.codegen.tuning.database import Database, default_path
from mgx_numba.codegen.tuning.files import read_records
from mgx_numba.errors import FormatError, OptionError
from mgx_numba.targets.cpu.measuring import Bench

from ..caches import with_kernels
from ..running import ROOT, said
from .support import check, choices, network


def never(self: Bench, candidate: object) -> float:
    raise AssertionError(f"{candidate} is measured")


@pytest.fixture(scope="module")
def tuned_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of the network, tuned in its own cache folder."""
    folder = with_kernels(tmp_path_factory.mktemp("tuned"))
    program = "from tests.tuning.support import network; import mgx_numba, sys\n"
    program += "net = network(); net.compile(exhaustive_tune=True, num_threads=2); mgx_numba.save(net, sys.argv[1])"
    run_python(program, str(folder / "net.mxr"), folder=folder)
    return folder / "net.mxr"


def run_python(program: str, *arguments: str, folder: Path) -> str:
    """Standard output of a fresh process with this cache folder."""
    return said(program, *arguments, MGX_CACHE_DIR=folder)


def test_tuned_network_is_right_and_its_records_are_kept(monkeypatch: pytest.MonkeyPatch):
    net = network()
    net.compile(exhaustive_tune=True, num_threads=2)
    check(net)
    assert {r.problem.operation for r in net.tuning_records} == {"dot", "convolution"}
    assert sorted(Database(default_path()).records(), key=repr) == sorted(net.tuning_records, key=repr)
    monkeypatch.setattr(Bench, "sample", never)
    again = network()
    again.compile(exhaustive_tune=True, num_threads=2)
    plain = network()
    plain.compile(num_threads=2)
    assert choices(again) == choices(plain) == choices(net)
    assert again.tuning_records == net.tuning_records


def test_loading_elsewhere_measures_nothing_and_chooses_the_same(tuned_file: Path, tmp_path: Path):
    program = (
        "import sys, json, mgx_numba\n"
        "from mgx_numba.targets.cpu.measuring import Bench\n"
        "from tests.tuning.support import check, choices\n"
        "def never(*_): raise AssertionError('measured')\n"
        "Bench.sample = never\n"
        "net = mgx_numba.load(sys.argv[1])\n"
        "check(net)\n"
        "print(json.dumps([choices(net), [[r.solver, r.configuration] for r in net.tuning_records]]))\n"
    )
    (tmp_path / "empty").mkdir()
    there = json.loads(run_python(program, str(tuned_file), folder=tmp_path / "empty"))
    here = migraphx.load(str(tuned_file))
    assert there == [choices(here), [[r.solver, dict(r.configuration)] for r in here.tuning_records]]
    assert not (tmp_path / "empty" / "tuning.sqlite").exists()


def test_records_survive_every_form_and_recompilation(tuned_file: Path, tmp_path: Path):
    net = migraphx.load(str(tuned_file))
    records = net.tuning_records
    assert len(records) == 2
    migraphx.save(net, tmp_path / "net.json", format="json")
    assert migraphx.load(tmp_path / "net.json", format="json").tuning_records == records
    copy = migraphx.load_buffer(migraphx.save_buffer(net)).clone()
    assert copy.tuning_records == records
    copy.compile(num_threads=3, fast_math=False)
    assert copy.tuning_records == records
    copy.compile(migraphx.get_target("ref"))
    assert copy.tuning_records == records


def other_machine(tuned_file: Path, path: Path) -> None:
    """Write the same file as if another CPU had tuned it."""
    net = migraphx.load(str(tuned_file))
    migraphx.save(net, path, format="json")
    tree = json.loads(path.read_text())
    for record in tree["mgx_numba"]["tuning"]:
        record["fingerprint"]["cpu"] = "another"
        record["configuration"] = {"rows": 12, "panels": 1, "taps": 1, "depth": 16}
    path.write_text(json.dumps(tree))


def test_records_of_another_machine_are_hints_told_once(tuned_file: Path, tmp_path: Path):
    path = tmp_path / "net.json"
    other_machine(tuned_file, path)
    with pytest.warns(RuntimeWarning) as told:
        net = migraphx.load(path, format="json")
    assert [str(w.message) for w in told if "hints" in str(w.message)]
    assert len(told) == 1 and 'cpu (recorded "another"' in str(told[0].message)
    check(net)
    assert all(r.configuration["rows"] == 12 for r in net.tuning_records)
    plain = network()
    plain.compile(num_threads=2)
    assert choices(net) != choices(plain)


def test_tuning_a_file_of_another_machine_keeps_both_records(tuned_file: Path, tmp_path: Path):
    path = tmp_path / "net.json"
    other_machine(tuned_file, path)
    with pytest.warns(RuntimeWarning, match="hints"):
        net = migraphx.load(path, format="json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.compile(exhaustive_tune=True, num_threads=2)
    check(net)
    assert sorted(r.fingerprint.cpu == "another" for r in net.tuning_records) == [False, False, True, True]


def test_malformed_records_in_a_file_are_refused(tuned_file: Path, tmp_path: Path):
    path = tmp_path / "net.json"
    migraphx.save(migraphx.load(str(tuned_file)), path, format="json")
    tree = json.loads(path.read_text())
    tree["mgx_numba"]["tuning"][1]["configuration"] = {"rows": "many"}
    path.write_text(json.dumps(tree))
    with pytest.raises(FormatError, match="record 1.*configuration"):
        migraphx.load(path, format="json")


@pytest.mark.parametrize("option", [{"problem_cache": "records.json"}, {"exhaustive_tune": True}, {"tune_budget": 1}])
def test_file_cannot_ask_for_tuning(tuned_file: Path, tmp_path: Path, option: dict[str, object]):
    path = tmp_path / "net.json"
    migraphx.save(migraphx.load(str(tuned_file)), path, format="json")
    tree = json.loads(path.read_text())
    tree["mgx_numba"]["compiled"].update(option)
    path.write_text(json.dumps(tree))
    with pytest.raises(FormatError, match=f"unknown {next(iter(option))}"):
        migraphx.load(path, format="json")


def test_problem_cache_takes_new_records_and_gives_them_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = network()
    first.compile(exhaustive_tune=True, num_threads=2, problem_cache=tmp_path / "cache.json")
    assert len(read_records(tmp_path / "cache.json")) == 2
    assert not default_path().exists()
    monkeypatch.setattr(Bench, "sample", never)
    second = network()
    second.compile(exhaustive_tune=True, num_threads=2, problem_cache=[tmp_path / "cache.json"])
    assert choices(second) == choices(first)
    third = network()
    monkeypatch.setenv("MIGRAPHX_PROBLEM_CACHE", str(tmp_path / "cache.json"))
    third.compile(num_threads=2)
    assert choices(third) == choices(first)


def test_budget_of_nothing_measures_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Bench, "sample", never)
    net = network()
    with pytest.warns(RuntimeWarning, match="budget is spent: 2 of 2 problems are not measured"):
        net.compile(exhaustive_tune=True, tune_budget=0, num_threads=2)
    check(net)
    assert net.tuning_records == []


def test_a_spent_budget_keeps_the_records_of_problems_that_were_begun(monkeypatch: pytest.MonkeyPatch):
    """A spent budget could leave no record, and the warning counted problems that were not measured."""
    sample = Bench.sample

    def slow(self: Bench, candidate: object) -> float:
        time.sleep(0.2)
        return sample(self, candidate)

    monkeypatch.setattr(Bench, "sample", slow)
    net = network()
    with pytest.warns(RuntimeWarning, match="1 of 2 problems are not measured, 1 record saved"):
        net.compile(exhaustive_tune=True, tune_budget=0.1, num_threads=2)
    assert len(net.tuning_records) == 1


def test_interrupted_tuning_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch):
    benches: list[Bench] = []

    def sample(self: Bench, candidate: object) -> float:
        if self not in benches:
            benches.append(self)
        if len(benches) > 1:
            raise KeyboardInterrupt
        return 1e-3

    monkeypatch.setattr(Bench, "sample", sample)
    net = network()
    with pytest.warns(RuntimeWarning, match="interrupted: 1 of 2 problems are not measured"):
        net.compile(exhaustive_tune=True, num_threads=2)
    check(net)
    assert len(net.tuning_records) == len(Database(default_path()).records()) == 1


def test_progress_tells_done_remaining_and_best(monkeypatch: pytest.MonkeyPatch):
    from mgx_numba.codegen.tuning.session import open_tuning
    from mgx_numba.targets.options import TargetOptions
    from mgx_numba.targets.registry import compile_for

    told: list[tuple[int, int, str]] = []
    sampled: set[tuple[Any, Any]] = set()

    def sample(self: Bench, candidate: Any) -> float:
        sampled.add((self.request, candidate))
        return 1e-3

    monkeypatch.setattr(Bench, "sample", sample)
    tuning = open_tuning(BACKEND, exhaustive=True, progress=lambda *entry: told.append(entry))
    compile_for("cpu", network().portable, TargetOptions(num_threads=2, tuning=tuning))
    assert [(done, left) for done, left, _ in told] == [(0, 2), (1, 1)]
    assert all(best.endswith("1.000 ms") for _, _, best in told)
    assert len(sampled) > len({request for request, _ in sampled}) == 2


def test_dynamic_program_is_not_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Bench, "sample", never)
    net = migraphx.program()
    main = net.get_main_module()
    dims = [migraphx.shape.dynamic_dimension(1, 4), migraphx.shape.dynamic_dimension(6, 6)]
    x = main.add_parameter("x", migraphx.shape(type="float_type", dyn_dims=dims))
    w = main.add_literal(np.ones((6, 5), np.float32))
    main.add_return([main.add_instruction(migraphx.op("dot"), [x, w])])
    with pytest.warns(RuntimeWarning, match="dynamic inputs"):
        net.compile(exhaustive_tune=True, num_threads=2)
    assert np.array(net.run({"x": np.ones((3, 6), np.float32)})[0]).tolist() == [[6.0] * 5] * 3


def test_damaged_user_database_does_not_lose_the_compilation():
    default_path().write_bytes(b"damaged" * 1000)
    net = network()
    with pytest.warns(RuntimeWarning, match="tuning records are ignored"):
        net.compile(exhaustive_tune=True, num_threads=2)
    check(net)
    assert len(net.tuning_records) == 2


def test_option_values():
    net = network()
    for options, text in (
        ({"tune_budget": -1}, "tune_budget"),
        ({"tune_budget": "long"}, "tune_budget"),
        ({"problem_cache": 3}, "problem_cache"),
        ({"problem_cache": ["/no/such/file"]}, "no file"),
        ({"exhaustive_tune": "yes"}, "exhaustive_tune"),
    ):
        with pytest.raises(OptionError, match=text):
            net.compile(**options)


def test_ref_has_nothing_to_tune(monkeypatch: pytest.MonkeyPatch):
    from mgx_numba.api import options

    monkeypatch.setattr(options, "warned", set())
    with pytest.warns(UserWarning, match="exhaustive_tune=True has no effect"):
        network().compile(migraphx.get_target("ref"), exhaustive_tune=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network().compile(migraphx.get_target("ref"), exhaustive_tune=True)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_killed_tuning_leaves_the_database_usable(cache_folder: Path):
    program = (
        "from tests.tuning.support import network\n"
        "from mgx_numba.targets.cpu.measuring import Bench\n"
        "import time\n"
        "seen = []\n"
        "def sample(self, candidate):\n"
        "    if self not in seen:\n"
        "        seen.append(self)\n"
        "        print(len(seen), flush=True)\n"
        "    if len(seen) > 1:\n"
        "        time.sleep(60)\n"
        "    return 1e-3\n"
        "Bench.sample = sample\n"
        "network().compile(exhaustive_tune=True, num_threads=2)\n"
    )
    environment = {**os.environ, "MGX_CACHE_DIR": str(cache_folder), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n" and process.stdout.readline() == b"2\n"
    time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    (kept,) = Database(default_path()).records()
    net = network()
    net.compile(exhaustive_tune=True, num_threads=2)
    check(net)
    assert kept in Database(default_path()).records()
    assert all(choice.origin in ("measured", "user database") for choice in net.tuning_choices())
