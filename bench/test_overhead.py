"""Overhead of a call: models with almost no arithmetic, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bench.cases import Case
from bench.conftest import Comparisons, Settings
from bench.models import inputs
from bench.models.builder import GraphBuilder
from bench.peers import OURS, open_session
from bench.replay import CLOCK, replay
from bench.timing import interleave

OPSET = 17
LENGTH = 16


def _one_input(g: GraphBuilder) -> None:
    g.output("y", g.node("Relu", g.input("x", [LENGTH])), [LENGTH])


def _eight_inputs(g: GraphBuilder) -> None:
    values = [g.input(f"x{k}", [LENGTH]) for k in range(8)]
    g.output("y", g.node("Sum", *values), [LENGTH])


def _eight_outputs(g: GraphBuilder) -> None:
    x = g.input("x", [LENGTH])
    for k in range(8):
        g.output(f"y{k}", g.node("Add", x, g.const(float(k + 1))), [LENGTH])


def _several_steps(g: GraphBuilder) -> None:
    value = g.input("x", [1, LENGTH])
    for k in range(4):
        square = g.const(np.eye(LENGTH, dtype=np.float32) * (k + 1))
        value = g.node("Softmax", g.node("MatMul", value, square), axis=-1)
    g.output("y", value, [1, LENGTH])


MODELS: dict[str, Callable[[GraphBuilder], None]] = {
    "one_input": _one_input,
    "eight_inputs": _eight_inputs,
    "eight_outputs": _eight_outputs,
    "several_steps": _several_steps,
}


@pytest.fixture(scope="module")
def small_cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("small")
    return {name: _case(name, folder) for name in MODELS}


def _case(name: str, folder: Path) -> Case:
    graph = GraphBuilder(name, OPSET)
    MODELS[name](graph)
    model = graph.model()
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return Case(name, path, inputs(name, model), folder / f"{name}.npz", path)


@pytest.mark.benchmark(timer=CLOCK.read)
@pytest.mark.parametrize("small", list(MODELS))
def test_call(benchmark: Any, small: str, engine: str, small_cases: dict[str, Case], comparisons: Comparisons) -> None:
    comparison = comparisons(small_cases[small])
    if engine in comparison.failures:
        pytest.fail(f"{engine}: {comparison.failures[engine]}")
    benchmark.group = f"call, {small}"
    replay(benchmark, comparison.timings[engine].seconds.tolist())


@pytest.mark.benchmark(timer=CLOCK.read, group="call, one_input, an input that has to be copied")
def test_call_that_copies(benchmark: Any, small_cases: dict[str, Case], settings: Settings) -> None:
    """Time a call whose inputs do not have the plan's layout: Python checks them and makes them contiguous."""
    case = small_cases["one_input"]
    program = open_session(OURS, case.path, case.feeds, settings.threads).handle
    strided = {name: np.repeat(value, 2)[::2] for name, value in case.feeds.items()}
    timings = interleave({"run": lambda: program.run(strided)}, 1.0 if settings.enabled else 0.0)
    replay(benchmark, timings["run"].seconds.tolist())
