"""Depthwise convolutions have the values of ref, in all contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import depthwise, solvers
from mgx_numba.codegen.gpu.toolchain.compiler import assembly, compile_object
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import assert_agrees, reference
from .programs import compiled, inputs_of, interpreter

F32, F16, BF16 = Type.float_type, Type.half_type, Type.bf16_type
PLAIN: dict[str, Any] = {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1)}


@pytest.fixture(autouse=True)
def without_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave depthwise convolutions to the kernel that reads images through the L1 cache."""
    monkeypatch.setattr(solvers.DepthwisePatches, "refusal", lambda self, contraction: "another kernel is tested")


def convolution(type: Type, lens: tuple[int, ...], kernel: tuple[int, ...], **attributes: Any) -> Program:
    """relu(convolution(x) + bias) + residual."""
    program = Program()
    m = program.main
    channels = lens[1]
    x = m.add_parameter("x", Shape(type, lens))
    weights = np.random.default_rng(1).standard_normal((channels, 1, *kernel)).astype(type.numpy)
    sums = m.add_instruction("convolution", [x, m.add_literal(weights)], group=channels, **attributes)
    bias = m.add_parameter("bias", Shape(type, (channels, *(1 for _ in kernel))))
    wide = m.add_instruction("multibroadcast", [bias], out_lens=sums.shape.lens)
    residual = m.add_parameter("r", Shape(type, sums.shape.lens))
    m.add_return(
        [m.add_instruction("add", [m.add_instruction("relu", [m.add_instruction("add", [sums, wide])]), residual])]
    )
    return program


def check(program: Program, on: Engine, inputs: dict[str, np.ndarray] | None = None) -> GpuProgram:
    made = compiled(program, on)
    assert made.executable is not None
    assert any("convolution_depthwise" in step.label for step in made.executable.plan.steps)
    inputs = inputs or inputs_of(program)
    assert_agrees(made.run(inputs), reference(program, inputs))
    return made


