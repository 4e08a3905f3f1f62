"""Each algebraic rule: resulting structure, equal values (NaN and infinities too), and cases where it must decline."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mgx_numba.graph.constants import constant_array
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import run_passes
from mgx_numba.graph.passes.normalize_ops import NormalizeOps
from mgx_numba.graph.passes.optimize_module import OptimizeModule
from mgx_numba.graph.passes.rules.contractions import PIECE_BYTES
from mgx_numba.graph.passes.simplify_algebra import SimplifyAlgebra
from mgx_numba.graph.program import Program
from mgx_numba.graph.ranges import Ranges
from mgx_numba.parallel import PART_BYTES
from mgx_numba.targets.ref.interpreter import evaluate

from .support import FAST, STRICT, Graph, check, find, names

Build = Callable[[Graph, Instruction], Instruction]


def simplified(build: Build, options: object = STRICT, special: bool = True, type: str = "float") -> list[str]:
    """Operators (without broadcasts) that are left of an expression in one parameter, after checking values."""
    g = Graph()
    program = g.ret(build(g, g.param("x", [3, 4], type)))
    after = check(program, SimplifyAlgebra(), options=options, special=special, atol=1e-4)  # type: ignore[arg-type]
    return [n for n in names(after) if n != "multibroadcast"]


def c(g: Graph, value: float, x: Instruction) -> Instruction:
    return g.scalar(value, x)


Identity = tuple[str, Build, list[str]]

EXACT: list[Identity] = [
    ("x * 1", lambda g, x: g.op("mul", x, c(g, 1, x)), []),
    ("1 * x", lambda g, x: g.op("mul", c(g, 1, x), x), []),
    ("x / 1", lambda g, x: g.op("div", x, c(g, 1, x)), []),
    ("x + -0", lambda g, x: g.op("add", x, c(g, -0.0, x)), []),
    ("x - 0", lambda g, x: g.op("sub", x, c(g, 0, x)), []),
    ("x * -1", lambda g, x: g.op("mul", x, c(g, -1, x)), ["neg"]),
    ("-0 - x", lambda g, x: g.op("sub", c(g, -0.0, x), x), ["neg"]),
    ("-(-x)", lambda g, x: g.op("neg", g.op("neg", x)), []),
    ("x + -exp(x)", lambda g, x: g.op("add", x, g.op("neg", g.op("exp", x))), ["exp", "sub"]),
    ("x - -exp(x)", lambda g, x: g.op("sub", x, g.op("neg", g.op("exp", x))), ["exp", "add"]),
    ("x ** 2", lambda g, x: g.op("pow", x, c(g, 2, x)), ["mul"]),
    ("x ** 1", lambda g, x: g.op("pow", x, c(g, 1, x)), []),
    ("x ** 0", lambda g, x: g.op("pow", x, c(g, 0, x)), []),
    ("x ** -1", lambda g, x: g.op("pow", x, c(g, -1, x)), ["recip"]),
    ("recip(sqrt(x))", lambda g, x: g.op("recip", g.op("sqrt", x)), ["rsqrt"]),
    ("1 / x", lambda g, x: g.op("div", c(g, 1, x), x), ["recip"]),
    ("x - 2.5", lambda g, x: g.op("sub", x, c(g, 2.5, x)), ["add"]),
    ("x / 4", lambda g, x: g.op("div", x, c(g, 4, x)), ["mul"]),
    ("relu(relu(x))", lambda g, x: g.op("relu", g.op("relu", x)), ["relu"]),
    ("max(x, 0)", lambda g, x: g.op("max", x, c(g, 0, x)), ["relu"]),
    ("min(min(x, 1), 2)", lambda g, x: g.op("min", g.op("min", x, c(g, 1, x)), c(g, 2, x)), ["min"]),
    ("where(c, x, x)", lambda g, x: g.op("where", g.op("greater", x, c(g, 0, x)), x, x), []),
]


def bits(results: list[np.ndarray]) -> list[bytes]:
    """Return the bits of arrays, with one NaN for all."""
    return [np.where(np.isnan(r), np.float32(np.nan), r).astype(np.float32).tobytes() for r in results]


@pytest.mark.parametrize(
    ("name", "number", "known"),
    [
        ("greater_or_equal", 0, True),
        ("greater_or_equal", 1, None),
        ("greater", -1, True),
        ("greater", 0, None),
        ("greater", 5, False),
        ("less", 0, False),
        ("less", 6, True),
        ("less", 5, None),
        ("less_or_equal", 5, True),
        ("less_or_equal", 4, None),
        ("less_or_equal", -1, False),
    ],
)
def test_comparisons_of_positions_with_numbers_beyond_them(name: str, number: int, known: bool | None) -> None:
    def build(g: Graph, x: Instruction) -> Instruction:
        positions = g.spread(g.op("unsqueeze", g.op("iota", length=6), axes=(1,)), 6, 4)
        keep = g.op(name, positions, g.scalar(number, positions))
        row = g.spread(g.op("slice", x, axes=(0,), starts=(0,), ends=(1,)), 6, 4)
        return g.op("where", keep, row, g.scalar(7, row))

    left = simplified(build)
    assert (name in left) is (known is None) and left.count("where") <= (known is None)


@pytest.mark.parametrize(("build", "left"), [case[1:] for case in EXACT], ids=[case[0] for case in EXACT])
def test_exact_identities_keep_every_bit(build: Build, left: list[str]) -> None:
    assert simplified(build) == left
    g = Graph()
    program = g.ret(build(g, g.param("x", [12])))
    after = program.clone()
    run_passes(after, [SimplifyAlgebra()])
    odd = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, -1e-40, 3e38, -3.4e38, 1e-38, 0.1, -7], np.float32)
    with np.errstate(all="ignore"):
        assert bits(evaluate(after, {"x": odd})) == bits(evaluate(program, {"x": odd}))


ROUNDED: list[Identity] = [
    ("x + 0", lambda g, x: g.op("add", x, c(g, 0, x)), []),
    ("x - -0", lambda g, x: g.op("sub", x, c(g, -0.0, x)), []),
    ("x ** 3", lambda g, x: g.op("pow", x, c(g, 3, x)), ["mul", "mul"]),
    ("x / 3", lambda g, x: g.op("div", x, c(g, 3, x)), ["mul"]),
    ("exp(x) / sqrt(x)", lambda g, x: g.op("div", g.op("exp", x), g.op("sqrt", x)), ["exp", "rsqrt", "mul"]),
    ("(x + 1) + 2", lambda g, x: g.op("add", g.op("add", x, c(g, 1, x)), c(g, 2, x)), ["add"]),
    ("2 * (3 * x)", lambda g, x: g.op("mul", c(g, 2, x), g.op("mul", c(g, 3, x), x)), ["mul"]),
    ("exp(x) ** 0.5", lambda g, x: g.op("pow", g.op("exp", x), c(g, 0.5, x)), ["exp", "sqrt"]),
    ("exp(x) ** -0.5", lambda g, x: g.op("pow", g.op("exp", x), c(g, -0.5, x)), ["exp", "rsqrt"]),
]


@pytest.mark.parametrize(("build", "left"), [case[1:] for case in ROUNDED], ids=[case[0] for case in ROUNDED])
def test_identities_that_change_rounding_need_fast_math(build: Build, left: list[str]) -> None:
    assert simplified(build, FAST, special=False) == left
    kept = simplified(build, STRICT)
    assert left == ["mul", "mul"] or (kept != left and len(kept) >= len(left))


WRITTEN: list[tuple[str, Build]] = [
    ("0 - x", lambda g, x: g.op("sub", c(g, 0, x), x)),
    ("x * 0", lambda g, x: g.op("mul", x, c(g, 0, x))),
    ("0 / exp(x)", lambda g, x: g.op("div", c(g, 0, x), g.op("exp", x))),
    ("log(exp(x))", lambda g, x: g.op("log", g.op("exp", x))),
    ("max(x, -0)", lambda g, x: g.op("max", x, c(g, -0.0, x))),
    ("(x * 1e-30) * 1e-30", lambda g, x: g.op("mul", g.op("mul", x, c(g, 1e-30, x)), c(g, 1e-30, x))),
    ("(x / 1e30) / 1e30", lambda g, x: g.op("div", g.op("div", x, c(g, 1e30, x)), c(g, 1e30, x))),
    ("(x * 1e30) * 1e30", lambda g, x: g.op("mul", g.op("mul", x, c(g, 1e30, x)), c(g, 1e30, x))),
    (
        "(x + 1.5 * 2**23) - 1.5 * 2**23",
        lambda g, x: g.op("sub", g.op("add", x, c(g, 3 * 2**22, x)), c(g, 3 * 2**22, x)),
    ),
    ("(x - 1e8) * 3", lambda g, x: g.op("mul", g.op("sub", x, c(g, 1e8, x)), c(g, 3, x))),
    ("(x + 0.1) + 1e8", lambda g, x: g.op("add", g.op("add", x, c(g, 0.1, x)), c(g, 1e8, x))),
    ("(x + inf) * 2", lambda g, x: g.op("mul", g.op("add", x, c(g, np.inf, x)), c(g, 2, x))),
    (
        "(exp(x) - 1e8) + (x + .5)",
        lambda g, x: g.op("add", g.op("sub", g.op("exp", x), c(g, 1e8, x)), g.op("add", x, c(g, 0.5, x))),
    ),
]


@pytest.mark.parametrize("build", [case[1] for case in WRITTEN], ids=[case[0] for case in WRITTEN])
def test_the_written_order_stays_where_another_loses_bits_or_signs(build: Build) -> None:
    """The number of operators stays the same, also with fast_math."""
    g = Graph()
    x = g.param("x", [3, 4])
    written = [n for n in names(g.ret(build(g, x))) if n != "multibroadcast"]
    for options in (STRICT, FAST):
        assert len(simplified(build, options)) == len(written)


def test_offsets_of_a_contraction_are_merged_unless_they_are_large() -> None:
    for offset, left in ((3.7, ["dot", "add"]), (1e8, ["dot", "add", "add"]), (12582912.0, ["dot", "add", "add"])):
        g = Graph()
        y = g.op("dot", g.param("x", [3, 4]), g.random(4, 5))
        y = g.op("sub", g.op("add", y, g.scalar(offset, y)), g.scalar(offset + 0.5, y))
        after = check(g.ret(y), SimplifyAlgebra(), options=FAST, atol=1e-5 * offset)
        assert [n for n in names(after) if n != "multibroadcast"] == left


@pytest.mark.parametrize("factor, weight", [(1e-30, 1e-10), (1e30, 1e10), (np.nan, 1.0), (1e-20, 1e-40)])
def test_weights_that_would_overflow_or_lose_bits_stay(factor: float, weight: float) -> None:
    g = Graph()
    y = g.op("dot", g.param("x", [3, 4]), g.lit(np.full((4, 5), weight)))
    program = g.ret(g.op("mul", y, g.scalar(factor, y)))
    after = check(program, SimplifyAlgebra(), options=FAST, rtol=1e-5, atol=0)
    assert "mul" in names(after)


def test_a_spread_divisor_is_inverted_before_spreading_under_fast_math() -> None:
    def build(g: Graph, x: Instruction) -> Instruction:
        total = g.op("add", g.op("reduce_sum", g.op("exp", x), axes=(1,)), g.lit(np.ones((3, 1))))
        return g.op("div", x, g.spread(total, 3, 4))

    assert simplified(build, FAST, special=False)[-2:] == ["recip", "mul"]
    assert simplified(build, STRICT)[-1] == "div"


def test_the_values_near_a_divisor_that_stays_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The span of a scale near large constants took their least and largest element before its size was asked."""
    spans: list[Instruction] = []
    monkeypatch.setattr(Ranges, "span", lambda _, ins: spans.append(ins))
    g = Graph()
    x, scale = g.param("x", [3, 4]), g.param("scale", [1, 1])
    run_passes(g.ret(g.op("div", x, g.spread(scale, 3, 4))), [SimplifyAlgebra()], FAST)
    assert not spans


