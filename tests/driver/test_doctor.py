"""``mgx-numba-driver doctor``: facts, trials in another process, findings, and its two forms of output."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mgx_numba.codegen.gpu.architecture import architecture
from mgx_numba.codegen.gpu.driver import device, hip, library
from mgx_numba.driver.doctor import facts as fact_module
from mgx_numba.driver.doctor.facts import Findings, facts
from mgx_numba.driver.doctor.models import MODELS
from mgx_numba.driver.doctor.trials import trials, tried
from tests.driver.support import drive


def test_models_agree_with_the_reference(capsys: Any) -> None:
    assert drive("doctor", "--json", "--models", "control,trees") == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["healthy"] and not report["problems"] and not err
    assert [model["title"] for model in report["models"]] == ["loop and branches", "tree ensemble"]
    assert all(model["error"] < 1e-5 and model["run_seconds"] > 0 for model in report["models"])
    assert report["facts"]["target cpu"]["class"] and report["facts"]["packages"]["numba"]
    assert "load memory" in report["facts"]["target cpu"]["machine record"]


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.target == "cpu"])
def test_each_model_has_a_limit_that_a_difference_exceeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, name, dataclasses.replace(MODELS[name], limit=-1.0))
    assert "RMS error exceeds -1" in tried(name).problem


def test_an_exception_is_the_outcome_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "trees", dataclasses.replace(MODELS["trees"], target="nowhere"))
    assert tried("trees").problem.startswith("OptionError: unknown target 'nowhere'")


def _python(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_kernel_that_kills_the_process_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", _python(tmp_path, "kill -ILL $$"))
    assert [one.problem for one in trials(["control", "trees"])] == ["the process died of SIGILL"] * 2
    monkeypatch.setattr(sys, "executable", _python(tmp_path, "echo no memory >&2; exit 3"))
    assert [one.problem for one in trials(["trees"])] == ["no memory"]


def test_models_that_take_too_long_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", _python(tmp_path, "exec sleep 60"))
    assert [one.problem for one in trials(["control", "trees"], 0.2)] == ["not done within 0.2 s"] * 2


def test_failures_are_counted_once_and_told_by_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MGX_CPU_FEATURES", "nothing")
    assert drive("doctor", "--models", "control,trees") == 1
    out = capsys.readouterr().out
    assert "\n  - loop and branches (cpu); tree ensemble (cpu): OptionError: MGX_CPU_FEATURES='nothing'" in out
    assert "not healthy" in out and out.count("\n  - target cpu: OptionError") == 1


def test_text_has_one_line_a_fact_in_a_pipe_and_colours_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    texts = {}
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for out in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stdout", out)
        assert drive("doctor", "--models", "none") == 0
        texts[type(out)] = out.getvalue()
    assert "\033" not in texts[io.StringIO] and "\033[1mmachine\033[0m" in texts[Terminal]
    lines = texts[io.StringIO].split("\npackages\n")[1].split("\n\n")[0].splitlines()
    assert all(line[:28].strip() and line[28:] for line in lines) and len(lines) > 5
    assert max(len(line) for line in texts[Terminal].splitlines() if "\033" not in line) <= 70
    assert "Send with a report of a bug" in texts[io.StringIO]


def test_unknown_model_is_an_error_of_the_command_line(capsys: Any) -> None:
    assert drive("doctor", "--models", "tree") == 2
    assert "--models: unknown model 'tree'; did you mean trees?" in capsys.readouterr().err


def test_a_cache_folder_that_cannot_be_written_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", "/proc/nowhere")
    found = Findings()
    told = dict(facts(found))
    assert told["cache folder"]["writable"].startswith("no: ") and not found.problems
    assert any("set MGX_CACHE_DIR" in note for note in found.notes)


def test_devices_are_told_with_driver_and_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setattr(fact_module, "missing", lambda name: "")
    monkeypatch.setattr(device, "uses_hip", lambda: False)
    monkeypatch.setattr(hip, "uses_hip", lambda: False)
    monkeypatch.setattr(device, "device_count", lambda: 2)
    monkeypatch.setattr(device, "model_of", lambda number: f"H{number}, 132 multiprocessors")
    monkeypatch.setattr(device, "architecture_of", lambda number: architecture("sm_90a"))
    monkeypatch.setattr(library, "driver", lambda: SimpleNamespace(version=12080))
    told = dict(facts(Findings()))["target gpu"]
    assert told["devices"] == "H0, 132 multiprocessors, sm_90a; H1, 132 multiprocessors, sm_90a"
    assert told["driver"] == "CUDA 12.8" and told["cuBLASLt"] and told["cuDNN"]


def test_packages_that_are_missing_or_old_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_module, "_requirements", lambda: [("no-such-package", "1.2"), ("numpy", "999.1")])
    monkeypatch.setenv("MGX_CACHE_DIR", "/proc/nowhere")
    found = Findings()
    told = dict(facts(found))["packages"]
    assert told["no-such-package"].startswith("cannot be imported")
    assert "pip install 'no-such-package>=1.2'" in found.problems[0]
    assert "is too old; pip install 'numpy>=999.1'" in found.problems[1]


def test_the_report_hides_the_name_of_the_user_and_odd_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_SECRET", "a{b}")
    told = dict(facts(Findings()))
    assert str(tmp_path) not in json.dumps({k: v for k, v in told.items() if k != "packages"})
    assert told["cache folder"]["folder"] == "~/cache"
    assert told["environment"]["NUMBA_SECRET"] == "(not shown)"
