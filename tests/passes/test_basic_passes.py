"""Normalisation, dead code, common subexpressions, constants, conversions, copies, constant branches."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes.base import Options, run_passes
from mgx_numba.graph.passes.capabilities import Capabilities
from mgx_numba.graph.passes.dead_code_elimination import DeadCodeElimination
from mgx_numba.graph.passes.eliminate_common_subexpression import EliminateCommonSubexpression
from mgx_numba.graph.passes.eliminate_contiguous import EliminateContiguous
from mgx_numba.graph.passes.eliminate_convert import EliminateConvert, is_exact
from mgx_numba.graph.passes.eliminate_identity import EliminateIdentity
from mgx_numba.graph.passes.inline_module import InlineModule
from mgx_numba.graph.passes.normalize_ops import NormalizeOps
from mgx_numba.graph.passes.propagate_constant import PropagateConstant
from mgx_numba.ops.control import IfShort
from mgx_numba.ops.scalar import cast_array
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from .support import Graph, check, find, names


def literals(module: Module) -> list[np.ndarray]:
    return [i.literal.numpy() for i in module if i.literal is not None]


def test_axes_and_padding_become_canonical() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 5, 5])
    y = g.op("convolution", x, g.random(3, 2, 3, 3), padding=(1, 1))
    y = g.op("reduce_sum", g.op("softmax", y, axis=-3), axes=(-1,))
    after = check(g.ret(g.op("slice", y, axes=(-2,), starts=(-3,), ends=(99,))), NormalizeOps())
    assert find(after, "convolution").op.attributes()["padding"] == (1, 1, 1, 1)
    assert find(after, "softmax").op.attributes()["axis"] == 1
    assert find(after, "reduce_sum").op.attributes()["axes"] == (3,)
    assert find(after, "slice").op.attributes() == {"axes": (2,), "starts": (2,), "ends": (5,)}


def test_automatic_padding_is_computed() -> None:
    g = Graph()
    x = g.param("x", [1, 2, 6, 5])
    y = g.op("convolution", x, g.random(3, 2, 2, 3), padding_mode=2, stride=(1, 2))
    after = check(g.ret(y), NormalizeOps())
    assert find(after, "convolution").op.attributes()["padding"] == (0, 1, 1, 1)


def test_identities_vanish_in_chains_and_before_return() -> None:
    g = Graph()
    x = g.op("identity", g.op("identity", g.param("x", [2])))
    after = check(g.ret(g.op("identity", g.op("relu", x)), x), EliminateIdentity())
    assert names(after) == ["relu"]


def test_dead_chains_go_and_parameters_stay() -> None:
    g = Graph()
    x, y = g.param("x", [2]), g.param("unused", [2])
    g.op("relu", g.op("exp", g.op("add", x, y)))
    g.random(100)
    after = check(g.ret(g.op("neg", x)), DeadCodeElimination())
    assert names(after) == ["neg"] and list(after.parameter_shapes()) == ["x", "unused"]
    assert not literals(after.main)


def branching(condition_constant: bool | None, nested: bool = False) -> tuple[Graph, object]:
    """``if`` with two results; branches use values of the main module."""
    g = Graph()
    x = g.param("x", [3])
    outer = g.op("exp", x)
    condition = g.param("c", [1], "bool") if condition_constant is None else g.lit([condition_constant], bool)
    yes, no = g.program.create_module("yes"), g.program.create_module("no")
    inside = yes.add_instruction("add", [outer, x])
    yes.add_return([inside, yes.add_instruction("mul", [inside, yes.add_literal(np.full(3, 2, np.float32))])])
    if nested:
        first, second = g.program.create_module("inner_yes"), g.program.create_module("inner_no")
        local = no.add_instruction("sub", [outer, x])
        first.add_return([first.add_instruction("tanh", [local])])
        second.add_return([second.add_instruction("neg", [local])])
        chosen = no.add_instruction("if", [condition], [first, second])
        value = no.add_instruction("get_tuple_elem", [chosen], index=0)
        no.add_return([value, local])
    else:
        no.add_return([outer, x])
    chosen = g.module.add_instruction("if", [condition], [yes, no])
    return g, chosen


def test_a_dead_branch_releases_what_it_used() -> None:
    g, _ = branching(None)
    after = check(g.ret(g.op("relu", g.program.main.parameter("x"))), DeadCodeElimination())
    assert names(after) == ["relu"] and len(after.modules) == 1


def test_values_used_in_branches_only_stay() -> None:
    g, chosen = branching(None)
    after = check(g.ret(g.op("get_tuple_elem", chosen, index=1)), DeadCodeElimination())
    assert "exp" in names(after)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_constant_branches_are_inlined(condition: bool, nested: bool) -> None:
    g, chosen = branching(condition, nested)
    program = g.ret(g.op("get_tuple_elem", chosen, index=1), g.op("get_tuple_elem", chosen, index=0))
    after = check(program, InlineModule(), DeadCodeElimination())
    assert "if" not in names(after) or nested
    after = check(program, InlineModule(), InlineModule(), DeadCodeElimination())
    assert "if" not in names(after) and len(after.modules) == 1


@pytest.mark.parametrize("cheap", [True, False])
def test_shortcuts_are_inlined_where_branches_are_dear(cheap: bool) -> None:
    g = Graph()
    x, condition = g.param("x", [3]), g.param("c", [1], "bool")
    share = g.op("multibroadcast", g.op("convert", condition, target_type=Type.float_type), out_lens=(3,))
    usual, shortcut = g.program.create_module("usual"), g.program.create_module("shortcut")
    usual.add_return([usual.add_instruction("add", [x, usual.add_instruction("mul", [share, x])])])
    shortcut.add_return([x])
    chosen = g.module.add_instruction(IfShort(), [condition], [usual, shortcut])
    known = pass_options(TargetOptions()).capabilities
    options = Options(capabilities=Capabilities(**{**vars(known), "cheap_branches": cheap}))
    after = check(g.ret(g.op("get_tuple_elem", chosen, index=0)), InlineModule(), options=options)
    assert ("if_short" in names(after)) == cheap


def test_run_time_conditions_stay() -> None:
    g, chosen = branching(None)
    after = check(g.ret(g.op("get_tuple_elem", chosen, index=0)), InlineModule())
    assert "if" in names(after)


def test_a_branch_with_a_parameter_takes_the_input() -> None:
    g = Graph()
    x = g.param("x", [3])
    yes, no = g.program.create_module("yes"), g.program.create_module("no")
    for branch, op in ((yes, "relu"), (no, "neg")):
        branch.add_return([branch.add_instruction(op, [branch.add_parameter("p", x.shape)])])
    chosen = g.module.add_instruction("if", [g.lit([False], bool), x], [yes, no])
    after = check(g.ret(g.op("get_tuple_elem", chosen, index=0)), InlineModule())
    assert names(after) == ["neg"]


def test_common_subexpressions_are_shared_transitively() -> None:
    g = Graph()
    x, y = g.param("x", [2, 2]), g.param("y", [2, 2])
    first = g.op("exp", g.op("add", x, y))
    second = g.op("exp", g.op("add", y, x))
    after = check(g.ret(g.op("sub", first, second)), EliminateCommonSubexpression())
    assert names(after) == ["add", "exp", "sub"]


def test_attributes_that_differ_in_the_sign_of_a_zero_are_different() -> None:
    g = Graph()
    x = g.param("x", [2])
    both = [g.op("pad", x, pads=(0, 1), value=value) for value in (0.0, -0.0)]
    after = check(g.ret(g.op("concat", *both, axis=0)), EliminateCommonSubexpression())
    assert names(after) == ["pad", "pad", "concat"]
    (found,) = evaluate(after, {"x": np.ones(2, np.float32)})
    assert np.signbit(found).tolist() == [False, False, False, False, False, True]


def test_operands_of_other_operators_keep_their_order() -> None:
    g = Graph()
    x, y = g.param("x", [2, 2]), g.param("y", [2, 2])
    after = check(g.ret(g.op("sub", x, y), g.op("sub", y, x)), EliminateCommonSubexpression())
    assert names(after) == ["sub", "sub"]


def test_equal_literals_are_kept_once() -> None:
    g = Graph()
    x = g.param("x", [64, 64])
    big = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    other = big.copy()
    other[-1, -1] += 1
    total = x
    for value in (big, big.copy(), other, np.asfortranarray(big)):
        total = g.op("add", total, g.lit(value))
    total = g.op("add", total, g.scalar(0.5, total))
    total = g.op("mul", total, g.scalar(0.5, total))
    after = check(g.ret(total), EliminateCommonSubexpression())
    assert len(literals(after.main)) == 4


def test_literals_that_differ_in_bits_are_different() -> None:
    g = Graph()
    x = g.param("x", [2])
    after = check(
        g.ret(g.op("div", x, g.lit([0.0, 0.0])), g.op("div", x, g.lit([-0.0, 0.0]))), EliminateCommonSubexpression()
    )
    assert len(literals(after.main)) == 2
    nan = Graph()
    program = nan.ret(nan.op("add", nan.lit([np.nan]), nan.lit([np.nan])), nan.param("x", [1]))
    assert len(literals(check(program, EliminateCommonSubexpression()).main)) == 1


def test_undetermined_values_are_not_shared() -> None:
    g = Graph()
    x = g.param("x", [4])
    draws = [g.op("random_uniform", g.lit([7], np.uint64), x) for _ in range(2)]
    program = g.ret(*draws)
    run_passes(program, [EliminateCommonSubexpression()], validate=True)
    assert names(program) == ["random_uniform", "random_uniform"]


def test_constants_fold_through_any_operator() -> None:
    g = Graph()
    x = g.param("x", [2, 4])
    w = g.op("transpose", g.random(4, 3), permutation=(1, 0))
    product = g.op("dot", g.random(2, 3), w)
    after = check(g.ret(g.op("add", x, g.op("relu", product))), PropagateConstant())
    assert names(after) == ["add"]


def test_broadcasts_are_never_expanded() -> None:
    g = Graph()
    x = g.param("x", [64, 256, 32])
    channel = g.op("broadcast", g.random(256), axis=1, out_lens=(64, 256, 32))
    scale = g.op("mul", channel, g.scalar(2.0, x))
    after = check(g.ret(g.op("mul", x, g.op("exp", scale))), PropagateConstant(), DeadCodeElimination())
    assert names(after) == ["multibroadcast", "mul"]
    assert max(a.size for a in literals(after.main)) == 256


def test_large_results_of_small_constants_stay() -> None:
    g = Graph()
    x = g.param("x", [600, 600])
    row, column = g.spread(g.random(600, 1), 600, 600), g.spread(g.random(1, 600), 600, 600)
    after = check(g.ret(g.op("add", x, g.op("mul", row, column))), PropagateConstant())
    assert "mul" in names(after) and max(a.size for a in literals(after.main)) == 600


def test_a_reshaped_repeated_element_is_a_broadcast() -> None:
    g = Graph()
    x = g.param("x", [6, 100])
    value = g.op("reshape", g.spread(g.lit(3.0), 600), dims=(6, 100))
    after = check(g.ret(g.op("add", x, value)), PropagateConstant(), DeadCodeElimination())
    assert names(after) == ["multibroadcast", "add"] and [a.size for a in literals(after.main)] == [1]


def test_uniform_results_shrink() -> None:
    g = Graph()
    x = g.param("x", [8, 8])
    zeros = g.op("reduce_sum", g.lit(np.zeros((8, 8, 3))), axes=(2,))
    after = check(g.ret(g.op("add", x, g.op("squeeze", zeros, axes=(2,)))), PropagateConstant(), DeadCodeElimination())
    assert max(a.size for a in literals(after.main)) == 1


def test_scalars_stay_scalars_and_vectors_of_one_element_vectors() -> None:
    g = Graph()
    x = g.param("x", [5, 3])
    scalar = g.op("add", g.lit(1, np.int64), g.lit(1, np.int64))
    vector = g.op("add", g.lit([1], np.int64), g.lit([1], np.int64))
    program = g.ret(g.op("gather", x, scalar, axis=0), g.op("gather", x, vector, axis=0))
    after = check(program, PropagateConstant())
    assert [s.lens for s in after.output_shapes()] == [(3,), (1, 3)]
    assert names(after) == ["gather", "gather"]


def test_a_constant_that_cannot_be_computed_is_left_to_the_run() -> None:
    g = Graph()
    x = g.param("x", [3])
    bad = g.op("gather", g.random(3), g.lit([7], np.int64), axis=0)
    program = g.ret(x, bad)
    run_passes(program, [PropagateConstant()], validate=True)
    assert "gather" in names(program)


def test_layout_of_weights_keeps_strides() -> None:
    g = Graph()
    x = g.param("x", [2, 3, 4, 4])
    w = g.op("layout", g.random(5, 3, 3, 3), permutation=(0, 2, 3, 1))
    after = check(g.ret(g.op("convolution", x, w)), PropagateConstant())
    literal = find(after, "convolution").inputs[1]
    assert literal.is_literal and literal.shape.strides == (27, 1, 9, 3)


def test_constants_fold_inside_of_branches() -> None:
    g, chosen = branching(None)
    yes = chosen.module_args[0]  # type: ignore[attr-defined]
    two = yes.add_literal(np.full(3, 2, np.float32))
    total = yes.insert_instruction(yes.last, "add", [two, two])
    yes.replace_return([yes.insert_instruction(yes.last, "mul", [yes.results()[0], total]), yes.results()[1]])
    after = check(g.ret(g.op("get_tuple_elem", chosen, index=0)), PropagateConstant())
    assert sum(i.name == "add" for i in after.module("yes")) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("source", "target", "exact"),
    [
        ("int8", "int32", True),
        ("int32", "float", False),
        ("int32", "double", True),
        ("half", "float", True),
        ("float", "half", False),
        ("bf16", "half", False),
        ("bool", "half", True),
        ("uint8", "int8", False),
        ("int64", "double", False),
        ("uint64", "double", False),
        ("uint32", "double", True),
        ("int16", "float", True),
        ("uint8", "half", True),
        ("uint8", "bf16", True),
        ("int16", "half", False),
        ("float", "bool", False),
    ],
)
def test_exact_conversions(source: str, target: str, exact: bool) -> None:
    from mgx_numba.core.types import parse_type

    aliases = {"half": "half", "float": "float", "double": "double", "bf16": "bf16", "bool": "bool"}
    types = [parse_type(aliases.get(n, f"{n}_t")) for n in (source, target)]
    assert is_exact(*types) is exact


ELEMENTS = [t for t in Type if not t.hosted and t not in (Type.tuple_type, Type.fp4x2_type)]


def edges(type: Type) -> np.ndarray:
    """Return every value of a 1- or 2-byte type; for wider types, values near powers of two and the ends of the
    range."""
    dtype = type.numpy
    if type is Type.bool_type:
        return np.array([False, True])
    if dtype.itemsize <= 2:
        return np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}").view(dtype)
    if type.is_integral:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        near = {s * (1 << k) + d for k in range(65) for d in (-1, 0, 1) for s in (-1, 1)}
        return np.array(sorted(v for v in near if low <= v <= high), dtype)
    powers = np.ldexp(1.0, np.arange(-1074, 1024))
    wide = np.concatenate([[0.0, np.inf, np.nan], powers, powers * (1 + 2.0**-23), powers * (1 + 2.0**-52)])
    with np.errstate(all="ignore"):
        return np.concatenate([wide, -wide]).astype(dtype)


@pytest.mark.parametrize("source", ELEMENTS, ids=str)
def test_a_conversion_in_between_vanishes_only_where_no_value_shows_it(source: Type) -> None:
    values = edges(source)
    for between in ELEMENTS:
        wide = cast_array(values, between)
        back = cast_array(wide, source)
        with np.errstate(invalid="ignore"):
            same = bool(((back == values) | ((back != back) & (values != values))).all())
        assert same or not is_exact(source, between)
        for target in ELEMENTS:
            g = Graph()
            x = g.param("x", values.shape, source.cpp)
            inner = g.op("convert", x, target_type=between)
            last = g.op("convert", inner, target_type=target)
            g.ret(last)
            reason = EliminateConvert().explain(last).get("nested_convert")
            if reason == "applies":
                direct, twice = cast_array(values, target), cast_array(wide, target)
                if target.is_floating:
                    direct, twice = direct.astype(np.float64), twice.astype(np.float64)
                np.testing.assert_array_equal(direct, twice, f"{source} {between} {target}")


def test_int64_through_double_loses_what_it_loses() -> None:
    g = Graph()
    x = g.param("x", [2], "int64")
    y = g.op("convert", g.op("convert", x, target_type="double"), target_type="int64_t")
    inputs = {"x": np.array([2**53 + 1, -(2**53) - 1])}
    assert names(check(g.ret(y), EliminateConvert(), inputs=inputs)) == ["convert", "convert"]


def test_lossless_conversions_in_between_vanish() -> None:
    g = Graph()
    x = g.param("x", [4], "half")
    wide = g.op("convert", x, target_type="double")
    y = g.op("convert", wide, target_type="half")
    z = g.op("convert", wide, target_type="int32_t")
    after = check(g.ret(y, z, g.op("convert", x, target_type="half")), EliminateConvert(), special=True)
    assert names(after) == ["convert"] and find(after, "convert").inputs[0].is_param


@pytest.mark.parametrize("type", ["half", "bf16"])
def test_conversions_around_a_pointwise_operation_vanish(type: str) -> None:
    """The operation itself computes in float32 and rounds once."""
    g = Graph()
    x, y, c = g.param("x", [2, 8], type), g.param("y", [2, 8], type), g.param("c", [2, 8], "bool")
    a, b = (g.op("convert", v, target_type="float", elidable=True) for v in (x, y))
    values = [
        g.op("gelu_tanh", a),
        g.op("sqdiff", a, b),
        g.op("where", c, a, b),
        g.op("clip", b, *(g.scalar(v, a) for v in (-0.5, 1))),
    ]
    narrow = [g.op("convert", v, target_type=type, elidable=True) for v in values]
    assert "convert" not in names(check(g.ret(*narrow), EliminateConvert(), special=True))


@pytest.mark.parametrize("case", ["constant", "operand", "reader", "chain", "type", "before", "after"])
def test_conversions_around_a_pointwise_operation_stay_where_bits_are_lost(case: str) -> None:
    g = Graph()
    x, f = g.param("x", [2, 8], "half"), g.param("f", [2, 8])
    wide = g.op("convert", x, target_type="float", elidable=case != "before")  # the others are the author's
    other = {"constant": g.scalar(0.1, wide), "operand": f, "chain": g.op("exp", wide)}.get(case, wide)
    y = g.op("mul", wide, other)
    type = "bf16" if case == "type" else "half"
    results = [g.op("convert", y, target_type=type, elidable=case != "after")]
    after = check(g.ret(*results, *([y] if case == "reader" else [])), EliminateConvert())
    assert names(after).count("convert") == 2


def test_lossy_conversions_in_between_stay() -> None:
    g = Graph()
    x = g.param("x", [4])
    y = g.op("convert", g.op("convert", x, target_type="half"), target_type="float")
    truth = g.op("convert", g.op("convert", x, target_type="bool"), target_type="float")
    assert len(names(check(g.ret(y, truth), EliminateConvert(), special=True))) == 4


def test_copies_that_no_user_needs_vanish() -> None:
    g = Graph()
    x = g.param("x", [3, 4])
    turned = g.op("contiguous", g.op("transpose", x, permutation=(1, 0)))
    y = g.op("relu", turned)
    flat = g.op("reshape", turned, dims=(12,))
    after = check(g.ret(y, flat, turned), EliminateContiguous())
    assert names(after).count("contiguous") == 1
    assert find(after, "relu").inputs[0].name == "transpose"
    assert find(after, "contiguous").shape.type is Type.float_type


def test_a_copy_of_standard_data_vanishes_even_before_return() -> None:
    g = Graph()
    after = check(g.ret(g.op("contiguous", g.op("relu", g.param("x", [3, 4])))), EliminateContiguous())
    assert names(after) == ["relu"]
