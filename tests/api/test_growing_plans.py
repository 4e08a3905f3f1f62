"""Plans made by runs are saved in the cache folder like the first plan, and the next process finds them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import mgx_numba
from mgx_numba.session import InferenceSession
from mgx_numba.targets import dynamic

from ..caches import with_kernels
from ..dynamic.test_sizes import PASTED, boxes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which finds the compiled kernels of the others."""
    cache = with_kernels(tmp_path / "cache")
    monkeypatch.setenv("MGX_CACHE_DIR", str(cache))
    monkeypatch.delenv("MGX_PLAN_CACHE")
    return cache


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the lengths of requested plans, in order: None for a plan for all lengths, "fixed" for a plan of one
    set."""
    found: list[object] = []
    several, one = dynamic.OpenPlans.make_plan, dynamic.OpenPlans.fixed_plan_for

    def note(self, lens, late, progress=None):
        found.append(None if lens is None else tuple(lens.get("x", ())))
        return several(self, lens, late, progress)

    def note_fixed(self, lens):
        found.append("fixed")
        return one(self, lens)

    monkeypatch.setattr(dynamic.OpenPlans, "make_plan", note)
    monkeypatch.setattr(dynamic.OpenPlans, "fixed_plan_for", note_fixed)
    return found


def halves(path: Path) -> Path:
    """The sum of an image and of its halved and doubled form, as in feature pyramids: only even lengths fit.

    A plan for lengths in general cannot be made.
    """
    nodes = [
        helper.make_node("AveragePool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["half", "", "scales"], ["whole"], mode="nearest"),
        helper.make_node("Add", ["x", "whole"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    graph = helper.make_graph(nodes, "g", [x], [y], [scales])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def image(h: int, w: int) -> np.ndarray:
    return np.random.default_rng(h).standard_normal((1, 2, h, w), dtype=np.float32)


def wanted(x: np.ndarray) -> np.ndarray:
    half = x.reshape(1, 2, x.shape[2] // 2, 2, x.shape[3] // 2, 2).mean((3, 5))
    return x + half.repeat(2, 2).repeat(2, 3)


def check(path: Path, way: str, *lengths: tuple[int, int]) -> None:
    """Read the model anew in one of the ways in, and run it with images of these lengths."""
    if way == "session":
        session = InferenceSession(os.fspath(path))
    else:
        program = mgx_numba.parse_onnx(os.fspath(path)) if path.suffix == ".onnx" else mgx_numba.load(os.fspath(path))
        if path.suffix == ".onnx":
            program.compile(mgx_numba.get_target("cpu"))
    for h, w in lengths:
        x = image(h, w)
        (y,) = session.run(None, {"x": x}) if way == "session" else program.run({"x": x})
        np.testing.assert_allclose(np.asarray(y), wanted(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["parse", "session"])
def test_a_plan_that_a_run_made_is_there_for_the_next_process(way: str, tmp_path: Path, planned: list[object]) -> None:
    path = halves(tmp_path / "halves.onnx")
    check(path, way, (8, 12))
    assert planned == [None, (1, 2, 8, 12)]
    planned.clear()
    check(path, way, (8, 12), (6, 4))
    assert planned == []


def test_plans_of_several_processes_are_kept_together(
    tmp_path: Path, planned: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that needs another plan makes that one alone: not the first one again."""
    path = halves(tmp_path / "halves.onnx")
    monkeypatch.setattr(dynamic, "MOST_PLANS", 0)  # a plan for each set of lengths
    check(path, "parse", (8, 12))
    check(path, "parse", (6, 4))
    assert planned == [None, "fixed", "fixed"]
    planned.clear()
    check(path, "parse", (6, 4), (8, 12))
    assert planned == []


def test_a_program_from_a_file_keeps_plans_of_runs(tmp_path: Path, planned: list[object]) -> None:
    program = mgx_numba.parse_onnx(os.fspath(halves(tmp_path / "halves.onnx"))).compile(mgx_numba.get_target("cpu"))
    program.save(tmp_path / "halves.mxr")
    planned.clear()
    check(tmp_path / "halves.mxr", "load", (8, 12))
    assert planned == [(1, 2, 8, 12)]
    planned.clear()
    check(tmp_path / "halves.mxr", "load", (8, 12), (6, 4))
    assert planned == []


def test_many_plans_of_runs_are_written_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all plans are written: after 1, 2, 4 and 8 plans, not after each."""
    from mgx_numba.api import saved_plans

    written: list[Path] = []
    write = saved_plans.write

    def note(path: Path, pieces):
        written.append(path)
        return write(path, pieces)

    monkeypatch.setattr(dynamic, "MOST_PLANS", 0)
    program = mgx_numba.parse_onnx(os.fspath(halves(tmp_path / "halves.onnx"))).compile(mgx_numba.get_target("cpu"))
    monkeypatch.setattr(saved_plans, "write", note)
    for k in range(1, 10):
        program.run({"x": image(2 * k, 2)})
    assert len(written) == 4


def test_plans_of_a_loops_body_with_computed_sizes_are_found_again(tmp_path: Path, planned: list[object]) -> None:
    """The first run makes the body's plan: sizes of a run fit each other, examples do not."""
    path = tmp_path / "pasted.onnx"
    onnx.save(parser.parse_model(PASTED), path)
    random = np.random.default_rng(0)
    feeds = [boxes(random, count) for count in (3, 0, 7)]
    found = []
    for _ in range(2):
        planned.append("next")
        program = mgx_numba.parse_onnx(os.fspath(path))
        program.compile(mgx_numba.get_target("cpu"), num_threads=1)
        found.append([np.asarray(program.run(one)[0]) for one in feeds])
    assert planned.count("next") == 2 and len(planned) > 2 and planned[-1] == "next"
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)
