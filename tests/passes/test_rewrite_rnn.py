"""Recurrent layers rewritten as a product and ``recurrent_steps`` agree with the operators' NumPy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import run_passes
from mgx_numba.graph.passes.merge_rnn_outputs import MergeRnnOutputs
from mgx_numba.graph.passes.propagate_constant import PropagateConstant
from mgx_numba.graph.passes.rewrite_rnn import RewriteRnn
from mgx_numba.graph.program import Program
from mgx_numba.ops.base import make_op
from mgx_numba.targets.ref.interpreter import evaluate

from .support import Graph, assert_same, check, names, random_inputs

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def layer(
    cell: str,
    direction: str = "forward",
    steps: int = 5,
    batch: int = 3,
    given: str = "bias lengths hidden state",
    lengths: list[int] | None = None,
    **attributes: Any,
) -> Program:
    """A layer with all its results; ``given`` names the optional inputs, the others are undefined."""
    g = Graph()
    d, h, i = 2 if direction == "bidirectional" else 1, 4, 3
    rows = GATES[cell] * h
    inputs: list[Instruction] = [g.param("x", [steps, batch, i]), g.random(d, rows, i), g.random(d, rows, h, seed=2)]
    inputs.append(g.random(d, 2 * rows, seed=3) if "bias" in given else g.op("undefined"))
    inputs.append(g.lit(lengths or [5, 2, 0], np.int32) if "lengths" in given else g.op("undefined"))
    inputs.append(g.param("h0", [d, batch, h]) if "hidden" in given else g.op("undefined"))
    if cell == "lstm":
        inputs.append(g.param("c0", [d, batch, h]) if "state" in given else g.op("undefined"))
        inputs.append(g.random(d, 3 * h, seed=5) if "peephole" in given else g.op("undefined"))
    y = g.op(cell, *inputs, hidden_size=h, direction=direction, **attributes)
    results = [y, g.op("rnn_last_hs_output", y)]
    if cell == "lstm":
        results.append(g.op("rnn_last_cell_output", y))
    return g.ret(*results)


def rewritten(program: Program) -> Program:
    """Check the rewrite against the merged form, which evaluates by itself."""
    merged = program.clone()
    run_passes(merged, [MergeRnnOutputs()], validate=True)
    after = check(merged, RewriteRnn(), rtol=1e-4, atol=1e-5)
    assert "recurrent" not in names(after)
    return after


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("given", ["", "bias", "bias lengths hidden state", "hidden state", "lengths"])
def test_every_cell_direction_and_set_of_inputs(cell: str, direction: str, given: str) -> None:
    rewritten(layer(cell, direction, given=given))


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_last_states_need_no_merging_before(cell: str) -> None:
    program = layer(cell, "bidirectional")
    merged, direct = program.clone(), program.clone()
    run_passes(merged, [MergeRnnOutputs()], validate=True)
    run_passes(direct, [RewriteRnn()], validate=True)
    values = random_inputs(program)
    assert_same(evaluate(merged, values), evaluate(direct, values), 1e-4, 1e-5)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm_with_peepholes_clip_and_input_forget(direction: str) -> None:
    rewritten(layer("lstm", direction, given="bias hidden state peephole", clip=0.3))
    rewritten(layer("lstm", direction, given="bias peephole", input_forget=1))


@pytest.mark.parametrize("given", ["bias", "bias hidden lengths", "hidden"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru_that_resets_after_the_product(direction: str, given: str) -> None:
    rewritten(layer("gru", direction, given=given, linear_before_reset=1))


def test_directions_with_different_functions_are_separate() -> None:
    functions = tuple(make_op(n) for n in ("sigmoid", "tanh", "tanh", "sigmoid", "relu", "tanh"))
    after = rewritten(layer("lstm", "bidirectional", actv_func=functions))
    assert names(after).count("recurrent_steps") == 2


def test_directions_with_the_same_functions_share_one_product() -> None:
    after = rewritten(layer("lstm", "bidirectional", given="bias hidden state"))
    assert names(after).count("dot") == names(after).count("recurrent_steps") == 1


def test_lengths_that_cover_all_steps_are_dropped() -> None:
    after = rewritten(layer("gru", given="lengths", lengths=[5, 5, 7]))
    (steps,) = (i for i in after.main if i.name == "recurrent_steps")
    assert steps.op.attributes()["given"] == ""


def test_run_time_lengths() -> None:
    g = Graph()
    x = g.param("x", [4, 2, 3])
    lengths = g.param("lengths", [2], "int32")
    y = g.op(
        "gru",
        x,
        g.random(2, 9, 3),
        g.random(2, 9, 3),
        g.op("undefined"),
        lengths,
        hidden_size=3,
        direction="bidirectional",
    )
    program = g.ret(y)
    values = random_inputs(program)
    for pair in ([4, 4], [1, 3], [0, 2]):
        check(program, RewriteRnn(), rtol=1e-4, atol=1e-5, inputs={**values, "lengths": np.array(pair, np.int32)})


def test_narrow_floats_compute_in_float32() -> None:
    g = Graph()
    x = g.param("x", [3, 2, 3], "half")
    w, r = (g.lit(np.random.default_rng(k).uniform(-1, 1, (1, 12, 3)), np.float16) for k in (1, 2))
    check(g.ret(g.op("lstm", x, w, r, hidden_size=3)), RewriteRnn(), rtol=2e-3, atol=1e-3)


def test_unused_last_states_leave_the_layer_alone_when_merging() -> None:
    g = Graph()
    program = g.ret(g.op("rnn", g.param("x", [2, 1, 3]), g.random(1, 2, 3), g.random(1, 2, 2), hidden_size=2))
    run_passes(program, [MergeRnnOutputs()], validate=True)
    assert names(program) == ["rnn"]


def test_a_layer_of_constants_keeps_its_last_states() -> None:
    g = Graph()
    inputs = [g.random(4, 2, 3), g.random(1, 5, 3, seed=1), g.random(1, 5, 5, seed=2), g.random(1, 10, seed=3)]
    y = g.op("rnn", *inputs, g.lit([4, 2], np.int32), g.random(1, 2, 5, seed=4), hidden_size=5)
    program = g.ret(g.op("rnn_last_hs_output", y))
    run_passes(program, [PropagateConstant()], validate=True)
    assert names(program) == ["rnn", "rnn_last_hs_output"]
    rewritten(program)
