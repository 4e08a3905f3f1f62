"""Pointwise and reduction clusters, products, convolutions and data moves, of awkward lengths and strides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.cluster.reduction_rows import reduction_launch
from mgx_numba.codegen.gpu.machine import H200, planning_for
from mgx_numba.codegen.launch import Grid
from mgx_numba.codegen.problems.cluster import ReductionProblem, Tensor
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError, UnsupportedError
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.plan import Step

from ..cpu.agreement import assert_agrees, reference
from .programs import compiled

F32, F16, BF16, F64 = Type.float_type, Type.half_type, Type.bf16_type, Type.double_type


Build = Callable[[Module], None]


def agree(build: Build, on: Engine, special: bool = False, hosted: int = 0) -> None:
    """The program has the values of ref, in kernels but for so many fallback steps."""
    program = Program()
    build(program.main)
    rng = np.random.default_rng(len(program.main.parameters()))
    inputs = {}
    for name, shape in program.parameter_shapes().items():
        values = np.asarray(rng.standard_normal(shape.lens))
        if special and values.size > 8:
            values.reshape(-1)[rng.integers(0, values.size, 4)] = [np.nan, np.inf, -np.inf, -0.0]
        inputs[name] = values.astype(shape.type.numpy)
    made = compiled(program, on)
    assert made.executable is not None
    steps = [step.label for step in made.executable.plan.steps]
    assert sum(label.startswith("ref::") for label in steps) == hosted, steps
    assert_agrees(made.run(inputs), reference(program, inputs))


@pytest.mark.parametrize("type", [F32, F16, BF16, F64])
@pytest.mark.parametrize("lens", [(1,), (5,), (1031,), (0, 3), (3, 1, 36), (2, 3, 5)])
def test_pointwise_of_broadcast_and_transposed_operands(type: Type, lens: tuple[int, ...], on: Engine) -> None:
    def build(m: Module) -> None:
        x, y = m.add_parameter("x", Shape(type, lens)), m.add_parameter("y", Shape(type, lens[-1:]))
        row = m.add_instruction("multibroadcast", [y], out_lens=lens)
        total = m.add_instruction("relu", [m.add_instruction("mul", [x, row])])
        turned = m.add_instruction("transpose", [total], permutation=tuple(range(len(lens)))[::-1])
        m.add_return([total, m.add_instruction("abs", [turned])])

    agree(build, on, special=True)


@pytest.mark.parametrize("length", [1, 2, 17, 33, 128, 1000, 4100])
@pytest.mark.parametrize("type", [F32, F16])
def test_softmax_of_rows(length: int, type: Type, on: Engine) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(type, (3, length)))
        m.add_return([m.add_instruction("softmax", [x], axis=1)])

    agree(build, on)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"])
def test_reductions_over_any_axes(axes: tuple[int, ...], name: str, on: Engine) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(F32, (4, 7, 12)))
        m.add_return([m.add_instruction(name, [m.add_instruction("tanh", [x])], axes=axes)])

    agree(build, on, special=name in ("reduce_max", "reduce_min"))


@pytest.mark.parametrize("type", [F32, F16, F64])
@pytest.mark.parametrize(
    "lens",
    [
        *[
            (2, 3, 8),
            (1, 8, 4),
            (2, 9, 5, 4),
            (1, 40, 12),
            (1, 64, 8),
            (2, 100, 4),
            (1, 128, 36),
            (1, 250, 4),
            (1, 300, 4),
        ],
        *[(3, 130, 20), (1, 200, 3), (5, 65, 152)],
    ],
)
def test_columns_of_any_number_of_vectors(type: Type, lens: tuple[int, ...], on: Engine) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(type, lens))
        m.add_return([m.add_instruction("softmax", [x], axis=1)])

    agree(build, on, special=True)


@pytest.mark.parametrize("lens", [(3, 785, 20), (1, 1500, 8), (2, 600, 3)])
def test_long_columns_that_are_few(lens: tuple[int, ...], on: Engine) -> None:
    def build(m: Module) -> None:
        m.add_return([m.add_instruction("softmax", [m.add_parameter("x", Shape(F16, lens))], axis=1)])

    agree(build, on, special=True)


def test_sums_of_columns_take_turns_in_a_blocks_memory(on: Engine) -> None:
    """Four reductions of one type in sequence, and one of another type between them."""
    lens = (2, 12, 8)

    def build(m: Module) -> None:
        x = first = m.add_parameter("x", Shape(F32, lens))
        for name in ("reduce_max", "reduce_mean", "reduce_sum", "reduce_min"):
            row = m.add_instruction(name, [x], axes=(1,))
            x = m.add_instruction("sub", [first, m.add_instruction("multibroadcast", [row], out_lens=lens)])
            x = m.add_instruction("add", [x, first])
        m.add_return([x])

    agree(build, on)


def test_columns_are_normalised_across_rows(on: Engine) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(F32, (2, 70, 3, 24)))
        m.add_return([m.add_instruction("softmax", [x], axis=1)])

    agree(build, on)


@pytest.mark.parametrize("type", [F32, F16, BF16, F64])
@pytest.mark.parametrize("lens", [(1, 1, 1), (5, 34, 17), (33, 3, 16)])
def test_products_with_what_follows(type: Type, lens: tuple[int, int, int], on: Engine) -> None:
    rows, columns, depth = lens

    def build(m: Module) -> None:
        a = m.add_parameter("a", Shape(type, (2, depth, rows)))
        b = m.add_parameter("b", Shape(type, (2, depth, columns)))
        bias = m.add_parameter("bias", Shape(type, (columns,)))
        turned = m.add_instruction("transpose", [a], permutation=(0, 2, 1))
        product = m.add_instruction("dot", [turned, b])
        row = m.add_instruction("multibroadcast", [bias], out_lens=(2, rows, columns))
        m.add_return([m.add_instruction("relu", [m.add_instruction("add", [product, row])])])

    agree(build, on)


@pytest.mark.parametrize(
    ("channels", "group", "kernel", "stride", "padding", "dilation"),
    [(8, 1, 3, 1, 1, 1), (6, 2, 3, 2, 0, 1), (5, 1, 1, 1, 0, 1), (4, 4, 3, 1, 2, 2), (3, 1, 4, 3, 1, 1)],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_convolutions(
    channels: int, group: int, kernel: int, stride: int, padding: int, dilation: int, backwards: bool, on: Engine
) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(F32, (1, channels, 6, 5)))
        lens = (channels, channels // group, kernel, kernel)
        w = m.add_literal(np.random.default_rng(7).standard_normal(lens).astype(np.float32))
        name = "convolution_backwards" if backwards else "convolution"
        attributes = {"padding": (padding,) * 2, "stride": (stride,) * 2, "dilation": (dilation,) * 2, "group": group}
        m.add_return([m.add_instruction("relu", [m.add_instruction(name, [x, w], **attributes)])])

    agree(build, on)


@pytest.mark.parametrize(("channels", "group", "turned"), [(8, 1, False), (6, 2, True), (3, 3, False)])
@pytest.mark.parametrize("name", ["convolution", "convolution_backwards"])
def test_weights_that_are_given_at_run_time_are_brought_into_order_by_kernels(
    name: str, channels: int, group: int, turned: bool, on: Engine
) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(F32, (1, channels, 5, 4)))
        lens = (channels, channels // group, 3, 2)
        w = m.add_parameter("w", Shape(F32, lens[::-1] if turned else lens))
        w = m.add_instruction("transpose", [w], permutation=(3, 2, 1, 0)) if turned else w
        m.add_return([m.add_instruction(name, [x, w], group=group)])

    agree(build, on)


@pytest.mark.parametrize("type", [F32, F16])
@pytest.mark.parametrize("first", [8, 13])
def test_a_convolution_of_few_of_the_channels(first: int, type: Type, on: Engine) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(type, (2, 6, 5, 52)))
        x = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
        x = m.add_instruction("slice", [x], axes=(1,), starts=(first,), ends=(first + 13,))
        w = m.add_parameter("w", Shape(type, (7, 13, 3, 3)))
        m.add_return([m.add_instruction("convolution", [x, w], padding=(1, 1))])

    agree(build, on)


@pytest.mark.parametrize("type", [F32, F16])
def test_products_of_whole_rows_that_begin_between_vectors(type: Type, on: Engine) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(type, (1281,)))
        x = m.add_instruction("slice", [x], axes=(0,), starts=(1,), ends=(1281,))
        x = m.add_instruction("reshape", [x], dims=(1, 40, 32))
        x = m.add_instruction("multibroadcast", [x], out_lens=(3, 40, 32))
        m.add_return([m.add_instruction("dot", [x, m.add_parameter("w", Shape(type, (3, 32, 16)))])])

    agree(build, on)


@pytest.mark.parametrize("type", [F32, F16])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_few_of_the_columns(turned: bool, repeated: bool, type: Type, on: Engine) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(type, (5, 41) if repeated else (3, 5, 41)))
        x = m.add_instruction("slice", [x], axes=(x.shape.ndim - 1,), starts=(3,), ends=(13,))
        x = m.add_instruction("multibroadcast", [x], out_lens=(3, 5, 10))
        w = m.add_parameter("w", Shape(type, (3, 6, 10) if turned else (3, 10, 6)))
        if turned:
            x = m.add_instruction("transpose", [x], permutation=(0, 2, 1))
        m.add_return([m.add_instruction("dot", [w, x] if turned else [x, w])])

    agree(build, on)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", ["average", "max"])
def test_pooling_with_padding(mode: str, channels_last: bool, on: Engine) -> None:
    from mgx_numba.ops.pooling import PoolingMode

    def build(m: Module) -> None:
        if channels_last:
            x = m.add_parameter("x", Shape(F32, (2, 9, 10, 8)))
            x = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
        else:
            x = m.add_parameter("x", Shape(F32, (2, 8, 9, 10)))
        attributes = {
            "mode": PoolingMode[mode],
            "lengths": (3, 2),
            "stride": (2, 2),
            "padding": (1, 0),
            "dilations": (1, 2),
        }
        m.add_return([m.add_instruction("pooling", [x], **attributes)])

    agree(build, on)


def test_padding_adds_and_cuts(on: Engine) -> None:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(F32, (3, 4, 5)))
        m.add_return([m.add_instruction("pad", [x], pads=(1, -1, 0, 2, 0, 3), value=-1.5)])

    agree(build, on)


@pytest.mark.parametrize("axis", [0, 1])
def test_gathers_check_their_indices(axis: int, on: Engine) -> None:
    program = Program()
    m = program.main
    x, i = m.add_parameter("x", Shape(F32, (6, 8))), m.add_parameter("i", Shape(Type.int64_type, (2, 3)))
    m.add_return([m.add_instruction("gather", [x, i], axis=axis)])
    made = compiled(program, on)
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    index = np.array([[0, -1, 3], [5, -6, 2]])
    assert np.array_equal(made.run({"x": values, "i": index})[0], np.take(values, index, axis))
    bad = index.copy()
    bad[1, 1] = -9
    with pytest.raises(ShapeError, match=rf"index -9 is out of range for axis {axis} of length {(6, 8)[axis]}"):
        made.run({"x": values, "i": bad})
    assert np.array_equal(made.run({"x": values, "i": index})[0], np.take(values, index, axis))


@pytest.mark.parametrize("type", [F32, F16])
def test_what_lies_in_another_order_is_turned_by_tiles(type: Type, on: Engine) -> None:
    def build(m: Module) -> None:
        x, y = m.add_parameter("x", Shape(type, (2, 37, 3, 40))), m.add_parameter("y", Shape(type, (40,)))
        turned = m.add_instruction("transpose", [x], permutation=(0, 3, 2, 1))
        column = m.add_instruction("broadcast", [y], axis=1, out_lens=(2, 40, 3, 37))
        total = m.add_instruction("add", [m.add_instruction("contiguous", [turned]), column])
        m.add_return([m.add_instruction("contiguous", [m.add_instruction("relu", [total])])])

    agree(build, on, special=True)


@pytest.mark.parametrize(
    ("lens", "axes", "op", "special"),
    [
        ((40000,), (0,), "reduce_sum", False),
        ((40001,), (0,), "reduce_max", True),
        ((33000,), (0,), "reduce_mean", False),
        ((300, 130), (0, 1), "reduce_min", False),
        ((1100, 36), (0,), "reduce_sum", True),
        ((2, 150, 5, 60), (1, 3), "reduce_prod", False),
    ],
)
def test_few_long_rows_and_columns_are_reduced_in_parts(
    lens: tuple[int, ...], axes: tuple[int, ...], op: str, special: bool, on: Engine
) -> None:
    def build(m: Module) -> None:
        m.add_return([m.add_instruction(op, [m.add_parameter("x", Shape(F32, lens))], axes=axes)])

    agree(build, on, special)
    program = Program()
    build(program.main)
    made = compiled(program, on)
    assert made.executable is not None
    assert [step.geometry.blocks[1] > 1 for step in made.executable.plan.steps] == [True, False]


@pytest.mark.parametrize("length", range(32, 200, 8))
@pytest.mark.parametrize("op", ["reduce_sum", "reduce_max"])
def test_parts_behind_the_last_element_are_empty(op: str, length: int, on: Engine) -> None:
    """21 vectors of a row in 8 parts of 3: the last part has none, and reads no neighbour's."""
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(Type.half_type, (2048, length)))
    m.add_return([m.add_instruction(op, [x], axes=(1,))])
    with planning_for(H200):
        made = compiled(program, on)
    feed = {"x": np.random.default_rng(0).integers(-8, 8, (2048, length)).astype(np.float16)}
    assert_agrees(made.run(feed), reference(program, feed))


