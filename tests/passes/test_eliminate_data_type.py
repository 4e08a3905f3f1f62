"""Narrow floats as storage: computed in float32, narrow at the edges and as weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options, run_passes
from mgx_numba.graph.passes.dead_code_elimination import DeadCodeElimination
from mgx_numba.graph.passes.eliminate_data_type import EliminateDataType, is_stored_weight
from mgx_numba.graph.passes.fuse_contraction import FuseContraction
from mgx_numba.graph.passes.layout_convolution import LayoutConvolution
from mgx_numba.graph.passes.normalize_ops import NormalizeOps
from mgx_numba.graph.passes.store_bfloat16 import StoreBfloat16
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.ops.pooling import PoolingMode
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from .support import FAST, STRICT, Graph, check, find, names, random_inputs

BF16 = Type.bf16_type
NARROW = ["half", "bf16", "fp8e4m3fn", "fp8e5m2"]
TOLERANCE = {"half": 5e-3, "bf16": 4e-2, "fp8e4m3fn": 0.3, "fp8e5m2": 0.6}


def eliminated(program: Program, type: str, options: Options = STRICT, special: bool = False) -> Program:
    bound = TOLERANCE[type]
    return check(program, EliminateDataType(), DeadCodeElimination(), options=options, special=special, rtol=bound,
                 atol=bound)  # fmt: skip


def computed_in(program: Program) -> set[Type]:
    """The types of operands of what computes."""
    moves = {"@return", "convert", "transpose", "reshape", "concat", "gather", "slice", "multibroadcast", "broadcast"}
    return {i.shape.type for ins in program.main if ins.name not in moves for i in ins.inputs}


BUILDS: dict[str, Any] = {
    "pointwise": lambda g, x, w: g.op("relu", g.op("add", x, g.op("tanh", x))),
    "dot": lambda g, x, w: g.op("dot", x, w),
    "activations": lambda g, x, w: g.op("dot", x, g.op("transpose", x, permutation=(1, 0))),
    "left constant": lambda g, x, w: g.op("dot", w, x),
    "reduction": lambda g, x, w: g.op("sub", x, g.spread(g.op("reduce_sum", x, axes=(1,)), 8, 8)),
    "softmax": lambda g, x, w: g.op("softmax", g.op("mul", x, w), axis=1),
    "comparison": lambda g, x, w: g.op("where", g.op("less", x, w), x, w),
    "concat": lambda g, x, w: g.op("concat", x, g.op("neg", x), axis=0),
    "moved": lambda g, x, w: g.op("abs", g.op("concat", g.op("slice", x, axes=(0,), starts=(1,), ends=(4,)), w)),
    "equal weights": lambda g, x, w: g.op("dot", x, g.scalar(2, x)),
    "equal on the left": lambda g, x, w: g.op("dot", g.scalar(0.5, x), x),
    "scalar": lambda g, x, w: g.op("mul", x, g.scalar(0.5, x)),
}


@pytest.mark.parametrize("type", NARROW)
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("options", [STRICT, FAST], ids=["strict", "fast"])
def test_values(type: str, build: str, options: Options) -> None:
    g = Graph()
    x = g.param("x", [8, 8], f"{type}_type")
    w = g.module.add_literal(np.random.default_rng(5).uniform(-1, 1, (8, 8)).astype(x.shape.type.numpy))
    after = eliminated(g.ret(BUILDS[build](g, x, w)), type, options)
    assert computed_in(after) <= {Type.float_type, Type.bool_type}


@pytest.mark.parametrize("type", ["half", "bf16"])
def test_special_values_and_overflow(type: str) -> None:
    g = Graph()
    x = g.param("x", [7, 9], f"{type}_type")
    program = g.ret(g.op("mul", x, x), g.op("max", x, g.op("neg", x)), g.op("convert", x, target_type=8))
    eliminated(program, type, special=True)
    large = {"x": np.full((7, 9), 300, x.shape.type.numpy)}
    after = program.clone()
    run_passes(after, [EliminateDataType()], FAST, validate=True)
    np.testing.assert_array_equal(evaluate(after, large)[0].astype(float), evaluate(program, large)[0].astype(float))


def chain(own: bool = True, narrowed: bool = False) -> Program:
    """Return a program with a sum rounded to float16: by an elidable conversion, by the author's, or by its type."""
    g = Graph()
    x = g.param("x", [1, 4], "float" if narrowed else "half")
    total = g.op("add", x, g.scalar(2048, x))
    for type in (Type.half_type, Type.float_type) if narrowed else (Type.float_type,):
        total = g.own(total, type) if own else g.op("convert", total, target_type=type)
    return g.ret(g.op("sub", total, g.scalar(2048, total)))


