"""Values read by products in parts are written in parts by their producers (`targets.cpu.bf16_split_values`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.cpu import host
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.plan import Step
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from ..features import features
from .programs import Build, program_of

pytestmark = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
form = features([host.EMULATED_TILES], autouse=True)


def op(m: Module, name: str, *inputs: Instruction, **attributes: Any) -> Instruction:
    return m.add_instruction(name, list(inputs), **attributes)


def weights(m: Module, *lens: int) -> Instruction:
    terms = np.prod(lens[1:]) if len(lens) > 2 else lens[0]
    values = np.random.default_rng(sum(lens)).standard_normal(lens) / np.sqrt(terms)
    return m.add_literal(values.astype(np.float32))


def conv(m: Module, x: Instruction, out: int, taps: int = 1, group: int = 1) -> Instruction:
    """A convolution and what follows it."""
    w = weights(m, out, x.shape.lens[1] // group, taps, taps)
    return op(m, "relu", op(m, "convolution", x, w, padding=[taps // 2] * 4, group=group))


def planned(x: np.ndarray, build: Build) -> list[Step]:
    """The native steps of a program whose results agree with the reference, but for what has 16 bits."""
    program, options = program_of([x], build), TargetOptions(fast_math=True, num_threads=2)
    plan = lower(optimize(program, options), options)
    results = Executable(plan, num_threads=2).run([x])
    for found, wanted in zip(results, evaluate(program, {"p0": x}), strict=True):
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        assert np.abs(found[finite] - wanted[finite]).max() <= 1e-4 * np.abs(wanted[finite]).max()
    return [step for step in plan.steps if isinstance(step, Step)]


def split(steps: Sequence[Step]) -> int:
    """Steps that split what another has written."""
    return sum(step.label.startswith("cpu::split") for step in steps)


def written(steps: Sequence[Step], part: str) -> list[list[str]]:
    """Dtypes of the results of the steps that are called so."""
    return [[view.dtype for view in step.outputs] for step in steps if part in step.label]


def image(channels: int, special: bool = False) -> np.ndarray:
    x = np.random.default_rng(channels).standard_normal((1, channels, 28, 28)).astype(np.float32)
    if special:
        x[0, 3, 4, 5], x[0, 1, 27, 27], x[0, :, 9:12] = np.inf, np.nan, x[0, :, 9:12] * np.float32(1e-40)
        x[0, 5, 20, 20] = 3.4e38
    return x


@pytest.mark.parametrize("special", [False, True])
def test_what_products_alone_read_is_written_in_parts_alone(special: bool) -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        return conv(m, conv(m, conv(m, p[0], 264), 520), 264)

    steps = planned(image(264, special), build)
    assert split(steps) == 0  # few columns of the parameter are split where they are multiplied
    assert written(steps, "relu_parts") == [["bfloat16"], ["bfloat16"]]


def test_what_a_cluster_makes_and_others_read_too_is_written_besides() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = op(m, "tanh", op(m, "add", p[0], p[0]))
        return op(m, "add", op(m, "dot", op(m, "relu", op(m, "dot", x, weights(m, 768, 512))), weights(m, 512, 768)), x)

    steps = planned(np.random.default_rng(0).standard_normal((128, 768)).astype(np.float32), build)
    assert split(steps) == 0
    assert written(steps, "tanh") == [["float32", "bfloat16", "bfloat16"]]


def test_what_a_product_makes_and_others_read_too_is_split() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = conv(m, p[0], 256)
        return op(m, "add", conv(m, conv(m, x, 512), 256), x)

    steps = planned(image(256), build)
    assert written(steps, "relu_parts") == [["bfloat16"]]


def test_what_a_product_adds_to_its_result_is_split() -> None:
    """The same product reads a value in parts as operand, and as float32 in its epilogue."""

    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = conv(m, p[0], 256)
        y = op(m, "relu", op(m, "add", op(m, "convolution", x, weights(m, 256, 256, 1, 1)), x))
        return conv(m, y, 256)

    steps = planned(image(256), build)
    assert written(steps, "gemm_tiles") == [["float32"], ["bfloat16"], ["float32"]]


@pytest.mark.parametrize("rows", [768, 772])
def test_columns_of_a_value_are_no_rows_in_parts(rows: int) -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = op(m, "tanh", op(m, "add", p[0], p[0]))
        return op(m, "dot", op(m, "transpose", x, permutation=[1, 0]), weights(m, rows, 512))

    planned(np.random.default_rng(0).standard_normal((rows, 256)).astype(np.float32), build)


@pytest.mark.parametrize(("channels", "out", "group"), [(264, 160, 4), (256, 64, 2), (320, 320, 8)])
def test_groups_leave_the_channels_of_others_as_they_are(channels: int, out: int, group: int) -> None:
    """The padding after a group's channels, up to whole lines, would overwrite channels of the next group."""

    def build(m: Module, p: list[Instruction]) -> Instruction:
        return conv(m, conv(m, p[0], out, 3, group), 512)

    planned(image(channels), build)


def test_one_result_of_a_cluster_is_written_in_parts() -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        x = op(m, "tanh", op(m, "add", p[0], p[0]))
        y = op(m, "exp", op(m, "neg", op(m, "abs", x)))
        return [op(m, "dot", x, weights(m, 768, 512)), op(m, "dot", y, weights(m, 768, 512))]

    steps = planned(np.random.default_rng(0).standard_normal((128, 768)).astype(np.float32), build)
    assert written(steps, "tanh") == [["bfloat16", "float32", "bfloat16"]] and split(steps) == 1


