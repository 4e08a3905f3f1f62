"""A depthwise convolution is joined with the 1x1 convolution whose result it alone reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.cpu.contraction.conv import ConvPointwise
from mgx_numba.codegen.cpu.contraction.tuning_candidates import solver_candidates
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..values import normal
from .programs import check, program_of

PASSES = ("layout_convolution", "fuse_contraction", "fuse_reduce", "fuse_pointwise", "dead_code_elimination")


def conv(
    m: Module, x: Instruction, n: int, kernel: int, groups: int = 1, stride: int = 1, act: str = "relu"
) -> Instruction:
    weights = m.add_literal(0.3 * normal(n, x.shape.lens[1] // groups, kernel, kernel, seed=n + kernel))
    pad = [kernel // 2] * 2
    made = m.add_instruction("convolution", [x, weights], padding=pad, group=groups, stride=[stride] * 2)
    return m.add_instruction(act, [made])


def labels(inputs: list[np.ndarray], build: Callable, threads: int = 2, **options) -> list[str]:
    """Kernels of the steps with a convolution; checked against ref."""
    program = check(inputs, build, 1e-4, PASSES, **options)
    steps = lower(program, TargetOptions(num_threads=threads, **options)).steps
    return [step.label.removeprefix("cpu::") for step in steps if "gemm" in step.label or "depthwise" in step.label]


def residual(m: Module, x: Instruction, wide: int, stride: int = 1, act: str = "relu") -> Instruction:
    """An inverted residual."""
    y = conv(m, conv(m, x, wide, 1, act=act), wide, 3, wide, stride, act)
    y = conv(m, y, x.shape.lens[1], 1, act=act)
    return y if stride > 1 else m.add_instruction("add", [y, x])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("act", ["relu", "sigmoid"])
@pytest.mark.parametrize("stride", [1, 2])
def test_inverted_residuals(stride: int, act: str, threads: int) -> None:
    found = labels([normal(1, 16, 40, 31)], lambda m, p: residual(m, p[0], 72, stride, act), threads)
    assert len(found) == 2 and found[0] == f"gemm_{act}_depthwise_{act}_kernel"


class Other:
    """Says as a record that comes with the package does that another solver computes 1x1 convolutions."""

    exhaustive = False

    def choose(self, request: Request) -> Candidate:
        (taken, *others) = solver_candidates(request)
        (other,) = (
            (c for c in others if c.solver.name == "conv_direct")
            if taken.solver.name == ConvPointwise.name
            else (taken,)
        )
        return other

    def is_shipped(self, request: Request) -> bool:
        return True

    def note_instruction(self, request: Request, instruction: str, taken: Candidate) -> None:
        pass

    def in_place(self, request: Request, operand: str) -> None:
        pass

    def tell(self) -> None:
        pass


def test_a_record_of_a_layer_alone_does_not_part_a_pair() -> None:
    x = normal(1, 16, 40, 31)
    found = labels([x], lambda m, p: residual(m, p[0], 72), tuning=Other())
    assert found == ["gemm_relu_depthwise_relu_kernel"]


def test_a_record_of_a_layer_that_an_epilogue_reads_is_heeded() -> None:
    """The depthwise convolution that follows has another input."""
    found = labels(
        [normal(1, 16, 40, 31), normal(1, 72, 40, 31)],
        lambda m, p: m.add_instruction("add", [conv(m, p[1], 72, 3, 72, act="relu"), conv(m, p[0], 72, 1)]),
        tuning=Other(),
    )
    assert found == ["depthwise_relu_add_kernel"]  # the other is conv_direct's


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite(value: float) -> None:
    x = normal(2, 8, 33, 30)
    x[0, 3, 5, 7] = value
    assert labels([x], lambda m, p: residual(m, residual(m, p[0], 96), 96, 2))[0].startswith("gemm_relu_depthwise")


def two_readers(m: Module, p: list[Instruction]) -> list[Instruction]:
    wide = conv(m, p[0], 72, 1)
    return [conv(m, wide, 72, 3, 72), m.add_instruction("tanh", [wide])]


def a_result(m: Module, p: list[Instruction]) -> list[Instruction]:
    wide = conv(m, p[0], 72, 1)
    return [conv(m, wide, 72, 3, 72), wide]


def read_by_the_epilogue(m: Module, p: list[Instruction]) -> Instruction:
    wide = conv(m, p[0], 72, 1)
    return m.add_instruction("add", [conv(m, wide, 72, 3, 72), wide])


def a_slice(m: Module, p: list[Instruction]) -> Instruction:
    wide = m.add_instruction("slice", [conv(m, p[0], 72, 1)], axes=[1], starts=[0], ends=[40])
    return conv(m, wide, 40, 3, 40)


def not_at_once(m: Module, p: list[Instruction]) -> Instruction:
    wide, other = conv(m, p[0], 72, 1), conv(m, p[0], 72, 3)
    return m.add_instruction("add", [conv(m, wide, 72, 3, 72), conv(m, other, 72, 3, 72)])


@pytest.mark.parametrize("build", [two_readers, a_result, read_by_the_epilogue, a_slice, not_at_once])
def test_what_else_is_read_stays(build: Callable) -> None:
    found = labels([normal(1, 16, 40, 31)], build)
    assert not any("gemm" in label and "depthwise" in label for label in found)


def test_explain_names_the_joined_launch_under_both_layers() -> None:
    program = migraphx.program.wrap(program_of([normal(1, 16, 40, 31)], lambda m, p: residual(m, p[0], 72)))
    first, second, last = program.compile("cpu", num_threads=2).explain("convolution")
    assert first.steps == second.steps != last.steps
    assert "depthwise" in first.steps[0].label and first.instruction != second.instruction
