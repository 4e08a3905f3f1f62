"""Convolutions of images with few channels, where filter rows are folded into channels: values of ref."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.contraction import solvers
from mgx_numba.codegen.gpu.contraction.im2row import channel_padding
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .programs import compiled, interpreter

F16, BF16, F32 = Type.half_type, Type.bf16_type, Type.float_type
VOLUME = {"stride": (1, 2, 2), "padding": (0, 1, 1), "dilation": (1, 1, 1)}
ALLOWED = {F16: 2e-3, BF16: 2e-2, F32: 2e-3}
"""Errors relative to the largest result: those of rounding it, and of TF32."""


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")


def convolved(
    type: Type, lens: tuple[int, ...], kernel: tuple[int, ...], on: Engine, spoil: bool = False, **attributes: object
) -> list[str]:
    """Run and compare; the steps' labels."""
    program, rng = Program(), np.random.default_rng(sum(lens))
    m: Module = program.main
    x = m.add_parameter("x", Shape(type, lens))
    inputs_of_one = lens[1] // int(attributes.get("group", 1))  # type: ignore[call-overload]
    weights = m.add_literal(rng.standard_normal((16, inputs_of_one, *kernel)).astype(type.numpy))
    y = m.add_instruction("convolution", [x, weights], **attributes)
    m.add_return([m.add_instruction("relu", [y])])
    inputs = {"x": rng.standard_normal(lens).astype(type.numpy)}
    if spoil:
        inputs["x"].reshape(-1)[[5, 77]] = np.nan, np.inf
    made = compiled(program, on, fast_math=True, float32_matmul_precision="medium")
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    assert np.array_equal(finite, np.isfinite(got)) and finite.all() != spoil
    assert np.abs(got[finite] - wanted[finite]).max() <= ALLOWED[type] * np.abs(wanted[finite]).max()
    assert made.executable is not None
    return [step.label for step in made.executable.plan.steps]


