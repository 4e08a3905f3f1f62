"""Transposed convolutions become convolutions whose channels are the results of one stride."""

from __future__ import annotations

import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.passes.rewrite_transposed_convolution import RewriteTransposedConvolution

from .support import Graph, check, names

CASES = [
    # image, kernel, stride, padding, dilation
    ((5,), (4,), (2,), (1, 1), (1,)),
    ((5,), (16,), (8,), (4, 4), (1,)),
    ((7,), (3,), (1,), (1, 1), (2,)),
    ((7,), (3,), (1,), (0, 2), (1,)),
    ((4,), (1,), (3,), (0, 0), (1,)),
    ((1,), (2,), (5,), (0, 0), (1,)),
    ((6,), (5,), (2,), (0, 1), (1,)),
    ((6,), (5,), (3,), (7, 6), (1,)),
    ((5, 4), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1)),
    ((5, 4), (3, 3), (2, 2), (1, 1, 0, 0), (1, 1)),
    ((5, 4), (4, 3), (2, 1), (1, 2, 1, 0), (1, 2)),
    ((3, 5), (1, 4), (4, 3), (0, 1, 3, 0), (1, 1)),
    ((2, 3, 4), (2, 3, 2), (2, 1, 2), (0, 1, 0, 0, 1, 0), (1, 1, 1)),
]


@pytest.mark.parametrize(("lens", "kernel", "stride", "padding", "dilation"), CASES)
@pytest.mark.parametrize(("batch", "bias"), [(1, False), (3, True)])
def test_results_are_equal(
    batch: int, bias: bool, lens: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...],
    padding: tuple[int, ...], dilation: tuple[int, ...],
) -> None:  # fmt: skip
    g = Graph()
    x = g.param("x", (batch, 3, *lens))
    made = g.op("convolution_backwards", x, g.random(3, 4, *kernel), padding=padding, stride=stride, dilation=dilation)
    if bias:
        made = g.op("add", g.spread(g.random(4, *(1 for _ in lens)), *made.shape.lens), made)
    after = check(g.ret(g.op("relu", made)), RewriteTransposedConvolution(), rtol=1e-4, atol=1e-5)
    assert "convolution" in names(after) and "convolution_backwards" not in names(after)
    assert not bias or names(after, views=False).index("add") < len(names(after, views=False)) - 1


def test_what_stays() -> None:
    g = Graph()
    x, wide = g.param("x", (1, 4, 6)), g.param("d", (1, 4, 6), "double")
    weights = g.random(4, 2, 3)
    kept = [
        g.op("convolution_backwards", x, weights, padding=(0, 0), stride=(2,), dilation=(2,)),
        g.op("convolution_backwards", x, weights, padding=(0, 0), stride=(2,), dilation=(1,), group=2),
        g.op("convolution_backwards", x, g.param("w", (4, 2, 3)), padding=(0, 0), stride=(2,), dilation=(1,)),
        g.op(
            "convolution_backwards", wide, g.op("convert", weights, target_type=Type.double_type), padding=(0, 0),
            stride=(2,), dilation=(1,),
        ),
    ]  # fmt: skip
    after = check(g.ret(*kept), RewriteTransposedConvolution(), rtol=1e-4, atol=1e-5)
    assert names(after).count("convolution_backwards") == len(kept)
    assert len({r.reason for r in after.log.refusals("rewrite_transposed_convolution")}) == 2


def test_nothing_stays_nothing() -> None:
    g = Graph()
    x = g.module.add_parameter("x", Shape(Type.float_type, (0, 3, 5)))
    made = g.op("convolution_backwards", x, g.random(3, 4, 2), padding=(0, 0), stride=(2,), dilation=(1,))
    assert check(g.ret(made), RewriteTransposedConvolution()).main.results()[0].shape.lens == (0, 4, 10)
