"""Contractions, attention and recurrent layers, each planned by every applicable solver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu.attention import plan as plan_attention
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, GEMM_SOLVERS
from mgx_numba.codegen.cpu.recurrent import plan as plan_recurrence
from mgx_numba.codegen.problems.attention import AttentionProblem, MaskLayout
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue, Prologue, PrologueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem, packed_strides
from mgx_numba.codegen.problems.recurrence import RecurrenceProblem
from mgx_numba.core.types import Type
from mgx_numba.ops.base import make_op
from mgx_numba.ops.recurrence import CELLS

from ..codegen.contracting import epilogue_of, full_epilogue
from .record import Record

__all__ = ["record_solvers"]

DTYPES = ("float32", "float64")
SIZES = ((1, 96, 64), (3, 100, 33), (64, 48, 160), (200, 129, 300), (1024, 1024, 1024))
"""m, n and k of products: of one row, of a few, of whole tiles, with remainders, and large enough for Strassen's."""
BATCHES: tuple[tuple[int, ...], ...] = ((), (3,), (2, 2, 2))
CONVOLUTIONS = (
    ConvProblem(1, 32, 64, (14, 14), (1, 1)),
    ConvProblem(2, 32, 64, (15, 13), (1, 1), stride=(2, 2)),
    ConvProblem(1, 3, 32, (33, 31), (3, 3), stride=(2, 2), pads_begin=(1, 1), pads_end=(1, 1)),
    ConvProblem(1, 64, 96, (28, 30), (3, 3), pads_begin=(1, 1), pads_end=(1, 1)),
    ConvProblem(1, 64, 96, (29, 29), (3, 3), stride=(2, 2), pads_begin=(1, 1), pads_end=(1, 1)),
    ConvProblem(1, 24, 40, (20, 20), (5, 5), pads_begin=(2, 2), pads_end=(2, 2)),
    ConvProblem(1, 24, 40, (20, 20), (4, 4), stride=(2, 2), pads_begin=(1, 1), pads_end=(1, 1)),
    ConvProblem(1, 36, 36, (17, 19), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), groups=36),
    ConvProblem(1, 36, 36, (17, 19), (5, 3), stride=(2, 1), dilation=(1, 2), groups=36),
    ConvProblem(1, 32, 48, (17, 19), (3, 3), dilation=(2, 2), groups=4),
    ConvProblem(1, 20, 20, (5, 17, 19), (3, 3, 3), pads_begin=(1, 1, 1), pads_end=(1, 1, 1)),
    ConvProblem(1, 20, 20, (5, 17, 19), (3, 3, 3), groups=20),
    ConvProblem(2, 16, 24, (50,), (7,), pads_begin=(3,), pads_end=(3,)),
    ConvProblem(1, 32, 16, (9, 9), (2, 2), stride=(2, 2), transposed=True),
    ConvProblem(1, 32, 16, (9, 9), (4, 4), stride=(2, 2), pads_begin=(1, 1), pads_end=(1, 1), transposed=True),
)


def record_solvers(record: Record, threads: int) -> None:
    """Plan every contraction with every solver that does not refuse it, with each epilogue, and all other problems."""
    for attention in _attentions():
        record.plans[f"attention {attention}"] = record.solution(plan_attention(attention, threads))
    for recurrence in _recurrences():
        record.plans[f"recurrence {recurrence}"] = record.solution(plan_recurrence(recurrence, threads))
    for problem, solvers in [*((p, GEMM_SOLVERS) for p in _products()), *((p, CONV_SOLVERS) for p in _convolutions())]:
        for solver in solvers:
            if solver.refusal(problem) is not None:
                continue
            for epilogue in _epilogues(problem.types.accumulator):
                solution = solver.plan(problem, epilogue, (), threads)
                record.plans[f"{solver.name} {problem} {epilogue.name}"] = record.solution(solution)


def _products() -> Iterator[Any]:
    for dtype, (m, n, k), batch in itertools.product(DTYPES, SIZES, BATCHES):
        plain = GemmProblem(m, n, k, batch, types=element_types(dtype), fast_math=True)
        yield plain
        yield replace(plain, b_constant=False)
        swapped = (*(plain.b_strides[:-2]), 1, k)
        yield replace(plain, b_constant=False, b_strides=swapped)
        strided = tuple(2 * s for s in plain.a_strides)
        yield replace(plain, a_strides=strided)
        if batch:
            yield replace(plain, b_strides=(*(0 for _ in batch), n, 1))
        yield replace(plain, prologue=_prologue(dtype, len(batch)))
    for (m, n, k), a in itertools.product(SIZES[:4], ("uint8", "int8")):
        yield GemmProblem(m, n, k, types=element_types(f"{a} int8 int32 int32"))


def _convolutions() -> Iterator[Any]:
    for problem, dtype, fast_math in itertools.product(CONVOLUTIONS, DTYPES, (True, False)):
        yield replace(problem, types=element_types(dtype), fast_math=fast_math)


def _attentions() -> Iterator[AttentionProblem]:
    batch, depth, width = 1, 64, 48
    cases = itertools.product((1, 4), (1, 3, 70), (50, 3000), (True, False), range(4))
    for heads, queries, keys, causal, mask in cases:
        lens = {"q": (queries, depth), "k": (keys, depth), "v": (keys, width), "out": (queries, width)}
        strides = {f"{name}_strides": packed_strides((batch, heads, n, d)) for name, (n, d) in lens.items()}
        rows = packed_strides((batch, heads, queries, keys))
        layouts = (None, MaskLayout("bool", rows), MaskLayout("float32", (0, 0, 0, 1)), MaskLayout("bool", rows[::-1]))
        yield AttentionProblem(
            batch, heads, heads, queries, keys, depth, width, **strides, causal=causal, mask=layouts[mask]
        )


def _recurrences() -> Iterator[RecurrenceProblem]:
    steps, batch, hidden = 5, 3, 130
    for cell, lanes, int16 in itertools.product(CELLS, (1, 2), (True, False)):
        kind = CELLS[cell]
        yield RecurrenceProblem(
            cell, steps, batch, hidden, (False, True)[:lanes],
            tuple(make_op("tanh" if k else "sigmoid") for k in range(kind.activations)) * lanes,
            packed_strides((steps, batch, lanes, kind.gates * hidden))[:3],
            packed_strides((steps, lanes, batch, hidden))[:3],
            first_strides=(batch * hidden, hidden), lengths="int32", int16=int16,
        )  # fmt: skip


def _epilogues(dtype: str) -> list[Epilogue]:
    if not dtype.startswith("float"):
        return [Epilogue()]
    bias = epilogue_of(lambda s, acc, b: s.tanh(s.add(acc, b)), "per_n", dtype=dtype, name="add_tanh")
    halved = epilogue_of(lambda s, acc: s.cast(acc, Type.half_type), dtype=dtype, name="convert")
    return [Epilogue(), bias, full_epilogue(dtype), halved]


def _prologue(dtype: str, rank: int) -> Prologue:
    own = Type.float_type if dtype == "float32" else Type.double_type
    operands = (PrologueOperand(dtype, "per_k", (0,) * rank), PrologueOperand(dtype, "scalar", (0,) * rank))
    body = scalar_body(lambda s, x, a, b: s.max(s.mul(x, a), b), [own] * 3)
    return Prologue(operands, body, False, "mul_max")
