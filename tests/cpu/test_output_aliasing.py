"""Producers write directly into the memory of concatenations and results, also through transposes and reshapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..values import normal
from .programs import Build, check


def kernels(inputs: Sequence[np.ndarray], build: Build) -> list[str]:
    """Labels of the steps of a program that agrees with ref."""
    return [step.label for step in lower(check(inputs, build), TargetOptions()).steps]


def test_a_nested_concatenation_of_another_axis_is_written_in_place() -> None:
    """A detector's levels: fields joined, pixels and anchors flattened, levels joined."""

    def build(m: Module, p: list[Instruction]) -> Instruction:
        levels = []
        for x, y in zip(p[::2], p[1::2]):
            fields = m.add_instruction("concat", [m.add_instruction("neg", [x]), m.add_instruction("exp", [y])], axis=2)
            last = m.add_instruction("transpose", [fields], permutation=(0, 1, 3, 4, 2))
            n, a, h, w, c = last.shape.lens
            levels.append(m.add_instruction("reshape", [last], dims=(n, a * h * w, c)))
        return m.add_instruction("concat", levels, axis=1)

    shapes = [(1, 3, 2, 5, 4), (1, 3, 9, 5, 4), (1, 3, 2, 1, 3), (1, 3, 9, 1, 3)]
    check([normal(*lens) for lens in shapes], build)

    def built_last(m: Module, p: list[Instruction]) -> Instruction:
        return build(m, [m.add_instruction("transpose", [x], permutation=(0, 1, 4, 2, 3)) for x in p])

    inputs = [normal(n, a, h, w, c) for n, a, c, h, w in shapes]
    assert kernels(inputs, built_last) == ["cpu::neg_kernel", "cpu::exp_kernel"] * 2


@pytest.mark.parametrize("lens", [(4, 6), (1, 1), (0, 6), (5, 1)])
def test_a_result_that_is_reshaped_is_written_in_place(lens: tuple[int, int]) -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("reshape", [m.add_instruction("exp", [p[0]])], dims=(lens[1], lens[0], 1))

    assert len(kernels([normal(*lens)], build)) <= 1


def test_two_results_of_one_value() -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        x = m.add_instruction("exp", [p[0]])
        flat = m.add_instruction("reshape", [x], dims=(24,))
        turned = m.add_instruction("transpose", [x], permutation=(1, 0))
        return [flat, turned, x, flat, m.add_instruction("neg", [turned])]

    check([normal(4, 6)], build)


def test_a_reshape_that_no_strides_allow_is_copied() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = m.add_instruction("reshape", [m.add_instruction("exp", [p[0]])], dims=(4, 6))
        return m.add_instruction("concat", [x, p[1]], axis=1)

    assert "cpu::exp_kernel" in kernels([normal(24), normal(4, 3)], build)


def test_a_transpose_into_a_result_stays_a_step_of_its_own() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("transpose", [m.add_instruction("exp", [p[0]])], permutation=(1, 0))

    assert kernels([normal(70, 50)], build) == ["cpu::exp_kernel", "cpu::transpose_kernel"]


@pytest.mark.parametrize("times", [2, 4])
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
def test_repeated_elements_are_copied_once(last: bool, times: int) -> None:
    """The upsampling of a decoder, whose result is concatenated with another value."""

    def enlarged(m: Module, x: Instruction) -> Instruction:
        n, a, b, c = x.shape.lens
        lens = (n, a, 1, b, 1, c) if last else (n, a, b, 1, c, 1)
        wide = (n, a, times, b, times, c) if last else (n, a, b, times, c, times)
        x = m.add_instruction("multibroadcast", [m.add_instruction("reshape", [x], dims=lens)], out_lens=wide)
        whole = (n, a * times, b * times, c) if last else (n, a, b * times, c * times)
        return m.add_instruction("reshape", [x], dims=whole)

    x = normal(2, 5, 7, 20)
    assert len(kernels([x], lambda m, p: enlarged(m, p[0]))) == 1

    def joined(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("concat", [enlarged(m, p[0]), p[1]], axis=3 if last else 1)

    y = normal(2, 5 * times, 7 * times, 3) if last else normal(2, 4, 7 * times, 20 * times)
    assert len(kernels([x, y], joined)) == 2


def test_a_copying_reshape_between_two_layouts() -> None:
    """Copied where rows stay rows or blocks can be transposed; in two steps elsewhere."""

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        turned = m.add_instruction("transpose", [p[0]], permutation=(0, 2, 1))
        flat = m.add_instruction("reshape", [turned], dims=(3, 340))
        again = m.add_instruction(
            "transpose", [m.add_instruction("reshape", [turned], dims=(60, 17))], permutation=(1, 0)
        )
        return [flat, m.add_instruction("reshape", [flat], dims=(1020,)), again]

    check([normal(3, 17, 20)], build)
