"""Scalar operations as data: recorded operations have the operators' results, for every handler."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.body import ScalarBody, scalar_body
from mgx_numba.codegen.cpu.contraction.tile_source import epilogue_source
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.gpu.printer import ThreadPrinter
from mgx_numba.codegen.printer import CodeBuffer, VectorPrinter, check_body, print_body
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand, Prologue, PrologueOperand
from mgx_numba.codegen.problems.fused_contraction import make_epilogue, make_prologue
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError, UnsupportedError
from mgx_numba.graph.program import Program
from mgx_numba.ops.base import Pointwise
from mgx_numba.ops.scalar import NumpyScalar, TypeScalar

from .contracting import epilogue_of

FLOAT, HALF, INT, BOOL = Type.float_type, Type.half_type, Type.int32_type, Type.bool_type


def operators() -> list[type[Pointwise]]:
    """Every pointwise operator of the package."""
    found, pending = [], [Pointwise]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind.__module__.startswith("mgx_numba.") and getattr(kind, "name", ""):
            found.append(kind)
    return sorted(found, key=lambda kind: kind.name)


def types_of(op: Pointwise) -> list[Type]:
    """Types that an operator takes: floats, but for conditions, bits and what is quantised."""
    if op.name == "where":
        return [BOOL, FLOAT, FLOAT]
    if op.name in ("quantizelinear", "dequantizelinear"):
        return [FLOAT if op.name == "quantizelinear" else INT, FLOAT]
    own = INT if "bitwise" in op.name or "shift" in op.name else FLOAT
    return [own] * op.arity


@pytest.mark.parametrize("kind", operators(), ids=lambda kind: kind.name)
def test_recorded_operators_mean_the_same(kind: type[Pointwise]) -> None:
    op = kind()
    types = types_of(op)
    body = scalar_body(op.scalar, types)
    assert body.dtype is body.evaluate(TypeScalar(), types) is op.scalar(TypeScalar(), *types)
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf] if INT not in types else [0, 1, 2, 31]
    arrays = [np.concatenate([rng.permutation(special), rng.uniform(1, 9, 50)]).astype(t.numpy) for t in types]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(body.evaluate(NumpyScalar(), arrays), op.scalar(NumpyScalar(), *arrays))
    names = tuple(f"x{k}" for k in range(len(types)))
    printer = VectorPrinter(CodeBuffer(), 8, fast_math=True)
    direct = printer.stored(op.scalar(printer, *(printer.loaded(n, t) for n, t in zip(names, types))))
    assert print_body(body, names, 8, True) == (tuple(printer.buffer.drain()), direct)


@pytest.mark.parametrize(
    ("value", "other"), [((0.0, FLOAT), (-0.0, FLOAT)), ((1, FLOAT), (1, INT)), ((1, INT), (True, BOOL))]
)
def test_constants_that_compare_equal_are_not_taken_for_one_another(value, other) -> None:
    assert scalar_body(lambda s: s.const(*value), []) != scalar_body(lambda s: s.const(*other), [])


def test_zeros_of_either_sign_have_a_tile_each() -> None:
    def source(zero: float) -> str:
        epilogue = epilogue_of(lambda s, acc: s.max(acc, s.const(zero, FLOAT)))
        return epilogue_source(tile_for(element_types("float32")), epilogue, True, 64, True).text

    assert "(0.0," in source(0.0) and "(-0.0," in source(-0.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.5, 2**24 + 1])
def test_bodies_recorded_twice_are_equal(value: float) -> None:
    first, second = (scalar_body(lambda s, x: s.mul(x, s.const(value, FLOAT)), [FLOAT]) for _ in range(2))
    assert first == second and hash(first) == hash(second)
    np.testing.assert_array_equal(first.evaluate(NumpyScalar(), [np.ones(3, np.float32)]), np.float32(value))


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**53 + 1])
def test_long_integers_are_kept_whole(value: int) -> None:
    body = scalar_body(lambda s: s.const(value, Type.int64_type), [])
    assert int(body.evaluate(NumpyScalar(), [])) == value


def test_one_epilogue_is_printed_for_any_lanes_and_names() -> None:
    body = scalar_body(lambda s, x, y: s.cast(s.add(s.sigmoid(x), s.cast(y, FLOAT)), HALF), [FLOAT, HALF])
    assert print_body(body, ("sum", "e"), 4, False) == (
        ("v0 = sigmoid(sum)", "v1 = cast_float32(e)", "v2 = add(v0, v1)", "v3 = cast_float16(v2)"), "v3",
    )  # fmt: skip
    assert print_body(body, ("q", "r"), 16, True, "u")[0][:2] == ("u0 = sigmoid_fast(q)", "u1 = cast_float32(r)")


def test_operations_that_kernels_lack_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="no sqrt of int32_type"):
        check_body(scalar_body(lambda s, x: s.sqrt(s.cast(x, INT)), [FLOAT]))


@pytest.mark.parametrize("types", [[FLOAT], [FLOAT, HALF], [FLOAT, FLOAT, FLOAT]])
def test_operands_that_the_operations_do_not_take(types: list[Type]) -> None:
    body: ScalarBody = scalar_body(lambda s, x, *more: x, types)
    with pytest.raises(ShapeError, match="epilogue operands of dtypes .*float32.*; its operations take"):
        Epilogue((EpilogueOperand("float32", "full"),), body)
    with pytest.raises(ShapeError, match="prologue operands of dtypes .*float32.*; its operations take"):
        Prologue((PrologueOperand("float32", "per_k", (0,)),), body, False, "")
    with pytest.raises(ShapeError, match="its operations take"):
        Epilogue((EpilogueOperand("float32", "full"),))


def test_sums_of_the_same_terms_in_another_order_had_another_kernel() -> None:
    """For zeros and NaNs the value of a maximum depends on the order, so it is kept."""

    def printed(method: str, *order: int) -> tuple[str, ...]:
        body = scalar_body(lambda s, *x: getattr(s, method)(*(x[k] for k in order)), [FLOAT, FLOAT])
        return print_body(body, ("v7", "e0"), 8, True)[0]

    for method in ("add", "mul"):
        assert printed(method, 0, 1) == printed(method, 1, 0) == (f"v0 = {method}_fast(e0, v7)",)
    assert printed("max", 0, 1) != printed("max", 1, 0)


def test_each_side_of_a_contraction_has_its_own_operations() -> None:
    """Constants and operands of the prologue are no part of the epilogue, and the other way round."""
    module = Program().main
    x, w, after, before = (
        module.add_parameter(name, Shape(FLOAT, lens))
        for name, lens in (("x", (1, 4, 3, 3)), ("w", (6, 4, 1, 1)), ("after", (1, 6, 3, 3)), ("before", (1, 4, 3, 3)))
    )
    wide = before.shape
    scale = module.add_instruction("multibroadcast", [module.add_literal(np.float32([3]))], out_lens=wide.lens)
    half = module.add_instruction("multibroadcast", [module.add_literal(np.float32([0.5]))], out_lens=after.shape.lens)
    shift = module.add_parameter("shift", Shape(FLOAT, wide.lens, (0, 1, 0, 0)))
    left = module.add_instruction("add", [module.add_instruction("mul", [x, scale]), shift])
    core = module.add_instruction("convolution", [left, w])
    halves = module.add_instruction("mul", [core, half])
    module.add_return([module.add_instruction("relu", [module.add_instruction("add", [halves, after])])])
    epilogue = make_epilogue(module, core, ["full"], fast_math=True)
    prologue = make_prologue(module, core, [("per_k", (0,))], fast_math=True)
    assert prologue is not None and prologue.name == "mul_add" and epilogue.name == "mul_add_relu"
    assert print_body(prologue.body, ("term", "a0"), 8, False, "u") == (
        ("u0 = const_float32(3.0, 8)", "u1 = mul(term, u0)", "u2 = add(a0, u1)"), "u2",
    )  # fmt: skip
    assert print_body(epilogue.body, ("acc", "e0"), 8, False)[0][:3] == (
        "v0 = const_float32(0.5, 8)", "v1 = mul(acc, v0)", "v2 = add(e0, v1)",
    )  # fmt: skip
    assert epilogue.operands == (EpilogueOperand("float32", "full"),) and epilogue.dtype == "float32"
    assert dataclasses.replace(epilogue) == epilogue and len({epilogue, dataclasses.replace(epilogue)}) == 1


def float8_body(limit: float | None, least: float | None = None) -> ScalarBody:
    """Return a body that doubles a number rounded to float8, as `quantize_fp8` leaves it.

    Before that the number is raised to ``least`` and limited by ``limit``, as far as these are given."""
    narrow = Type.fp8e4m3fn_type

    def body(s: NumpyScalar, x: Any) -> Any:
        if least is not None:
            x = s.max(x, s.const(least, FLOAT))
        if limit is not None:
            x = s.min(s.max(x, s.const(-limit, FLOAT)), s.const(limit, FLOAT))
        return s.mul(s.cast_loosely(s.cast_loosely(x, narrow), FLOAT), s.const(2.0, FLOAT))

    return scalar_body(body, [FLOAT])


@pytest.mark.parametrize("limit, fast, expected", [
    (448.0, True, "nearest_float8_e4m3fn_fast(%, 1)"), (448.0, False, "nearest_float8_e4m3fn(%, 1)"),
    (500.0, True, "nearest_float8_e4m3fn_fast(%, 0)"), (None, True, "nearest_float8_e4m3fn_fast(%, 0)"),
])  # fmt: skip
def test_what_becomes_float8_and_float32_again_is_rounded_in_place(
    limit: float | None, fast: bool, expected: str
) -> None:
    body = float8_body(limit)
    lines, _ = print_body(body, ("x",), 8, fast)
    before, after = expected.split("%")
    assert sum(before in line and after in line for line in lines) == 1
    assert not any("cast_float32" in line for line in lines)
    printed = ThreadPrinter(CodeBuffer(), 4, fast)
    printed.stored(body.evaluate(printed, [printed.loaded("x", FLOAT)]))
    assert not any("nearest" in line for line in printed.buffer.lines)  # GPUs have conversions


@pytest.mark.parametrize("least, limits, maxima", [(0.0, 2, 1), (1.5, 2, 1), (-3.0, 1, 1), (-500.0, 1, 2)])
def test_limits_that_hold_already_are_not_computed(least: float, limits: int, maxima: int) -> None:
    """Non-negative values are rounded to float8 by fewer instructions."""
    lines, _ = print_body(float8_body(448.0, least), ("x",), 8, True)
    assert sum(line.endswith(f", {limits})") and "= nearest_float8_e4m3fn_fast(" in line for line in lines) == 1
    assert sum(" = max(" in line for line in lines) == maxima
    assert sum(" = min(" in line for line in lines) == 1


@pytest.mark.parametrize("factor_first", [True, False])
def test_silu_that_only_becomes_float8_is_computed_in_few_bits(factor_first: bool) -> None:
    """By fast math, where a number times it is rounded; what else reads the product reads all its bits."""
    narrow = Type.fp8e4m3fn_type

    def body(s: NumpyScalar, x: Any, factor: Any) -> Any:
        product = s.mul(factor, s.silu(x)) if factor_first else s.mul(s.silu(x), factor)
        limited = s.min(s.max(product, s.const(-448.0, FLOAT)), s.const(448.0, FLOAT))
        return s.add(s.cast_loosely(s.cast_loosely(limited, narrow), FLOAT), product)

    lines, _ = print_body(scalar_body(body, [FLOAT, FLOAT]), ("x", "y"), 8, True)
    (made,) = (line.split(" = ")[0] for line in lines if line.endswith("= scaled_silu_coarse(x, y)"))
    (raised,) = (line.split(" = ")[0] for line in lines if "max(" in line and f", {made})" in line)
    (limited,) = (line.split(" = ")[0] for line in lines if "min(" in line and f", {raised})" in line)
    assert sum(f"nearest_float8_e4m3fn_fast({limited}, " in line for line in lines) == 1
    (exact,) = (line.split(" = ")[0] for line in lines if "mul_fast(" in line)
    assert "add_fast(" in lines[-1] and exact in lines[-1]
    exact_lines, _ = print_body(scalar_body(body, [FLOAT, FLOAT]), ("x", "y"), 8, False)
    assert not any("coarse" in line for line in exact_lines)


@pytest.mark.parametrize("word, limits", [("silu", ["min"]), ("sigmoid", []), ("neg", ["max", "min"])])
def test_what_is_quantised_by_a_power_of_two_is_rounded_without_products(word: str, limits: list[str]) -> None:
    """Limits that an activation keeps are not computed; GPUs have products and conversions."""

    def body(s: NumpyScalar, x: Any) -> Any:
        return s.nearest_float8_e4m3fn(getattr(s, word)(x), s.const(0.25, FLOAT))

    recorded = scalar_body(body, [FLOAT])
    words = [line.split(" = ")[1].split("(")[0] for line in print_body(recorded, ("x",), 8, False)[0]]
    assert [w for w in words if not w.startswith("const")] == [word, *limits, "nearest_float8_e4m3fn"]
    fast, _ = print_body(recorded, ("x",), 8, True)
    assert any("scaled_silu_coarse" in line for line in fast) == (word == "silu")
    for lanes in (4, 0):
        printed = ThreadPrinter(CodeBuffer(), lanes, False)
        printed.stored(recorded.evaluate(printed, [printed.loaded("x", FLOAT)]))
        assert not any("nearest" in line for line in printed.buffer.lines)
        assert sum("= mul(" in line for line in printed.buffer.lines) == 2
