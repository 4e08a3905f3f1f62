"""Attention on tensor cores has the values of ref: masks, groups of heads, split keys, fully masked rows."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.attention.flash import attention_solution
from mgx_numba.codegen.gpu.driver.device import known_architecture
from mgx_numba.codegen.gpu.machine import H200, planning_for
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.problems.attention import AttentionProblem
from mgx_numba.codegen.problems.gemm import packed_strides
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .programs import compiled, interpreter

F16, BF16, F32, BOOL = Type.half_type, Type.bf16_type, Type.float_type, Type.bool_type
ALLOWED = {F16: 2e-3, BF16: 2e-2, F32: 1e-5}
"""Errors relative to the largest result: those of rounding weights and results; float32 is multiplied in parts."""
IN_TF32 = 4e-3
"""Accepted error of float32 multiplied once in TF32: ten bits of the scores, and of the weights."""

Mask = tuple[Type, tuple[int, ...]] | None


def attention(
    type: Type, lens: tuple[int, ...], on: Engine, mask: Mask = None, spoil: bool = False, precision: str = "high",
    **attributes: object,
) -> GpuProgram:  # fmt: skip
    """Run and compare; ``lens`` are batch, heads, key heads, queries, keys, features of keys and of values."""
    batch, heads, shared, queries, keys, depth, width = lens
    program, rng = Program(), np.random.default_rng(sum(lens))
    m: Module = program.main
    shapes = {
        "q": (batch, heads, queries, depth),
        "k": (batch, shared, keys, depth),
        "v": (batch, shared, keys, width),
    }
    operands = [m.add_parameter(name, Shape(type, own)) for name, own in shapes.items()]
    inputs = {name: rng.standard_normal(own).astype(type.numpy) for name, own in shapes.items()}
    if mask is not None:
        operands.append(m.add_parameter("mask", Shape(*mask)))
        drawn = rng.standard_normal(mask[1])
        inputs["mask"] = drawn > 0 if mask[0] is BOOL else drawn.astype(mask[0].numpy)
        if spoil:
            inputs["mask"][..., 2, :] = False if mask[0] is BOOL else -np.inf
    if "fill" in attributes:
        inputs["q"] *= 8  # so that scores survive in a sum with the fill
    m.add_return([m.add_instruction("attention", operands, **{"scale": 0.3, **attributes})])
    made = compiled(program, on, fast_math=True, float32_matmul_precision=precision)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    far = np.nanmax(np.abs(got.astype(np.float64) - wanted.astype(np.float64)))
    assert far <= (IN_TF32 if precision == "medium" else ALLOWED[type]) * np.nanmax(
        np.abs(wanted.astype(np.float64))
    ), far
    assert made.executable is not None
    assert not made.fallback_reasons()
    return made


@pytest.mark.parametrize(
    ("type", "lens", "mask"),
    [
        (F16, (1, 2, 1, 20, 70, 16, 24), None),
        (BF16, (2, 1, 1, 70, 33, 40, 16), None),
        (F16, (1, 1, 1, 3, 5, 8, 8), (F16, (3, 5))),
        (F16, (2, 2, 2, 9, 40, 32, 32), (BOOL, (2, 1, 1, 40))),
        (BF16, (1, 2, 1, 17, 40, 32, 32), (BF16, (1, 2, 17, 40))),
        (F16, (4, 1, 1, 5, 16, 16, 16), (F16, (2, 1, 5, 16))),
        (F16, (1, 1, 1, 17, 40, 136, 152), (BOOL, (1, 1, 17, 1))),
        (F32, (1, 2, 1, 20, 70, 12, 24), None),
        (F32, (2, 1, 1, 9, 33, 32, 16), (F32, (2, 1, 9, 33))),
        (F32, (1, 1, 1, 5, 24, 68, 72), (BOOL, (1, 1, 1, 24))),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_values(type: Type, lens: tuple[int, ...], mask: Mask, causal: bool, on: Engine) -> None:
    attention(type, lens, on, mask, causal=causal)


@pytest.mark.parametrize("nan_rows", [False, True])
@pytest.mark.parametrize("mask", [(BOOL, (1, 1, 5, 20)), (F16, (5, 20))])
def test_rows_that_see_no_key(mask: Mask, nan_rows: bool, on: Engine) -> None:
    attention(F16, (1, 1, 1, 5, 20, 16, 16), on, mask, spoil=True, nan_rows=nan_rows)


@pytest.mark.parametrize("fill", [-1e9, -20.0, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize(("type", "queries", "causal"), [(F16, 5, False), (F32, 5, True), (BF16, 3, False)])
def test_a_fill_replaces_scores_where_the_mask_does_not_keep(
    type: Type, queries: int, causal: bool, fill: float, on: Engine
) -> None:
    lens = (1, 2, 1, queries, 260, 16, 16)
    attention(type, lens, on, (BOOL, (1, 1, queries, 260)), spoil=True, fill=fill, causal=causal, nan_rows=True)


def test_first_queries_see_no_key(on: Engine) -> None:
    attention(F16, (1, 1, 1, 40, 7, 16, 16), on, causal=True)


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "mask"),
    [(4, 1, 300, (BOOL, (1, 1, 1, 300))), (2, 3, 600, None), (2, 16, 1300, None), (2, 2, 130, None)],
)
def test_few_queries_divide_the_keys(heads: int, queries: int, keys: int, mask: Mask, on: Engine) -> None:
    """The warps of a block share keys, and the last block joins the parts of all; a second launch took 2 us more."""
    made = attention(F16, (2, heads, 2, queries, keys, 32, 40), on, mask)
    assert made.executable is not None
    found = [step.label.removeprefix("gpu::") for step in made.executable.plan.steps]
    assert len(found) == 1 + (keys > 256) and "attention" in found[-1]
    assert keys < 256 or found[0] == "clear_counters_kernel"


def test_parts_are_joined_again_in_each_run(on: Engine) -> None:
    """The last block sets the counter back: attention after attention, and run after run, finds it at 0."""
    program, rng = Program(), np.random.default_rng(6)
    shapes = {"q": (2, 2, 1, 16), "k": (2, 2, 700, 16), "v": (2, 2, 700, 16)}
    q, k, v = (program.main.add_parameter(n, Shape(F16, own)) for n, own in shapes.items())
    for _ in range(2):
        q = program.main.add_instruction("attention", [q, k, v], scale=0.25)
    program.main.add_return([q])
    made = compiled(program, on)
    assert made.executable is not None
    assert len(made.executable.plan.steps) == 3  # one launch clears the counters of both
    for _ in range(3):
        inputs = {n: rng.standard_normal(own).astype(np.float16) for n, own in shapes.items()}
        (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
        np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(wanted, np.float32), atol=2e-3)


def test_heads_in_place_of_projections(on: Engine) -> None:
    """Heads are slices of one product's rows, and the result goes to rows of all heads."""
    program, rng = Program(), np.random.default_rng(5)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (2, 24, 3, 2, 16)))
    heads = []
    for k in range(3):
        part = m.add_instruction("slice", [x], axes=(2,), starts=(k,), ends=(k + 1,))
        part = m.add_instruction("squeeze", [part], axes=(2,))
        heads.append(m.add_instruction("transpose", [part], permutation=(0, 2, 1, 3)))
    mixed = m.add_instruction("attention", heads, scale=0.25)
    mixed = m.add_instruction("transpose", [mixed], permutation=(0, 2, 1, 3))
    m.add_return([m.add_instruction("reshape", [mixed], dims=(2, 24, 32))])
    inputs = {"x": rng.standard_normal((2, 24, 3, 2, 16)).astype(np.float16)}
    made = compiled(program, on)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max() < 2e-3
    assert made.executable is not None
    assert [step.label for step in made.executable.plan.steps] == ["gpu::attention_float16_kernel"]