def ratio(build: Build, type: str, divisor: np.ndarray) -> Program:
    """``x[3, 4] / build(d[3, 1])`` in a type, after checking values for these divisors."""
    g = Graph()
    x, d = g.param("x", [3, 4], type), g.param("d", [3, 1], type)
    dtype = x.shape.type.numpy
    x_values = np.arange(-6, 6).reshape(3, 4).astype(dtype) * dtype.type(np.abs(divisor).min())
    program = g.ret(g.op("div", x, g.spread(build(g, d), 3, 4)))
    loose = 4e-3 if type == "half" else 1e-6
    inputs = {"x": x_values, "d": divisor.astype(dtype)}
    return check(program, SimplifyAlgebra(), options=FAST, rtol=loose, atol=0, inputs=inputs)


def floored(least: float) -> Build:
    return lambda g, d: g.op("max", d, g.scalar(least, d))


def clipped(least: float, most: float) -> Build:
    return lambda g, d: g.op("clip", d, g.scalar(least, d), g.scalar(most, d))


DIVISORS: list[tuple[str, Build, str, float, bool]] = [
    ("any float16", lambda g, d: d, "half", 1e-5, False),
    ("any float32", lambda g, d: d, "float", 1e-40, False),
    ("any float64", lambda g, d: d, "double", 1e-310, False),
    ("float16 from 1e-5 on", floored(1e-5), "half", 1e-5, False),
    ("float16 from 1e-3 on", floored(1e-3), "half", 4e4, False),
    ("float16 up to 1000", clipped(1e-3, 1e3), "half", 0.5, True),
    ("negative float16", clipped(-1e3, -1e-3), "half", -0.5, True),
    ("float32 from 1e-40 on", floored(1e-40), "float", 1e-40, False),
    ("float32 from 1e-12 on", floored(1e-12), "float", 1e-3, True),
    ("float64 from 1e-40 on", floored(1e-40), "double", 1e-3, True),
    ("a norm", lambda g, d: floored(1e-12)(g, g.op("sqrt", g.op("mul", d, d))), "float", 0.5, True),
    ("a root", lambda g, d: g.op("add", g.op("sqrt", d), g.scalar(1e-5, d)), "float", 0.5, True),
    ("a difference", lambda g, d: g.op("sub", d, g.scalar(1, d)), "float", 0.5, False),
]


