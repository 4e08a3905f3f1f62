"""Verdicts on results: errors, choices among slightly inexact values, and the effect of rounding operands."""

from __future__ import annotations

import functools
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from bench import gpu_check
from bench.agreement import Choice, agreement, choices_of, exposed
from bench.exact import QUANTIZE, Exact, Verdict
from bench.models import build, inputs
from mgx_numba.ops.base import make_op
from mgx_numba.runtime.gpu import executor

from ..interpreter.engine import interpreted

KEEP, OVERLAP, LOWEST = 4, 0.3, 0.2


def suppressed(boxes: np.ndarray, scores: np.ndarray, by_centre: bool, lowest: float = LOWEST) -> list[np.ndarray]:
    """Return the rows kept by NonMaxSuppression, and its inputs."""
    given = [boxes, scores, np.array([KEEP]), np.float32([OVERLAP]), np.float32([lowest])]
    op = make_op("nonmaxsuppression", center_point_box=by_centre, use_dyn_output=True)
    return [op.compute(None, given), *given]


def boxes_and_scores(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = np.round(rng.random((2, 3, 30)), 2)
    scores[0, 1, :5] = np.nan
    return rng.random((2, 30, 4)).astype(np.float32), scores.astype(np.float32)


def detector(by_centre: bool = False) -> Choice:
    return Choice(0, "NonMaxSuppression", {"center_point_box": int(by_centre)}, (1, 2, 3, 4, 5))


@pytest.mark.parametrize("by_centre", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_boxes_that_follow_from_their_scores_and_boxes_that_do_not(seed: int, by_centre: bool) -> None:
    found = suppressed(*boxes_and_scores(seed), by_centre)
    problem = detector(by_centre).problem
    rows, rest = found[0], found[1:]
    assert problem(found) == ""
    rng = np.random.default_rng(seed)
    for k in rng.choice(len(rows), 4, replace=False):
        assert problem([np.delete(rows, k, 0), *rest]), "one is missing"
        assert "different ones" in problem([np.insert(rows, k, rows[k], 0), *rest]), "one is there twice"
        other = rows.copy()
        other[k, 2] = next(b for b in range(30) if b not in rows[(rows[:, :2] == rows[k, :2]).all(1), 2])
        assert problem([other, *rest]), "another box is there"
    assert problem([rows[::-1], *rest])
    assert "beyond" in problem([rows + np.array([0, 0, 30]), *rest])


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([0, 2], ""),
        ([0], "box 2 of score 0.5 is left out"),
        ([0, 1, 2], "two boxes are kept that overlap by more than 0.3"),
        ([2, 0], "not in the order of their scores"),
        ([0, 2, 3], "a box of score 0.1 is kept"),
        ([1, 2], "box 0 of score 0.9 is left out"),
        ([], "box 0 of score 0.9 is left out"),
    ],
)
def test_why_boxes_are_wrong(kept: list[int], said: str) -> None:
    boxes = np.float32([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3], [4, 4, 5, 5]]])
    _, *given = suppressed(boxes, np.float32([[[0.9, 0.8, 0.5, 0.1]]]), False)
    rows = np.array([[0, 0, k] for k in kept], np.int64).reshape(-1, 3)
    assert said in detector().problem([rows, *given]) and bool(said) == bool(detector().problem([rows, *given]))


def test_a_box_whose_score_passes_the_threshold_by_rounding_is_counted() -> None:
    boxes, scores = boxes_and_scores(7)
    scores[1, 2] = 0
    scores[1, 2, 3] = LOWEST - 1e-4
    exact = suppressed(boxes, scores, False)
    scores = scores.copy()
    scores[1, 2, 3] += 2e-4
    found = suppressed(boxes, scores, False)
    seen = agreement(found, exact, [detector()])
    assert len(found[0]) == len(exact[0]) + 1
    assert seen.problem == "" and 0 < seen.error < 1e-3 and (seen.differing, seen.chosen) == (1, len(exact[0]))
    assert f"1 of {seen.chosen} choices differ" in str(seen)
    without = [found[0], *exact[1:]]  # scores as they should be, and rows that do not follow from them
    assert agreement(without, exact, [detector()]).problem


def test_boxes_chosen_by_another_threshold_are_wrong_though_their_scores_are_right() -> None:
    exact = suppressed(*boxes_and_scores(1), False)
    found = [suppressed(*boxes_and_scores(1), False, lowest=0.95)[0], *exact[1:]]
    seen = agreement(found, exact, [detector()])
    assert seen.error == 0 and "left out" in seen.problem and "wrong" in str(seen)
    assert not Verdict(seen, 1e-2).right and Verdict(replace(seen, problem=""), 1e-2).right