def without_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the solver that reads images of any number of channels."""
    monkeypatch.setattr(solvers, "SOLVERS", tuple(s for s in solvers.SOLVERS if s.name != "patch"))


@pytest.mark.parametrize(
    ("type", "lens", "kernel", "attributes", "how"),
    [
        (F16, (2, 3, 18, 21), (7, 7), {"stride": (2, 2), "padding": (3, 3)}, "warpgroup"),
        (BF16, (1, 3, 16, 23), (5, 7), {"stride": (1, 2), "padding": (2, 3, 0, 1)}, "warpgroup"),
        (F32, (2, 3, 18, 21), (7, 7), {"stride": (2, 2), "padding": (3, 3)}, "warpgroup"),
        (F32, (1, 1, 20, 19), (3, 9), {"stride": (2, 1)}, "warpgroup"),
        (F16, (2, 3, 15, 17), (3, 3), {"stride": (2, 2), "padding": (1, 1)}, "warpgroup"),
        (F16, (1, 3, 13, 40), (5, 3), {"stride": (2, 2), "padding": (2, 0, 1, 3)}, "warpgroup"),
        (F16, (1, 20, 7, 19), (3, 3), {"padding": (1, 1)}, "warpgroup"),
        (F16, (1, 20, 7, 19), (3, 3), {"dilation": (2, 2)}, "tensor"),
        (F16, (1, 27, 5, 17), (3, 3), {"dilation": (2, 2)}, "warpgroup"),
        (
            F16,
            (2, 3, 4, 9, 11),
            (2, 3, 4),
            {"stride": (1, 2, 2), "padding": (0, 1, 1), "dilation": (1, 1, 1)},
            "tensor",
        ),
        (F16, (1, 3, 32, 32), (16, 16), {"stride": (16, 16)}, "patch"),
        (F16, (1, 3, 9, 10), (3, 3), {"padding": (1, 1)}, "tensor"),
        (F32, (1, 3, 9, 10), (3, 3), {"padding": (1, 1), "dilation": (2, 2)}, "tensor"),
        (F16, (1, 2, 40), (5,), {"stride": (2,), "padding": (2,), "dilation": (1,)}, "warpgroup"),
    ],
)
def test_values(
    type: Type, lens: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, object], how: str, on: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if how == "tensor":
        without_patches(monkeypatch)
    labels = convolved(type, lens, kernel, on, **attributes)
    many = lens[1] > 8  # which the layout pass brings into order
    assert labels[many] == "gpu::filled_channels_kernel"  # it takes images in any order
    assert any(f"convolution_{how}_" in label for label in labels), labels


@pytest.mark.parametrize(
    ("lens", "attributes"), [((2, 2, 7, 9), {"group": 2}), ((2, 1, 7, 9), {}), ((1, 2, 7, 9), {"dilation": (2, 2)})]
)
def test_images_that_are_not_filled_are_brought_into_order(
    lens: tuple[int, ...], attributes: dict[str, object], on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_patches(monkeypatch)
    labels = convolved(F16, lens, (3, 3), on, **attributes)
    assert ("gpu::filled_channels_kernel" in labels) == ("dilation" in attributes)


def test_infinities_and_nan_reach_what_reads_them(on: Engine) -> None:
    convolved(F16, (1, 3, 18, 20), (7, 7), on, spoil=True, stride=(2, 2), padding=(3, 3))
    convolved(F16, (1, 3, 18, 20), (3, 3), on, spoil=True, stride=(2, 2), padding=(1, 1))


def test_others_than_warpgroups_read_a_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_80")
    labels = convolved(F16, (2, 3, 18, 21), (7, 7), interpreter(), stride=(2, 2), padding=(3, 3))
    assert any("convolution_tensor_" in label for label in labels), labels


def test_images_in_float8(on: Engine) -> None:
    type, lens = Type.fp8e4m3fn_type, (2, 3, 18, 21)
    program, rng = Program(), np.random.default_rng(3)
    m: Module = program.main
    x = m.add_parameter("x", Shape(type, lens))
    weights = m.add_literal(rng.standard_normal((16, 3, 7, 7)).astype(type.numpy))
    m.add_return([m.add_instruction("quant_convolution", [x, weights], stride=(2, 2), padding=(3, 3))])
    inputs = {"x": rng.standard_normal(lens).astype(type.numpy)}
    inputs["x"].reshape(-1)[[40, 333]] = np.nan
    made = compiled(program, on)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.array_equal(np.isnan(got), np.isnan(wanted)) and np.isnan(got).any() and np.isfinite(got).any()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-3 * np.nanmax(np.abs(wanted)))  # tensor cores cut bits off
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert any("convolution_warpgroup_" in label for label in labels), labels


def test_what_is_made_of_a_problem() -> None:
    half = ElementTypes("float16", "float16", "float16", "float16")
    stem = ConvProblem(2, 3, 64, (224, 224), (7, 7), (2, 2), pads_begin=(3, 3), pads_end=(3, 3), types=half)
    (filled, *_) = channel_padding(stem)
    assert filled is not None
    assert (filled.channels, filled.before, filled.step, filled.block) == (4, (4, 3), (2, 2), (2, 8))
    assert (filled.taken, filled.first_channel) == (7, 32)
    assert filled.problem.in_channels == 64 and filled.problem.kernel == (4, 1)
    assert filled.problem.out_lens == stem.out_lens and filled.lens == (2, 64, 115, 112)
    weights = np.random.default_rng(0).standard_normal((64, 3, 7, 7))
    packed = filled.weights(weights).reshape(64, 2, 8, 4, 4)  # rows of a tap, pixels, channels, taps
    assert np.array_equal(packed[:, 0, :7, :3, 0], weights[:, :, 0].transpose(0, 2, 1))
    others = packed[:, :, :7, :3, 1:].transpose(0, 3, 4, 1, 2).reshape(64, 3, 6, 7)
    assert np.array_equal(others, weights[:, :, 1:])
    assert not packed[:, 1, :, :, 0].any() and not packed[..., 3:, :].any() and not packed[:, :, 7:].any()
    single = next(f for f in channel_padding(stem) if f.first_channel == 0)  # for those who cannot leave channels out
    assert (single.before, single.step, single.block, single.taken) == ((0, 3), (1, 2), (1, 8), 7)
    assert single.problem.in_channels == 32 and single.lens == (2, 32, 224, 112)
    whole = ConvProblem(2, 16, 64, (8, 8), (3, 3), types=half)
    grouped = ConvProblem(2, 6, 6, (8, 8), (3, 3), groups=2, types=half)
    grey = ConvProblem(2, 1, 8, (8, 8), (3, 3), types=half)  # eight times the memory
    assert channel_padding(whole) == channel_padding(grouped) == channel_padding(grey) == []


@pytest.mark.parametrize(
    ("lens", "kernel", "attributes", "how"),
    [
        ((2, 3, 18, 21), (7, 7), {"stride": (2, 2), "padding": (3, 3)}, "warpgroup"),
        ((1, 3, 17, 18), (6, 5), {"stride": (2, 2), "padding": (2, 1, 0, 2)}, "warpgroup"),
        ((1, 2, 9, 11), (3, 3), {"stride": (1, 2), "padding": (1, 1)}, "warpgroup"),
        ((1, 1, 12, 13), (4, 9), {"stride": (4, 4)}, "warpgroup"),
        ((1, 3, 20, 12), (3, 3), {"dilation": (2, 1)}, "tensor"),
    ],
)
@pytest.mark.parametrize("type", [Type.int8_type, Type.uint8_type])
def test_integers_of_several_rows_are_one_pixel(
    type: Type, lens: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, object], how: str, on: Engine
) -> None:
    program, rng = Program(), np.random.default_rng(sum(lens))
    m: Module = program.main
    x = m.add_parameter("x", Shape(type, lens))
    weights = m.add_literal(rng.integers(-128, 128, (16, lens[1], *kernel)).astype(np.int8))
    m.add_return([m.add_instruction("quant_convolution", [x, weights], **attributes)])
    limits = np.iinfo(type.numpy)
    inputs = {"x": rng.integers(limits.min, limits.max + 1, lens).astype(type.numpy)}
    made = compiled(program, on)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.array_equal(got, wanted)
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert labels[0] == "gpu::filled_channels_kernel"
    assert any(f"convolution_{how}_" in label for label in labels), labels


def test_a_stem_of_integers_has_two_rows_of_whole_slices() -> None:
    types = ElementTypes("uint8", "int8", "int32", "int32")
    stem = ConvProblem(32, 3, 64, (224, 224), (7, 7), (2, 2), pads_begin=(3, 3), pads_end=(3, 3), types=types)
    (filled, *_) = channel_padding(stem)
    assert filled is not None
    assert (filled.problem.in_channels, filled.problem.kernel, filled.problem.dilation) == (128, (2, 1), (2, 1))
    assert filled.lens == (32, 32, 114, 115) and filled.problem.out_lens == stem.out_lens


@pytest.mark.parametrize("rank", [1, 2])
def test_images_of_other_lengths_have_the_same_kernel(rank: int) -> None:
    texts = set()
    for length in (21, 40, 300):
        program = Program()
        m = program.main
        x = m.add_parameter("x", Shape(F16, (2, 3, *(length + 2 * d for d in range(rank)))))
        w = m.add_literal(np.ones((16, 3, *(5,) * rank), np.float16))
        window = {"stride": (2,) * rank, "padding": (2,) * rank, "dilation": (1,) * rank}
        m.add_return([m.add_instruction("convolution", [x, w], **window)])
        made = compiled(program, interpreter(), fast_math=True)
        texts |= {kernel.text for kernel in made.kernels() if kernel.name == "filled_channels_kernel"}
    assert len(texts) == 1
