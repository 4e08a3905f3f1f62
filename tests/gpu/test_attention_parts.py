"""Float32 attention by warpgroups, in parts: within 1e-5 of exact results, with float32's infinities and NaN.

The interpreter must report wrong synchronisation.
"""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.attention import flash, warpgroup_bf16_split
from mgx_numba.codegen.gpu.attention.warpgroup_bf16_split import chosen_bf16_split_tile
from mgx_numba.codegen.gpu.attention.warpgroups import AttentionTile
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.problems.attention import AttentionProblem
from mgx_numba.codegen.problems.gemm import packed_strides
from mgx_numba.core.shape import Shape
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from ..interpreter.lanes import KernelFault
from .programs import compiled, interpreter
from .test_attention import BOOL, F32, Mask, attention
from .test_warpgroup_attention import leave_out

SMALL = AttentionTile(1, 64, 2, 1)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use warpgroups for all problems that they support, even with few queries."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(warpgroup_bf16_split, "LEAST_QUERIES", 1)
    monkeypatch.setattr(warpgroup_bf16_split, "least_tiles", lambda: 1)


def agree(
    lens: tuple[int, ...], tile: AttentionTile, on: Engine, monkeypatch: pytest.MonkeyPatch, **given: object
) -> None:
    """Compute and compare, with a tile; ``given`` as of `attention`."""
    monkeypatch.setattr(warpgroup_bf16_split, "chosen_bf16_split_tile", lambda _: tile)
    made = attention(F32, lens, on, **given)  # type: ignore[arg-type]
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert any(label.startswith("gpu::attention_warpgroup_parts") for label in labels)


