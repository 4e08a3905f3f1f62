"""Rules that lower a program once for symbolic lengths: no questions to the program, NumPy's numbers at any lengths."""

from __future__ import annotations

import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from tests.codegen.symbolic_lengths import scope_of

from .symbolic_plans import Lens, SymbolicCase

FLOAT = Type.float_type
ANY = (1, None)
CACHED = [(1, 1, 1), (4, 1, 700), (1, 2, 5), (2, 5, 33), (1, 17, 300), (3, 64, 1)]
"""Sequences, new tokens, and tokens before."""


@pytest.mark.parametrize("mask", ["none", "add", "keys"])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_attention_with_a_cache(heads: tuple[int, int], mask: str) -> None:
    h, kv = heads

    def shapes(n: Lens) -> list[Shape]:
        b, s, t = n["batch"], n["seq"], n["past"] + n["seq"]
        masks = {"none": [], "add": [Shape(FLOAT, (b, 1, s, t))], "keys": [Shape(Type.bool_type, (b, 1, 1, t))]}
        return [Shape(FLOAT, (b, h, s, 16)), *[Shape(FLOAT, (b, kv, t, 16))] * 2, *masks[mask]]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        return m.add_instruction("attention", p, scale=0.3, causal=mask == "none")

    case = SymbolicCase(*scope_of(batch=ANY, seq=ANY, past=ANY), shapes, build)
    assert case.guards == []
    for batch, seq, past in CACHED:
        case.check(batch=batch, seq=seq, past=past)
