"""Passes on reductions: splitting, one-pass variances, and maxima that need not propagate NaN, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.driver.compare import Tolerance
from mgx_numba.driver.verifying import check_passes, check_steps
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options, make_pass, run_passes
from mgx_numba.graph.passes.capabilities import Capabilities
from mgx_numba.graph.program import Program
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate
from mgx_numba.targets.registry import compile_for, target

from .support import STRICT, Graph, assert_same, check, find, names, random_inputs

PASSES = ("split_reduce", "one_pass_variance")


@pytest.fixture
def small(given_machine: Callable[..., None]) -> Options:
    """A machine on which a few elements are worth a part, and everything comes from memory."""
    given_machine(last_cache_bytes=0, reduced_part_elements=2, reduced_share=2, repeated_elements=2)
    return target("cpu").pass_options(TargetOptions(fast_math=False, num_threads=8))


def fused(g: Graph, *results: Instruction) -> Program:
    program = g.ret(*results)
    run_passes(program, ["fuse_reduce", "dead_code_elimination"], validate=True)
    return program


def row_sums(lens: Sequence[int], axes: Sequence[int], *ops: str) -> Program:
    g = Graph()
    x = g.param("x", lens)
    return fused(g, *(g.op(op, g.op("mul", x, x), axes=axes) for op in ops or ("reduce_sum",)))


def softmax(lens: Sequence[int], *, keep: bool = False) -> Program:
    g = Graph()
    x = g.param("x", lens)
    axis = len(lens) - 1
    top = g.op("reduce_max", x, axes=(axis,))
    e = g.op("exp", g.op("sub", x, g.spread(top, *lens)))
    result = g.op("div", e, g.spread(g.op("reduce_sum", e, axes=(axis,)), *lens))
    return fused(g, result, top) if keep else fused(g, result)


def layer_norm(lens: Sequence[int], type: str = "float") -> Program:
    g = Graph()
    x, axes = g.param("x", lens, type), (len(lens) - 1,)
    mean = g.op("reduce_mean", x, axes=axes)
    away = g.op("sub", x, g.spread(mean, *lens))
    variance = g.op("reduce_mean", g.op("mul", away, away), axes=axes)
    return fused(g, g.op("mul", away, g.spread(g.op("rsqrt", variance), *lens)))


def bodies(program: Program) -> list[str]:
    return [i.name for m in program.reachable_modules()[1:] for i in m if not i.name.startswith("@")]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        row_sums((3, 1111), (1,)),
        row_sums((37, 150), (0,), "reduce_max", "reduce_sum"),
        row_sums((1009, 3), (0,)),
        row_sums((5, 6, 7, 260), (0, 2), "reduce_mean", "reduce_min"),
        row_sums((7001,), (0,), "reduce_any", "reduce_all"),
        softmax((3, 700)),
        softmax((2, 64), keep=True),
        layer_norm((2, 999)),
    ],
    ids=["rows", "columns", "few columns", "inner axes", "booleans", "softmax", "maxima kept", "layer norm"],
)
def test_values_stay(program: Program, special: bool, small: Options) -> None:
    """Each pass alone and both passes keep the results; a second run of both passes changes nothing."""
    steps = [make_pass(name) for name in PASSES]
    for step in steps:
        check(program, step, options=small, special=special, rtol=1e-4, atol=1e-4)
    after = check(program, *steps, options=small, special=special, rtol=1e-4, atol=1e-4)
    assert "reduce_parts" in bodies(after)
    for name in PASSES:
        assert str(check(program, make_pass(name), idempotent=False)) == str(program)


def test_parts_are_told_and_refusals_say_why(small: Options) -> None:
    program = row_sums((3, 1111), (1,))
    run_passes(program, ["split_reduce"], small)
    assert program.log.applied["split_reduce"] == 1
    assert names(program) == ["fused_reduce", "fused_reduce"]
    for lens, options, reason in (
        ((40, 16), small, "40 tasks of 640 elements in all are best left whole"),
        ((3, 16), STRICT, "what the target can do is not known"),
        ((3, 0), small, None),
    ):
        program = row_sums(lens, (1,))
        before = str(program)
        run_passes(program, ["split_reduce"], options)
        assert str(program) == before
        assert [r.reason for r in program.log.refusals("split_reduce")] == ([reason] if reason else [])
    program = softmax((9, 64))
    run_passes(program, ["split_reduce"], small)
    (refusal,) = program.log.refusals("split_reduce")
    assert refusal.reason == "operands are read again, and 9 tasks are enough for 8 threads"


def test_what_is_left_of_a_cluster_is_divided_again(small: Options) -> None:
    program = softmax((3, 700))
    run_passes(program, ["split_reduce"], small, validate=True)
    assert names(program, views=False) == ["fused_reduce"] * 4 + ["pointwise"]


def test_how_many_threads_there_are_matters_where_operands_are_read_again_only(small: Options) -> None:
    assert small.capabilities is not None
    one = replace(small, capabilities=replace(small.capabilities, threads=1))
    texts = []
    for options in (small, one):
        program = row_sums((3, 70001), (1,))
        run_passes(program, ["split_reduce"], options)
        texts.append(str(program))
    assert texts[0] == texts[1]
    program = softmax((3, 700))
    run_passes(program, ["split_reduce"], one)
    assert names(program) == ["fused_reduce"]


def test_a_variance_takes_one_pass_where_rows_come_from_memory(small: Options) -> None:
    whole = replace(small, fast_math=True, capabilities=replace(capabilities(small), threads=1))
    program = layer_norm((6, 1024))
    after = check(program, make_pass("one_pass_variance"), options=whole, rtol=1e-4, atol=1e-4)
    assert bodies(after).count("head_mean") == 1 and bodies(after).count("reduce_mean") == 2
    for lens, type, reason in (((6, 100), "float", "side by side, fewer than"), ((6, 1024), "half", None)):
        program = layer_norm(lens, type)
        run_passes(program, ["one_pass_variance"], whole)
        assert "head_mean" not in bodies(program)
        found = [r.reason for r in program.log.refusals("one_pass_variance")]
        assert (len(found) == 1 and reason in found[0]) if reason else not found


def group_norm(lens: Sequence[int], type: str = "float") -> Program:
    """Values over all axes but the first, widened to float32 and normalised."""
    g = Graph()
    x, axes = g.param("x", lens, type), tuple(range(1, len(lens)))
    wide = g.op("convert", x, target_type=Type.float_type) if type != "float" else x
    mean = g.op("reduce_mean", wide, axes=axes)
    away = g.op("sub", wide, g.spread(mean, *lens))
    variance = g.op("reduce_mean", g.op("mul", away, away), axes=axes)
    return fused(g, g.op("mul", away, g.spread(g.op("rsqrt", variance), *lens)))


@pytest.mark.parametrize("type", ["float", "half"])
@pytest.mark.parametrize("lens", [(2, 3, 64), (3, 40, 7), (1, 4096)])
def test_split_variances_read_their_rows_once(lens: tuple[int, ...], type: str, small: Options) -> None:
    """The shift comes from a slice, so that sums and sums of squares are split together."""
    whole = replace(small, fast_math=True, capabilities=replace(capabilities(small), threads=64))
    program = group_norm(lens, type)
    after = check(program, make_pass("shift_variance"), options=whole, rtol=2e-3, atol=1e-3)
    assert bodies(after).count("reduce_mean") == 3  # the shift, and both moments
    run_passes(after, ["split_reduce"], whole, validate=True)
    x = np.random.default_rng(1).standard_normal(lens).astype(np.float16 if type == "half" else np.float32)
    (found,), (wanted,) = evaluate(after, {"x": x}), evaluate(program, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-3)
    for special in (np.inf, -np.inf, np.nan, 6e4):
        y = x.copy()
        y[0, ..., 0] = special
        (found,), (wanted,) = evaluate(after, {"x": y}), evaluate(program, {"x": y})
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-3)


def variance(g: Graph, x: Instruction) -> Program:
    lens = x.shape.lens
    away = g.op("sub", x, g.spread(g.op("reduce_mean", x, axes=(1,)), *lens))
    return fused(g, g.op("reduce_mean", g.op("mul", away, away), axes=(1,)))


def test_split_variances_of_several_values_read_their_rows_once(small: Options) -> None:
    whole = replace(small, fast_math=True, capabilities=replace(capabilities(small), threads=64))
    g = Graph()
    x = g.op("mul", g.param("x", (4, 64)), g.spread(g.param("y", (64,)), 4, 64))
    x = g.op("add", g.op("add", x, x), g.op("add", x, g.scalar(0.5, x)))
    after = check(variance(g, x), make_pass("shift_variance"), options=whole, rtol=1e-4, atol=1e-4)
    assert bodies(after).count("reduce_mean") == 3


def test_variances_of_values_of_whole_rows_or_of_short_rows_keep_two_passes(small: Options) -> None:
    whole = replace(small, fast_math=True, capabilities=replace(capabilities(small), threads=64))
    for lens, reason in (((4, 9), "no axis of the rows has 32"), ((80, 64), "rows are not split")):
        program = group_norm(lens)
        run_passes(program, ["shift_variance"], whole)
        (found,) = program.log.refusals("shift_variance")
        assert reason in found.reason
    g = Graph()
    x = g.op("add", g.param("x", (4, 64)), g.spread(g.param("y", (4, 1)), 4, 64))
    program = variance(g, x)
    run_passes(program, ["shift_variance"], whole)
    assert [r.reason for r in program.log.refusals("shift_variance")] == [
        "what is reduced is computed from values of whole rows"
    ]
    program = group_norm((2, 64))
    run_passes(program, ["shift_variance"], small)
    assert "fast_math is off" in program.log.refusals("shift_variance")[0].reason


def test_rows_that_caches_hold_keep_two_passes() -> None:
    program = layer_norm((6, 1024))
    run_passes(program, ["one_pass_variance"], target("cpu").pass_options(TargetOptions()))
    assert [r.reason for r in program.log.refusals("one_pass_variance")] == ["rows are read again from caches"]


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_variances_of_values_far_from_zero_keep_their_digits(offset: float, small: Options) -> None:
    whole = replace(small, fast_math=True, capabilities=replace(capabilities(small), threads=1))
    g = Graph()
    values = g.param("x", (4, 4096))
    away = g.op("sub", values, g.spread(g.op("reduce_mean", values, axes=(1,)), 4, 4096))
    program = fused(g, g.op("reduce_mean", g.op("mul", away, away), axes=(1,)))
    x = np.random.default_rng(0).standard_normal((4, 4096)) + offset
    after = program.clone()
    run_passes(after, ["one_pass_variance"], whole, validate=True)
    assert "head_mean" in bodies(after)
    (found,) = evaluate(after, {"x": x.astype(np.float32)})
    exact = x.astype(np.float32).astype(np.float64).var(1, keepdims=True)
    np.testing.assert_allclose(found, exact, rtol=1e-3)


def capabilities(options: Options) -> Capabilities:
    assert options.capabilities is not None
    return options.capabilities


def test_verify_and_traces_see_the_rewrites(small: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification compares rewritten programs with the operators' meaning, after each pass and step by step."""
    g = Graph()
    program = g.ret(g.op("softmax", g.op("tanh", g.param("x", [2, 3000])), axis=1))
    inputs = random_inputs(program)
    options = TargetOptions(fast_math=False, num_threads=8)
    checks = check_passes(program, target("cpu").passes, target("cpu").pass_options(options), inputs, Tolerance())
    assert all(c.difference.passed for c in checks)
    assert any("split_reduce" in c.what for c in checks)
    compiled = compile_for("cpu", program, options)
    steps = check_steps(compiled, inputs, Tolerance())
    assert sum("fused_reduce" in c.what for c in steps) == 4 and all(c.difference.passed for c in steps)
    monkeypatch.setenv("MIGRAPHX_DISABLE_PASSES", "split_reduce")
    plain = compile_for("cpu", program, options)
    assert names(plain.program) == ["fused_reduce"]
    assert "reduce_parts" not in bodies(plain.program)
    assert_same(plain.run(inputs), compiled.run(inputs))


