"""Composite patterns recognised, and composite operators expanded."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options, Pass
from mgx_numba.graph.passes.eliminate_common_subexpression import EliminateCommonSubexpression
from mgx_numba.graph.passes.eliminate_pad import EliminatePad
from mgx_numba.graph.passes.normalize_ops import NormalizeOps
from mgx_numba.graph.passes.optimize_module import OptimizeModule
from mgx_numba.graph.passes.rewrite_gelu import RewriteGelu
from mgx_numba.graph.passes.rewrite_layernorm import RewriteLayernorm
from mgx_numba.graph.passes.rewrite_pooling import RewritePooling
from mgx_numba.graph.passes.rewrite_quantization import RewriteQuantization
from mgx_numba.graph.passes.rewrite_reduce import RewriteReduce
from mgx_numba.graph.passes.rewrite_resize import RewriteResize
from mgx_numba.graph.passes.rewrite_softmax import RewriteSoftmax
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

from .support import FAST, STRICT, Graph, check, find, names

Build = Callable[[Graph, Instruction], Instruction]


def left(build: Build, *passes: Pass, options: object = STRICT, special: bool = True, type: str = "float") -> list[str]:
    """Operators (without broadcasts) that are left of an expression in one parameter, after checking values."""
    g = Graph()
    program = g.ret(build(g, g.param("x", [3, 4, 5], type)))
    half = type == "half"
    after = check(
        program,
        *passes,
        options=options,  # type: ignore[arg-type]
        special=special,
        rtol=1e-2 if half else 1e-5,
        atol=1e-2 if half else 1e-5,
    )
    return [n for n in names(after) if n != "multibroadcast"]


def c(g: Graph, value: float, x: Instruction) -> Instruction:
    return g.scalar(value, x)


def erf_part(g: Graph, x: Instruction, divided: bool) -> Instruction:
    inner = g.op("div", x, c(g, math.sqrt(2), x)) if divided else g.op("mul", x, c(g, math.sqrt(0.5), x))
    return g.op("erf", inner)


def tanh_part(g: Graph, x: Instruction, form: int) -> Instruction:
    a, k = math.sqrt(2 / math.pi), 0.044715
    if form == 0:
        cube = g.op("pow", x, c(g, 3, x))
        inner = g.op("mul", g.op("add", x, g.op("mul", cube, c(g, k, x))), c(g, a, x))
    elif form == 1:
        cube = g.op("mul", x, g.op("mul", x, x))
        inner = g.op("mul", c(g, a, x), g.op("add", g.op("mul", c(g, k, x), cube), x))
    elif form == 2:
        square = g.op("mul", g.op("mul", x, c(g, k, x)), x)
        inner = g.op("mul", g.op("mul", x, c(g, a, x)), g.op("add", square, c(g, 1, x)))
    else:
        square = g.op("mul", x, x)
        inner = g.op("mul", x, g.op("add", g.op("mul", square, c(g, a * k, x)), c(g, a, x)))
    return g.op("tanh", inner)


def gate(g: Graph, x: Instruction, part: Instruction, form: int) -> Instruction:
    shifted = g.op("add", part, c(g, 1, x))
    if form == 0:
        return g.op("mul", g.op("mul", x, shifted), c(g, 0.5, x))
    if form == 1:
        return g.op("mul", g.op("mul", c(g, 0.5, x), x), shifted)
    return g.op("mul", x, g.op("mul", shifted, c(g, 0.5, x)))


@pytest.mark.parametrize("form", range(3))
@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("type", ["float", "half"])
def test_exact_gelu_is_recognised(form: int, divided: bool, type: str) -> None:
    def build(g: Graph, x: Instruction) -> Instruction:
        return gate(g, x, erf_part(g, x, divided), form)

    assert left(build, RewriteGelu(), options=FAST, special=False, type=type) == ["gelu_erf"]
    assert "erf" in left(build, RewriteGelu(), type=type)


@pytest.mark.parametrize("form", range(3))
@pytest.mark.parametrize("inner", range(4))
def test_gelu_with_tanh_is_recognised(form: int, inner: int) -> None:
    assert left(lambda g, x: gate(g, x, tanh_part(g, x, inner), form), RewriteGelu(), options=FAST) == ["gelu_tanh"]
    assert "tanh" in left(lambda g, x: gate(g, x, tanh_part(g, x, inner), form), RewriteGelu())


@pytest.mark.parametrize("type", ["float", "half"])
def test_gelu_of_constants_with_three_digits_is_one_of_float16_alone(type: str) -> None:
    """A constant that is off by 1e-4 moves results of float32 beyond the bound of fast_math."""

    def build(g: Graph, x: Instruction) -> Instruction:
        return gate(g, x, g.op("erf", g.op("mul", x, c(g, 0.7070, x))), 0)

    assert ("gelu_erf" in left(build, RewriteGelu(), options=FAST, special=False, type=type)) is (type == "half")


@pytest.mark.parametrize("form", range(3))
@pytest.mark.parametrize("part", ["erf", "tanh"])
def test_gelu_is_recognised_after_simplification_too(form: int, part: str) -> None:
    def build(g: Graph, x: Instruction) -> Instruction:
        return gate(g, x, erf_part(g, x, True) if part == "erf" else tanh_part(g, x, 0), form)

    assert left(build, OptimizeModule(), RewriteGelu(), options=FAST, special=False) == [f"gelu_{part}"]


def test_other_constants_are_not_gelu() -> None:
    def build(g: Graph, x: Instruction) -> Instruction:
        return g.op("mul", g.op("mul", x, g.op("add", g.op("erf", x), c(g, 1, x))), c(g, 0.5, x))

    assert "gelu_erf" not in left(build, RewriteGelu(), options=FAST)


ACTIVATIONS: list[tuple[str, Build, str]] = [
    ("silu", lambda g, x: g.op("mul", g.op("sigmoid", x), x), "silu"),
    (
        "silu as a quotient",
        lambda g, x: g.op("div", x, g.op("add", c(g, 1, x), g.op("exp", g.op("neg", x)))),
        "silu",
    ),
    (
        "sigmoid",
        lambda g, x: g.op("div", c(g, 1, x), g.op("add", c(g, 1, x), g.op("exp", g.op("neg", x)))),
        "sigmoid",
    ),
    ("mish", lambda g, x: g.op("mul", x, g.op("tanh", g.op("softplus", x))), "mish"),
]


@pytest.mark.parametrize(("build", "name"), [a[1:] for a in ACTIVATIONS], ids=[a[0] for a in ACTIVATIONS])
def test_activations_are_recognised(build: Build, name: str) -> None:
    assert left(build, RewriteGelu(), options=FAST, special=False) == [name]
    assert left(build, RewriteGelu()) != [name]


def test_softplus_needs_fast_math() -> None:
    def build(g: Graph, x: Instruction) -> Instruction:
        return g.op("log", g.op("add", g.op("exp", x), c(g, 1, x)))

    assert left(build, RewriteGelu(), options=FAST, special=False) == ["softplus"]
    assert left(build, RewriteGelu()) == ["exp", "add", "log"]


def softmax(g: Graph, x: Instruction, axis: int, form: str = "div", maximum: bool = True) -> Instruction:
    lens = x.shape.lens
    shifted = g.op("sub", x, g.spread(g.op("reduce_max", x, axes=(axis,)), *lens)) if maximum else x
    e = g.op("exp", shifted)
    total = g.op("reduce_sum", e, axes=(axis,))
    if form == "log":
        return g.op("sub", shifted, g.spread(g.op("log", total), *lens))
    if form == "mul":
        return g.op("mul", e, g.spread(g.op("recip", total), *lens))
    return g.op("div", e, g.spread(total, *lens))


@pytest.mark.parametrize(("form", "name"), [("div", "softmax"), ("mul", "softmax"), ("log", "logsoftmax")])
@pytest.mark.parametrize("axis", [0, 2])
def test_softmax_is_recognised_and_expanded(form: str, name: str, axis: int) -> None:
    assert left(lambda g, x: softmax(g, x, axis, form), RewriteSoftmax(), options=FAST) == [name]
    assert name not in left(lambda g, x: softmax(g, x, axis, form), RewriteSoftmax())
    expanded = left(lambda g, x: g.op(name, x, axis=axis), RewriteReduce())
    last = {"softmax": ["div"], "logsoftmax": ["log", "sub"]}[name]
    assert expanded == ["reduce_max", "sub", "exp", "reduce_sum", *last]


def test_softmax_without_maximum_needs_fast_math() -> None:
    found = left(lambda g, x: softmax(g, x, 1, maximum=False), RewriteSoftmax(), options=FAST, special=False)
    assert found == ["softmax"]
    assert "div" in left(lambda g, x: softmax(g, x, 1, maximum=False), RewriteSoftmax())


def test_softmax_over_different_axes_is_none() -> None:
    def build(g: Graph, x: Instruction) -> Instruction:
        e = g.op("exp", g.op("sub", x, g.spread(g.op("reduce_max", x, axes=(0,)), 3, 4, 5)))
        return g.op("div", e, g.spread(g.op("reduce_sum", e, axes=(1,)), 3, 4, 5))

    assert left(build, RewriteSoftmax()) == ["reduce_max", "sub", "exp", "reduce_sum", "div"]
    # The quotient is a softmax of the differences, whose maximum fast_math leaves out.
    assert left(build, RewriteSoftmax(), options=FAST) == ["reduce_max", "sub", "softmax"]


def test_half_softmax_is_computed_in_float32() -> None:
    found = left(lambda g, x: g.op("softmax", x, axis=2), RewriteReduce(), type="half")
    assert found[0] == found[-1] == "convert"


def test_nested_reductions_are_merged_and_trivial_ones_vanish() -> None:
    def twice(name: str) -> Build:
        return lambda g, x: g.op(name, g.op(name, x, axes=(2,)), axes=(1,))

    for name in ("reduce_sum", "reduce_mean", "reduce_max"):
        assert left(twice(name), RewriteReduce(), options=FAST) == [name]
        assert left(twice(name), RewriteReduce()) == [name] * (1 if name == "reduce_max" else 2)
    assert left(lambda g, x: g.op("reduce_sum", g.op("reduce_max", x, axes=(2,)), axes=(1,)), RewriteReduce()) == [
        "reduce_max",
        "reduce_sum",
    ]
    g = Graph()
    x = g.param("x", [3, 1, 4])
    assert names(check(g.ret(g.op("exp", g.op("reduce_mean", x, axes=(1,)))), RewriteReduce())) == ["exp"]


COLUMNS = Options(capabilities=pass_options(TargetOptions()).capabilities)


@pytest.mark.parametrize("lens", [((7, 5), (5, 1)), ((2, 3, 7, 5), (2, 3, 5, 1)), ((1, 5), (5, 1)), ((7, 1), (1, 1))])
@pytest.mark.parametrize("type", ["float", "double", "half", "int32"])
def test_a_product_with_one_column_is_a_sum(lens: tuple[tuple[int, ...], ...], type: str) -> None:
    g = Graph()
    program = g.ret(g.op("dot", g.param("x", lens[0], type), g.param("w", lens[1], type)))
    after = check(program, RewriteReduce(), options=COLUMNS, special=True, rtol=1e-2 if type == "half" else 1e-5)
    found = names(after, views=False)
    summed = ["mul"] if lens[0][-1] == 1 else ["mul", "reduce_sum"]
    assert found == (summed if type in ("float", "double") else ["dot"])
    assert names(check(program, RewriteReduce(), special=True)) == ["dot"]  # for targets without such reductions


@pytest.mark.parametrize("type", ["float", "double", "half"])
@pytest.mark.parametrize(
    ("x", "w", "summed"),
    [
        ((3, 1, 40), (3, 7, 40), True),
        ((2, 3, 1, 17), (2, 3, 1, 17), True),
        ((3, 2, 40), (3, 7, 40), False),  # several rows
        ((1, 1, 40), (1, 7, 40), False),  # one product
        ((3, 1, 16), (3, 7, 16), False),  # short sums
    ],
)
def test_a_batch_of_rows_by_transposed_matrices_is_a_sum(
    x: tuple[int, ...], w: tuple[int, ...], summed: bool, type: str
) -> None:
    g = Graph()
    program = g.ret(g.op("dot", g.param("x", x, type), turned(g, g.param("w", w, type))))
    after = check(program, RewriteReduce(), options=COLUMNS, special=True, rtol=1e-2 if type == "half" else 1e-5)
    is_sum = summed and type != "half"
    assert names(after, views=False) == (["mul", "reduce_sum"] if is_sum else ["dot"])
    assert names(check(program, RewriteReduce(), special=True), views=False) == ["dot"]


def turned(g: Graph, x: Instruction) -> Instruction:
    rank = x.shape.ndim
    return g.op("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def test_rows_by_matrices_that_are_constant_repeated_or_in_order_stay_products() -> None:
    for build in (
        lambda g: turned(g, g.random(3, 7, 40)),
        lambda g: g.spread(turned(g, g.param("w", (7, 40))), 3, 40, 7),
        lambda g: g.param("w", (3, 40, 7)),
    ):
        g = Graph()
        program = g.ret(g.op("dot", g.param("x", (3, 1, 40)), build(g)))
        assert names(check(program, RewriteReduce(), options=COLUMNS), views=False) == ["dot"]


@pytest.mark.parametrize("batch", [(4,), (2, 3)])
def test_a_batch_of_columns_is_multiplied_as_one_product(batch: tuple[int, ...]) -> None:
    """Weights of 512x512 multiplied by 16 columns took 570 us as 16 products, and 77 as one."""
    g = Graph()
    x, w = g.spread(g.param("x", (7, 5)), *batch, 7, 5), g.param("w", (*batch, 5, 1))
    after = check(g.ret(g.op("dot", x, w)), RewriteReduce(), options=COLUMNS)
    product = find(after, "dot")
    assert product.shape.lens == (np.prod(batch), 7)


def test_columns_of_matrices_that_repeat_in_part_stay_products() -> None:
    g = Graph()
    x, w = g.spread(g.param("x", (3, 1, 7, 5)), 3, 2, 7, 5), g.param("w", (3, 2, 5, 1))
    assert names(check(g.ret(g.op("dot", x, w)), RewriteReduce(), options=COLUMNS), views=False) == ["dot"]


def layer_norm(g: Graph, x: Instruction, form: str) -> Instruction:
    lens = x.shape.lens
    mean = g.op("reduce_mean", x, axes=(2,))
    centred = g.op("sub", x, g.spread(mean, *lens))
    again = g.op("sub", x, g.spread(mean, *lens))
    if form == "sqdiff":
        square = g.op("sqdiff", x, g.spread(mean, *lens))
    else:
        square = g.op("pow", again, c(g, 2, x)) if form == "pow" else g.op("mul", again, again)
    variance = g.op("reduce_mean", square, axes=(2,))
    shifted = g.op("add", variance, c(g, 1e-5, variance))
    if form == "pow":
        return g.op("div", centred, g.spread(g.op("sqrt", shifted), *lens))
    if form == "mul":
        return g.op("div", centred, g.op("sqrt", g.spread(shifted, *lens)))
    return g.op("mul", centred, g.spread(g.op("rsqrt", shifted), *lens))


@pytest.mark.parametrize("form", ["pow", "mul", "sqdiff"])
def test_layer_norm_has_one_form(form: str) -> None:
    found = left(
        lambda g, x: layer_norm(g, x, form),
        OptimizeModule(),
        RewriteLayernorm(),
        OptimizeModule(),
        EliminateCommonSubexpression(),
        options=FAST,
    )
    assert found == ["reduce_mean", "sub", "mul", "reduce_mean", "add", "rsqrt", "mul"]


@pytest.mark.parametrize(("mode", "name"), [("average", "reduce_mean"), ("max", "reduce_max")])
@pytest.mark.parametrize("dynamic", [True, False])
def test_global_pooling_is_a_reduction(mode: str, name: str, dynamic: bool) -> None:
    g = Graph()
    x = g.param("x", [2, 3, 4, 5])
    y = g.op("pooling", x, mode=mode, dyn_global=True) if dynamic else g.op("pooling", x, mode=mode, lengths=(4, 5))
    assert names(check(g.ret(y), NormalizeOps(), RewritePooling(), special=True)) == [name]


def test_other_poolings_stay_and_single_elements_vanish() -> None:
    g = Graph()
    x = g.param("x", [2, 3, 4, 4])
    y = g.op("pooling", x, mode="max", lengths=(2, 2))
    z = g.op("exp", g.op("pooling", x, mode="average", lengths=(1, 1)))
    norm = g.op("pooling", x, mode="lpnorm", lengths=(4, 4))
    assert names(check(g.ret(y, z, norm), RewritePooling())) == ["pooling", "exp", "pooling"]


def pad(g: Graph, x: Instruction, value: float = 0.0, channels: int = 0, **attributes: object) -> Instruction:
    return g.op("pad", x, pads=(0, channels, 1, 2, 0, 0, 0, 1), value=value, **attributes)


def test_zero_padding_joins_a_convolution() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 5, 5])
    y = g.op("convolution", pad(g, x), g.random(3, 2, 3, 3), padding=(1, 0), stride=(2, 2), dilation=(1, 2))
    after = check(g.ret(y), NormalizeOps(), EliminatePad())
    assert find(after, "convolution").op.attributes()["padding"] == (2, 2, 1, 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x: pad(g, x, value=1.0),
        lambda g, x: pad(g, x, mode="reflect"),
        lambda g, x: g.op("pad", x, pads=(0, 0, -1, 0, 0, 0, 0, 0)),
    ],
)
def test_other_padding_stays_before_a_convolution(build: Build) -> None:
    g = Graph()
    x = g.param("x", [1, 2, 5, 5])
    y = g.op("convolution", build(g, x), g.random(3, 2, 3, 3))
    step = EliminatePad()
    assert names(check(g.ret(y), NormalizeOps(), step)) == ["pad", "convolution"]
    assert step.refusals("pad_conv")


def test_padding_of_channels_stays() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 5, 5])
    y = g.op("convolution", pad(g, x, channels=1), g.random(3, 3, 3, 3))
    assert "pad" in names(check(g.ret(y), NormalizeOps(), EliminatePad()))


@pytest.mark.parametrize(
    ("mode", "value", "attributes", "joined"),
    [
        ("average", 0.0, {}, True),
        ("average", 0.0, {"padding": (1, 1)}, False),
        ("average", 0.0, {"padding": (1, 1), "count_include_pad": True}, True),
        ("average", 0.0, {"ceil_mode": True, "stride": (2, 2)}, False),
        ("max", -np.inf, {}, True),
        ("max", 0.0, {}, False),
        ("lpnorm", 0.0, {}, True),
    ],
)
def test_padding_joins_a_pooling_where_it_counts_alike(
    mode: str, value: float, attributes: dict[str, object], joined: bool
) -> None:
    g = Graph()
    x = g.param("x", [1, 2, 5, 5])
    y = g.op("pooling", pad(g, x, value), mode=mode, lengths=(3, 3), **attributes)
    after = check(g.ret(y), NormalizeOps(), EliminatePad())
    assert ("pad" not in names(after)) is joined


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("target", ["int8", "uint8", "fp8e4m3fn"])
def test_quantisation_is_arithmetic(zero: bool, target: str) -> None:
    from mgx_numba.core.types import parse_type

    kind = parse_type({"int8": "int8_t", "uint8": "uint8_t", "fp8e4m3fn": "fp8e4m3fn_type"}[target])
    g = Graph()
    x = g.param("x", [3, 40])
    scale = g.spread(g.random(3, 1, low=0.01, high=0.05), 3, 40)
    points = [g.spread(g.lit(5, kind.numpy), 3, 40)] if zero else []
    q = g.op("quantizelinear", x, scale, *points, out_type=kind)
    y = g.op("dequantizelinear", q, scale, *points)
    after = check(g.ret(q, y), RewriteQuantization())
    assert not {"quantizelinear", "dequantizelinear"} & set(names(after))
    optimized = check(after, OptimizeModule())
    assert "div" in names(optimized) or target == "fp8e4m3fn"


@pytest.mark.parametrize(
    ("attributes", "repeats"),
    [
        ({"scales": (1, 1, 2, 2), "coordinate_transformation_mode": "asymmetric"}, True),
        (
            {
                "sizes": (2, 3, 12, 5),
                "coordinate_transformation_mode": "half_pixel",
                "nearest_mode": "round_prefer_floor",
            },
            True,
        ),
        ({"scales": (1, 1, 2.5, 1)}, False),
        ({"scales": (1, 1, 2, 2), "mode": "linear"}, False),
        ({"scales": (1, 1, 2, 2), "coordinate_transformation_mode": "align_corners"}, False),
        ({"scales": (1, 1, 0.5, 1)}, False),
    ],
)
def test_enlargement_by_repetition_is_a_broadcast(attributes: dict[str, object], repeats: bool) -> None:
    g = Graph()
    x = g.param("x", [2, 3, 4, 5])
    after = check(g.ret(g.op("resize", x, **attributes)), RewriteResize())
    assert ("resize" not in names(after)) is repeats
    check(after, OptimizeModule())


@pytest.mark.parametrize("elidable", [False, True])
@pytest.mark.parametrize("cube", [False, True])
def test_gelu_of_16_bits_is_recognised_behind_conversions_that_no_author_asked_for(elidable: bool, cube: bool) -> None:
    """PyTorch multiplies 16-bit values by numbers in float32."""
    g = Graph()
    x = g.param("x", (3, 5), "half")

    def scaled(value: Instruction, factor: float) -> Instruction:
        wide = g.op("convert", value, target_type=Type.float_type, elidable=elidable)
        return g.op("convert", g.op("mul", wide, g.scalar(factor, wide)), target_type=Type.half_type, elidable=elidable)

    square = g.op("mul", x, x)
    one = g.lit(np.ones((3, 5)), np.float16)
    if cube:
        inner = scaled(g.op("add", x, scaled(g.op("mul", square, x), 0.044715)), 0.7978845608028654)
    else:
        inner = g.op("mul", scaled(x, 0.7978845608028654), g.op("add", scaled(square, 0.044715), one))
    half = g.op("mul", x, g.lit(np.full((3, 5), 0.5), np.float16))
    program = g.ret(g.op("mul", half, g.op("add", g.op("tanh", inner), one)))
    after = check(program, RewriteGelu(), options=FAST, rtol=4e-3, atol=4e-3)
    assert ("gelu_tanh" in names(after)) == elidable
