"""Products and convolutions on tensor cores have the values of ref, within the accuracy of their types."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import solvers
from mgx_numba.codegen.gpu.lang import tensor_cores
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.passes.truncate_float import TruncateFloat
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.ref.interpreter import evaluate

from .programs import compiled, interpreter

F32, F16, BF16 = Type.float_type, Type.half_type, Type.bf16_type
ALLOWED = {F32: 2e-6, F16: 2e-3, BF16: 2e-2}
"""Errors relative to the largest result: those of rounding the result, and of float32 as three products in TF32."""


@pytest.fixture(autouse=True)
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_80")  # whose kernels run on later devices, too
    others = ("patch", "fma")  # some devices are estimated to be faster with these on tiny images
    monkeypatch.setattr(solvers, "SOLVERS", tuple(s for s in solvers.SOLVERS if s.name not in others))


def agree(program: Program, inputs: dict[str, np.ndarray], wanted: np.ndarray, type: Type, on: Engine) -> None:
    made = compiled(program, on, fast_math=True)
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert any("tensor" in label for label in labels), labels
    (got,) = made.run(inputs)
    error = np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max()
    assert error <= ALLOWED[type], error


@pytest.mark.parametrize("turned", [False, True])
def test_infinities_and_nan_are_those_of_float32(turned: bool, on: Engine) -> None:
    """In three products in TF32, on either side; elsewhere nothing changes."""
    rng, largest = np.random.default_rng(turned), np.finfo(np.float32).max
    a, b = (rng.standard_normal(lens).astype(np.float32) for lens in ((20, 40), (40, 24)))
    a[12], a[:, 9], b[7] = 0, 0.125, 0.5
    a[3, 5], a[4, 0], a[12, 7], a[19, 1] = np.inf, np.nan, largest, -np.inf
    b[5, 3], b[5, 4:7], b[7, :9] = 0, (3e3, -3e3, 1 + 2**-20), (0, 1, -1, 2**-20, 2, -4, 8, -0.5, -0.0)
    b[2, 11], b[9, 12], b[1, 13] = np.inf, largest, np.nan
    program, inputs = Program(), {"a": a, "b": np.ascontiguousarray(b.T) if turned else b}
    m: Module = program.main
    left, right = (m.add_parameter(n, Shape(F32, v.shape)) for n, v in inputs.items())
    if turned:
        right = m.add_instruction("transpose", [right], permutation=(1, 0))
    m.add_return([m.add_instruction("dot", [left, right])])
    made = compiled(program, on, fast_math=True)
    assert made.executable is not None
    assert any("tensor" in step.label for step in made.executable.plan.steps)
    (got,) = made.run(inputs)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ b
        wanted, scale = exact.astype(np.float32), np.abs(a.astype(np.float64)) @ np.abs(b)
        for found in (np.isnan, np.isposinf, np.isneginf):
            assert np.array_equal(found(got), found(wanted))
        finite = np.isfinite(wanted)
        assert (np.abs(got - exact)[finite] <= 2e-6 * scale[finite]).all()


@pytest.mark.parametrize("type", [F32, F16, BF16])
@pytest.mark.parametrize(
    ("batch", "rows", "columns", "depth", "turned"),
    [
        ((), 5, 24, 16, False),
        ((2,), 33, 40, 72, True),
        ((), 32, 7, 8, True),
        ((3,), 16, 32, 40, False),
        ((), 5, 24, 520, False),
    ],
)
def test_products(
    type: Type, batch: tuple[int, ...], rows: int, columns: int, depth: int, turned: bool, on: Engine
) -> None:
    program, rng = Program(), np.random.default_rng(rows)
    m: Module = program.main
    a = m.add_parameter("a", Shape(type, (*batch, rows, depth)))
    order = (*range(len(batch)), len(batch) + 1, len(batch))
    b = m.add_parameter("b", Shape(type, (*batch, columns, depth) if turned else (*batch, depth, columns)))
    right = m.add_instruction("transpose", [b], permutation=order) if turned else b
    bias = m.add_parameter("bias", Shape(type, (columns,)))
    product = m.add_instruction("dot", [a, right])
    row = m.add_instruction("multibroadcast", [bias], out_lens=(*batch, rows, columns))
    m.add_return([m.add_instruction("relu", [m.add_instruction("add", [product, row])])])
    inputs = {n: rng.standard_normal(s.lens).astype(type.numpy) for n, s in program.parameter_shapes().items()}
    wide = {n: v.astype(np.float64) for n, v in inputs.items()}
    right_values = wide["b"].transpose(order) if turned else wide["b"]
    agree(program, inputs, np.maximum(wide["a"] @ right_values + wide["bias"], 0), type, on)


@pytest.mark.parametrize(("kernel", "stride", "group"), [(3, 1, 1), (1, 1, 1), (3, 2, 2)])
@pytest.mark.parametrize("type", [F32, F16])
def test_convolutions(type: Type, kernel: int, stride: int, group: int, on: Engine) -> None:
    channels, program, rng = 16, Program(), np.random.default_rng(kernel)
    m: Module = program.main
    x = m.add_parameter("x", Shape(type, (1, 5, 6, channels)))
    image = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
    weights = rng.standard_normal((channels, channels // group, kernel, kernel)).astype(type.numpy)
    attributes = {"padding": (kernel // 2,) * 2, "stride": (stride,) * 2, "group": group}
    m.add_return([m.add_instruction("convolution", [image, m.add_literal(weights)], **attributes)])
    inputs = {"x": rng.standard_normal((1, 5, 6, channels)).astype(type.numpy)}
    wanted = _convolved(inputs["x"].astype(np.float64), weights.astype(np.float64), stride, group)
    agree(program, inputs, wanted, type, on)


@pytest.mark.parametrize("type", [F32, F16])
@pytest.mark.parametrize(("channels", "kernel", "stride"), [(3, 3, 2), (5, 1, 1), (2, 3, 1)])
def test_few_channels_are_filled_up(type: Type, channels: int, kernel: int, stride: int, on: Engine) -> None:
    """Channels-first images; two convolutions, whose weights are packed separately."""
    program, rng = Program(), np.random.default_rng(channels)
    m: Module = program.main
    x = m.add_parameter("x", Shape(type, (2, channels, 6, 5)))
    weights = [rng.standard_normal((9, channels, kernel, kernel)).astype(type.numpy) for _ in range(2)]
    attributes = {"padding": (kernel // 2,) * 2, "stride": (stride,) * 2}
    made = [m.add_instruction("convolution", [x, m.add_literal(w)], **attributes) for w in weights]
    m.add_return([m.add_instruction("relu", [m.add_instruction("sub", made)])])
    values = rng.standard_normal((2, channels, 6, 5)).astype(type.numpy)
    apart = [
        _convolved(values.transpose(0, 2, 3, 1).astype(np.float64), w.astype(np.float64), stride, 1) for w in weights
    ]
    agree(program, {"x": values}, np.maximum(apart[0] - apart[1], 0), type, on)


def _convolved(x: np.ndarray, w: np.ndarray, stride: int, group: int) -> np.ndarray:
    pad, kernel = w.shape[2] // 2, w.shape[2]
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]
    inputs, outputs = w.shape[1], w.shape[0] // group
    parts = [
        np.einsum(
            "bhwcij,ocij->bohw", windows[..., g * inputs : (g + 1) * inputs, :, :], w[g * outputs : (g + 1) * outputs]
        )
        for g in range(group)
    ]
    return np.concatenate(parts, axis=1)


def test_the_instructions_are_those_of_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_80")
    program = Program()
    a, b = (program.main.add_parameter(n, Shape(F16, (64, 64))) for n in "ab")
    program.main.add_return([program.main.add_instruction("dot", [a, b])])
    (kernel,) = compiled(program, interpreter()).kernels()
    for name in ("sm_80", "sm_90a", "sm_120a"):
        text = assembly(kernel, ARCHITECTURES[name])
        assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in text and ".local" not in text
        assert "cp.async" in text
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_75")
    (kernel,) = compiled(program, interpreter()).kernels()
    text = assembly(kernel, ARCHITECTURES["sm_75"])
    assert "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32" in text
    assert "cp.async" not in text and ".local" not in text


def test_smaller_instructions_make_the_same_product() -> None:
    """Instructions of compute capability 7.5, with each thread's words as in PTX ISA's m16n8k8 and m8n8k16."""
    rng, lanes = np.random.default_rng(5), np.arange(32)
    g, c = lanes // 4, lanes % 4
    for steps, rows in ((tensor_cores.HALVES, 16), (tensor_cores.QUARTERS, 8)):
        left, right = rng.integers(-9, 9, (16, 8)), rng.integers(-9, 9, (8, 8))  # a number for each word
        a = [left[g + down, c + along] for along in (0, 4) for down in (0, 8)]
        b = [right[g, c], right[g, c + 4]]
        sums = [np.zeros(32, int) for _ in range(4)]
        for words, (other,), own in steps:
            part, columns = np.empty((rows, 4), int), np.empty((8, 4), int)
            for k, word in enumerate(words):
                part[g + 8 * k, c] = a[word]
            columns[g, c] = b[other]
            made = part @ columns.T
            for k, number in enumerate(own):
                sums[number] += made[g + 8 * (k // 2), 2 * c + k % 2]
        whole = left @ right.T
        for k, total in enumerate(sums):
            np.testing.assert_array_equal(total, whole[g + 8 * (k // 2), 2 * c + k % 2])


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_constant_right_operand_is_kept_by_columns(batch: tuple[int, ...], on: Engine) -> None:
    program, rng = Program(), np.random.default_rng(4)
    m: Module = program.main
    a = m.add_parameter("a", Shape(F16, (*batch, 9, 40)))
    weights = rng.standard_normal((40, 13)).astype(np.float16)
    b = m.add_literal(weights)
    right = m.add_instruction("multibroadcast", [b], out_lens=(*batch, 40, 13)) if batch else b
    m.add_return([m.add_instruction("dot", [a, right])])
    values = rng.standard_normal((*batch, 9, 40)).astype(np.float16)
    agree(program, {"a": values}, values.astype(np.float64) @ weights.astype(np.float64), F16, on)


def test_gates_before_a_convolution_are_read_in_float32(on: Engine) -> None:
    rng, lens = np.random.default_rng(3), (2, 16, 3, 5)
    x = rng.standard_normal(lens).astype(np.float32)
    first, squeeze, weights = (rng.standard_normal((n, 16, 1, 1)).astype(np.float32) / 4 for n in (16, 16, 24))
    program = Program()
    m = program.main
    given = m.add_instruction("convolution", [m.add_parameter("x", Shape(F32, lens)), m.add_literal(first)])
    pooled = m.add_instruction("pooling", [given], mode="average", lengths=lens[2:], padding=(0, 0), stride=(1, 1))
    gate = m.add_instruction("sigmoid", [m.add_instruction("convolution", [pooled, m.add_literal(squeeze)])])
    spread = m.add_instruction("multibroadcast", [gate], out_lens=lens)
    through = m.add_instruction("mul", [given, spread])
    made = m.add_instruction("convolution", [through, m.add_literal(weights)])
    m.add_return([made])
    (wanted,) = evaluate(program, {"x": x})
    run_passes(program, [TruncateFloat(["all"], BF16), "optimize_module"])
    optimised = compiled(program, on, fast_math=True)
    (gates,) = (i for i in optimised.program.main if i.name == "multibroadcast" and i.shape.lens == lens)
    reader = next(u for u in gates.users if u.name == "fused_contraction")
    assert gates.shape.type is F32 and [i.shape.type for i in reader.inputs].count(BF16) == 2
    (got,) = optimised.run({"x": x})
    assert np.abs(got - wanted).max() <= ALLOWED[BF16] / 2 * np.abs(wanted).max()