@pytest.mark.parametrize(
    ("build", "type", "divisor", "inverted"), [d[1:] for d in DIVISORS], ids=[d[0] for d in DIVISORS]
)
def test_a_spread_divisor_is_inverted_only_where_every_reciprocal_is_normal(
    build: Build, type: str, divisor: float, inverted: bool
) -> None:
    after = ratio(build, type, np.full((3, 1), divisor))
    assert ("recip" in names(after)) is inverted and ("div" in names(after)) is not inverted


@pytest.mark.parametrize("size", [1e-5, 3e4, 6e4])
def test_a_constant_float16_divisor_without_a_normal_reciprocal_stays(size: float) -> None:
    g = Graph()
    x = g.param("x", [3, 4], "half")
    program = g.ret(g.op("div", x, g.scalar(size, x)))
    values = np.linspace(-1, 1, 12).reshape(3, 4).astype(np.float16) * np.float16(size)
    after = check(program, SimplifyAlgebra(), options=FAST, rtol=1e-3, atol=0, inputs={"x": values})
    assert "div" in names(after)


def _quantised(g: Graph, x: Instruction, by: str) -> Instruction:
    """Return ``x`` in steps of its largest element, as models quantise that take the scale from each input."""
    largest = g.op("reduce_max", x, axes=[1])
    scale = g.op("max", g.op("div", largest, c(g, 127.5, largest)), c(g, 1e-7, largest))
    if by == "mul":
        inverse = g.op("recip", scale)
        scale = g.op("mul", inverse, c(g, 3, inverse))
    return g.op("nearbyint", g.op(by, x, g.op("multibroadcast", scale, out_lens=[3, 4])))


