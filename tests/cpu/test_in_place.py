"""Sums overwrite a residual that has no later reader, and no other operand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import Pointer, Step
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..values import normal
from .programs import check

PASSES = ("layout_convolution", "fuse_contraction", "fuse_reduce", "fuse_pointwise", "dead_code_elimination")
Layer = Callable[[Instruction, int], Instruction]


def in_place(inputs: list[np.ndarray], build: Callable, **options) -> list[bool]:
    """For each step with an epilogue that adds, whether its result is one of its operands; checked against ref."""
    program = check(inputs, build, 1e-4, PASSES, **options)
    plan = lower(program, TargetOptions(num_threads=2, **options))
    steps = [step for step in plan.steps if isinstance(step, Step) and "_add" in step.label]
    return [sum(isinstance(arg, Pointer) and arg == step.outputs[0].pointer for arg in step.args) > 1 for step in steps]


def residual(m: Module, x: Instruction, layer: Layer, blocks: int) -> Instruction:
    """Blocks of two layers with a sum, of which the last is the result."""
    y = layer(x, 0)
    for k in range(blocks):
        inside = m.add_instruction("relu", [layer(y, 2 * k + 1)])
        y = m.add_instruction("relu", [m.add_instruction("add", [layer(inside, 2 * k + 2), y])])
    return y


def product(m: Module, n: int) -> Layer:
    def layer(x: Instruction, seed: int) -> Instruction:
        *batch, _, k = x.shape.lens
        return m.add_instruction("dot", [x, m.add_literal(normal(*batch, k, n, seed=seed))])

    return layer


def convolution(m: Module, n: int, kernel: int, groups: int = 1) -> Layer:
    def layer(x: Instruction, seed: int) -> Instruction:
        weights = 0.2 * normal(n, x.shape.lens[1] // groups, kernel, kernel, seed=seed)
        return m.add_instruction("convolution", [x, m.add_literal(weights)], padding=[kernel // 2] * 2, group=groups)

    return layer


@pytest.mark.parametrize("value", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("lens,n", [((37, 20), 33), ((5, 3), 6), ((3, 13, 64), 64), ((50, 16), 100)])
def test_sums_of_products(lens, n, value):
    x = normal(*lens)
    x[..., 0, 1] = value
    found = in_place([x], lambda m, p: residual(m, p[0], product(m, n), 3), fast_math=False)
    assert found == [True, True, False]  # the last one writes what is returned


@pytest.mark.usefixtures("vector_code")
@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("lens,n,kernel", [((2, 5, 9, 7), 36, 1), ((1, 8, 13, 9), 40, 3), ((3, 64, 1, 1), 16, 1)])
def test_sums_of_convolutions(lens, n, kernel, fast_math):
    found = in_place([normal(*lens)], lambda m, p: residual(m, p[0], convolution(m, n, kernel), 2), fast_math=fast_math)
    assert found == [True, True]


def test_large_sums_of_tasks_of_two_threads():
    found = in_place([normal(2, 64, 30, 31)], lambda m, p: residual(m, p[0], convolution(m, 160, 1), 3), fast_math=True)
    assert found == [True, True, True]


def test_kernels_that_compute_some_pixels_twice_leave_the_operand_alone():
    found = in_place([normal(1, 16, 9, 21)], lambda m, p: residual(m, p[0], convolution(m, 16, 3, 16), 2))
    assert found == [False, False]


def test_an_operand_that_is_read_later_stays():
    def build(m: Module, p: list[Instruction]) -> Instruction:
        y = product(m, 24)(p[0], 0)
        z = m.add_instruction("add", [product(m, 24)(m.add_instruction("relu", [y]), 1), y])
        return m.add_instruction("dot", [m.add_instruction("transpose", [y], permutation=(1, 0)), z])

    assert in_place([normal(19, 24)], build) == [False]


def test_an_operand_that_is_also_multiplied_stays():
    def build(m: Module, p: list[Instruction]) -> Instruction:
        y = product(m, 40)(p[0], 0)
        for seed in (1, 2):
            y = m.add_instruction("add", [product(m, 40)(y, seed), y])
        return product(m, 3)(y, 3)

    assert in_place([normal(70, 24)], build) == [False, False]


def test_an_operand_in_the_place_of_another_that_is_also_multiplied_stays():
    def build(m: Module, p: list[Instruction]) -> Instruction:
        y = residual(m, p[0], product(m, 40), 1)
        y = m.add_instruction("add", [product(m, 40)(y, 5), y])
        return product(m, 3)(y, 6)

    assert in_place([normal(70, 24)], build) == [True, False]


def test_an_operand_whose_memory_others_need_until_then_stays():
    """Another part of the concatenation is written before, while the memory has what that part is made from."""

    def build(m: Module, p: list[Instruction]) -> Instruction:
        parts = [m.add_instruction(name, [product(m, 24)(p[0], k)]) for k, name in enumerate(("relu", "tanh"))]
        whole = m.add_instruction("concat", parts, axis=0)
        head, tail = (
            m.add_instruction("slice", [whole], axes=[0], starts=[start], ends=[start + 19]) for start in (0, 19)
        )
        other = product(m, 24)(tail, 2)
        z = m.add_instruction("add", [product(m, 24)(p[1], 3), head])
        return product(m, 3)(m.add_instruction("concat", [z, other], axis=0), 4)

    assert in_place([normal(19, 24), normal(19, 24)], build) == [False]


@pytest.mark.parametrize("start", [0, 100])
def test_parts_of_concatenations_that_lie_otherwise_stay(start):
    """An operand that lies elsewhere in memory as large, or at the same place of smaller memory."""

    def build(m: Module, p: list[Instruction]) -> Instruction:
        y = m.add_instruction("relu", [product(m, 40)(p[0], 0)])
        if start:
            whole = m.add_instruction("concat", [y, m.add_instruction("tanh", [product(m, 40)(p[1], 1)])], axis=0)
            y = m.add_instruction("slice", [whole], axes=[0], starts=[0], ends=[300])
        z = m.add_instruction("add", [product(m, 40)(p[0], 2), y])
        other = product(m, 40)(p[1], 3)
        return product(m, 3)(m.add_instruction("concat", [other, z] if start else [z, other], axis=0), 4)

    assert in_place([normal(300, 24), normal(max(start, 50), 24)], build) == [False]


def test_an_operand_of_rows_in_another_order_stays():
    def build(m: Module, p: list[Instruction]) -> Instruction:
        y = m.add_instruction("relu", [product(m, 24)(p[0], 0)])
        turned = m.add_instruction("transpose", [y], permutation=(1, 0, 2))
        z = m.add_instruction("add", [product(m, 24)(p[1], 1), turned])
        return product(m, 3)(z, 3)

    assert in_place([normal(13, 3, 9), normal(3, 13, 9)], build) == [False]


@pytest.mark.parametrize("name", ["slice", "broadcast"])
def test_an_operand_that_lies_otherwise_stays(name):
    def build(m: Module, p: list[Instruction]) -> Instruction:
        y = product(m, 24)(p[0], 0)
        seen = m.add_instruction("slice", [y], axes=[0], starts=[2], ends=[3 if name == "broadcast" else 26])
        seen = m.add_instruction("multibroadcast", [seen], out_lens=(24, 24)) if name == "broadcast" else seen
        z = m.add_instruction("add", [product(m, 24)(p[1], 1), seen])
        return product(m, 3)(z, 3)

    assert in_place([normal(30, 24), normal(24, 24)], build) == [False]


def test_the_copy_of_an_operand_is_replaced():
    def build(m: Module, p: list[Instruction]) -> Instruction:
        y = product(m, 24)(p[0], 0)
        turned = m.add_instruction("transpose", [y], permutation=(1, 0))
        z = m.add_instruction("add", [product(m, 24)(p[1], 1), turned])
        return m.add_instruction("dot", [m.add_instruction("add", [y, z]), m.add_literal(normal(24, 3))])

    assert True in in_place([normal(24, 24), normal(24, 24)], build)


def test_memory_that_is_not_reused_is_not_replaced():
    options = {"fast_math": False, "memory_reuse": False}
    assert in_place([normal(9, 20)], lambda m, p: residual(m, p[0], product(m, 20), 2), **options) == [False, False]