@pytest.mark.parametrize("narrowed", [False, True])
def test_conversions_of_the_author_are_kept(narrowed: bool) -> None:
    program = chain(False, narrowed)
    values = {"x": np.array([[0.25, 0.5, 1, 3]], np.float32 if narrowed else np.float16)}
    for options in (STRICT, FAST):
        after = program.clone()
        run_passes(after, [EliminateDataType()], options, validate=True)
        assert evaluate(after, values)[0].tolist() == [[0, 0, 0, 4]]


@pytest.mark.parametrize("narrowed", [False, True])
def test_rounding_between_operations_is_left_out_with_fast_math_alone(narrowed: bool) -> None:
    values = {"x": np.array([[0.25, 0.5, 1, 3]], np.float32 if narrowed else np.float16)}
    program = chain(narrowed=narrowed)
    found = {}
    for options in (STRICT, FAST):
        after = program.clone()
        run_passes(after, [EliminateDataType()], options, validate=True)
        found[options] = evaluate(after, values)[0].tolist()
    assert found[FAST] == [[0.25, 0.5, 1, 3]]
    assert found[STRICT] == evaluate(program, values)[0].tolist() == [[0, 0, 0, 4]]
    g = Graph()
    x = g.param("x", [3])
    rounded = g.op("convert", g.op("convert", x, target_type=int(Type.fp8e4m3fn_type)), target_type=2)
    after = check(g.ret(rounded), EliminateDataType(), options=FAST)
    assert names(after) == ["convert", "convert"]  # a step of a quantised program


@pytest.mark.parametrize("given", [True, False])
def test_what_is_rounded_to_float8_is_moved_in_float32(given: bool) -> None:
    """A value is rounded once, at its producer; a float8 input is moved as float8."""
    g = Graph()
    x = g.param("x", [2, 6], "fp8e4m3fn_type" if given else "float_type")
    narrow = x if given else g.op("convert", x, target_type=int(Type.fp8e4m3fn_type))
    turned = g.op("transpose", narrow, permutation=(1, 0))
    moved = g.op("contiguous", g.op("concat", turned, turned, axis=1))
    wide = g.op("convert", moved if given else g.op("reshape", moved, dims=(4, 6)), target_type=2)
    after = check(g.ret(g.op("add", wide, wide)), EliminateDataType(), DeadCodeElimination(), options=FAST)
    types = [i.shape.type for i in after.main if i.name in ("reshape", "transpose", "concat", "contiguous")]
    assert set(types) == {Type.fp8e4m3fn_type if given else Type.float_type}
    assert names(after).count("convert") == (1 if given else 2)


@pytest.mark.parametrize("mode, converts", [("max", 2), ("average", 4)])
def test_maxima_of_what_is_rounded_to_float8_are_not_rounded_again(mode: str, converts: int) -> None:
    g = Graph()
    x = g.param("x", [1, 2, 6, 6])
    narrow = g.op("relu", g.op("convert", x, target_type=int(Type.fp8e4m3fn_type)))
    pooled = g.op("pooling", narrow, mode=PoolingMode[mode], padding=(1, 1), stride=(2, 2), lengths=(3, 3))
    program = g.ret(g.op("convert", pooled, target_type=2))
    after = check(program, NormalizeOps(), EliminateDataType(), DeadCodeElimination(), options=FAST, rtol=0.1)
    assert names(after).count("convert") == converts


PADS = (0, 0, 1, 1, 0, 0, 1, 1)


@pytest.mark.parametrize("options", [STRICT, FAST], ids=["strict", "fast"])
@pytest.mark.parametrize("name, given", [
    ("pad", {"pads": PADS, "value": 0.3}), ("pad", {"pads": PADS}),
    ("pooling", {"mode": PoolingMode.max, "padding": (2, 2), "lengths": (2, 2), "stride": (1, 1)}),
])  # fmt: skip
def test_what_pads_float8_is_rounded_to_it(name: str, given: dict[str, Any], options: Options) -> None:
    """A value that is none of the type, and the minus infinity of windows in the padding, which it does not have."""
    g = Graph()
    narrow = g.op("convert", g.param("x", [1, 2, 4, 4]), target_type=int(Type.fp8e4m3fn_type))
    wide = g.op("convert", g.op(name, narrow, **given), target_type=2)
    program = g.ret(g.op("add", wide, wide))
    after = check(program, NormalizeOps(), EliminateDataType(), DeadCodeElimination(), options=options)
    assert find(after, name).shape.type is Type.float_type


