"""The attention operator on the cpu target against ref, and models whose attention it recognises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bench.models import build, inputs
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import Plan
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import CpuProgram
from mgx_numba.targets.options import TargetOptions

from ..values import normal
from .programs import check, compile_and_run, program_of

HEADS_LAST = (0, 2, 1, 3)


def attend(m: Module, p: Sequence[Instruction], **attributes: Any) -> Instruction:
    """Projections [batch, position, head * feature] to the same, with heads of 8 features."""

    def heads(x: Instruction) -> Instruction:
        b, s, width = x.shape.lens
        return m.add_instruction(
            "transpose", [m.add_instruction("reshape", [x], dims=(b, s, width // 8, 8))], permutation=HEADS_LAST
        )

    y = m.add_instruction("attention", [*(heads(x) for x in p[:3]), *p[3:]], scale=0.35, **attributes)
    b, h, s, d = y.shape.lens
    return m.add_instruction(
        "reshape", [m.add_instruction("transpose", [y], permutation=HEADS_LAST)], dims=(b, s, h * d)
    )


def kernels(plan: Plan) -> list[str]:
    return [step.label for step in plan.steps]


@pytest.mark.usefixtures("vector_code")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_are_split_and_merged_without_copies(dtype: Any, causal: bool) -> None:
    arrays = [
        normal(2, 21, 32, dtype=dtype),
        normal(2, 33, 16, seed=1, dtype=dtype),
        normal(2, 33, 16, seed=2, dtype=dtype),
    ]

    def build_graph(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("relu", [attend(m, p, causal=causal)])

    check(arrays, build_graph)
    plan = lower(program_of(arrays, build_graph), TargetOptions())
    assert kernels(plan) == ["cpu::attention_kernel", "cpu::relu_kernel"]


MASKS = [
    normal(2, 1, 1, 33, seed=3),
    normal(21, 33, seed=3) > 0,
    normal(4, 21, 33, seed=3).astype(np.float64),
    (normal(21, 1, seed=3) * 4).astype(np.int32),
    normal(2, 1, 1, 33, seed=3).astype(np.float16),
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: f"{m.dtype}_{m.ndim}")
def test_masks_of_any_type(mask: np.ndarray) -> None:
    arrays = [normal(2, 21, 32), normal(2, 33, 32, seed=1), normal(2, 33, 32, seed=2), mask]
    check(arrays, attend)

    def broadcast(m: Module, p: list[Instruction]) -> Instruction:
        spread = m.add_instruction("multibroadcast", [p[3]], out_lens=(2, 4, 21, 33))
        return attend(m, [*p[:3], spread])

    check(arrays, broadcast)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fill", [-1e9, -1e4, -np.inf])
def test_rows_whose_every_key_is_masked_give_the_mean_of_all_values(dtype: Any, fill: float) -> None:
    """Decoders write where(mask, -1e9, scores); the fill was added, so that scores above 32 survived."""
    keep = normal(2, 1, 33, seed=3) > 0
    keep[1] = np.isinf(fill)  # softmax of nothing but -infinity is NaN
    arrays = [(8 * normal(2, 21, 32)).astype(dtype), normal(2, 33, 32, seed=1).astype(dtype), keep]

    def build_graph(m: Module, p: list[Instruction]) -> Instruction:
        keys = m.add_instruction("transpose", [p[1]], permutation=(0, 2, 1))
        scores = m.add_instruction("dot", [p[0], keys])
        spread = m.add_instruction("multibroadcast", [p[2]], out_lens=scores.shape.lens)
        with np.errstate(over="ignore"):
            literal = m.add_literal(np.full(scores.shape.lens, fill, dtype))
        masked = m.add_instruction("where", [spread, scores, literal])
        return m.add_instruction("dot", [m.add_instruction("softmax", [masked], axis=2), p[1]])

    check(arrays, build_graph)


@pytest.mark.parametrize("queries", [1, 21])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_])
def test_masks_of_windows_repeat_from_image_to_image(dtype: Any, queries: int) -> None:
    mask = normal(3, 4, queries, 33, seed=3)
    mask = mask > 0 if dtype is np.bool_ else mask.astype(dtype)
    check([normal(6, queries, 32), normal(6, 33, 32, seed=1), normal(6, 33, 32, seed=2), mask], attend)


@pytest.mark.usefixtures("vector_code")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_])
@pytest.mark.parametrize("lens", [(2, 4, 21, 33), (21, 33), (4, 1, 33), (1, 4, 21, 1)])
def test_constant_masks_lie_as_the_kernel_reads_them(lens: tuple[int, ...], dtype: Any) -> None:
    mask = normal(*lens, seed=3)
    mask = mask > -1 if dtype is np.bool_ else mask.astype(dtype)
    arrays = [normal(2, 21, 32), normal(2, 33, 32, seed=1), normal(2, 33, 32, seed=2)]

    def build_graph(m: Module, p: list[Instruction]) -> list[Instruction]:
        literal = m.add_literal(mask)
        spread = m.add_instruction("multibroadcast", [literal], out_lens=(2, 4, 21, 33))
        return [attend(m, [*p, literal]), attend(m, [*p, spread])]

    check(arrays, build_graph)
    plan = lower(program_of(arrays, build_graph), TargetOptions())
    kind = "where" if dtype is np.bool_ else "add"
    kind += "" if lens[-2] == 1 else "_turned"
    assert kernels(plan) == [f"cpu::attention_{kind}_kernel"] * 2


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_types_compute_in_float32(dtype: Any) -> None:
    arrays = [
        normal(2, 9, 32, dtype=dtype),
        normal(2, 11, 16, seed=1, dtype=dtype),
        normal(2, 11, 16, seed=2, dtype=dtype),
    ]
    check([*arrays, normal(9, 11, seed=3, dtype=dtype)], attend, rtol=1e-2)


def test_values_with_scattered_features() -> None:
    def build_graph(m: Module, p: list[Instruction]) -> Instruction:
        v = m.add_instruction("transpose", [p[2]], permutation=(0, 1, 3, 2))
        return m.add_instruction("attention", [p[0], p[1], v], scale=0.35)

    check([normal(2, 4, 5, 8), normal(2, 4, 7, 8, seed=1), normal(2, 4, 8, 7, seed=2)], build_graph)


def test_one_query_over_a_growing_cache() -> None:
    def build_graph(m: Module, p: list[Instruction]) -> list[Instruction]:
        k, v = (m.add_instruction("concat", [p[2 * i + 1], p[2 * i + 2]], axis=2) for i in range(2))
        return [m.add_instruction("attention", [p[0], k, v], scale=0.35, causal=True), k, v]

    cache = [normal(1, 2, n, 16, seed=k) for k, n in enumerate((40, 1, 40, 1))]
    check([normal(1, 6, 1, 16, seed=9), *cache], build_graph)


def test_result_goes_into_a_concat() -> None:
    def build_graph(m: Module, p: list[Instruction]) -> Instruction:
        y = m.add_instruction("attention", p[:3], scale=0.35)
        return m.add_instruction("concat", [p[0], y], axis=1)

    arrays = [normal(2, 4, 5, 8), normal(2, 4, 7, 8, seed=1), normal(2, 4, 7, 8, seed=2)]
    check(arrays, build_graph)


def test_long_sequence_of_one_head_is_split_over_threads() -> None:
    arrays = [normal(1, 1, 1, 16), normal(1, 1, 5000, 16, seed=1), normal(1, 1, 5000, 16, seed=2)]

    def build_graph(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("attention", p)

    check(arrays, build_graph, num_threads=8)
    plan = lower(program_of(arrays, build_graph), TargetOptions(num_threads=8))
    assert kernels(plan) == ["cpu::attention_few_kernel", "cpu::attention_join_kernel"]


def test_no_keys_at_all() -> None:
    arrays = [normal(1, 2, 3, 8), normal(1, 2, 0, 8), normal(1, 2, 0, 8)]
    (got,), _ = compile_and_run(program_of(arrays, lambda m, p: m.add_instruction("attention", p)), arrays)
    assert got.shape == (1, 2, 3, 8) and not got.any()


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_models_use_the_kernel(name: str) -> None:
    model = build(name, scale="tiny")
    feeds = inputs(name, model)
    parsed = parse_onnx(model)
    fused = CpuProgram(parsed, TargetOptions(fast_math=False), None)
    apart = CpuProgram(parsed, TargetOptions(fast_math=False, disabled_passes=("fuse_attention",)), None)
    assert sum(i.name == "attention" for i in fused.program.main) == 2
    for got, want in zip(fused.run(feeds), apart.run(feeds)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
