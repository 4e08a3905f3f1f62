"""Vectors as whole registers of the processor, for instructions that LLVM has only for one register."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .builder import VectorBuilder
from .target import has

REGISTER_LANES = 16
"""float32 lanes of a register of AVX-512."""


def fills_registers(b: VectorBuilder, x: ir.Value) -> bool:
    """Whether a vector is made of whole registers of AVX-512."""
    return has("avx512f", "avx512vl") and b.lanes(x) > 0 and b.lanes(x) % REGISTER_LANES == 0


def by_registers(
    b: VectorBuilder, emit: Callable[..., ir.Value], *operands: ir.Value, register: int = REGISTER_LANES
) -> ir.Value:
    """Return ``emit`` applied to each register of the operands, with the results joined into a vector."""
    lanes = b.lanes(operands[0])
    pieces = []
    for start in range(0, lanes, register):
        part = range(start, start + register)
        pieces.append(emit(*(v if lanes == register else b.shuffle(v, part) for v in operands)))
    while len(pieces) > 1:
        pieces = [b.joined(low, high) for low, high in zip(pieces[::2], pieces[1::2])]
    return pieces[0]
