"""`bench.precisions` on a small model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import precisions
from bench.cases import kept, prepare
from bench.peers import OURS, Feeds, Session, installed, open_session


def test_a_model_in_8_bits_by_the_quantiser_of_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    case = prepare("mlp", tmp_path, "tiny")
    wide, narrow = (
        np.asarray(open_session(OURS, path, case.feeds, 1).run()[0])
        for path in (case.path, precisions.qdq_file(case, tmp_path))
    )
    assert 0 < np.linalg.norm(wide - narrow) < 0.1 * np.linalg.norm(wide)


def test_files_that_are_there_are_taken(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    case = prepare("mlp", tmp_path, "tiny")
    path = precisions.qdq_file(case, tmp_path)
    before = [p.stat().st_mtime_ns for p in (case.path, path)]
    again = kept("mlp", tmp_path)
    assert (again.path, again.checked) == (case.path, case.checked)
    assert {k: v.tolist() for k, v in again.feeds.items()} == {k: v.tolist() for k, v in case.feeds.items()}
    assert [p.stat().st_mtime_ns for p in (again.path, precisions.qdq_file(again, tmp_path))] == before


def test_every_run_is_timed_and_what_fails_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")

    def refuse(engine: str, *args: object, **options: object) -> object:
        if engine == "onnxruntime" and options.get("own"):
            raise RuntimeError("no such file here")
        return open_session(engine, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(precisions, "open_session", refuse)
    record = precisions.measure(prepare("mlp", tmp_path, "tiny"), tmp_path, 1, 0.01)
    assert record["failures"] == {"onnxruntime file": "RuntimeError: no such file here"}
    ours = {f"{OURS} {kind}" for kind in precisions.KINDS}
    peers = {f"{e} {k}" for e in installed() for k in ("float32", "bf16", "file") if e == "openvino"}
    assert set(record["engines"]) == ours | peers | {"onnxruntime float32"}
    assert all(found["median_ms"] > 0 and found["error"] < 0.1 for found in record["engines"].values())
    assert set(record["steps"]) == set(precisions.KINDS) and all(record["steps"].values())


def test_errors_are_means_of_some_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    case, seen = prepare("mlp", tmp_path, "tiny"), []

    def off_by_a_tenth_of_the_second(engine: str, path: Path, feeds: Feeds, *rest: Any, **options: Any) -> Session:
        session = open_session(engine, path, feeds, *rest, **options)
        if engine != OURS:
            return session

        def run(given: Feeds = feeds) -> list[np.ndarray]:
            seen.append(given)
            found = np.array(session.run(given)[0])
            return [found * (1.0 if given is feeds else 1.1)]

        return dataclasses.replace(session, run=run)

    monkeypatch.setattr(precisions, "open_session", off_by_a_tenth_of_the_second)
    monkeypatch.setattr(precisions, "installed", lambda: [OURS, "onnxruntime"])
    record = precisions.measure(case, tmp_path, 1, 0.01, ["float32"], draws=2)
    assert record["engines"][f"{OURS} float32"]["error"] == pytest.approx(0.05, rel=1e-3)
    assert not all((seen[0][name] == seen[1][name]).all() for name in case.feeds)
