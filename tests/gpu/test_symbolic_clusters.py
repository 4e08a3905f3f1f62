"""Clusters, copies and numbers of symbolic lengths on the interpreter: one plan is correct for any lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mgx_numba.core.dim import evaluate
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program

from .symbolic import SymbolicPlan, open_shape

F32, F16 = Type.float_type, Type.half_type
LENGTHS = ((1, 1), (2, 3), (1, 24))


def planned(build: Callable[[Module], None]) -> SymbolicPlan:
    program = Program()
    build(program.main)
    made = SymbolicPlan(program)
    assert not made.guards
    assert made.plan.condition == 1
    assert not [label for label in made.labels if label.startswith("ref::")]
    return made


@pytest.mark.parametrize("type", [F32, F16])
@pytest.mark.parametrize("lens", [("b", "s", 24), ("b", 3, "s"), ("s", "s"), ("b", "s", 7)])
def test_pointwise_of_broadcast_and_transposed_operands(type: Type, lens: tuple[int | str, ...]) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(type, *lens))
        y = m.add_parameter("y", open_shape(type, lens[-1]))
        row = m.add_instruction("multibroadcast", [y, x])
        total = m.add_instruction("relu", [m.add_instruction("mul", [x, row])])
        turned = m.add_instruction("transpose", [total], permutation=tuple(range(len(lens)))[::-1])
        m.add_return([total, m.add_instruction("abs", [turned])])

    planned(build).check(*LENGTHS)


@pytest.mark.parametrize(
    "type, lens, axis, most",
    [
        (F32, ("b", "s"), 1, 4),
        (F16, ("b", "s"), 1, 4),
        (F32, ("b", "s", 5), 1, 1),
        (F16, ("b", "s", 64), 2, 1),
        (F32, ("s", 3, "b"), 0, 2),
    ],
)
def test_softmax(type: Type, lens: tuple[int | str, ...], axis: int, most: int) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(type, *lens))
        m.add_return([m.add_instruction("softmax", [x], axis=axis)])

    made = planned(build)
    assert len(made.labels) <= most
    made.check(*LENGTHS, (1, 64), *([(1, 1100)] if axis == len(lens) - 1 and lens[-1] == "s" else []))


@pytest.mark.parametrize(
    "name, axes",
    [
        ("reduce_sum", (0,)),
        ("reduce_mean", (1,)),
        ("reduce_mean", (0, 2)),
        ("reduce_max", (1, 2)),
        ("reduce_sum", (0, 1, 2)),
    ],
)
def test_reductions_over_any_axes(name: str, axes: tuple[int, ...]) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(F32, "b", "s", 12))
        m.add_return([m.add_instruction(name, [m.add_instruction("tanh", [x])], axes=axes)])

    planned(build).check(*LENGTHS)


def test_lengths_are_arguments_of_a_kernel() -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(F32, "b", "s", 12))
        m.add_return([m.add_instruction("dimensions_of", [x], end=2)])

    planned(build).check(*LENGTHS)


def test_numbers_of_elements_beyond_32_bits_have_a_plan_of_their_own() -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(F32, "b", 3, "s", most=1 << 20))
        row = m.add_parameter("y", open_shape(F32, "s", most=1 << 20))
        m.add_return([m.add_instruction("add", [x, m.add_instruction("multibroadcast", [row, x])])])

    program = Program()
    build(program.main)
    made = SymbolicPlan(program)
    b, s = made.plan.symbols
    assert evaluate(made.plan.condition, {b: 3, s: 5})
    assert not evaluate(made.plan.condition, {b: 1 << 19, s: 1 << 19})
