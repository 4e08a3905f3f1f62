"""Depthwise convolutions with images in shared memory have the values of ref; where they are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.contraction import depthwise_patches, solvers
from mgx_numba.codegen.gpu.contraction.depthwise_patches import RectangleTiling, rectangle_refusal
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.machine import H200, planning_for
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import assert_agrees, reference
from .programs import compiled, inputs_of
from .test_depthwise import BF16, F16, F32, PLAIN, convolution


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plan for an H200, with an estimate by which the tested kernel always wins."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(solvers.DepthwisePatches, "estimate", lambda self, contraction, tiling=None: 0.0)
    with planning_for(H200):
        yield


def check(program: Program, on: Engine, inputs: dict[str, np.ndarray] | None = None) -> None:
    made = compiled(program, on)
    assert made.executable is not None
    assert any("convolution_depthwise_patch" in step.label for step in made.executable.plan.steps)
    inputs = inputs or inputs_of(program)
    assert_agrees(made.run(inputs), reference(program, inputs))


def pads(side: int, **others: Any) -> dict[str, Any]:
    return {**PLAIN, "padding": (side, side), **others}


@pytest.mark.parametrize(
    ("tiling", "type", "lens", "kernel", "attributes"),
    [
        (None, F32, (2, 8, 3, 7), (3, 3), PLAIN),
        (None, F16, (1, 16, 5, 6), (3, 3), pads(1, stride=(2, 2))),
        (None, BF16, (1, 16, 4, 6), (2, 3), {**PLAIN, "padding": (0, 2, 1, 0), "stride": (1, 2)}),
        (None, F32, (1, 4, 9), (3,), {"padding": (2,), "stride": (1,), "dilation": (2,)}),
        (None, F16, (2, 8, 3, 5), (1, 1), pads(0, stride=(2, 2))),
        (None, F16, (1, 80, 5, 9), (7, 7), pads(3)),  # two chunks of channels
        ((7, 2, 3, 2), F32, (1, 36, 13, 17), (3, 3), PLAIN),  # chunks that are not full, rectangles beside the image
        ((4, 1, 2, 2), F16, (1, 40, 9, 9), (5, 5), pads(2, stride=(2, 2))),
        ((8, 1, 3, 1), F32, (1, 24, 7, 11), (5, 5), pads(4, dilation=(2, 2))),
        ((7, 1, 2, 2), BF16, (2, 16, 6, 8), (7, 7), pads(3)),
        ((4, 2, 1, 1), F16, (1, 8, 3, 12), (1, 11), {**PLAIN, "padding": (0, 5)}),
        (None, F16, (2, 13, 5, 6), (3, 3), PLAIN),  # channels that are no whole vectors
        ((8, 2, 2, 2), F16, (1, 37, 9, 19), (3, 3), pads(1)),
        (None, BF16, (1, 18, 6, 9), (5, 5), pads(2, stride=(2, 2))),
        ((7, 1, 2, 2), F16, (2, 44, 6, 8), (7, 7), pads(3)),
        (None, F32, (2, 7, 4, 9), (5, 5), pads(2)),
    ],
)
@pytest.mark.usefixtures("preferred")
def test_values(
    tiling: tuple[int, int, int, int] | None,
    type: Type,
    lens: tuple[int, ...],
    kernel: tuple[int, ...],
    attributes: dict[str, Any],
    on: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if tiling is not None:
        own = RectangleTiling(*tiling)
        monkeypatch.setattr(solvers, "chosen_rectangle", lambda contraction: own)
    check(convolution(type, lens, kernel, **attributes), on)


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.usefixtures("preferred")
def test_infinities_and_nan_reach_the_pixels_around_them(side: int, on: Engine) -> None:
    program = convolution(F32, (1, 4, 6, 9), (side, side), **pads(side // 2))
    inputs = inputs_of(program)
    inputs["x"][0, 0, 0, 0], inputs["x"][0, 1, 3, 5], inputs["x"][0, 2, 2, 2] = np.nan, np.inf, -np.inf
    check(program, on, inputs)


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.usefixtures("preferred")
def test_weights_that_come_with_the_call_and_a_part_of_the_channels(side: int, on: Engine) -> None:
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(F32, (2, 16, 4, 5)))
    w = m.add_parameter("w", Shape(F32, (8, 1, side, side)))
    part = m.add_instruction("slice", [m.add_instruction("relu", [x])], axes=(1,), starts=(4,), ends=(12,))
    sums = m.add_instruction("convolution", [part, w], group=8, **pads(side // 2))
    m.add_return([m.add_instruction("concat", [sums, part], axis=1)])
    check(program, on)


def contraction(
    batch: int, side: int, channels: int, kernel: int, dtype: str = "float32", **others: Any
) -> GpuContraction:
    """Return a depthwise convolution that keeps the size of the images."""
    around = (kernel // 2,) * 2
    given: dict[str, Any] = {"groups": channels, "types": ElementTypes(*[dtype] * 4), **others}
    problem = ConvProblem(
        batch, channels, channels, (side, side), (kernel, kernel), pads_begin=around, pads_end=around, **given
    )
    return GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True)


def test_what_it_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    assert not rectangle_refusal(contraction(1, 9, 8, 3))
    assert not rectangle_refusal(contraction(1, 9, 6, 3))
    assert not rectangle_refusal(contraction(1, 9, 13, 3, "float16"))
    assert "no floats" in rectangle_refusal(contraction(1, 9, 16, 3, types=ElementTypes(*["int8"] * 4)))
    assert "no single channels" in rectangle_refusal(contraction(1, 9, 8, 3, groups=4))
    assert "across" in rectangle_refusal(contraction(1, 19, 8, 13))
    assert "no patch" in rectangle_refusal(contraction(1, 700, 32, 9, dilation=(80, 80)))
    monkeypatch.setenv("MGX_GPU_ARCH", "gfx942")
    assert "no asynchronous copies" in rectangle_refusal(contraction(1, 9, 8, 3))


def test_choices_of_an_h200() -> None:
    """In float32 the kernel without shared memory took 2 to 6 times as long, for 32 images of EfficientNet-B0."""
    with planning_for(H200):
        for side, channels, kernel in ((112, 32, 3), (56, 144, 3), (28, 240, 5), (14, 672, 5), (7, 1152, 5)):
            asked = contraction(32, side, channels, kernel)
            assert solvers.SOLVER_SET.own_candidates(asked)[0].solver.name == "depthwise_patch"
            tiling = depthwise_patches.chosen_rectangle(asked)
            assert tiling in depthwise_patches.rectangle_tilings(asked)
        single = contraction(1, 7, 1152, 5, "float16")  # 2.8 us, from patches 4.4
        assert solvers.SOLVER_SET.own_candidates(single)[0].solver.name == "depthwise"