@pytest.mark.parametrize("queries", [3, 20])
def test_float32_as_one_product_in_tf32(queries: int, on: Engine) -> None:
    attention(F32, (1, 2, 2, queries, 130, 16, 24), on, precision="medium")


@pytest.mark.parametrize(
    ("name", "type", "queries", "key"),
    [  # queries fill the rows of a tile; of float32, sm_90a takes the kernel of sm_80; keys of a first and a later step
        ("sm_80", F32, 64, 5),
        ("sm_80", BF16, 64, 100),
        ("sm_90a", BF16, 64, 5),
        ("sm_90a", BF16, 64, 100),
        ("gfx942", F32, 128, 100),
        ("gfx942", BF16, 128, 5),
    ],
)
def test_scores_far_from_zero(name: str, type: Type, queries: int, key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of these scores with the scale are rounded by more than the exponent's range."""
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, rng = Program(), np.random.default_rng(key)
    rows = {"q": queries, "k": 130, "v": 130}
    inputs = {x: rng.standard_normal((1, 2, rows[x], 16)).astype(type.numpy) for x in "qkv"}
    inputs["k"][0, 0, key, 1] = -1e37
    inputs["k"][0, 1, [3, key], 2] = [1e36, 3e36]
    operands = [program.main.add_parameter(x, Shape(type, value.shape)) for x, value in inputs.items()]
    program.main.add_return([program.main.add_instruction("attention", operands, scale=0.3)])
    (got,) = compiled(program, interpreter(), fast_math=True).run(inputs)
    q, k, v = (inputs[x].astype(np.float64) for x in "qkv")
    scores = 0.3 * np.einsum("bhid,bhjd->bhij", q, k)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    wanted = np.einsum("bhij,bhjd->bhid", weights / weights.sum(axis=3, keepdims=True), v)
    assert np.abs(got.astype(np.float64) - wanted).max() <= ALLOWED[type] * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_a_row_of_no_numbers_beside_one_far_from_zero(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread computes both rows; NaN in one row must not affect the other."""
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, rng = Program(), np.random.default_rng(1)
    inputs = {x: rng.standard_normal((1, 1, 16, 16)).astype(np.float32) for x in "qkv"}
    inputs["k"][0, 0, 3, 1] = -1e37
    m: Module = program.main
    operands = [m.add_parameter(x, Shape(F32, value.shape)) for x, value in inputs.items()]
    m.add_return([m.add_instruction("attention", operands, scale=0.3)])
    made = compiled(program, interpreter(), fast_math=True)
    (wanted,) = made.run(inputs)
    inputs["q"][0, 0, [1, 10]] = np.nan
    (got,) = made.run(inputs)
    numbers = ~np.isin(np.arange(16), [1, 10])
    assert np.isnan(got[0, 0, ~numbers]).all()
    np.testing.assert_array_equal(got[0, 0, numbers], wanted[0, 0, numbers])


def test_keys_of_many_features_are_fewer_at_once(on: Engine) -> None:
    made = attention(F32, (1, 1, 1, 3, 20, 132, 256), on)
    assert made.executable is not None
    known = known_architecture()
    least = min(a.shared_bytes for a in ARCHITECTURES.values() if a.nvidia and a.capability >= (8, 0))
    most = least if known is None else known.shared_bytes
    assert all(step.geometry.shared_bytes <= most for step in made.executable.plan.steps)


@pytest.mark.parametrize(
    ("precision", "features", "reason"),
    [
        ("highest", 16, "multiply float32 in TF32"),
        ("high", 6, "6 and 6 features are no whole vectors"),
        ("high", 16, ""),
    ],
)
def test_float32_that_no_kernel_takes_keeps_its_products(
    precision: str, features: int, reason: str, on: Engine
) -> None:
    program = Program()
    m: Module = program.main
    q, k, v = (m.add_parameter(name, Shape(Type.float_type, (1, 2, 8, features))) for name in "qkv")
    scores = m.add_instruction("dot", [q, m.add_instruction("transpose", [k], permutation=(0, 1, 3, 2))])
    m.add_return([m.add_instruction("dot", [m.add_instruction("softmax", [scores], axis=3), v])])
    made = compiled(program, on, float32_matmul_precision=precision)
    assert not made.fallback_reasons()
    said = [r.reason for r in made.rewrite_log().refusals() if "no kernel computes attention" in r.reason]
    assert all(reason in text for text in said) and bool(said) == bool(reason)


@pytest.mark.parametrize("name", ["sm_80", "sm_89", "sm_90a", "sm_120a"])
def test_the_instructions_are_those_of_tensor_cores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program = Program()
    m: Module = program.main
    heads = [m.add_parameter(n, Shape(F16, (1, 2, 16, 64))) for n in "qkv"]  # fewer than warpgroups take
    m.add_return([m.add_instruction("attention", heads)])
    (kernel,) = compiled(program, interpreter()).kernels()
    text = assembly(kernel, ARCHITECTURES[name])
    for wanted in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4.trans", "cp.async.cg", "ex2.approx"):
        assert wanted in text, wanted
    assert ".local" not in text


@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_90a"])
def test_the_last_block_acquires_what_others_released(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    problem = AttentionProblem(1, 8, 8, 1, 4096, 128, 128, *4 * ((128, 128, 128, 1),), "float16")
    solution = attention_solution(problem, "high")
    text = assembly(solution.launches[0].kernel, ARCHITECTURES[name])
    assert ("atom.acq_rel.gpu.add.u32" in text) == (len(solution.launches) == 1) == (name != "sm_75")
    assert ".local" not in text


@pytest.mark.parametrize(("precision", "features"), [("highest", 16), ("high", 6)])
def test_attention_without_a_kernel_is_written_out(precision: str, features: int, on: Engine) -> None:
    made = attention(
        F32, (2, 4, 2, 5, 9, features, features), on, (BOOL, (2, 1, 5, 9)), True, precision, causal=True
    )  # fmt: skip
    assert made.executable is not None
    assert not any("attention" in step.label for step in made.executable.plan.steps)


QUANTISED = (Type.int8_type, Type.uint8_type, Type.fp8e4m3fn_type)
LENS = ((2, 3, 3, 20, 70, 16, 16), (1, 2, 1, 1, 900, 16, 32), (1, 2, 2, 66, 70, 64, 64))


@pytest.mark.parametrize(
    ("kind", "lens", "merged"),
    [(kind, lens, (i + j) % 2 == 1) for i, kind in enumerate(QUANTISED) for j, lens in enumerate(LENS)],
)
def test_quantised_results(
    kind: Type, lens: tuple[int, ...], merged: bool, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention's kernel writes them in 8 bits, with heads in the place that what comes next wants them in; by parts of
    the keys, too."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    batch, heads, shared, queries, keys, depth, width = lens
    program, rng = Program(), np.random.default_rng(sum(lens))
    m: Module = program.main
    shapes = [(batch, heads, queries, depth), (batch, shared, keys, depth), (batch, shared, keys, width)]
    operands = [m.add_parameter(name, Shape(F16, own)) for name, own in zip("qkv", shapes)]
    inputs = {name: rng.standard_normal(own).astype(np.float16) for name, own in zip("qkv", shapes)}
    y = m.add_instruction("attention", operands, scale=0.3)
    if merged:
        y = m.add_instruction("transpose", [y], permutation=(0, 2, 1, 3))
        y = m.add_instruction("reshape", [y], dims=(batch, queries, heads * width))
    y = m.add_instruction("convert", [y], target_type=F32)
    point = np.array([0 if kind.is_floating else 3], kind.numpy)
    spread = [
        m.add_instruction("multibroadcast", [m.add_literal(v)], out_lens=y.shape.lens)
        for v in (np.array([0.0213], np.float32), point)
    ]
    m.add_return([m.add_instruction("quantizelinear", [y, *spread], out_type=kind)])
    made = compiled(program, on, fast_math=True)
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert all("attention" in label or "clear_counters" in label for label in labels), labels
    got, wanted = (np.asarray(r[0]).astype(np.float32) for r in (made.run(inputs), reference(program, inputs).results))
    if kind.is_floating:
        assert (np.abs(got - wanted) <= 2.0**-3 * np.abs(wanted) + 0.02).all()
    else:
        assert np.abs(got - wanted).max() <= 1 and (got != wanted).mean() < 0.1


@pytest.mark.parametrize(("keys", "parts"), [(72, 1), (256, 1), (513, 5)])
def test_few_keys_of_one_query_are_not_divided(keys: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To join parts takes longer than two tiles of each warp one after the other."""
    strides = [packed_strides((1, 8, n, 64)) for n in (1, keys, keys, 1)]
    problem = AttentionProblem(1, 8, 8, 1, keys, 64, 64, *strides, "float16")
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    with planning_for(H200):
        (launch,) = attention_solution(problem, "high").launches
    assert launch.geometry.blocks[2] == parts  # type: ignore[union-attr]


@pytest.mark.parametrize("warpgroups", [False, True])
def test_heads_that_begin_between_vectors(warpgroups: bool, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that follow one another were not copied, wherever the first one began."""
    if warpgroups:
        monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program, rng = Program(), np.random.default_rng(0)
    m = program.main
    lens = (1, 2, 40, 16)
    heads = []
    for name in "qkv":
        flat = m.add_parameter(name, Shape(F16, (1 + 2 * 40 * 16,)))
        own = m.add_instruction("slice", [flat], axes=(0,), starts=(1,), ends=(1 + 2 * 40 * 16,))
        heads.append(m.add_instruction("reshape", [own], dims=lens))
    m.add_return([m.add_instruction("attention", heads, scale=0.25)])
    inputs = {name: rng.standard_normal(1 + 2 * 40 * 16).astype(np.float16) for name in "qkv"}
    (got,), (wanted,) = compiled(program, on).run(inputs), reference(program, inputs).results
    assert np.abs(got.astype(np.float64) - wanted).max() < 5e-3
