"""Mixed precision: the instructions that compute in 16 bits, and correct values where 16 bits would overflow."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.errors import OptionError
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options, run_passes
from mgx_numba.graph.passes.selection import Selection
from mgx_numba.graph.passes.truncate_float import TruncateFloat
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.targets.ref.interpreter import evaluate

from .support import Graph, find, names, random_inputs

HALF, BF16 = Type.half_type, Type.bf16_type


def truncated(program: Program, names: tuple[str, ...] = ("all",), type: Type = HALF) -> Program:
    after = program.clone()
    run_passes(after, [TruncateFloat(names, type), "optimize_module"], Options(), validate=True)
    again = after.clone()
    run_passes(again, [TruncateFloat(names, type), "optimize_module"], Options(), validate=True)
    assert str(again) == str(after)
    assert [s.type for s in after.output_shapes()] == [s.type for s in program.output_shapes()]
    assert after.parameter_shapes() == program.parameter_shapes()
    return after


def types(program: Program) -> dict[str, set[Type]]:
    """The types of the results of each operator."""
    found: dict[str, set[Type]] = {}
    for module in program.reachable_modules():
        for ins in module:
            found.setdefault(ins.name, set()).add(ins.shape.type)
    return found


def worst(program: Program, after: Program, seed: int = 0) -> float:
    """Largest difference over the largest magnitude."""
    values = random_inputs(program, seed)
    before, now = evaluate(program, values)[0], evaluate(after, values)[0]
    assert before.dtype == now.dtype and np.isfinite(now.astype(np.float32)).all()
    return float(np.abs(before - now).max() / np.abs(before).max())


def layer_norm(g: Graph, x: Instruction, epsilon: float) -> Instruction:
    lens = x.shape.lens
    mean = g.spread(g.op("reduce_mean", x, axes=(1,)), *lens)
    apart = g.op("sub", x, mean)
    variance = g.op("reduce_mean", g.op("mul", apart, apart), axes=(1,))
    root = g.op("rsqrt", g.op("add", variance, g.scalar(epsilon, variance)))
    return g.op("mul", apart, g.spread(root, *lens))


@pytest.mark.parametrize("type", [HALF, BF16])
@pytest.mark.parametrize("given", ["float", "double"])
def test_contractions_and_what_follows_them(type: Type, given: str) -> None:
    g = Graph()
    x = g.param("x", [5, 33], given)
    w = g.module.add_literal(np.random.default_rng(1).uniform(-1, 1, (33, 7)).astype(x.shape.type.numpy))
    last = g.module.add_literal(np.random.default_rng(2).uniform(-1, 1, (7, 4)).astype(x.shape.type.numpy))
    program = g.ret(g.op("dot", g.op("tanh", g.op("relu", g.op("dot", x, w))), last))
    after = truncated(program, type=type)
    found = types(after)
    assert found["dot"] == found["relu"] == found["tanh"] == {type} and found["convert"] == {type, x.shape.type}
    assert found["@literal"] == {type}
    assert worst(program, after) < (4e-3 if type is HALF else 3e-2)


@pytest.mark.parametrize("type", [HALF, BF16])
@pytest.mark.parametrize("points", [False, True])
def test_scales_of_block_weights_stay_in_float32(type: Type, points: bool) -> None:
    g, rng = Graph(), np.random.default_rng(3)
    codes = g.module.add_literal(rng.integers(0, 256, (6, 3, 16)).astype(np.uint8))
    scales = g.module.add_literal(rng.uniform(0.01, 0.1, (6, 3)).astype(np.float32))
    more = [g.module.add_literal(rng.integers(0, 16, (6, 3)).astype(np.uint8))] if points else []
    program = g.ret(g.op("relu", g.op("matmul_nbits", g.param("x", [2, 90]), codes, scales, *more)))
    after = truncated(program, type=type)
    assert types(after)["matmul_nbits"] == {type}
    assert worst(program, after) < (4e-3 if type is HALF else 3e-2)


def test_softmax_and_what_leads_to_it_stay_in_float32() -> None:
    g = Graph()
    q, k, v = (g.param(name, [2, 9, 8]) for name in "qkv")
    scores = g.op("dot", q, g.op("transpose", k, permutation=(0, 2, 1)))
    masked = g.op("add", g.op("mul", scores, g.scalar(0.125, scores)), g.scalar(-1e9, scores))
    program = g.ret(g.op("dot", g.op("softmax", masked, axis=2), v))
    found = types(truncated(program))
    assert found["softmax"] == found["add"] == {Type.float_type} and found["dot"] == {HALF}


@pytest.mark.parametrize("divided", [False, True])
def test_scores_that_pass_65504_before_they_are_scaled(divided: bool) -> None:
    g = Graph()
    q, k = g.param("q", [1, 4, 64]), g.param("k", [1, 64, 6])
    scores = g.op("dot", q, k)
    scaled = g.op("div", scores, g.scalar(8, scores)) if divided else g.op("mul", g.scalar(0.125, scores), scores)
    program = g.ret(g.op("softmax", scaled, axis=2))
    values = {"q": np.full((1, 4, 64), 40, np.float32), "k": np.full((1, 64, 6), 30, np.float32)}
    assert (values["q"] @ values["k"]).max() > 65504
    np.testing.assert_allclose(evaluate(truncated(program), values)[0], 1 / 6, rtol=1e-3)


def test_masks_with_the_largest_float32() -> None:
    g = Graph()
    scores, mask = g.param("s", [2, 4, 6]), g.param("m", [2, 1, 6])
    lowest = g.scalar(float(np.finfo(np.float32).min), mask)
    masked = g.op("mul", g.op("sub", g.scalar(1, mask), mask), lowest)
    program = g.ret(g.op("softmax", g.op("add", scores, g.spread(masked, 2, 4, 6)), axis=2), masked)
    values = random_inputs(program)
    values["m"] = np.tile(np.float32([1, 0, 1]), 4).reshape(2, 1, 6)
    for found, expected in zip(evaluate(truncated(program), values), evaluate(program, values)):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1.0, 3e4])
def test_layer_norm_overflows_nowhere_and_keeps_its_epsilon(size: float) -> None:
    g = Graph()
    x = g.param("x", [3, 50])
    program = g.ret(layer_norm(g, g.op("relu", x), 1e-12))
    values = {"x": (np.random.default_rng(0).standard_normal((3, 50)) * size).astype(np.float32)}
    values["x"][1] = -1  # no variance
    found, expected = (evaluate(p, values)[0] for p in (truncated(program), program))
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3)


def test_a_residual_stream_may_pass_65504() -> None:
    g = Graph()
    x = stream = g.param("x", [2, 16])
    for seed in range(4):
        w = g.random(16, 16, seed=seed, low=-0.2, high=0.2)
        stream = g.op("add", stream, g.op("dot", x, w))
    program = g.ret(layer_norm(g, stream, 1e-5))
    values = {"x": np.full((2, 16), 3e4, np.float32)}
    with np.errstate(all="ignore"):
        found, expected = (evaluate(p, values)[0] for p in (truncated(program), program))
    assert types(truncated(program))["add"] == {Type.float_type}
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("why", ["", "names", "kept", "result", "other reader", "given"])
def test_residual_sums_read_what_a_product_reads_if_all_is_to_be_in_16_bits(why: str) -> None:
    """Only one form of the addend is then stored; a reader that was not chosen sees all bits."""
    g = Graph()
    x = g.param("x", [5, 7])
    x = x if why == "given" else g.op("exp", x)
    total = g.op("add", g.op("dot", g.op("dot", x, g.random(7, 7)), g.random(7, 7, seed=2)), x)
    others = [x] if why == "result" else [g.op("sin", x)] if why == "other reader" else []
    program = g.ret(total, *others)
    step = TruncateFloat(("dot",) if why == "names" else ("all",), kept=[total] if why == "kept" else [])
    run_passes(program, [step, "optimize_module"], Options(), validate=True)
    read = {i.name for i in find(program, "add").inputs}
    assert ("exp" in read or "@param" in read) == bool(why)


@pytest.mark.parametrize("type", [HALF, BF16])
def test_what_leads_to_results_alone_is_rounded_to_float16_but_not_to_bfloat16(type: Type) -> None:
    g = Graph()
    x = g.param("x", [6, 8])
    first = g.op("relu", g.op("tanh", x))  # no product comes before it
    inner = g.op("abs", g.op("dot", first, g.random(8, 8)))
    logits = g.op("dot", inner, g.random(8, 5))
    program = g.ret(g.op("sigmoid", g.op("concat", logits, g.op("neg", inner), axis=1)))
    after = truncated(program, type=type)
    found, ends = types(after), Type.float_type if type is BF16 else HALF
    assert found["sigmoid"] == found["concat"] == found["neg"] == {ends}
    assert found["dot"] == found["abs"] == found["relu"] == found["tanh"] == {type}
    assert worst(program, after) < (4e-3 if type is HALF else 2e-2)


def squeeze_excite(g: Graph, x: Instruction) -> Program:
    """A convolution of what the gates of its channels let through, and a sum of that with the gates themselves."""
    channels = x.shape.lens[1]
    pooled = g.op("pooling", x, mode="average", lengths=x.shape.lens[2:], padding=[0, 0], stride=[1, 1])
    logits = g.op("convolution", pooled, g.random(channels, channels, 1, 1))
    gate = g.op("sigmoid", g.op("add", logits, g.spread(g.random(1, channels, 1, 1), *logits.shape.lens)))
    through = g.op("mul", g.op("relu", x), g.spread(gate, *x.shape.lens))
    return g.ret(g.op("convolution", through, g.random(5, channels, 1, 1)))


@pytest.mark.parametrize("type", [HALF, BF16])
def test_gates_are_rounded_to_float16_but_not_to_bfloat16(type: Type) -> None:
    g = Graph()
    program = squeeze_excite(g, g.param("x", [2, 6, 5, 3]))
    after = truncated(program, type=type)
    found, gates = types(after), Type.float_type if type is BF16 else HALF
    assert found["sigmoid"] == found["add"] == found["mul"] == {gates}
    assert found["convolution"] == found["relu"] == {type}
    assert worst(program, after) < (4e-3 if type is HALF else 2e-2)


def test_what_is_spread_to_the_lengths_of_another_value() -> None:
    g = Graph()
    x, row = g.param("x", [4, 8]), g.op("tanh", g.param("r", [1, 8]))
    program = g.ret(g.op("dot", g.op("mul", x, g.op("multibroadcast", row, x)), g.random(8, 3)))
    after = truncated(program, type=BF16)
    assert types(after)["tanh"] == {Type.float_type} and worst(program, after) < 2e-2


def test_what_is_spread_for_more_than_pointwise_operations_is_rounded() -> None:
    g = Graph()
    x, row = g.param("x", [4, 8]), g.op("tanh", g.param("r", [1, 8]))
    rows = g.spread(row, 4, 8)
    program = g.ret(g.op("dot", rows, g.random(8, 3)), g.op("mul", x, rows))
    found = types(truncated(program, type=BF16))
    assert found["tanh"] == found["mul"] == {BF16}


@pytest.mark.parametrize("given", ["float", "double"])
def test_biases_and_scales_keep_their_bits_in_bfloat16(given: str) -> None:
    """Their other operands and their results are rounded.

    Full-size constants and single numbers are rounded, too, and so are all operands of an operation that is named.
    """
    g = Graph()
    x = g.param("x", [3, 5], given)

    def constant(seed: int, *lens: int) -> Instruction:
        return g.module.add_literal(np.random.default_rng(seed).uniform(1, 2, lens).astype(x.shape.type.numpy))

    product = g.op("dot", x, constant(0, 5, 6))
    scaled = g.op("mul", g.spread(constant(1, 1, 6), 3, 6), product)
    biased = g.op("add", scaled, g.spread(constant(2, 6), 3, 6))
    moved = g.op("add", g.op("relu", biased), constant(3, 3, 6))
    less = g.op("min", moved, g.scalar(2.3, moved))
    exact = g.op("max", less, g.spread(g.module.add_literal(np.arange(6).astype(x.shape.type.numpy)), 3, 6))
    program = g.ret(g.op("dot", exact, constant(4, 6, 2)))
    after, wide = truncated(program, type=BF16), x.shape.type
    operands = {i.name: [v.shape.type for v in i.inputs] for i in after.main if i.name in ("mul", "min", "max")}
    assert operands == {"mul": [wide] * 2, "min": [BF16] * 2, "max": [BF16] * 2}
    assert [i.shape.type for i in after.main if i.name == "add"] == [wide, BF16]
    assert all(u.name == "convert" and u.shape.type is BF16 for i in after.main if i.name == "mul" for u in i.users)
    assert types(after)["relu"] == {BF16} and worst(program, after) < 2e-2
    assert types(truncated(program, ("all", "add"), BF16))["add"] == {BF16}
    assert types(truncated(program, type=HALF))["add"] == {HALF}


@pytest.mark.parametrize("shift", [np.nan, np.inf, 3e38, 0.0])
def test_shifts_that_are_kept_may_be_anything(shift: float) -> None:
    g = Graph()
    x = g.param("x", [0 if shift == 0 else 2, 3])
    row = g.spread(g.lit([shift, 0.1, -0.3]), *x.shape.lens)
    program = g.ret(g.op("dot", g.op("add", g.op("relu", x), row), g.random(3, 3)))
    after = truncated(program, type=BF16)
    values = random_inputs(program)
    with np.errstate(all="ignore"):
        found, expected = (evaluate(p, values)[0] for p in (after, program))
    np.testing.assert_allclose(found, expected, rtol=5e-2, atol=5e-2)


def test_names_patterns_and_exceptions() -> None:
    g = Graph()
    x = g.param("x", [4, 8])
    first, second = (g.op("dot", x, g.random(8, 8, seed=seed)) for seed in (1, 2))
    first.debug_symbols, second.debug_symbols = ("encoder.0",), ("decoder.0",)
    program = g.ret(g.op("softmax", g.op("sub", first, second), axis=1))

    def narrow(*chosen: str) -> list[str]:
        after = truncated(program, chosen)
        return [*(s for i in after.main if i.shape.type is HALF and i.name == "dot" for s in i.debug_symbols)]

    assert narrow("dot") == narrow("all") == narrow("dot", "softmax") == ["encoder.0", "decoder.0"]
    assert narrow("encoder*") == narrow("~decoder.0") == narrow("dot", "~dec*") == ["encoder.0"]
    assert narrow("sub") == []
    assert types(truncated(program, ("softmax",)))["softmax"] == {HALF}  # what is named need not be left


def test_results_with_several_elements_and_submodules() -> None:
    g = Graph()
    x = g.param("x", [6, 10])
    top = g.op("topk", x, k=3, axis=1)
    chosen = g.op("get_tuple_elem", top, index=0)
    program = g.ret(chosen, g.op("get_tuple_elem", top, index=1))
    after = truncated(program, ("topk",))
    assert any(s.type is HALF for i in after.main if i.name == "topk" for s in i.shape.sub_shapes)
    values = random_inputs(program)
    np.testing.assert_allclose(evaluate(after, values)[0], evaluate(program, values)[0], rtol=1e-3)


@pytest.mark.parametrize("given", ["dot", [], [""], ["~"], [3]])
def test_names_that_are_none(given: object) -> None:
    with pytest.raises(OptionError, match="ins_names"):
        Selection(given)  # type: ignore[arg-type]


def test_names_of_nothing() -> None:
    program = Graph()
    program.ret(program.op("relu", program.param("x", [2])))
    with pytest.raises(OptionError, match="'convolutoin' names no operator and no node.*did you mean convolution"):
        Selection(["convolutoin"]).check(program.program)
    Selection(["dot", "re*", "~all"]).check(program.program)
    with pytest.raises(OptionError, match="float_type is int8_type"):
        TruncateFloat(["all"], Type.int8_type)
    validate(program.program)
    assert names(program.program) == ["relu"]


@pytest.mark.parametrize("type", [HALF, BF16])
def test_products_that_are_kept_see_no_rounded_values(type: Type) -> None:
    """Concatenations and pools that lead to them were computed in 16 bits."""
    g = Graph()
    x = g.param("x", (1, 4, 6, 6))
    pool = g.op("pooling", g.op("relu", x), lengths=(2, 2), stride=(1, 1), padding=(0, 0, 1, 1))
    value = g.op("convolution", g.op("concat", x, pool, axis=1), g.random(3, 8, 1, 1))
    program = g.ret(value)
    after = program.clone()
    kept = [ins for ins in after.main if ins.name == "convolution"]
    run_passes(after, [TruncateFloat(("all",), type, kept), "optimize_module"], Options(), validate=True)
    assert worst(program, after) == 0
    assert worst(program, truncated(program, type=type)) > 0
