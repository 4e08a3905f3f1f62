"""Pointwise operations before 1x1 convolutions: which of them join, and the cpu target against ref."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..values import normal
from .programs import check, compile_and_run, program_of


def channelwise(m, y, seed):
    """A literal for each channel, repeated over images and pixels."""
    value = m.add_literal(normal(y.shape.lens[1], seed=seed, dtype=y.shape.type.numpy))
    return m.add_instruction("broadcast", [value], axis=1, out_lens=y.shape.lens)


def norm_relu(m, x):
    y = m.add_instruction("mul", [x, channelwise(m, x, 11)])
    return m.add_instruction("relu", [m.add_instruction("add", [y, channelwise(m, x, 12)])])


def convolve(m, y, out, kernel=1, **attributes):
    lens = (out, y.shape.lens[1], *[kernel] * (len(y.shape.lens) - 2))
    rank = len(lens) - 2
    attributes = {"stride": (1,) * rank, "padding": (0,) * 2 * rank, "dilation": (1,) * rank, **attributes}
    return m.add_instruction(
        "convolution", [y, m.add_literal(normal(*lens, seed=13, dtype=y.shape.type.numpy))], **attributes
    )


def loose(program: Program) -> list[str]:
    """Names of the pointwise instructions that no contraction took."""
    modules = [m for i in program.main if i.name == "pointwise" for m in i.module_args]
    return [i.name for m in modules for i in m if i.op.pointwise]


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize(
    "lens,out,dtype",
    [
        ((1, 17, 5, 7), 9, np.float32),
        ((2, 64, 6, 6), 33, np.float32),
        ((3, 1, 4), 5, np.float64),
        ((2, 19, 2, 3, 4), 40, np.float32),
        ((2, 33, 1, 9), 4, np.float32),
        ((1, 1500, 2, 2), 8, np.float32),
    ],
)
def test_batch_norm_and_relu(lens, out, dtype, fast_math):
    def build(m, p):
        return m.add_instruction("relu", [convolve(m, norm_relu(m, p[0]), out)])

    program = check([normal(*lens, dtype=dtype)], build, rtol=1e-4, fast_math=fast_math)
    assert not loose(program)
    assert not any(i.op.pointwise for i in program.main)


@pytest.mark.parametrize("batch", [1, 2])
def test_scale_of_each_image_and_channel(batch):
    def build(m, p):
        scale = m.add_instruction("multibroadcast", [m.add_instruction("sigmoid", [p[1]])], out_lens=p[0].shape.lens)
        return convolve(m, m.add_instruction("mul", [p[0], scale]), 7)

    program = check([normal(batch, 21, 5, 4), normal(batch, 21, 1, 1, seed=1)], build)
    assert loose(program) == ["sigmoid"]


def test_one_scale_for_all_and_a_strided_one():
    def build(m, p):
        every = m.add_instruction("multibroadcast", [p[1]], out_lens=p[0].shape.lens)
        strided = m.add_instruction("slice", [p[2]], axes=[2], starts=[1], ends=[2])
        strided = m.add_instruction("multibroadcast", [strided], out_lens=p[0].shape.lens)
        y = m.add_instruction("mul", [m.add_instruction("add", [p[0], strided]), every])
        return convolve(m, y, 7)

    program = check([normal(2, 21, 5, 4), normal(2, 1, 1, 1, seed=1), normal(2, 21, 3, 1, seed=2)], build)
    assert not loose(program)


def test_part_of_a_concat_that_others_read():
    def build(m, p):
        x = m.add_instruction("concat", [m.add_instruction("relu", [p[0]]), p[1], p[2]], axis=1)
        part = m.add_instruction("slice", [x], axes=[1], starts=[3], ends=[22])
        inner = m.add_instruction("slice", [x], axes=[2, 3], starts=[1, 1], ends=[4, 3])
        return [convolve(m, norm_relu(m, y), n) for y, n in ((part, 12), (inner, 13), (x, 6))]

    program = check([normal(2, n, 5, 4, seed=n) for n in (8, 13, 5)], build)
    assert loose(program) == ["relu"]


def test_nan_and_infinity():
    x = normal(1, 18, 4, 3)
    x[0, :3, 0, 0], x[0, 5, 2, 2] = [np.nan, np.inf, -np.inf], np.nan
    assert not loose(check([x], lambda m, p: convolve(m, norm_relu(m, p[0]), 5)))


def test_residual_of_the_same_tensor_and_constant():
    def build(m, p):
        shift = channelwise(m, p[0], 3)
        y = convolve(m, m.add_instruction("add", [p[0], shift]), 6)
        return m.add_instruction("add", [m.add_instruction("mul", [y, shift]), p[0]])

    program = check([normal(2, 6, 5, 3)], build)
    assert not any(i.op.pointwise for i in program.main) and not loose(program)


def shared(m, p):
    y = norm_relu(m, p[0])
    return [convolve(m, y, 5), m.add_instruction("exp", [y])]


def epilogue_reads_it(m, p):
    y = norm_relu(m, p[0])
    return m.add_instruction("add", [convolve(m, y, 8), y])


def two_tensors(m, p):
    return convolve(m, m.add_instruction("mul", [p[0], m.add_instruction("tanh", [p[1]])]), 5)


def wide_result(m, p):
    return convolve(m, norm_relu(m, p[0]), 257)


def other_type(m, p):
    y = m.add_instruction("convert", [p[2]], target_type=Type.float_type)
    return convolve(m, norm_relu(m, y), 5)


REFUSED = {
    "several users": shared,
    "used by the epilogue": epilogue_reads_it,
    "two tensors": two_tensors,
    "many output channels": wide_result,
    "another type": other_type,
    "kernel": lambda m, p: convolve(m, norm_relu(m, p[0]), 5, kernel=3),
    "stride": lambda m, p: convolve(m, norm_relu(m, p[0]), 5, stride=(2, 2)),
    "padding": lambda m, p: convolve(m, norm_relu(m, p[0]), 5, padding=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason):
    program = check(
        [normal(2, 8, 5, 4), normal(2, 8, 5, 4, seed=1), normal(2, 8, 5, 4, seed=2, dtype=np.float64)], REFUSED[reason]
    )
    assert loose(program)


def test_one_pixel_is_left_alone():
    assert loose(check([normal(2, 8, 1, 1)], lambda m, p: convolve(m, norm_relu(m, p[0]), 5)))


def test_operations_that_an_earlier_kernel_takes_are_left_to_it():
    program = check([normal(2, 8, 5, 4)], lambda m, p: convolve(m, norm_relu(m, convolve(m, p[0], 9, kernel=3)), 5))
    first, second = (i for i in program.main if "contraction" in i.name or i.name == "convolution")
    assert (first.name, second.name) == ("fused_contraction", "convolution")


def test_kernel_is_named_after_both_ends():
    def build(m, p):
        return m.add_instruction("relu", [convolve(m, norm_relu(m, p[0]), 9)])

    _, optimized = compile_and_run(program_of([normal(1, 8, 4, 4)], build), [normal(1, 8, 4, 4)])
    plan = lower(optimized, TargetOptions())
    assert any("mul_add_relu_gemm_relu_kernel" in step.label for step in plan.steps)