DECLINED: list[tuple[str, Build, str]] = [
    ("x / 0", lambda g, x: g.op("div", x, c(g, 0, x)), "div"),
    ("x / tiny", lambda g, x: g.op("div", x, c(g, 1e-40, x)), "div"),
    ("x / inf", lambda g, x: g.op("div", x, c(g, np.inf, x)), "div"),
    ("round(x / 3)", lambda g, x: g.op("nearbyint", g.op("div", x, c(g, 3, x))), "div"),
    ("round(x / 3 + x)", lambda g, x: g.op("nearbyint", g.op("add", g.op("div", x, c(g, 3, x)), x)), "div"),
    ("round(x / (max(x) / 127.5))", lambda g, x: _quantised(g, x, "div"), "div"),
    ("round(x * (1 / (max(x) / 127.5) * 3))", lambda g, x: _quantised(g, x, "mul"), "div"),
    (
        "round((x + 1) * 0.1)",
        lambda g, x: g.op("nearbyint", g.op("mul", g.op("add", x, c(g, 1, x)), c(g, 0.1, x))),
        "add mul nearbyint",
    ),
    (
        "round(x * 3 * 0.1)",
        lambda g, x: g.op("nearbyint", g.op("mul", g.op("mul", x, c(g, 3, x)), c(g, 0.1, x))),
        "mul mul",
    ),
]


