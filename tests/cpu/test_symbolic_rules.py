"""Rules that lower a program once for symbolic lengths: no guards, NumPy's results at any lengths."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.microkernels.int8_table import multiplies_pairs
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.ops.base import make_op
from tests.codegen.symbolic import scope_of
from tests.values import normal

from .symbolic_plans import Lens, SymbolicCase

FLOAT = Type.float_type
ANY = (0, None)
CACHED = [(1, 1, 1), (4, 1, 700), (1, 2, 5), (2, 5, 33), (1, 17, 300), (3, 64, 1)]
"""Sequences, new tokens, and tokens before."""
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
LSTM = ["sigmoid", "tanh", "tanh"]


@pytest.mark.parametrize(("mask", "heads"), [("none", (4, 2)), ("add", (2, 2)), ("keys", (4, 2))])
def test_attention_with_a_cache(heads: tuple[int, int], mask: str) -> None:
    h, kv = heads

    def shapes(n: Lens) -> list[Shape]:
        b, s, t = n["batch"], n["seq"], n["past"] + n["seq"]
        masks = {"none": [], "add": [Shape(FLOAT, (b, 1, s, t))], "keys": [Shape(Type.bool_type, (b, 1, 1, t))]}
        return [Shape(FLOAT, (b, h, s, 16)), *[Shape(FLOAT, (b, kv, t, 16))] * 2, *masks[mask]]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        return m.add_instruction("attention", p, scale=0.3, causal=mask == "none")

    case = SymbolicCase(*scope_of(batch=ANY, seq=ANY, past=ANY), shapes, build)
    assert case.guards == []
    for batch, seq, past in CACHED:
        case.check(batch=batch, seq=seq, past=past)


@pytest.mark.parametrize(
    ("form", "threads"), [("rnn", 1), ("gru", 1), ("lstm", 4), ("lengths", 1), ("short", 4), ("computed", 1)]
)
def test_recurrent_steps(form: str, threads: int) -> None:
    cell, hidden = form if form in GATES else "gru" if form == "computed" else "lstm", 200 if form == "short" else 24
    functions = [make_op(name) for name in {"rnn": ["tanh"], "gru": ["sigmoid", "tanh"]}.get(cell, LSTM)]
    weights = 0.2 * normal(2, GATES[cell] * hidden, hidden, seed=5, dtype=np.float32)
    given = "lengths hidden" if form == "lengths" else "hidden"

    def shapes(n: Lens) -> list[Shape]:
        s, b = n["steps"], n["batch"]
        more = [Shape(Type.int32_type, (b,))] if form == "lengths" else []
        more += [Shape(FLOAT, (2, b, hidden))]
        more += [Shape(FLOAT, weights.shape)] if form == "computed" else []
        return [Shape(FLOAT, (s, b, 2, GATES[cell] * hidden)), *more]

    def build(m: Module, p: list[Instruction], n: Lens) -> list[Instruction]:
        r = p.pop() if form == "computed" else m.add_literal(weights)
        inputs = [p[0], r, *p[1:]]
        steps = m.add_instruction(
            "recurrent_steps", inputs, cell=cell, hidden_size=hidden, backward=2, actv_func=functions, given=given
        )
        return [m.add_instruction("get_tuple_elem", [steps], index=k) for k in range(3 if cell == "lstm" else 2)]

    def given_as(k: int, shape: Shape) -> np.ndarray | None:
        if shape.type is Type.int32_type:
            return np.resize(np.arange(3, dtype=np.int32), shape.lens)
        return weights if shape.lens == weights.shape else None

    case = SymbolicCase(
        *scope_of(steps=ANY, batch=ANY), shapes, build, threads=threads, float32_matmul_precision="high"
    )
    assert case.guards == [] and case.plan.condition == 1
    for steps, batch in ((1, 1), (7, 1), (5, 2), (3, 5), (2, 33), (90, 4)):
        case.check(2e-4 if form == "short" else 1e-5, given_as, steps=steps, batch=batch)
    if form == "short" and multiplies_pairs(host.host(), host.host().vector_bits):
        assert {"lstm_int16_kernel", "lstm_kernel"} <= set(case.kernels)


def test_integers_that_follow_from_lengths() -> None:
    def shapes(n: Lens) -> list[Shape]:
        return [Shape(Type.int64_type, (n["past"],))]

    def build(m: Module, p: list[Instruction], n: Lens) -> list[Instruction]:
        seq, past = n["seq"], n["past"]
        positions = m.add_instruction("iota", [], length=seq + past)
        grid = m.add_instruction("lengths", [], values=(seq, 7, past * seq, 3 * past - 1), lens=(2, 2))
        flat = m.add_instruction("lengths", [], values=(seq, past), lens=(2,))
        joined = m.add_instruction("concat", [flat, m.add_instruction("iota", [], length=seq), *p], axis=0)
        return [positions, grid, joined]

    case = SymbolicCase(*scope_of(seq=ANY, past=ANY), shapes, build)
    assert case.guards == [] and "numbers_kernel" in case.kernels and "range_kernel" in case.kernels
    for seq, past in ((1, 1), (7, 2), (16, 33), (1, 40000)):
        case.check(seq=seq, past=past)


@pytest.mark.parametrize("operator", ["if", "loop"])
def test_submodules(operator: str) -> None:
    """A submodule that reads a value from outside, of symbolic lengths as its own."""

    def shapes(n: Lens) -> list[Shape]:
        return [Shape(FLOAT, (n["batch"], n["seq"])), Shape(Type.bool_type, (1,)), Shape(Type.int64_type, (1,))]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        def twice(inner: Module, x: Instruction) -> Instruction:
            wide = inner.add_instruction("add", [x, m_outer])
            ones = inner.add_instruction("iota", [], length=n["seq"])
            ones = inner.add_instruction("convert", [ones], target_type=FLOAT)
            ones = inner.add_instruction("multibroadcast", [ones], out_lens=(n["batch"], n["seq"]))
            return inner.add_instruction("mul", [wide, ones])

        m_outer = m.add_instruction("tanh", [p[0]])
        if operator == "if":
            then, other = Module("then"), Module("other")
            then.add_return([twice(then, p[0])])
            other.add_return([other.add_instruction("neg", [p[0]])])
            whole = m.add_instruction("if", [p[1]], [then, other])
            return m.add_instruction("get_tuple_elem", [whole], index=0)
        body = Module("body")
        body.add_parameter("i", Shape(Type.int64_type, (1,)))
        going = body.add_parameter("going", Shape(Type.bool_type, (1,)))
        state = body.add_parameter("state", p[0].shape)
        body.add_return([going, twice(body, state)])
        whole = m.add_instruction("loop", [p[2], p[1], p[0]], [body])
        return m.add_instruction("get_tuple_elem", [whole], index=0)

    def made(going: bool, k: int, shape: Shape) -> np.ndarray | None:
        return [None, np.array([going]), np.array([3])][k]

    case = SymbolicCase(*scope_of(batch=ANY, seq=ANY), shapes, build)
    assert case.guards == []
    for batch, seq, going in ((1, 1, True), (3, 5, True), (4, 17, False), (2, 300, True)):
        case.check(1e-4, partial(made, going), batch=batch, seq=seq)