def test_a_division_that_does_not_lie_as_rows_do_is_refused() -> None:
    module = Module("sum")
    x = module.add_parameter("x0", Shape(F32, (8, 6)))
    module.add_return([module.add_instruction("reduce_sum", [x], axes=(0, 1))])
    tensors = (Tensor(F32, (8, 6), (6, 1)),), (Tensor(F32, (1, 1), (1, 1)),)
    for cut, share, fold, why in [((1,), 4, 1, "cut along"), ((0, 1), 6, 1, "within vectors"), ((0, 1), 24, 2, "fold")]:
        with pytest.raises(UnsupportedError, match=why):
            reduction_launch(ReductionProblem(module, (0, 1), *tensors, parts=2, cut=cut, share=share, fold=fold))


@pytest.mark.parametrize("type", [Type.half_type, Type.bf16_type, Type.uint8_type, Type.bool_type])
@pytest.mark.parametrize(("high", "wide", "cut"), [(68, 72, 0), (68, 71, 0), (18, 136, 0), (36, 40, 3), (36, 40, 4)])
def test_small_elements_are_turned_by_words(type: Type, high: int, wide: int, cut: int, on: Engine) -> None:
    """The source is a slice that begins at ``cut``; other operands are in the results' order, or broadcast."""
    builder = Program()
    m: Module = builder.main
    x = m.add_parameter("x", Shape(type, (2, high, wide + cut)))
    part = m.add_instruction("slice", [x], axes=(2,), starts=(cut,), ends=(wide + cut,))
    turned = m.add_instruction("transpose", [part], permutation=(0, 2, 1))
    lens = (2, wide, high)
    y = m.add_parameter("y", Shape(type, lens))
    column = m.add_instruction("multibroadcast", [m.add_parameter("c", Shape(type, (wide, 1)))], out_lens=lens)
    names = ("logical_and", "logical_or") if type is Type.bool_type else ("add", "max")
    total = m.add_instruction(names[1], [m.add_instruction(names[0], [turned, y]), column])
    m.add_return([total])
    rng = np.random.default_rng(high)
    inputs = {
        n: rng.integers(0, 2 if type is Type.bool_type else 60, s.lens).astype(s.type.numpy)
        for n, s in builder.parameter_shapes().items()
    }
    made = compiled(builder, on)
    assert_agrees(made.run(inputs), reference(builder, inputs))
    (kernel,) = made.kernels()
    whole = max(1, 4 // type.size)
    assert ("join" in kernel.text) == (not any(n % whole for n in (high, wide, cut, wide + cut)))


@pytest.mark.parametrize("lens", [(3, 5, 1, 16), (15, 1, 16)])
def test_planes_of_a_row_are_rows_of_one_product(lens: tuple[int, ...], on: Engine) -> None:
    program = Program()
    m = program.main
    x, full = m.add_parameter("x", Shape(F32, lens)), (*lens[:-1], 24)
    rng = np.random.default_rng(1)
    w = m.add_literal(rng.standard_normal((16, 24)).astype(np.float32))
    bias, more = m.add_parameter("bias", Shape(F32, (24,))), m.add_parameter("more", Shape(F32, full))
    spread = m.add_instruction("multibroadcast", [w], out_lens=(*lens[:-2], 16, 24))
    total = m.add_instruction("dot", [x, spread])
    total = m.add_instruction("add", [total, m.add_instruction("multibroadcast", [bias], out_lens=full)])
    m.add_return([m.add_instruction("add", [total, more])])
    made = compiled(program, on)
    assert made.executable is not None
    (step,) = made.executable.plan.steps
    assert isinstance(step, Step) and isinstance(step.geometry, Grid)
    assert step.geometry.blocks[1] * step.geometry.blocks[2] < 15, step.geometry
    inputs = {name: rng.standard_normal(s.lens).astype(np.float32) for name, s in program.parameter_shapes().items()}
    assert_agrees(made.run(inputs), reference(program, inputs))
