"""Channels-last layout around convolutions."""

from __future__ import annotations

import pytest

from mgx_numba.core.shape import Shape, find_permutation
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.layout_convolution import LayoutConvolution, channels_last
from mgx_numba.graph.passes.normalize_ops import NormalizeOps
from mgx_numba.graph.passes.rewrite_pooling import RewritePooling
from mgx_numba.graph.passes.rewrite_resize import RewriteResize
from mgx_numba.targets.cpu.capabilities import NARROW_IMAGE, pass_options
from mgx_numba.targets.options import TargetOptions

from .support import Graph, check, find, names


def conv(g: Graph, x: Instruction, n: int, k: int = 3, **attributes: object) -> Instruction:
    spatial = x.shape.ndim - 2
    window = {"padding": (k // 2,) * spatial, "stride": (1,) * spatial, "dilation": (1,) * spatial, **attributes}
    return g.op("convolution", x, g.random(n, x.shape.lens[1], *[k] * spatial), **window)


def is_last(shape: Shape) -> bool:
    return find_permutation([shape]) == channels_last(shape.ndim)


@pytest.mark.parametrize("spatial", [[9], [6, 5], [3, 4, 5]])
def test_everything_between_convolutions_is_channels_last(spatial: list[int]) -> None:
    g = Graph()
    x = g.param("x", [2, 3, *spatial])
    y = conv(g, x, 4)
    y = g.op("relu", g.op("add", y, g.channels(g.random(4), y)))
    z = conv(g, y, 4, 1)
    y = g.op("add", z, y)
    y = g.op("concat", y, conv(g, y, 2), axis=1)
    after = check(g.ret(conv(g, y, 5)), NormalizeOps(), LayoutConvolution(), rtol=1e-4)
    assert names(after).count("layout") == 1 and names(after)[-1] == "contiguous"
    for ins in after.main:
        if ins.name in ("convolution", "relu", "add", "concat"):
            assert is_last(ins.shape), ins
        if ins.name == "convolution":
            assert is_last(ins.inputs[1].shape) and ins.inputs[1].is_literal
    assert after.output_shapes()[0].standard


def test_poolings_and_reductions_follow() -> None:
    g = Graph()
    x = g.param("x", [2, 3, 8, 8])
    y = g.op("pooling", conv(g, x, 4), mode="max", lengths=(2, 2), stride=(2, 2))
    scale = g.op("pooling", y, mode="average", lengths=(4, 4))
    scale = g.op("sigmoid", conv(g, g.op("relu", conv(g, scale, 2, 1)), 4, 1))
    y = g.op("mul", y, g.spread(scale, 2, 4, 4, 4))
    after = check(g.ret(conv(g, y, 3)), NormalizeOps(), RewritePooling(), LayoutConvolution(), rtol=1e-4)
    assert names(after).count("layout") == 1
    assert is_last(find(after, "pooling").shape) and is_last(find(after, "mul").shape)


def test_an_enlargement_keeps_the_layout() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    y = g.op("resize", conv(g, x, 4), scales=(1, 1, 2, 2), coordinate_transformation_mode="asymmetric")
    after = check(g.ret(conv(g, y, 3)), NormalizeOps(), RewriteResize(), LayoutConvolution(), rtol=1e-4)
    assert names(after).count("layout") == 1


def test_transposed_convolutions_take_part() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    y = g.op("convolution_backwards", conv(g, x, 4), g.random(4, 3, 2, 2), stride=(2, 2))
    after = check(g.ret(conv(g, y, 3)), NormalizeOps(), LayoutConvolution(), rtol=1e-4)
    assert names(after).count("layout") == 1 and is_last(find(after, "convolution_backwards").shape)


def test_results_of_the_program_are_standard_and_a_channels_last_result_is_not_copied() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    y = conv(g, x, 4)
    after = check(
        g.ret(y, g.op("transpose", y, permutation=(0, 2, 3, 1)), g.op("reshape", y, dims=(1, 100))),
        LayoutConvolution(),
        NormalizeOps(),
    )
    assert after.output_shapes() == [shape.to_standard() for shape in g.program.output_shapes()]
    assert after.main.results()[1].name == "transpose"


def test_weights_that_are_computed_are_laid_out_at_run_time() -> None:
    g = Graph()
    x, w = g.param("x", [1, 4, 5, 5]), g.param("w", [3, 4, 3, 3])
    after = check(g.ret(g.op("convolution", x, w)), NormalizeOps(), LayoutConvolution(), rtol=1e-4)
    assert names(after) == ["layout", "layout", "convolution", "contiguous"]


def test_one_layout_serves_all_convolutions_of_a_value() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    after = check(g.ret(conv(g, x, 3), conv(g, x, 2)), NormalizeOps(), LayoutConvolution(), rtol=1e-4)
    assert names(after).count("layout") == 1


def test_weights_of_one_by_one_convolutions_say_their_order() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    after = check(g.ret(conv(g, conv(g, x, 8, 1), 8, 1)), NormalizeOps(), LayoutConvolution(), rtol=1e-4)
    assert names(after) == ["layout", "convolution", "convolution", "contiguous"]


def test_modules_without_convolutions_are_left_alone() -> None:
    g = Graph()
    program = g.ret(g.op("relu", g.param("x", [2, 3, 4, 5])))
    assert names(check(program, LayoutConvolution())) == ["relu"]


def test_convolutions_in_branches() -> None:
    g = Graph()
    x, condition = g.param("x", [1, 4, 5, 5]), g.param("c", [1], "bool")
    y = conv(g, x, 4)
    branches = [g.program.create_module(n) for n in ("yes", "no")]
    for branch in branches:
        w = branch.add_literal(g.random(4, 4, 1, 1).literal)
        branch.add_return([branch.add_instruction("convolution", [y, w])])
    chosen = g.module.add_instruction("if", [condition], branches)
    after = check(
        g.ret(conv(g, g.op("get_tuple_elem", chosen, index=0), 2)), NormalizeOps(), LayoutConvolution(), rtol=1e-4
    )
    assert after.output_shapes()[0].standard


@pytest.mark.parametrize("batch", [1, 2])
def test_a_channel_shuffle_is_one_copy_in_the_same_layout(batch: int) -> None:
    g = Graph()
    x = conv(g, g.param("x", [batch, 3, 4, 5]), 6)
    y = g.op("transpose", g.op("reshape", x, dims=(batch, 2, 3, 4, 5)), permutation=(0, 2, 1, 3, 4))
    y = conv(g, g.op("reshape", y, dims=(batch, 6, 4, 5)), 2)
    after = check(g.ret(y), NormalizeOps(), LayoutConvolution(), rtol=1e-4)
    assert names(after) == [
        *("layout", "convolution", "reshape_lazy", "transpose", "layout", "reshape_lazy", "convolution", "contiguous")
    ]


def test_patches_of_an_image_become_rows_without_a_copy() -> None:
    g = Graph()
    x = conv(g, g.param("x", [2, 3, 8, 8]), 6, 2, stride=(2, 2), padding=(0, 0))
    rows = g.op("transpose", g.op("reshape", x, dims=(2, 6, 16)), permutation=(0, 2, 1))
    y = g.op("dot", g.op("exp", rows), g.spread(g.random(6, 5), 2, 6, 5))
    after = check(g.ret(y), NormalizeOps(), LayoutConvolution(), rtol=1e-4)
    assert names(after, views=False) == ["layout", "convolution", "reshape_lazy", "exp", "dot"]
    assert find(after, "exp").shape.standard


def test_heads_of_a_detector_split_channels_without_a_copy() -> None:
    g = Graph()
    x = conv(g, g.param("x", [1, 3, 4, 4]), 12, 1)
    boxes = g.op("transpose", g.op("reshape", x, dims=(1, 2, 6, 4, 4)), permutation=(0, 1, 3, 4, 2))
    after = check(g.ret(g.op("sigmoid", boxes)), NormalizeOps(), LayoutConvolution(), rtol=1e-4)
    assert "reshape_lazy" in names(after)


def test_flattening_an_image_for_a_dense_layer_copies_to_row_major_order() -> None:
    g = Graph()
    x = conv(g, g.param("x", [2, 3, 4, 4]), 6)
    after = check(
        g.ret(g.op("dot", g.op("flatten", x, axis=1), g.random(96, 5))), NormalizeOps(), LayoutConvolution(), rtol=1e-4
    )
    assert "reshape_lazy" not in names(after)


def test_shapes_that_have_several_orders_do_not_outvote_others() -> None:
    last = Shape.from_permutation(Type.float_type, (2, 8, 4, 3), channels_last(4))
    assert find_permutation([last, Shape(Type.float_type, (8, 1, 1, 1))]) == channels_last(4)
    assert find_permutation([last, Shape(Type.float_type, (2, 8, 1, 1))]) == channels_last(4)
    assert find_permutation([last, Shape(Type.float_type, (2, 8, 4, 1))]) == (0, 1, 2, 3)
    assert find_permutation([Shape(Type.float_type, (2, 8, 1, 1))]) == (0, 1, 2, 3)


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize(("lens", "copied"), [([2, 64, 9], 1), ([1, 64, 7, 5], 1), ([1, 3, 7, 5], 0)])
def test_the_cpu_pools_narrow_images_in_channels_last_copies(lens: list[int], copied: int, mode: str) -> None:
    options = pass_options(TargetOptions())
    spatial = len(lens) - 2
    for last in (lens[-1], 2 * NARROW_IMAGE + 4):
        g = Graph()
        x = g.param("x", [*lens[:-1], last])
        first, once = {"lengths": (3,) * spatial, "stride": (2,) * spatial}, (1,) * spatial
        y = g.op("pooling", g.op("relu", x), mode=mode, padding=once * 2, dilations=once, **first)
        second = {"padding": (0,) * spatial, "stride": once, "dilations": once}
        y = g.op("pooling", g.op("relu", y), mode=mode, lengths=(2,) * spatial, **second)
        program = g.ret(y)
        after = check(program, NormalizeOps(), LayoutConvolution(), options=options)
        assert names(after).count("layout") == (copied if last == lens[-1] else 0)
        assert names(check(program, NormalizeOps(), LayoutConvolution())).count("layout") == 0
