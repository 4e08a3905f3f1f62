"""Attention of symbolic lengths on the interpreter: one plan is correct for any lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mgx_numba.codegen.gpu.machine import H200, planning_for
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program

from .symbolic import SymbolicPlan, open_shape

F16 = Type.half_type


def planned(build: Callable[[Module], None]) -> SymbolicPlan:
    program = Program()
    build(program.main)
    made = SymbolicPlan(program)
    assert not made.guards
    assert all("attention" in label or "clear_counters" in label for label in made.labels), made.labels
    return made


def attention(
    heads: int = 2, kv_heads: int = 2, depth: int = 64, queries: int | str = "s", mask: bool = False, **attributes: Any
) -> Callable[[Module], None]:
    def build(m: Module) -> None:
        operands = [m.add_parameter("q", open_shape(F16, "b", heads, queries, depth))]
        operands += [m.add_parameter(name, open_shape(F16, "b", kv_heads, "t", depth)) for name in "kv"]
        operands += [m.add_parameter("mask", open_shape(F16, "b", 1, queries, "t"))] if mask else []
        m.add_return([m.add_instruction("attention", operands, scale=0.125, **attributes)])

    return build


@pytest.mark.parametrize("arch, mask", [("sm_90a", False), ("sm_90a", True), ("sm_80", False), ("gfx942", True)])
def test_attention_of_open_queries_and_keys(arch: str, mask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", arch)
    planned(attention(mask=mask)).check((1, 1, 1), (2, 3, 5), (1, 40, 20))


@pytest.mark.parametrize("arch", ["sm_90a", "gfx942"])
def test_a_query_of_grouped_heads_looks_at_parts_of_open_keys(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", arch)
    made = planned(attention(4, 2, 32, 1))
    assert any("clear_counters" in label for label in made.labels) == (arch == "sm_90a")
    made.check((1, 0, 1), (2, 0, 5), (1, 0, 300), (2, 0, 600))


def test_grouped_heads_and_causal_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    planned(attention(4, 2, 32, causal=True)).check((1, 1, 40), (2, 3, 5), (1, 40, 40))


def test_heads_of_projections_that_lie_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    order = {"permutation": (0, 2, 1, 3)}

    def build(m: Module) -> None:
        given = [m.add_parameter(name, open_shape(F16, "b", "s", 2, 32)) for name in "qkv"]
        heads = [m.add_instruction("transpose", [x], **order) for x in given]
        mixed = m.add_instruction("attention", heads, scale=0.2)
        m.add_return([m.add_instruction("transpose", [mixed], **order)])

    planned(build).check((1, 1), (2, 37))


def test_a_ring_of_one_tile_is_for_few_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel waits for ever for a second tile."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    with planning_for(H200):
        planned(attention(4, 1, 80, mask=True)).check((1, 64, 64), (1, 64, 70))
