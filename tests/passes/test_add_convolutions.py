"""Sums of convolutions of one input, and of the input itself, become one convolution where the windows allow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.normalize_ops import NormalizeOps
from mgx_numba.graph.passes.simplify_algebra import SimplifyAlgebra
from mgx_numba.graph.program import Program

from .support import FAST, STRICT, Graph, check, names

Window = tuple[tuple[int, ...], dict[str, Any]]


def merged(program: Program, **options: Any) -> list[str]:
    """Return the operators that are left of a program, after checking its values."""
    after = check(program, NormalizeOps(), SimplifyAlgebra(), rtol=1e-4, atol=1e-4, **{"options": FAST, **options})
    return [name for name in names(after) if name not in ("multibroadcast", "broadcast")]


def summed(left: Window, right: Window, lens: tuple[int, ...] = (2, 4, 9, 8), group: int = 1) -> Program:
    """Return the sum of two convolutions of one input, each with its kernel and attributes."""
    g = Graph()
    x = g.param("x", lens)
    y, z = (
        g.op("convolution", x, g.random(8, lens[1] // group, *kernel, seed=k), group=group, **attributes)
        for k, (kernel, attributes) in enumerate((left, right))
    )
    return g.ret(g.op("add", y, z))


WITHIN: dict[str, tuple[Window, Window]] = {
    "equal": (((3, 3), {}), ((3, 3), {})),
    "the middle": (((3, 3), {"padding": (1, 1)}), ((1, 1), {})),
    "larger last": (((1, 1), {}), ((3, 3), {"padding": (1, 1)})),
    "one row": (((3, 5), {"padding": (1, 2)}), ((1, 5), {"padding": (0, 2)})),
    "one column": (((1, 3), {"padding": (0, 1)}), ((5, 3), {"padding": (2, 1)})),
    "a corner": (((3, 3), {"padding": (0, 0, 2, 2)}), ((1, 1), {})),
    "the other corner": (((2, 2), {"padding": (1, 1, 0, 0)}), ((1, 1), {})),
    "with a stride": (((7, 7), {"padding": (3, 3), "stride": (2, 2)}), ((3, 3), {"padding": (1, 1), "stride": (2, 2)})),
    "dilated both": (
        ((3, 3), {"padding": (4, 4), "dilation": (4, 2), "stride": (1, 2)}),
        ((1, 3), {"padding": (0, 4), "dilation": (1, 2), "stride": (1, 2)}),
    ),
    "padding of more than the window": (((3, 3), {"padding": (3, 3)}), ((1, 1), {"padding": (2, 2)})),
}


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("name", WITHIN)
def test_a_window_within_another_adds_its_weights(name: str, group: int) -> None:
    program = summed(*WITHIN[name], group=group)
    assert merged(program) == ["convolution"]
    assert merged(program, options=STRICT) == ["convolution", "convolution", "add"]


APART: dict[str, tuple[Window, Window]] = {
    "another place": (
        ((3, 3), {"padding": (0, 0, 2, 3), "stride": (2, 2)}),
        ((1, 1), {"padding": (1, 1, 0, 0), "stride": (2, 2)}),
    ),
    "between the taps": (((2, 2), {"padding": (1, 1), "dilation": (2, 2)}), ((1, 1), {})),
    "other dilations": (((5, 5), {"padding": (2, 2)}), ((3, 3), {"padding": (2, 2), "dilation": (2, 2)})),
    "other strides": (((1, 3), {"stride": (9, 1)}), ((1, 3), {"stride": (9, 2), "padding": (0, 0, 0, 6)})),
    "wider and lower": (((1, 3), {"padding": (0, 1)}), ((3, 1), {"padding": (1, 0)})),
}


@pytest.mark.parametrize("name", APART)
def test_other_windows_stay_apart(name: str) -> None:
    assert merged(summed(*APART[name])) == ["convolution", "convolution", "add"]


def test_groups_must_be_equal() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    y = g.op("convolution", x, g.random(4, 4, 3, 3), padding=(1, 1))
    z = g.op("convolution", x, g.random(4, 1, 3, 3), padding=(1, 1), group=4)
    assert merged(g.ret(g.op("add", y, z))) == ["convolution", "convolution", "add"]


@pytest.mark.parametrize("rank", [1, 3])
def test_one_and_three_dimensions(rank: int) -> None:
    def attributes(padding: int) -> dict[str, Any]:
        return {"padding": [padding] * rank, "stride": [2] * rank, "dilation": [1] * rank}

    windows = (((5,) * rank, attributes(2)), ((3,) * rank, attributes(1)))
    assert merged(summed(*windows, lens=(1, 3, *(6 - k for k in range(rank))))) == ["convolution"]


def test_a_convolution_with_another_reader_stays() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    y = g.op("convolution", x, g.random(4, 4, 3, 3), padding=(1, 1))
    z = g.op("convolution", x, g.random(4, 4, 1, 1))
    assert merged(g.ret(g.op("add", y, z), z)) == ["convolution", "convolution", "add"]


def test_weights_that_overflow_or_would_be_rounded_again_stay() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 3, 3])
    huge = [g.op("convolution", x, g.lit(np.full((2, 2, n, n), 3e38)), padding=(n // 2, n // 2)) for n in (1, 3)]
    assert merged(g.ret(g.op("add", *huge)), inputs={"x": np.zeros((1, 2, 3, 3), np.float32)}) == [
        "convolution", "convolution", "add",
    ]  # fmt: skip
    g = Graph()
    x = g.param("x", [1, 2, 3, 3], "half")
    halves = [
        g.op("convolution", x, g.lit(np.ones((2, 2, n, n)), np.float16), padding=(n // 2, n // 2)) for n in (1, 3)
    ]
    assert merged(g.ret(g.op("add", *halves))) == ["convolution", "convolution", "add"]


def plus_input(factors: np.ndarray, kernel: int, group: int, **attributes: Any) -> Program:
    g = Graph()
    x = g.param("x", [2, 4, 6, 5])
    y = g.op("convolution", x, g.random(4, 4 // group, kernel, kernel), group=group, **attributes)
    factor = g.channels(g.lit(factors), y) if factors.ndim == 1 else g.spread(g.lit(factors), *y.shape.lens)
    return g.ret(g.op("add", g.op("mul", x, factor), y))


@pytest.mark.parametrize("factors", [np.array([0.5, -2, 1e-3, 0]), np.array(1.5)])
@pytest.mark.parametrize(("kernel", "padding", "dilation"), [(1, 0, 1), (3, 1, 1), (7, 3, 1), (3, 2, 2)])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_the_scaled_input_is_a_tap(factors: np.ndarray, kernel: int, padding: int, dilation: int, group: int) -> None:
    options = {"padding": (padding, padding), "dilation": (dilation, dilation)}
    left = merged(plus_input(factors, kernel, group, **options))
    assert left == ["convolution"] or (kernel == 1 and group == 4 and not {"convolution"} & set(left))


@pytest.mark.parametrize("type", ["float", "half"])
def test_one_tap_of_each_channel_is_a_factor(type: str) -> None:
    g = Graph()
    x = g.param("x", [2, 4, 6, 5], type)
    w = g.lit(np.array([0.5, -2, np.inf, -0.0]).reshape(4, 1, 1, 1), np.float16 if type == "half" else np.float32)
    assert set(merged(g.ret(g.op("convolution", x, w, group=4)))) <= {"mul", "reshape"}


@pytest.mark.parametrize("options", [{"padding": (1, 0)}, {"stride": (2, 1)}, {"group": 2}])
def test_one_tap_with_padding_strides_or_several_channels_stays(options: dict[str, Any]) -> None:
    g = Graph()
    x = g.param("x", [2, 4, 6, 5])
    group = options.get("group", 4)
    y = g.op("convolution", x, g.random(4, 4 // group, 1, 1), **{"group": group, **options})
    assert merged(g.ret(y)) == ["convolution"]


def test_one_tap_to_several_results_stays() -> None:
    g = Graph()
    x = g.param("x", [2, 4, 6, 5])
    assert merged(g.ret(g.op("convolution", x, g.random(8, 1, 1, 1), group=4))) == ["convolution"]


def test_factors_within_channels_stay() -> None:
    program = plus_input(np.arange(20, dtype=np.float32).reshape(4, 1, 5), 3, 1, padding=(1, 1))
    assert "mul" in merged(program)


def test_the_branches_of_a_block_become_one_convolution() -> None:
    """A block as it is trained: 3x3, 1x1 and the input itself, each with its batch normalisation."""
    g = Graph()
    x = g.op("relu", g.op("convolution", g.param("x", [1, 2, 9, 9]), g.random(6, 2, 3, 3)))

    def normalised(y: Instruction, seed: int) -> Instruction:
        scale, offset = (g.channels(g.random(6, seed=seed + k, low=0.5), y) for k in (0, 100))
        return g.op("add", g.op("mul", y, scale), offset)

    wide = normalised(g.op("convolution", x, g.random(6, 6, 3, 3), padding=(1, 1)), 1)
    narrow = normalised(g.op("convolution", x, g.random(6, 6, 1, 1)), 2)
    program = g.ret(g.op("relu", g.op("add", g.op("add", wide, narrow), normalised(x, 3))))
    assert merged(program) == ["convolution", "relu", "convolution", "add", "relu"]