@pytest.mark.parametrize(
    ("lens", "mask", "tile", "causal"),
    [
        ((1, 2, 1, 70, 300, 16, 24), None, AttentionTile(1, 64, 3, 1), False),
        ((1, 2, 1, 70, 300, 16, 24), None, AttentionTile(1, 64, 3, 1), True),
        ((1, 1, 1, 130, 200, 40, 40), None, AttentionTile(3, 64, 2, 1), True),
        ((1, 1, 1, 70, 130, 80, 80), None, AttentionTile(2, 64, 2, 1), False),
        ((1, 1, 1, 3, 5, 4, 8), (F32, (3, 5)), SMALL, True),
        ((2, 1, 1, 9, 140, 68, 72), (BOOL, (2, 1, 1, 140)), SMALL, False),
        ((2, 1, 1, 9, 140, 68, 72), (BOOL, (2, 1, 1, 140)), SMALL, True),
        ((1, 2, 1, 17, 100, 12, 32), (F32, (1, 2, 17, 100)), AttentionTile(2, 64, 3, 1), False),
    ],
)
def test_values(
    lens: tuple[int, ...], mask: Mask, tile: AttentionTile, causal: bool, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(lens, tile, on, monkeypatch, mask=mask, causal=causal)


@pytest.mark.parametrize("nan_rows", [False, True])
def test_rows_that_see_no_key(nan_rows: bool, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    agree((1, 1, 1, 5, 70, 16, 16), SMALL, on, monkeypatch, mask=(BOOL, (1, 1, 5, 70)), spoil=True, nan_rows=nan_rows)


def test_a_fill_replaces_scores_where_the_mask_does_not_keep(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    agree((1, 1, 1, 5, 140, 16, 16), SMALL, on, monkeypatch, mask=(BOOL, (1, 1, 5, 140)), spoil=True, fill=-1e9)


def test_first_queries_see_no_key(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    agree((1, 1, 1, 150, 7, 16, 16), SMALL, on, monkeypatch, causal=True)


def qkv(lens: tuple[int, int, int, int], queries: int | None = None) -> tuple[Program, dict[str, np.ndarray]]:
    """Return attention of operands ``[batch, heads, rows, features]``, and values; ``queries``: rows of the first."""
    program, rng = Program(), np.random.default_rng(0)
    m: Module = program.main
    shapes = {"q": (*lens[:2], queries or lens[2], lens[3]), "k": lens, "v": lens}
    heads = [m.add_parameter(n, Shape(F32, own)) for n, own in shapes.items()]
    m.add_return([m.add_instruction("attention", heads, scale=0.3)])
    return program, {n: rng.standard_normal(own).astype(np.float32) for n, own in shapes.items()}


def test_heads_that_are_not_packed(on: Engine) -> None:
    """Heads are slices of one product's rows; none starts at an address that is valid for a TMA box."""
    program, rng = Program(), np.random.default_rng(5)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F32, (2, 70, 3, 2, 12)))
    heads = []
    for k in range(3):
        part = m.add_instruction("squeeze", [m.add_instruction("slice", [x], axes=(2,), starts=(k,), ends=(k + 1,))],
                                 axes=(2,))  # fmt: skip
        heads.append(m.add_instruction("transpose", [part], permutation=(0, 2, 1, 3)))
    heads[2] = m.add_instruction("slice", [heads[2]], axes=(3,), starts=(4,), ends=(12,))
    m.add_return([m.add_instruction("attention", heads, scale=0.25)])
    inputs = {"x": rng.standard_normal((2, 70, 3, 2, 12)).astype(np.float32)}
    made = compiled(program, on, fast_math=True)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert made.executable is not None
    assert [step.label for step in made.executable.plan.steps] == ["gpu::attention_warpgroup_parts_float32_kernel"]


def spoilt(case: str, inputs: dict[str, np.ndarray]) -> None:
    """Numbers that parts do not have, or barely."""
    q, k, v = (inputs[n] for n in "qkv")
    if case == "keys":  # of which queries of one sign see nothing, and of the other nothing else
        k[0, 0, 3, 5], k[0, 1, 66, 0] = np.inf, -np.inf
    elif case == "queries and keys":
        q[0, 0, :9, 2], k[0, 0, 60:, 2] = np.inf, -np.inf
    elif case == "values":
        v[0, 0, 3, 5], v[0, 0, 65, 6], v[0, 1, 0, 0] = np.inf, -np.inf, np.nan
        v[0, 1, 5, 1], v[0, 1, 66, 1] = np.inf, -np.inf
    elif case == "nan":
        q[0, 0, 3, 5], k[0, 1, 66, 0] = np.nan, np.uint32(0x7F800001).view(np.float32)
    elif case == "zero times infinity":
        q[0, 0, :5, 1], k[0, 0, 7, 1] = 0, -np.inf
    else:
        v[0, :, :, :3] *= np.float32(1e36)
        v[0, 0, 5, 4] = 0.99 * np.finfo(np.float32).max  # of which the largest bfloat16 is the high half
        k[0, 0, 5, 1] = -1e37


@pytest.mark.parametrize("case", ["keys", "queries and keys", "values", "nan", "zero times infinity", "large"])
@pytest.mark.parametrize(("name", "queries"), [("sm_90a", 70), ("sm_80", 64)])
def test_infinities_and_nan_are_those_of_float32(
    name: str, queries: int, case: str, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, inputs = qkv((1, 2, 70, 16), queries)
    spoilt(case, inputs)
    (got,) = compiled(program, on, fast_math=True).run(inputs)
    with np.errstate(all="ignore"):
        q, k, v = (inputs[n].astype(np.float64) for n in "qkv")
        scores = 0.3 * np.einsum("bhid,bhjd->bhij", q, k)
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        wanted = np.einsum("bhij,bhjd->bhid", weights / weights.sum(axis=3, keepdims=True), v)
        error = np.abs(got.astype(np.float64) - wanted)
    strange = ~np.isfinite(wanted)
    assert np.array_equal(np.where(strange, got, 0), np.where(strange, wanted, 0), equal_nan=True)
    assert np.isfinite(got[~strange]).all() and not strange.all()
    largest = np.abs(np.where(strange, 0, wanted)).max(axis=2, keepdims=True)  # of a feature, which may be small
    assert (error <= 2e-5 * largest)[~strange].all()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mbarrier_wait(offset(full, slot), phase)", "may be storing|no box has come"),
        ("mbarrier_wait(offset(empty, previous), previous_phase)", "may still be reading"),
        ("operand_fence()", "may be storing"),
        ("scores = wgmma_wait(scores, 0)", "reads sums that products may still be adding to"),
        ("products = wgmma_wait(products, 0)", "reads sums that products may still be adding to"),
    ],
)
def test_what_the_interpreter_says_of_wrong_synchronisation(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warpgroup_bf16_split, "chosen_bf16_split_tile", lambda _: AttentionTile(2, 64, 2, 1))
    leave_out(line, monkeypatch)
    program, inputs = qkv((1, 1, 300, 16))
    with pytest.raises(KernelFault, match=said):
        compiled(program, interpreter(), fast_math=True).run(inputs)


def test_the_instructions_are_those_of_warpgroups() -> None:
    program, _ = qkv((1, 2, 128, 64))
    (kernel,) = compiled(program, interpreter(), fast_math=True).kernels()
    text = assembly(kernel, ARCHITECTURES["sm_90a"])
    for wanted in ("m64n64k8.f32.tf32.tf32", "m64n64k16.f32.bf16.bf16", "fence.proxy.async", "ld.global.v4"):
        assert wanted in text, wanted
    assert ".local" not in text


@pytest.mark.parametrize("lens", [(16, 4096, 40), (96, 384, 64), (16, 1024, 80), (12, 197, 64), (1, 40, 4)])
def test_tiles_fit_a_multiprocessor(lens: tuple[int, int, int]) -> None:
    heads, length, features = lens
    strides = packed_strides((1, heads, length, features))
    problem = AttentionProblem(1, heads, heads, length, length, features, features, *[strides] * 4)
    (launch,) = flash.attention_solution(problem, "high").launches
    assert launch.geometry.shared_bytes + 2048 <= ARCHITECTURES["sm_90a"].shared_bytes  # type: ignore[union-attr]
    assert chosen_bf16_split_tile(problem).stages > 1
