"""Grouped convolutions read shuffled channels in place; preceding depthwise convolutions work in any order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..values import normal
from .programs import check

PASSES = ("sink_shuffle", "layout_convolution", "fuse_contraction", "fuse_pointwise", "dead_code_elimination")


@pytest.fixture(autouse=True)
def _any_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mgx_numba.targets.cpu.capabilities.SHUFFLED_ROWS", 1)


def conv(m: Module, x: Instruction, n: int, kernel: int, groups: int, stride: int = 1) -> Instruction:
    weights = m.add_literal(0.3 * normal(n, x.shape.lens[1] // groups, kernel, kernel, seed=n + kernel))
    pad = [kernel // 2] * 2
    made = m.add_instruction("convolution", [x, weights], padding=pad, group=groups, stride=[stride] * 2)
    bias = m.add_instruction("broadcast", [m.add_literal(normal(n, seed=n))], axis=1, out_lens=made.shape.lens)
    return m.add_instruction("add", [made, bias])


def shuffle(m: Module, x: Instruction, groups: int) -> Instruction:
    n, c, *image = x.shape.lens
    x = m.add_instruction("reshape", [x], dims=[n, groups, c // groups, *image])
    x = m.add_instruction("transpose", [x], permutation=[0, 2, 1, 3, 4])
    return m.add_instruction("reshape", [x], dims=[n, c, *image])


def labels(x: np.ndarray, build: Callable) -> list[str]:
    """Kernels of the steps; checked against ref."""
    plan = lower(check([x], build, 1e-4, PASSES), TargetOptions(num_threads=2))
    return [step.label.removeprefix("cpu::") for step in plan.steps]


def unit(m: Module, x: Instruction, wide: int, groups: int, stride: int = 1, turns: int = 0) -> Instruction:
    """A unit of ShuffleNet."""
    y = m.add_instruction("relu", [conv(m, x, wide, 1, groups)])
    y = conv(m, shuffle(m, y, turns or groups), wide, 3, wide, stride)
    y = conv(m, y, x.shape.lens[1], 1, groups)
    return y if stride > 1 else m.add_instruction("relu", [m.add_instruction("add", [y, x])])


def copies(found: list[str]) -> int:
    return sum("interleave" in name or "copy" in name or "transpose" in name for name in found)


@pytest.mark.parametrize(
    ("lens", "wide", "groups", "stride", "turns"),
    [((1, 136, 7, 9), 136, 4, 1, 0), ((2, 24, 9, 8), 68, 4, 2, 0), ((1, 96, 5, 5), 240, 3, 1, 5)],
)
def test_units(lens: tuple[int, ...], wide: int, groups: int, stride: int, turns: int) -> None:
    found = labels(normal(*lens), lambda m, p: unit(m, p[0], wide, groups, stride, turns))
    assert sum(name.startswith("conv_shuffled") for name in found) == 1
    assert copies(found) <= 3  # into the input's order, for the sum too, and out of the result's


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite(value: float) -> None:
    x = normal(1, 24, 6, 7)
    x[0, 5, 3, 4] = value
    assert any(name.startswith("conv_shuffled") for name in labels(x, lambda m, p: unit(m, p[0], 36, 4)))


def two_readers(m: Module, p: list[Instruction]) -> list[Instruction]:
    y = shuffle(m, conv(m, p[0], 24, 1, 4), 4)
    return [conv(m, conv(m, y, 24, 3, 24), 24, 1, 4), m.add_instruction("tanh", [y])]


def not_depthwise(m: Module, p: list[Instruction]) -> Instruction:
    return conv(m, conv(m, shuffle(m, p[0], 4), 24, 3, 12), 24, 1, 4)


def an_operand_of_its_own(m: Module, p: list[Instruction]) -> Instruction:
    y = conv(m, shuffle(m, conv(m, p[0], 24, 1, 4), 4), 24, 3, 24)
    return conv(m, m.add_instruction("add", [y, p[0]]), 24, 1, 4)


def one_group(m: Module, p: list[Instruction]) -> Instruction:
    return conv(m, conv(m, shuffle(m, conv(m, p[0], 24, 1, 4), 4), 24, 3, 24), 24, 1, 1)


@pytest.mark.parametrize("build", [two_readers, not_depthwise, an_operand_of_its_own, one_group])
def test_what_else_is_read_stays(build: Callable) -> None:
    assert not any("shuffled" in name for name in labels(normal(1, 24, 6, 7), build))


def test_a_branch_reads_what_is_behind_a_shuffle() -> None:
    program = Program()
    main = program.main
    flag = main.add_parameter("flag", Shape(from_numpy(np.dtype(bool)), (1,)))
    x = main.add_parameter("x", Shape(from_numpy(np.dtype(np.float32)), (1, 24, 6, 7)))
    y = conv(main, shuffle(main, conv(main, x, 24, 1, 4), 4), 24, 3, 24)
    branches = [program.create_module(name) for name in ("then", "else")]
    branches[0].add_return([conv(branches[0], y, 24, 1, 4)])
    branches[1].add_return([branches[1].add_instruction("relu", [x])])
    chosen = main.add_instruction("if", [flag], branches)
    main.add_return([main.add_instruction("get_tuple_elem", [chosen], index=0)])
    results = []
    for target in ("cpu", "ref"):
        own = migraphx.program.wrap(program.clone())
        own.compile(target)
        feeds = {"flag": np.array([True]), "x": normal(1, 24, 6, 7)}
        results.append(np.array(own.run(feeds)[0]))
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


def test_weights_may_differ_by_channel_or_not() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        y = conv(m, shuffle(m, conv(m, p[0], 24, 1, 4), 4), 24, 3, 24)
        scale = m.add_instruction("multibroadcast", [m.add_literal(np.float32([0.7]))], out_lens=y.shape.lens)
        rows = m.add_instruction("multibroadcast", [m.add_literal(normal(1, 24, 1, 1))], out_lens=y.shape.lens)
        y = m.add_instruction("mul", [rows, m.add_instruction("mul", [y, scale])])
        return conv(m, y, 48, 1, 4)

    assert any(name.startswith("conv_shuffled") for name in labels(normal(1, 24, 6, 7), build))