@pytest.mark.parametrize("lent", ["to a concatenation", "through a view", "to a result", ""])
def test_steps_are_not_taken_as_columns_where_they_may_lie_apart(lent: str, small: Options) -> None:
    """The operand of the sum is lent memory in which its columns do not follow one another."""
    g = Graph()
    x = g.op("exp", g.op("transpose", g.param("x", [500, 3, 4]), permutation=(0, 2, 1)))
    total = g.op("reduce_sum", x, axes=(0,))
    if lent == "to a result":
        program = g.ret(x, total)
    elif lent:
        part = g.op("reshape", x, dims=(500, 2, 6)) if lent == "through a view" else x
        program = g.ret(g.op("concat", part, part, axis=2), total)
    else:
        program = g.ret(g.op("neg", x), total)
    compiled = compile_for("cpu", program, TargetOptions(fast_math=False, num_threads=1))
    (parts,) = [i for m in compiled.program.reachable_modules() for i in m if i.name == "reduce_parts"]
    assert (parts.op.fold > 1) == (not lent)  # type: ignore[attr-defined]
    values = random_inputs(program)
    assert_same(evaluate(program, values), compiled.run(values), rtol=1e-4)


def test_memory_that_lies_otherwise_than_shapes_say_is_copied(small: Options) -> None:
    """A variance from heads of rows, whose elements lie side by side but in the memory of a result."""
    g = Graph()
    x = g.op("layout", g.param("x", [1024, 6]), permutation=(1, 0))
    away = g.op("sub", x, g.spread(g.op("reduce_mean", x, axes=(0,)), 1024, 6))
    variance = g.op("reduce_mean", g.op("mul", away, away), axes=(0,))
    program = g.ret(x, g.op("mul", away, g.spread(g.op("rsqrt", variance), 1024, 6)))
    compiled = compile_for("cpu", program, TargetOptions(fast_math=True, num_threads=1))
    assert "head_mean" in bodies(compiled.program) and not compiled.fallback_reasons()
    labels: list[str] = []
    values = random_inputs(program)
    results = compiled.observe(values, lambda seen: labels.append(seen.label))
    assert len(labels) == 3, labels  # to the result's memory, from there to the order of rows, and the kernel
    assert_same(evaluate(program, values), results, rtol=1e-4, atol=1e-4)


def test_a_cluster_without_elements_or_a_body_without_reductions_stays(small: Options) -> None:
    g = Graph()
    x = g.param("x", [4])
    body = g.program.create_module("main:fused_reduce0")
    body.add_return([body.add_instruction("relu", [body.add_parameter("x0", Shape(Type.float_type, (4,)))])])
    program = g.ret(g.module.add_instruction("fused_reduce", [x], [body], axes=(0,)))
    before = str(program)
    run_passes(program, PASSES, small, validate=True)
    assert str(program) == before and find(program, "fused_reduce")
