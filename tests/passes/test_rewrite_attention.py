"""Attention without a kernel is expanded into elementary operations with equal values."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.passes import Options, run_passes
from mgx_numba.graph.passes.rewrite_attention import RewriteAttention
from mgx_numba.graph.program import Program

from ..cpu.agreement import reference

F16, F32, BOOL = Type.half_type, Type.float_type, Type.bool_type
Mask = tuple[Type, tuple[int, ...]] | None


def refuse(type: Type, depth: int, width: int) -> str:
    return "" if depth % 4 == 0 else "no whole vectors"


def attention(
    type: Type, lens: tuple[int, ...], mask: Mask, **attributes: object
) -> tuple[Program, dict[str, np.ndarray]]:
    """A program and its inputs; ``lens`` are batch, heads, key heads, queries, keys, features of keys and of values."""
    batch, heads, shared, queries, keys, depth, width = lens
    program, rng = Program(), np.random.default_rng(sum(lens))
    shapes = {"q": (batch, heads, queries, depth), "k": (batch, shared, keys, depth), "v": (batch, shared, keys, width)}
    operands = [program.main.add_parameter(name, Shape(type, own)) for name, own in shapes.items()]
    inputs = {name: rng.standard_normal(own).astype(type.numpy) for name, own in shapes.items()}
    if mask is not None:
        operands.append(program.main.add_parameter("mask", Shape(*mask)))
        drawn = rng.standard_normal(mask[1])
        inputs["mask"] = drawn > 0 if mask[0] is BOOL else drawn.astype(mask[0].numpy)
        inputs["mask"][..., 1, :] = False if mask[0] is BOOL else -np.inf
    program.main.add_return([program.main.add_instruction("attention", operands, scale=0.3, **attributes)])
    return program, inputs


@pytest.mark.parametrize("nan_rows", [False, True])
@pytest.mark.parametrize(
    ("type", "lens", "mask", "causal"),
    [
        (F32, (1, 2, 2, 5, 7, 3, 4), None, False),
        (F32, (2, 4, 2, 3, 6, 5, 2), (BOOL, (1, 1, 3, 6)), False),
        (F16, (1, 2, 1, 4, 4, 6, 8), (F16, (4, 4)), True),
        (F32, (4, 2, 2, 2, 3, 1, 1), (F32, (2, 1, 2, 3)), False),
        (F32, (1, 1, 1, 6, 3, 6, 6), None, True),
        (Type.double_type, (1, 3, 1, 2, 5, 2, 3), (BOOL, (2, 5)), False),
    ],
)
def test_values(type: Type, lens: tuple[int, ...], mask: Mask, causal: bool, nan_rows: bool) -> None:
    program, inputs = attention(type, lens, mask, causal=causal, nan_rows=nan_rows)
    (wanted,) = reference(program, inputs).results
    run_passes(program, [RewriteAttention()], Options(attention_refusal=refuse), validate=True)
    names = [ins.name for ins in program.main]
    assert "attention" not in names and names.count("dot") == 2
    (got,) = reference(program, inputs).results
    rounding = 2e-3 if type is F16 else 1e-5
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=rounding, atol=rounding)


@pytest.mark.parametrize(
    ("lens", "options", "reason"),
    [
        ((1, 1, 1, 2, 3, 8, 8), Options(attention_refusal=refuse), "a kernel computes it"),
        ((1, 1, 1, 2, 3, 3, 3), Options(), "kernels compute all attention"),
        ((1, 1, 1, 2, 0, 3, 3), Options(attention_refusal=refuse), "nothing to attend to"),
    ],
)
def test_what_stays(lens: tuple[int, ...], options: Options, reason: str) -> None:
    program, _ = attention(F32, lens, None)
    run_passes(program, [RewriteAttention()], options, validate=True)
    assert "attention" in [ins.name for ins in program.main]
    assert any(reason in r.reason for r in program.log.refusals())