@pytest.mark.parametrize("attributes", [{}, {"axis": 0, "largest": 0}, {"axis": 1, "sorted": 0}])
def test_positions_of_the_largest(attributes: dict[str, int]) -> None:
    x = np.random.default_rng(3).standard_normal((7, 9)).astype(np.float32)
    axis, sign = attributes.get("axis", -1), 1 if attributes.get("largest", 1) == 0 else -1
    right = np.take(np.argsort(sign * x, axis, kind="stable"), range(3), axis)
    choice = Choice(0, "TopK", attributes, (1, 2))
    assert choice.problem([right, x, np.array([3])]) == ""
    turned = np.flip(right, axis)
    assert bool(choice.problem([turned, x, np.array([3])])) == bool(attributes.get("sorted", 1))
    assert "twice" in choice.problem([np.take(right, [0, 0, 1], axis), x, np.array([3])])
    assert "beyond" in choice.problem([right + 9, x, np.array([3])])
    assert "expected" in choice.problem([right, x, np.array([2])])
    other = np.take(np.argsort(sign * x, axis), [0, 1, 4], axis)
    assert "not next in order" in choice.problem([other, x, np.array([3])])
    assert agreement([right, x, np.array([3])], [other, x, np.array([3])], [choice]).differing > 0


def test_what_is_chosen_from_becomes_a_result() -> None:
    model = build("yolo", scale="tiny")
    with pytest.raises(ValueError, match="NonMaxSuppression '/NonMaxSuppression' chooses from .*: expected results"):
        choices_of(model)
    whole = exposed(model)
    onnx.checker.check_model(whole, full_check=True)
    (choice,) = choices_of(whole)
    assert exposed(whole) is whole and len(whole.graph.output) == len(model.graph.output) + 5
    feeds = inputs("yolo", model)
    results = [np.asarray(r) for r in mgx_numba.parse_onnx_buffer(whole.SerializeToString()).compile("cpu").run(feeds)]
    assert len(results[choice.result]) and choice.problem(results) == ""
    assert choice.problem([r[:-1] if k == choice.result else r for k, r in enumerate(results)])
    mlp = build("mlp", scale="tiny")
    assert exposed(mlp) is mlp and choices_of(mlp) == []


@functools.cache
def product() -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A product that is a result, its input, and its weights."""
    rng = np.random.default_rng(0)
    weights, x = (rng.standard_normal(lens).astype(np.float32) for lens in ((64, 48), (5, 64)))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 48])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model, {"x": x}, weights


@pytest.mark.parametrize(("kind", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_what_rounding_operands_alone_leads_to(kind: str, dtype: type) -> None:
    model, feeds, weights = product()
    exact = Exact(model, feeds)
    (wanted,) = exact.results
    rounded = feeds["x"].astype(dtype).astype(np.float64) @ weights.astype(dtype).astype(np.float64)
    alone = exact.rounding(kind)
    assert alone.error == pytest.approx(np.abs(rounded - wanted).max() / np.abs(wanted).max(), rel=1e-2)
    assert alone.rms == pytest.approx(np.linalg.norm(rounded - wanted) / np.linalg.norm(wanted), rel=1e-2)


def test_beyond_what_is_asked_a_program_is_held_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_check.FARTHEST, "bf16", 1e-4)
    model, feeds, weights = product()
    exact = Exact(model, feeds)
    (wanted,) = exact.results
    narrow = feeds["x"].astype(ml_dtypes.bfloat16).astype(np.float32), weights.astype(ml_dtypes.bfloat16)
    apart = narrow[0] @ narrow[1].astype(np.float32) - wanted
    right = exact.judge([wanted + apart], "bf16")
    assert right.right and right.found.error > 1e-4 and "rounding operands alone gives" in str(right)
    assert "wrong" in str(exact.judge([wanted + 1.3 * apart], "bf16"))  # the largest alone would pass
    one = wanted + apart
    one[2, 3] += 3 * np.abs(apart).max()  # the root mean square alone would
    assert np.linalg.norm(one - wanted) < 1.25 * np.linalg.norm(apart)
    assert not exact.judge([one], "bf16").right
    assert not exact.judge([wanted + apart], "float32").right
    assert not exact.judge([np.full_like(wanted, np.nan)], "bf16").right
    assert not exact.judge([wanted[:, :-1]], "bf16").right and not exact.judge([], "bf16").right


@pytest.mark.parametrize("name", ["mlp", "bert"])
def test_the_device_check_of_models_on_the_interpreter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "LATENCY_RUNS", 1)
    monkeypatch.setattr(executor, "TIMED_REPEATS", 1)
    model = build(name, scale="tiny")
    feeds = inputs(name, model)
    with interpreted():
        row = gpu_check.model_row(name, "bf16", model, None, feeds, Exact(model, feeds))
    assert row["right"] and row["hosted"] == [] and 0 < row["error"] < gpu_check.FARTHEST["bf16"]
    assert set(QUANTIZE) < set(gpu_check.FARTHEST)