@pytest.mark.parametrize(("build", "kept"), [case[1:] for case in DECLINED], ids=[case[0] for case in DECLINED])
def test_identities_that_would_change_values_are_declined(build: Build, kept: str) -> None:
    for options in (STRICT, FAST):
        assert kept in " ".join(simplified(build, options))


@pytest.mark.parametrize("type", ["int32_t", "uint8_t", "int64_t"])
def test_integers_keep_truncating_division_and_wrap(type: str) -> None:
    assert simplified(lambda g, x: g.op("div", x, c(g, 3, x)), type=type) == ["div"]
    assert simplified(lambda g, x: g.op("mul", x, c(g, 0, x)), type=type) == []
    assert simplified(lambda g, x: g.op("mul", g.op("add", x, c(g, 200, x)), c(g, 3, x)), type=type) == ["mul", "add"]


def test_a_shared_sum_is_not_distributed() -> None:
    g = Graph()
    x = g.param("x", [3, 4])
    total = g.op("add", x, g.scalar(1.0, x))
    after = check(g.ret(g.op("mul", total, g.scalar(2.0, x)), total), SimplifyAlgebra(), options=FAST)
    assert [n for n in names(after) if n != "multibroadcast"] == ["add", "mul"]


def test_pointwise_operations_on_broadcasts_are_done_before() -> None:
    g = Graph()
    x, y = g.param("x", [4]), g.param("y", [3, 1])
    wide = [g.spread(i, 2, 3, 4) for i in (x, g.op("exp", x))]
    first = g.op("add", g.op("mul", *wide), g.scalar(2.0, wide[0]))
    second = g.op("convert", g.spread(y, 3, 5), target_type="half")
    after = check(g.ret(first, second), SimplifyAlgebra(), special=True)
    assert find(after, "mul").shape.lens == (1, 1, 4)
    assert find(after, "convert").shape.lens == (3, 1)


def test_broadcasts_along_different_axes_stay() -> None:
    g = Graph()
    x, y = g.param("x", [3, 1]), g.param("y", [1, 4])
    after = check(g.ret(g.op("add", g.spread(x, 3, 4), g.spread(y, 3, 4))), SimplifyAlgebra())
    assert find(after, "add").shape.lens == (3, 4)


def batch_norm(g: Graph, x: Instruction, form: str) -> Instruction:
    """Inference batch normalization as several exporters and frontends write it."""
    n = x.shape.lens[1]
    scale, bias, mean = (g.random(n, seed=k) for k in (1, 2, 3))
    variance = g.random(n, seed=4, low=0.5)
    epsilon = g.scalar(1e-3, variance)
    lens = (n, *[1] * (x.shape.ndim - 2))

    def wide(v: Instruction) -> Instruction:
        if form == "unsqueezed":
            return g.spread(g.op("reshape", v, dims=lens), *x.shape.lens)
        return g.op("broadcast", v, axis=1, out_lens=x.shape.lens)

    if form == "divided":
        deviation = g.op("sqrt", g.op("add", variance, epsilon))
        normal = g.op("div", g.op("sub", x, wide(mean)), wide(deviation))
    elif form == "power":
        deviation = g.op("pow", g.op("add", variance, epsilon), g.scalar(0.5, variance))
        normal = g.op("div", g.op("sub", x, wide(mean)), wide(deviation))
    else:
        normal = g.op("mul", g.op("sub", x, wide(mean)), wide(g.op("rsqrt", g.op("add", variance, epsilon))))
    return g.op("add", g.op("mul", wide(scale), normal), wide(bias))


@pytest.mark.parametrize("form", ["unsqueezed", "broadcast", "divided", "power"])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_folds_into_convolution(form: str, bias: bool) -> None:
    g = Graph()
    x = g.param("x", [2, 4, 6, 6])
    y = g.op("convolution", x, g.random(6, 2, 3, 3), padding=(1, 1), group=2)
    if bias:
        y = g.op("add", y, g.channels(g.random(6, seed=9), y))
    after = check(
        g.ret(g.op("relu", batch_norm(g, y, form))), NormalizeOps(), OptimizeModule(), options=FAST, rtol=1e-4
    )
    assert names(after) == ["convolution", "multibroadcast", "add", "relu"]


@pytest.mark.parametrize("group", [1, 2])
def test_batch_norm_folds_into_transposed_convolution(group: int) -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    y = g.op("convolution_backwards", x, g.random(4, 3, 2, 2), stride=(2, 2), group=group)
    after = check(g.ret(batch_norm(g, y, "broadcast")), NormalizeOps(), OptimizeModule(), options=FAST, rtol=1e-4)
    assert names(after) == ["convolution_backwards", "multibroadcast", "add"]