def test_products_of_several_launches_write_no_parts() -> None:
    """Five batch dimensions that cannot be merged take several launches; the last launch makes only some of the
    result."""

    def build(m: Module, p: list[Instruction]) -> Instruction:
        w = m.add_literal(np.random.default_rng(1).standard_normal((2, 1, 2, 1, 2, 256, 288)).astype(np.float32) / 16)
        x = op(m, "dot", p[0], op(m, "multibroadcast", w, out_lens=[2, 2, 2, 2, 2, 256, 288]))
        v = op(m, "multibroadcast", weights(m, 288, 256), out_lens=[2, 2, 2, 2, 2, 288, 256])
        return op(m, "dot", op(m, "tanh", x), v)

    x = np.random.default_rng(0).standard_normal((2, 2, 2, 2, 2, 32, 256)).astype(np.float32)
    assert len(written(planned(x, build), "tanh")) == 4


@pytest.mark.parametrize("axis", [0, 2])
def test_reduced_rows_are_split(axis: int) -> None:
    """Sums that lie side by side, of columns and of rows: kernels store them otherwise than elements."""

    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = op(m, "squeeze", op(m, "reduce_sum", op(m, "tanh", p[0]), axes=[axis]), axes=[axis])
        return op(m, "dot", x, weights(m, x.shape.lens[-1], 512))

    lens = (3, 128, 768) if axis == 0 else (128, 768, 3)
    assert split(planned(np.random.default_rng(0).standard_normal(lens).astype(np.float32), build)) == 1


def test_results_are_no_buffers_that_parts_take_the_place_of() -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        x = conv(m, p[0], 256)
        return [x, conv(m, x, 512)]

    planned(image(256), build)


def test_depthwise_convolutions_and_others_write_what_products_read() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = conv(m, p[0], 256, 3, 256)
        return conv(m, conv(m, conv(m, x, 512), 64, 3), 512)

    steps = planned(image(256), build)
    assert split(steps) <= 1  # lines of the 3x3 convolution
    assert written(steps, "depthwise") == [["bfloat16"]]


def test_two_products_read_one_value_in_parts() -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        x = op(m, "relu", op(m, "dot", p[0], weights(m, 768, 512)))
        other = op(m, "dot", op(m, "unsqueeze", x, axes=[0]), op(m, "unsqueeze", weights(m, 512, 1024), axes=[0]))
        return [op(m, "dot", x, weights(m, 512, 768)), other]

    steps = planned(np.random.default_rng(0).standard_normal((128, 768)).astype(np.float32), build)
    assert split(steps) <= 1 and written(steps, "relu_parts") == [["bfloat16"]]


def rows(m: Module, x: Instruction, wide: Instruction) -> Instruction:
    """Rows less their means."""
    mean = op(m, "reduce_mean", x, axes=[len(x.shape.lens) - 1])
    return op(m, "sub", wide, op(m, "multibroadcast", mean, out_lens=x.shape.lens))


@pytest.mark.parametrize("columns", [768, 776])
def test_normalised_rows_are_written_in_parts_if_they_are_whole_lines(columns: int) -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        def product(x: Instruction, out: int) -> Instruction:
            w = weights(m, x.shape.lens[-1], out)
            return op(m, "dot", x, op(m, "multibroadcast", w, out_lens=[2, *w.shape.lens]))

        first = op(m, "add", p[0], p[0])
        inner = op(m, "tanh", product(rows(m, first, first), 1024))
        second = op(m, "add", product(inner, columns), first)
        return product(rows(m, second, second), 768)

    x = np.random.default_rng(1).standard_normal((2, 64, columns)).astype(np.float32)
    x[1, 3] *= np.float32(1e-30)
    steps = planned(x, build)
    assert split(steps) == (0 if columns % 32 == 0 else 2)
    assert written(steps, "tanh_parts") == [["bfloat16"]]


def test_parts_are_not_written_where_products_are_exact() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        return conv(m, conv(m, p[0], 256), 512)

    program = program_of([image(256)], build)
    options = TargetOptions(fast_math=False, num_threads=2)
    assert not [step for step in lower(optimize(program, options), options).steps if "parts" in step.label]


def test_plans_for_other_lengths_write_parts_by_the_kernels_that_are_there() -> None:
    """One value has one product as reader; another has two, the first of which knows of the second reader."""
    program = migraphx.program()
    m = program.portable.main
    x = m.add_parameter("p0", Shape.dynamic(Type.float_type, [DynamicDimension(16, 256), DynamicDimension(768, 768)]))

    def product(x: Instruction, into: int, out: int) -> Instruction:
        return op(m, "relu", op(m, "dot", x, weights(m, into, out)))

    first = product(x, 768, 1024)
    second = product(first, 1024, 768)
    last = op(m, "dot", op(m, "unsqueeze", second, axes=[0]), op(m, "unsqueeze", weights(m, 768, 1024), axes=[0]))
    m.add_return([product(second, 768, 512), op(m, "squeeze", last, axes=[0])])
    program.compile("cpu", num_threads=2)
    kernels = {kernel.text for kernel in program.kernels()}
    for rows in (64, 200):
        results = program.run({"p0": np.ones((rows, 768), np.float32)})
        assert [result.get_shape().lens()[0] for result in results] == [rows, rows]
    assert {kernel.text for kernel in program.kernels()} == kernels