@pytest.mark.parametrize("type", ["half", "bf16"])
@pytest.mark.parametrize("options", [STRICT, FAST], ids=["strict", "fast"])
def test_products_of_two_values_in_bfloat16_are_marked(type: str, options: Options) -> None:
    g = Graph()
    x = g.param("x", [8, 8], f"{type}_type")
    w = g.lit(np.random.default_rng(3).uniform(-1, 1, (8, 8)), np.dtype(x.shape.type.numpy))
    program = g.ret(g.op("dot", g.op("dot", x, w), g.op("transpose", x, permutation=(1, 0))))
    after = check(program, EliminateDataType(), DeadCodeElimination(), options=options, rtol=4e-2, atol=4e-2)
    weighted, other = (i for i in after.main if i.name == "dot")
    assert str(weighted.op) == "dot"
    marked = type == "bf16" and options is FAST
    assert str(other.op) == ("dot[bfloat16_products=1]" if marked else "dot")


def test_tuples_and_submodules() -> None:
    g = Graph()
    x = g.param("x", [4, 6], "half")
    top = g.op("topk", g.op("neg", x), k=2, axis=1)
    body = g.program.create_module("then")
    other = g.program.create_module("else")
    for module, name in ((body, "relu"), (other, "abs")):
        module.add_return([module.add_instruction(name, [x])])
    chosen = g.module.add_instruction("if", [g.param("c", [1], "bool")], [body, other])
    program = g.ret(*(g.op("get_tuple_elem", top, index=k) for k in (0, 1)), g.op("get_tuple_elem", chosen, index=0))
    eliminated(program, "half")


def products(shared: bool) -> tuple[Program, Graph]:
    g = Graph()
    x = g.param("x", [1, 6, 5, 5], "half")
    w = g.lit(np.random.default_rng(2).uniform(-1, 1, (6, 6, 1, 1)), np.float16)
    y = g.op("relu", g.op("convolution", x, w))
    z = g.op("convolution", y, w) if shared else y
    return g.ret(g.op("add", g.op("convert", z, target_type=2), g.scalar(1, g.random(1, 6, 5, 5)))), g


@pytest.mark.parametrize("shared", [False, True])
def test_weights_stay_in_16_bits_until_they_are_packed(shared: bool) -> None:
    program, _ = products(shared)
    steps = [EliminateDataType(), LayoutConvolution(), "eliminate_common_subexpression", "dead_code_elimination"]
    after = program.clone()
    run_passes(after, steps, FAST, validate=True)
    stored = [i.inputs[1] for i in after.main if i.name == "convolution"]
    assert stored and all(is_stored_weight(i) for i in stored)
    run_passes(after, [FuseContraction(), "dead_code_elimination"], FAST, validate=True)
    validate(after)
    fused = [i for i in after.main if i.name == "fused_contraction"]
    assert len(fused) == 1 + shared
    assert all(any(p.shape.type is Type.half_type for p in i.inputs) for i in fused)
    values = random_inputs(program)
    np.testing.assert_allclose(evaluate(after, values)[0], evaluate(program, values)[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("between", ["", "reshape", "concat"])
@pytest.mark.parametrize("asked", [True, False])
def test_rounding_stays_beside_readers_in_float32_where_products_are_in_bfloat16(asked: bool, between: str) -> None:
    """`StoreBfloat16` rounds for all readers a value that a product reads without a conversion."""
    known = pass_options(TargetOptions()).capabilities
    assert known is not None
    g = Graph()
    x = g.op("tanh", g.param("x", [6, 6]))
    seen = x
    if between:
        seen = g.op("reshape", x, dims=(6, 6)) if between == "reshape" else g.op("concat", x, x, axis=0)
    w = g.lit(np.random.default_rng(0).uniform(-1, 1, (6, 5)).astype(BF16.numpy), BF16.numpy)
    product = g.own(g.op("dot", g.own(seen, BF16), w), Type.float_type)
    total = g.op("sigmoid", g.own(g.own(x, BF16), Type.float_type) if asked else x)
    program = g.ret(product, total)
    options = replace(FAST, capabilities=replace(known, multiplies_bfloat16=lambda ins: True))
    steps = [EliminateDataType(), DeadCodeElimination(), StoreBfloat16(), DeadCodeElimination()]
    after = check(program, *steps, options=options, rtol=2e-2, atol=2e-2, idempotent=False)
    values = random_inputs(program)
    whole = np.allclose(evaluate(after, values)[1], 1 / (1 + np.exp(-np.tanh(values["x"]))), rtol=1e-6)
    assert (find(after, "sigmoid").inputs[0].name == "tanh") != asked and (whole or asked)
    assert find(after, "dot").inputs[0].name == "convert"


def test_nothing_to_do() -> None:
    g = Graph()
    program = g.ret(g.op("dot", g.param("x", [2, 3]), g.random(3, 2)))
    assert str(check(program, EliminateDataType())) == str(program)
    assert isinstance(find(program, "dot"), Instruction)