@pytest.fixture(params=[(1, 2), (2, 8), (3, 4)])
def pixels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the pixels and channels per thread, where lines are long enough."""
    pixels, lanes = request.param
    for name in ("FEW_TAP_TILINGS", "MANY_TAP_TILINGS", "WIDE_REACH_TILINGS"):
        monkeypatch.setattr(depthwise, name, ((0, pixels, lanes),))
    return int(pixels)


@pytest.mark.parametrize(
    ("type", "lens", "kernel", "attributes"),
    [
        (F32, (2, 8, 3, 7), (3, 3), PLAIN),
        (F16, (1, 16, 5, 6), (3, 3), {**PLAIN, "stride": (2, 2)}),
        (BF16, (1, 12, 4, 6), (2, 3), {**PLAIN, "padding": (0, 2, 1, 0), "stride": (1, 2)}),
        (F32, (1, 3, 9), (3,), {"padding": (2,), "stride": (1,), "dilation": (2,)}),
        (F32, (1, 4, 3, 4, 5), (2, 1, 3), {"padding": (1, 0, 0, 0, 0, 1), "stride": (2, 1, 1), "dilation": (1, 1, 1)}),
        (F16, (2, 8, 2, 5), (1, 1), {**PLAIN, "padding": (0, 0), "stride": (1, 2)}),
        (F16, (1, 8, 6, 7), (5, 5), {**PLAIN, "padding": (2, 2)}),
        (F16, (1, 8, 5, 9), (7, 7), {**PLAIN, "padding": (3, 3)}),
        (F16, (1, 34, 10, 3), (3, 3), PLAIN),  # more vectors and rows than a group of threads has
        (F32, (1, 4, 4, 3, 5), (3, 2, 3), {"padding": (1, 1, 1), "stride": (1, 2, 1), "dilation": (1, 1, 1)}),
    ],
)
def test_values(
    type: Type, lens: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any], pixels: int, on: Engine
) -> None:
    check(convolution(type, lens, kernel, **attributes), on)


def test_infinities_and_nan_reach_the_pixels_around_them(pixels: int, on: Engine) -> None:
    program = convolution(F32, (1, 4, 4, 6), (3, 3), **PLAIN)
    inputs = inputs_of(program)
    inputs["x"][0, 0, 0, 0], inputs["x"][0, 1, 3, 5], inputs["x"][0, 2, 2, 2] = np.nan, np.inf, -np.inf
    check(program, on, inputs)


def test_weights_that_come_with_the_call_and_a_part_of_the_channels(on: Engine) -> None:
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(F32, (2, 16, 4, 5)))
    w = m.add_parameter("w", Shape(F32, (8, 1, 3, 3)))
    part = m.add_instruction("slice", [m.add_instruction("relu", [x])], axes=(1,), starts=(4,), ends=(12,))
    sums = m.add_instruction("convolution", [part, w], group=8, **PLAIN)
    m.add_return([m.add_instruction("concat", [sums, part], axis=1)])
    check(program, on)


def test_integers(on: Engine) -> None:
    program = Program()
    m = program.main
    rng = np.random.default_rng(3)
    x = m.add_parameter("x", Shape(Type.int8_type, (1, 16, 4, 5)))
    weights = m.add_literal(rng.integers(-128, 128, (16, 1, 3, 3)).astype(np.int8))
    m.add_return([m.add_instruction("quant_convolution", [x, weights], group=16, **PLAIN)])
    check(program, on, {"x": rng.integers(-128, 128, (1, 16, 4, 5)).astype(np.int8)})


@pytest.mark.parametrize("type", [F32, F16])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_several_results_of_each_channel(constant: bool, last: bool, type: Type, on: Engine) -> None:
    """Each channel is repeated for its results, so that kernels of depthwise convolutions compute them."""
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(type, (2, 5, 7, 8) if last else (2, 8, 5, 7)))
    if last:
        x = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
    weights = np.random.default_rng(1).standard_normal((24, 1, 3, 2)).astype(type.numpy)
    w = m.add_literal(weights) if constant else m.add_parameter("w", Shape(type, weights.shape))
    m.add_return([m.add_instruction("convolution", [x, w], group=8, **{**PLAIN, "stride": (2, 1)})])
    check(program, on)


def test_what_has_other_groups_is_refused() -> None:
    for channels, outputs, groups in ((8, 8, 4), (1, 1, 1)):
        program = Program()
        m = program.main
        weights = np.zeros((outputs, channels // groups, 3, 3), np.float32)
        x = m.add_parameter("x", Shape(F32, (1, channels, 5, 5)))
        m.add_return([m.add_instruction("convolution", [x, m.add_literal(weights)], group=groups, **PLAIN)])
        labels = [step.label for step in compiled(program, interpreter()).executable.plan.steps]  # type: ignore[union-attr]
        assert not any("depthwise" in label for label in labels)


@pytest.mark.parametrize(("side", "loads", "words"), [(3, 18, "v4.b32"), (5, 50, "v2.b16")])
def test_loads_come_together(side: int, loads: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All loads of a small image, whose threads compute few channels of a larger filter."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    pads = {**PLAIN, "padding": (side // 2,) * 2}
    made = compiled(convolution(F16, (1, 16, 7, 7), (side, side), **pads), interpreter())
    (kernel,) = (k for k in made.kernels() if "depthwise" in k.name)
    text = assembly(kernel, ARCHITECTURES["sm_90a"])
    assert ".local" not in text
    assert text[: text.index("fma.rn.f32")].count(f"ld.global.{words}") >= loads


def scaled(type: Type) -> Program:
    """Return the end of a squeeze-and-excitation block: y = convolution(x), and convolution(y * scale)."""
    program = Program()
    m = program.main
    lens = (1, 64, 4, 5)
    x = m.add_parameter("x", Shape(type, lens))
    wide, narrow = (m.add_literal(inner_weights(type, n)) for n in (64, 16))
    one: dict[str, Any] = {"padding": (0, 0), "stride": (1, 1), "dilation": (1, 1)}
    y = m.add_instruction("convolution", [x, wide], **one)
    scale = m.add_instruction("multibroadcast", [m.add_parameter("s", Shape(type, (1, 64, 1, 1)))], out_lens=lens)
    m.add_return([m.add_instruction("convolution", [m.add_instruction("mul", [y, scale]), narrow], **one), y])
    return program


def inner_weights(type: Type, outputs: int) -> np.ndarray:
    return np.random.default_rng(outputs).standard_normal((outputs, 64, 1, 1)).astype(type.numpy)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_what_leads_to_tensor_cores_of_warpgroups_has_a_kernel_of_its_own(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", architecture)
    program = scaled(F16)
    made = compiled(program, interpreter())
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert any("mul" in label for label in labels) == (architecture == "sm_90a"), labels
    inputs = inputs_of(program)
    assert_agrees(made.run(inputs), reference(program, inputs))


@pytest.mark.parametrize("side", [3, 5])
def test_kernels_compile_for_devices_of_both_vendors(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program = convolution(F16, (1, 16, 7, 7), (side, side), **{**PLAIN, "padding": (side // 2,) * 2})
    (kernel,) = (k for k in compiled(program, interpreter()).kernels() if "depthwise" in k.name)
    for architecture in ("sm_75", "sm_90a", "gfx942", "gfx1201"):
        assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES[architecture])