def test_batch_norm_folds_into_a_dense_layer() -> None:
    g = Graph()
    x = g.param("x", [5, 8])
    y = g.op("add", g.op("dot", x, g.random(8, 6)), g.spread(g.random(6, seed=8), 5, 6))
    after = check(g.ret(batch_norm(g, y, "broadcast")), OptimizeModule(), options=FAST, rtol=1e-4)
    assert names(after) == ["dot", "multibroadcast", "add"]


def test_batch_norm_alone_subtracts_the_mean_first() -> None:
    """``x * a + b`` cancels where x is near a large mean."""
    g = Graph()
    x = g.param("x", [2, 3, 4, 4])
    after = check(g.ret(batch_norm(g, x, "unsqueezed")), OptimizeModule(), options=FAST, rtol=1e-4)
    assert [n for n in names(after) if n != "multibroadcast"] == ["add", "mul", "add"]


def test_batch_norm_of_concatenated_convolutions_is_one_product_and_one_sum() -> None:
    """The structure of DenseNet. Offsets may be merged: cancellation adds no more error than the contractions have."""
    g = Graph()
    x = g.param("x", [2, 3, 6, 6])
    parts = [g.op("convolution", x, g.random(4, 3, 3, 3, seed=k)) for k in (1, 2)]
    whole = g.op("concat", parts[0], g.op("relu", parts[1]), axis=1)
    after = check(g.ret(batch_norm(g, whole, "unsqueezed")), OptimizeModule(), options=FAST, rtol=1e-4)
    assert [n for n in names(after, views=False) if n not in ("slice", "relu")][-2:] == ["mul", "add"]


def test_one_dimensional_and_three_dimensional_convolutions_too() -> None:
    for spatial in ([9], [4, 5, 6]):
        g = Graph()
        k = len(spatial)
        x = g.param("x", [2, 3, *spatial])
        ones, zeros = (1,) * k, (0,) * k
        y = g.op("convolution", x, g.random(4, 3, *[2] * k), padding=zeros, stride=ones, dilation=ones)
        after = check(g.ret(batch_norm(g, y, "broadcast")), NormalizeOps(), OptimizeModule(), options=FAST, rtol=1e-4)
        assert names(after) == ["convolution", "multibroadcast", "add"]


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_weights_take_the_factors_of_what_is_convolved(group: int, per_channel: bool) -> None:
    g = Graph()
    x = g.param("x", [2, 4, 6, 6])
    factor = g.channels(g.random(4, seed=9), x) if per_channel else g.spread(g.random(1, seed=9), 2, 4, 6, 6)
    y = g.op("convolution", g.op("mul", x, factor), g.random(8, 4 // group, 3, 3), padding=(1, 1), group=group)
    after = check(g.ret(y), NormalizeOps(), SimplifyAlgebra(), options=FAST, rtol=1e-4)
    assert names(after) == ["convolution"]
    assert names(check(g.program, NormalizeOps(), SimplifyAlgebra())) == [
        "broadcast" if per_channel else "multibroadcast", "mul", "convolution",
    ]  # fmt: skip


def test_weights_in_16_bits_are_not_rounded_for_factors_of_what_is_convolved() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 4, 4], "half_type")
    w = g.lit(np.random.default_rng(0).uniform(-1, 1, (2, 2, 1, 1)), np.dtype(np.float16))
    algebra = SimplifyAlgebra()
    program = g.ret(g.op("convolution", g.op("mul", x, g.scalar(0.3, x)), w))
    after = check(program, NormalizeOps(), algebra, options=FAST, rtol=1e-2)
    assert "mul" in names(after)
    assert any("once more" in r.reason for r in algebra.refusals("mul_conv"))


def test_a_factor_that_is_not_per_channel_stays_outside_of_the_weights() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 4, 4])
    y = g.op("convolution", x, g.random(2, 2, 1, 1))
    algebra = SimplifyAlgebra()
    after = check(g.ret(g.op("mul", y, g.random(1, 2, 4, 4))), NormalizeOps(), algebra, options=FAST)
    assert names(after) == ["convolution", "mul"]
    assert "another axis" in algebra.refusals("mul_conv")[0].reason


