"""Models in every precision, and in two at once, have kernels on a CPU with AMX, whatever solvers tuning chooses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mgx_numba
from bench.models import build, inputs
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.tuning_candidates import SOLVERS
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.lowering.tuples import without_tuples
from mgx_numba.targets.options import TargetOptions

pytestmark = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")

Feeds = dict[str, np.ndarray]
INTEGERS = ("gemm_int8", "conv_int8")
"""The solvers of 8-bit integers, on tiles of whole matrices where these are."""

ROOM = TargetOptions().packing_growth
"""With none, solvers whose weights grow are taken back after tuning chose them."""


def to_int8(p: mgx_numba.program, feeds: Feeds) -> None:
    mgx_numba.quantize_int8(p, mgx_numba.get_target("ref"), [feeds])


def to_int8_and(rest: Callable[[mgx_numba.program], Any]) -> Callable[[mgx_numba.program, Feeds], None]:
    def quantize(p: mgx_numba.program, feeds: Feeds) -> None:
        to_int8(p, feeds)
        rest(p)

    return quantize


PRECISIONS: dict[str, Callable[[mgx_numba.program, Feeds], Any]] = {
    "float32": lambda p, feeds: None,
    "bf16": lambda p, feeds: mgx_numba.quantize_bf16(p),
    "fp16": lambda p, feeds: mgx_numba.quantize_fp16(p),
    "fp8": lambda p, feeds: mgx_numba.quantize_fp8(p, mgx_numba.get_target("ref"), [feeds]),
    "int8": to_int8,
    "int8 and bf16": to_int8_and(mgx_numba.quantize_bf16),
    "int8 and fp16": to_int8_and(mgx_numba.quantize_fp16),
}


class Drawn:
    """Stands for tuning: takes any of the solvers that apply to a problem, mostly those of matrix tiles."""

    exhaustive = False

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names: set[str] = set()

    def choose(self, request: Request) -> Candidate:
        every = SOLVERS.candidates(request)
        tiles = [c for c in every if c.solver.name.endswith("_tiles") or c.solver.name in INTEGERS]
        found = self.random.choice(tiles if tiles and self.random.random() < 0.7 else every)
        self.names.add(found.solver.name)
        return found

    def note_instruction(self, request: Request, instruction: str, taken: Candidate) -> None:
        pass

    def in_place(self, request: Request, operand: str) -> None:
        pass


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["bert", "mobilenet_v2", "unet"])
def test_every_precision_has_kernels_by_any_solver(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    model = build(name, scale="tiny")
    p = mgx_numba.parse_onnx(model)
    PRECISIONS[precision](p, inputs(name, model))
    arrays_only, _ = without_tuples(p.portable)
    for seed, (fast_math, growth) in enumerate(((True, ROOM), (True, 0), (False, 0))):
        drawn: Any = Drawn(seed)
        options = TargetOptions(fast_math=fast_math, num_threads=2, packing_growth=growth, tuning=drawn)
        plan = lower(optimize(arrays_only, options), options)
        assert [step.label for step in plan.steps if isinstance(step, FallbackStep)] == []
        if fast_math and precision != "fp16":  # so small, what is stored in float16 goes to float32's tiles
            assert any(chosen.endswith("_tiles") for chosen in drawn.names)
        if precision.startswith("int8"):
            assert drawn.names & set(INTEGERS)
