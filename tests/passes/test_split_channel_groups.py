"""Group normalisation keeps image axes apart: channels-last values pass through it without a copy."""

from __future__ import annotations

import pytest

from mgx_numba.core.shape import find_permutation
from mgx_numba.core.types import Type
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.fuse_reduce import FuseReduce
from mgx_numba.graph.passes.layout_convolution import LayoutConvolution, channels_last
from mgx_numba.graph.passes.split_channel_groups import SplitChannelGroups, common_axes
from mgx_numba.graph.program import Program

from .group_norms import convolution, group_norm, network, scaled, standardised
from .support import FAST, Graph, check, find, names


@pytest.mark.parametrize(
    ("lens", "groups", "merged"),
    [
        ([2, 6, 5, 3], 2, True),
        ([2, 6, 5, 3], 2, False),
        ([1, 6, 5, 3], 3, True),
        ([1, 6, 5, 3], 3, False),
        ([2, 4, 3, 2, 3], 2, True),
        ([2, 6, 7], 1, True),
    ],
)
def test_nothing_is_transposed_and_one_kernel_is_left(lens: list[int], groups: int, merged: bool) -> None:
    program = network(lens, groups, merged)
    after = check(program, SplitChannelGroups(), LayoutConvolution(), options=FAST, rtol=1e-4, atol=1e-5)
    assert names(after).count("layout") <= 1  # of the input
    assert all(i.shape.elements <= lens[0] * lens[1] for i in after.main if i.name == "reshape")  # scales and shifts
    for ins in after.main:
        if ins.name == "convolution":
            assert find_permutation([ins.shape]) == channels_last(len(lens))
    fused = check(program, SplitChannelGroups(), LayoutConvolution(), FuseReduce(), options=FAST, rtol=1e-4, atol=1e-5)
    assert names(fused).count("fused_reduce") == 1 and "relu" not in names(fused)


def test_infinities_and_nan_stay_in_their_groups() -> None:
    check(network([2, 6, 5, 3], 3), SplitChannelGroups(), special=True, rtol=1e-4, atol=1e-5)


def test_what_is_converted_to_more_bits_is_so_where_it_is_read() -> None:
    g = Graph()
    x = g.op("convert", convolution(g, g.param("x", [2, 3, 4, 4]), 6), target_type=Type.half_type)
    wide = g.op("convert", x, target_type=Type.float_type)
    y = convolution(g, group_norm(g, wide, 2), 2)
    after = check(g.ret(y), SplitChannelGroups(), LayoutConvolution(), FuseReduce(), rtol=1e-3, atol=1e-3)
    assert find(after, "fused_reduce").inputs[0].shape.type is Type.half_type


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_a_bias_is_added_where_wide_values_are_read(rounded: bool, other: bool) -> None:
    """A decoder of images stored convolutions' float16 results as float32, for their biases."""
    g = Graph()
    x = g.op("convert", convolution(g, g.param("x", [2, 3, 4, 4]), 6), target_type=Type.half_type)
    wide = g.op("convert", x, target_type=Type.float_type)
    wide = g.op("add", g.op("mul", wide, g.scalar(0.75, wide)), g.spread(g.random(6, 1, 1), 2, 6, 4, 4))
    results = [convolution(g, group_norm(g, wide, 2), 2)]
    if rounded:
        results.append(g.op("convert", wide, target_type=Type.half_type))
    if other:
        results.append(g.op("tanh", wide))
    after = check(g.ret(*results), SplitChannelGroups(), LayoutConvolution(), FuseReduce(), rtol=2e-3, atol=2e-3)
    assert (find(after, "fused_reduce").inputs[0].shape.type is Type.half_type) != other


def test_means_leave_the_region_with_their_own_lengths() -> None:
    g = Graph()
    x = convolution(g, g.param("x", [2, 3, 5, 4]), 6)
    y = g.op("reshape", x, dims=(2, 3, 40))
    mean = g.op("reduce_mean", y, axes=(2,))
    centred = g.op("reshape", g.op("sub", y, g.spread(mean, 2, 3, 40)), dims=(2, 6, 5, 4))
    after = check(g.ret(convolution(g, scaled(g, centred), 2), mean), SplitChannelGroups(), rtol=1e-4)
    assert find(after, "reduce_mean").op.axes == (2, 3, 4)  # type: ignore[attr-defined]
    assert after.output_shapes()[1].lens == (2, 3, 1)


def untouched(program: Program, reason: str = "", options: Options = FAST) -> None:
    rewriting = SplitChannelGroups()
    assert str(check(program, rewriting, options=options)) == str(program)
    found = {r.reason for r in rewriting.log.refusals()}
    assert found == ({reason} if reason else set()), found


def test_what_does_not_pay_stays() -> None:
    g = Graph()
    untouched(g.ret(group_norm(g, g.param("x", [2, 6, 4, 4]), 3)))  # no convolution: nothing lies channels last

    g = Graph()
    x = convolution(g, g.param("x", [2, 3, 4, 4]), 6)
    y = g.op("reshape", x, dims=(2, 6, 16))
    y = g.op("reshape", standardised(g, y, (2,)), dims=(2, 6, 4, 4))
    untouched(g.ret(convolution(g, y, 2)))  # each channel on its own: axes that are neighbours are merged

    g = Graph()
    x = convolution(g, g.param("x", [2, 3, 4, 4]), 6)
    y = standardised(g, g.op("reshape", x, dims=(2, 3, 32)), (2,))
    product = g.op("dot", y, g.random(2, 32, 3))
    untouched(g.ret(product), "values of all groups are used otherwise than as images")

    g = Graph()
    x = convolution(g, g.param("x", [2, 3, 4, 4]), 6)
    y = g.op("reshape", g.op("relu", g.op("reshape", x, dims=(2, 3, 32))), dims=(2, 6, 4, 4))
    untouched(g.ret(convolution(g, y, 2)))  # nothing is reduced


def test_sums_with_other_images_stay_outside() -> None:
    g = Graph()
    x = convolution(g, g.param("x", [2, 3, 4, 4]), 6)
    y = g.op("add", group_norm(g, x, 3), convolution(g, x, 6))
    after = check(g.ret(convolution(g, y, 2)), SplitChannelGroups(), options=FAST, rtol=1e-4, atol=1e-5)
    (total,) = (i for i in after.main if i.name == "add" and i.shape.lens == (2, 6, 4, 4))
    assert [i.name for i in total.inputs] == ["reshape", "convolution"]


def test_common_axes_are_the_coarsest_of_both() -> None:
    assert common_axes((2, 6, 5, 4), (2, 3, 40)) == (
        (2, 3, 2, 5, 4),
        ((0,), (1, 2), (3,), (4,)),
        ((0,), (1,), (2, 3, 4)),
    )
    assert common_axes((1, 6, 5), (3, 1, 10)) == ((3, 2, 5), ((), (0, 1), (2,)), ((0,), (), (1, 2)))
    assert common_axes((4, 6), (6, 4)) is None
    assert common_axes((4, 6), (4, 5)) is None