def test_a_shared_convolution_keeps_its_weights() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 4, 4])
    y = g.op("convolution", x, g.random(2, 2, 1, 1))
    after = check(g.ret(g.op("mul", y, g.scalar(2.0, y)), y), NormalizeOps(), SimplifyAlgebra(), options=FAST)
    assert "mul" in names(after)


def test_infinite_factors_stay_outside_of_the_weights() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 4, 4])
    y = g.op("convolution", x, g.random(2, 2, 1, 1))
    factor = g.channels(g.lit([1.0, np.inf]), y)
    assert "mul" in names(check(g.ret(g.op("mul", y, factor)), NormalizeOps(), SimplifyAlgebra(), options=FAST))


@pytest.mark.parametrize("beyond", [None, 0, 600, 1099])
def test_products_of_many_weights_are_all_looked_at(beyond: int | None) -> None:
    """In pieces and on several threads: one that overflows keeps the factor outside, wherever it is."""
    g = Graph()
    x = g.param("x", [1, 1100, 1, 2])
    weights = np.random.default_rng(0).standard_normal((1100, 1100, 1, 1)).astype(np.float32)
    assert weights.nbytes > 2 * PART_BYTES > 4 * PIECE_BYTES
    if beyond is not None:
        weights[beyond, -1] = 3e38
    y = g.op("convolution", x, g.lit(weights))
    factors = np.linspace(1.5, 2, 1100, dtype=np.float32)
    algebra = SimplifyAlgebra()
    after = g.ret(g.op("mul", y, g.channels(g.lit(factors), y))).clone()
    run_passes(after, [NormalizeOps(), algebra], FAST)
    if beyond is not None:
        assert "mul" in names(after) and "weights overflow or lose bits" in [
            r.reason for r in algebra.refusals("mul_conv")
        ]
        return
    (scaled,) = (constant_array(i.inputs[1]) for i in after.main if i.name == "convolution")
    np.testing.assert_array_equal(scaled, weights * factors[:, None, None, None])
    assert names(after) == ["convolution"]


def test_factors_of_dots_move_into_constant_operands() -> None:
    g = Graph()
    x = g.param("x", [2, 5, 8])
    w = g.spread(g.random(8, 6), 2, 8, 6)
    by_column = g.op("mul", g.op("dot", x, w), g.spread(g.random(6, seed=3), 2, 5, 6))
    rows = g.op("dot", g.random(2, 4, 5), by_column)
    by_row = g.op("mul", rows, g.spread(g.random(4, 1, seed=5), 2, 4, 6))
    scaled = g.op("dot", g.op("mul", by_row, g.spread(g.random(6, seed=6), 2, 4, 6)), g.random(2, 6, 3))
    after = check(g.ret(scaled), SimplifyAlgebra(), options=FAST, rtol=1e-4, atol=1e-5)
    assert names(after, views=False) == ["dot", "dot", "dot"]


def test_a_factor_along_rows_does_not_move_into_columns() -> None:
    g = Graph()
    x = g.param("x", [5, 8])
    y = g.op("mul", g.op("dot", x, g.random(8, 6)), g.spread(g.random(5, 1), 5, 6))
    assert "mul" in names(check(g.ret(y), SimplifyAlgebra(), options=FAST))


@pytest.mark.parametrize("type", ["float", "double", "half", "int32"])
@pytest.mark.parametrize("batch", [[], [2, 3]])
def test_products_without_a_sum_are_pointwise(batch: list[int], type: str) -> None:
    g = Graph()
    column, row = g.param("x", [*batch, 5, 1], type), g.param("y", [*batch, 1, 7], type)
    after = check(g.ret(g.op("dot", column, row)), SimplifyAlgebra(), special=True)
    assert "dot" not in names(after) and "mul" in names(after)
    g = Graph()
    long, wide = g.param("x", [*batch, 5, 2], type), g.param("y", [*batch, 2, 7], type)
    assert "dot" in names(check(g.ret(g.op("dot", long, wide)), SimplifyAlgebra(), special=True))


