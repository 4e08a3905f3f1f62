"""Timelines of threads: the executor's spans, and trace files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
from tests.driver.support import drive, small_model


def _mixed() -> mgx_numba.program:
    """Large and small kernels, and a fallback step between them."""
    p = mgx_numba.program()
    m = p.get_main_module()
    x = m.add_parameter("x", mgx_numba.shape(type="float", lens=[256, 256]))
    y = m.add_instruction(mgx_numba.op("exp"), [m.add_instruction(mgx_numba.op("dot"), [x, x])])
    z = m.add_instruction(mgx_numba.op("reduce_sum", axes=[0]), [y])
    n = m.add_instruction(mgx_numba.op("nonzero"), [x])
    m.add_return([y, m.add_instruction(mgx_numba.op("softmax", axis=1), [z]), n])
    return p


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_step_is_noted_and_results_stay(threads: int) -> None:
    p = _mixed().compile("cpu", num_threads=threads)
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
    executable = p.compiled.executable  # type: ignore[union-attr]
    expected = executable.run([x])
    for _ in range(3):
        found, spans = executable.run_timed([x])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert {s.step for s in spans} == set(range(len(executable.plan.steps)))
        assert max(Counter((s.step, s.thread) for s in spans).values()) == 1
        assert {s.thread for s in spans} <= set(range(threads))
        assert all(s.start <= s.end for s in spans)
        ends = {k: max(s.end for s in spans if s.step == k) for k in range(len(executable.plan.steps))}
        for s in spans:  # a step begins when the one before it has ended
            assert s.step == 0 or s.start >= ends[s.step - 1]
    np.testing.assert_array_equal(executable.run([x])[0], expected[0])


def test_a_program_without_steps_has_no_spans() -> None:
    p = mgx_numba.program()
    m = p.get_main_module()
    m.add_return([m.add_parameter("x", mgx_numba.shape(type="float", lens=[0, 3]))])
    executable = p.compile("cpu").compiled.executable  # type: ignore[union-attr]
    assert executable.run_timed([np.zeros((0, 3), np.float32)])[1] == []


@pytest.mark.parametrize("flags", [[], ["--ref"], ["--dyn-input-dim", "@x", "[{min:1,max:8},6]"]])
@pytest.mark.parametrize("command", ["roctx", "perf"])
def test_trace_files_are_what_perfetto_reads(command: str, flags: list[str], tmp_path: Path, capsys: Any) -> None:
    model, path = small_model(tmp_path / "small.onnx"), tmp_path / "t.json"
    assert drive(command, model, "-n", "3", "--trace", path, *flags) == 0
    events = json.loads(path.read_text())["traceEvents"]
    names = [e for e in events if e["ph"] == "M"]
    assert {"process_name", "thread_name"} == {e["name"] for e in names}
    assert next(e["args"]["name"] for e in names if e["name"] == "process_name") == "small.onnx"
    spans = [e for e in events if e["ph"] == "X"]
    runs = sorted((e for e in spans if e["cat"] == "run"), key=lambda e: e["ts"])
    assert [e["name"] for e in runs] == ["run 0", "run 1", "run 2"]
    steps = [e for e in spans if e["cat"] == "step"]
    assert steps and all(e["args"]["instruction"] for e in steps)
    for step in steps:
        assert any(r["ts"] - 1e-3 <= step["ts"] and step["ts"] + step["dur"] <= r["ts"] + r["dur"] + 1e-3 for r in runs)


def test_stages_and_unwritable_files(tmp_path: Path, capsys: Any) -> None:
    model = small_model(tmp_path / "small.onnx")
    assert drive("roctx", model, "--trace", tmp_path / "no" / "t.json") == 2
    _, err = capsys.readouterr()
    assert "cannot be written: there is no folder" in err and "Compilation time" not in err
    assert drive("roctx", model, "-n", "0") == 2
    assert "--iterations is 0" in capsys.readouterr().err