def heads(biases: list[bool], activation: str | None = None, shared: bool = False) -> Graph:
    """Return a program of dense layers of one input, each followed by a reshape."""
    g = Graph()
    x = g.param("x", [2, 7, 8])
    results = []
    for k, (bias, n) in enumerate(zip(biases, (4, 6, 8))):
        weights = g.spread(g.random(8, n, seed=0 if shared else k), 2, 8, n)
        y = g.op("dot", x, weights)
        if bias:
            y = g.op("add", y, g.spread(g.random(n, seed=k + 10), 2, 7, n))
        if activation:
            y = g.op(activation, y)
        results.append(g.op("reshape", y, dims=(2, 7, 2, n // 2)))
    g.ret(*results)
    return g


@pytest.mark.parametrize("biases", [[True] * 3, [False] * 3, [True, False, True], [True, True]])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_dots_of_one_input_are_joined(biases: list[bool], activation: str | None) -> None:
    after = check(heads(biases, activation).program, SimplifyAlgebra(), rtol=1e-4)
    assert names(after).count("dot") == 1 and names(after).count("slice") == len(biases)
    assert names(after).count("add") == (1 if any(biases) else 0)


def test_dots_whose_results_feed_pointwise_operations_stay_apart() -> None:
    g = Graph()
    x = g.param("x", [4, 8])
    gate, value = (g.op("dot", x, g.random(8, 6, seed=k)) for k in (1, 2))
    after = check(g.ret(g.op("mul", g.op("silu", gate), value)), SimplifyAlgebra())
    assert names(after).count("dot") == 2


def test_weights_used_elsewhere_too_stay_apart() -> None:
    g = Graph()
    x = g.param("x", [8, 8])
    w = g.random(8, 8)
    first, second = g.op("dot", x, w), g.op("dot", x, g.op("transpose", w, permutation=(1, 0)))
    after = check(g.ret(first, second), SimplifyAlgebra())
    assert names(after).count("dot") == 2


def test_convolutions_of_one_input_are_joined() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    results = []
    for k, n in enumerate((3, 5)):
        y = g.op("convolution", x, g.random(n, 4, 1, 1, seed=k))
        y = g.op("relu", g.op("add", y, g.channels(g.random(n, seed=k + 5), y)))
        results.append(g.op("pooling", y, mode="max", lengths=(2, 2)))
    after = check(g.ret(*results), NormalizeOps(), SimplifyAlgebra(), rtol=1e-4)
    assert names(after).count("convolution") == 1 and names(after).count("relu") == 1


def test_convolutions_for_a_concat_stay_apart() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    parts = [g.op("relu", g.op("convolution", x, g.random(n, 4, 1, 1))) for n in (3, 5)]
    after = check(g.ret(g.op("concat", *parts, axis=1)), NormalizeOps(), SimplifyAlgebra())
    assert names(after).count("convolution") == 2


def test_large_modules_are_simplified_in_reasonable_work() -> None:
    g = Graph()
    x = g.param("x", [4])
    y = x
    for k in range(600):
        y = g.op("relu", g.op("mul", g.op("mul", y, g.scalar(1 + k / 7, x)), g.scalar(1.01, x)))
    program = g.ret(y)
    algebra = SimplifyAlgebra()
    run_passes(program, [algebra], FAST)
    assert algebra.log.applied["double_add_lit"] == 599 and not algebra.log.exhausted


@pytest.mark.parametrize("name", [f"reduce_{kind}" for kind in ("sum", "mean", "max", "min", "prod", "any", "all")])
@pytest.mark.parametrize("type", ["float", "half", "uint8_t", "int64_t", "bool"])
def test_reductions_along_repeated_axes_are_algebra(name: str, type: str) -> None:
    for lens in ((3, 1, 2), (2,), (3, 1, 1)):
        g = Graph()
        wide = g.spread(g.param("x", lens, type), 3, 5, 2)
        program = g.ret(*(g.op(name, wide, axes=axes) for axes in ((1,), (0, 1), (0, 2), ())))
        after = check(program, SimplifyAlgebra(), special=True, rtol=2e-3 if type == "half" else 1e-5)
        repeated = [a for a in range(3) if (1, 1, *lens)[len(lens) - 1 + a] == 1]
        left = [i for i in after.main if i.op.reduction]
        axes = [(i, a) for i in left for a in i.op.attributes()["axes"] or range(3)]
        assert all(i.inputs[0].shape.lens[a] == 1 for i, a in axes if a in repeated)


def test_a_reduction_along_a_repeated_axis_without_elements_stays() -> None:
    g = Graph()
    wide = g.spread(g.param("x", [1, 0]), 4, 0)
    after = check(g.ret(*(g.op("reduce_sum", wide, axes=axes) for axes in ((0,), (1,)))), SimplifyAlgebra())
    assert names(after).count("reduce_sum") == 2
