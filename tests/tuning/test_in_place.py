"""Tuning measures sums with a residual in place, as the plan runs them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import mgx_numba as migraphx
from bench import choices
from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, GEMM_SOLVERS
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.core.types import Type
from mgx_numba.runtime.plan import Pointer, Step
from mgx_numba.targets.cpu.measuring import Bench

SUM = Epilogue(
    (EpilogueOperand("float32", "scalar"), EpilogueOperand("float32", "full")),
    scalar_body(lambda s, acc, e0, e1: s.add(acc, e1), [Type.float_type] * 3),
)
PRODUCT = GemmProblem(5, 33, 20)
CONVOLUTION = ConvProblem(2, 16, 24, (6, 7), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), fast_math=True)
DEPTHWISE = ConvProblem(1, 32, 32, (9, 8), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), groups=32)


def network(blocks: int) -> migraphx.program:
    """Blocks of two products and a sum, of which the last is the result."""
    net = migraphx.program()
    main = net.get_main_module()
    rng = np.random.default_rng(3)

    def product(x: Any) -> Any:
        w = main.add_literal(rng.standard_normal((24, 24)).astype(np.float32))
        return main.add_instruction(migraphx.op("dot"), [x, w])

    y = product(main.add_parameter("x", migraphx.shape(type="float_type", lens=[9 + blocks, 24])))
    for _ in range(blocks):
        inside = main.add_instruction(migraphx.op("relu"), [product(y)])
        y = main.add_instruction(migraphx.op("add"), [product(inside), y])
    main.add_return([y])
    return net


@pytest.mark.parametrize("blocks,wanted", [(1, ""), (2, "e0")])
def test_tuning_measures_what_the_plan_does(blocks: int, wanted: str, monkeypatch: pytest.MonkeyPatch):
    """The last sum is returned, those before take the place of their residuals."""
    seen: list[Request] = []

    def sample(self: Bench, candidate: Candidate) -> float:
        seen.append(self.request)
        return 1.0

    monkeypatch.setattr(Bench, "sample", sample)
    net = network(blocks)
    net.compile(exhaustive_tune=True, num_threads=2)
    assert {request.replaced for request in seen if request.epilogue.operands} == {wanted}
    assert not any(request.replaced for request in seen if not request.epilogue.operands)
    steps = [s for s in net.compiled.executable.plan.steps if isinstance(s, Step)]
    in_place = [sum(isinstance(a, Pointer) and a == s.outputs[0].pointer for a in s.args) > 1 for s in steps]
    assert any(in_place) == bool(wanted)


def test_choices_measure_what_the_plan_does(monkeypatch: pytest.MonkeyPatch):
    seen: Counter[str] = Counter()

    def measured(own: Any, request: Request, counts: Counter[str], *how: bool) -> dict[str, Any]:
        seen[request.replaced] += sum(counts.values())
        return {}

    monkeypatch.setattr(choices, "_measure", measured)
    choices.measure(["vit"], 2, "tiny")
    assert seen[""] > 0 and sum(count for name, count in seen.items() if name) > 0


@pytest.mark.parametrize(
    "problem,can_or_not", [(PRODUCT, "gemm"), (CONVOLUTION, "conv_winograd_4x4"), (DEPTHWISE, "conv_depthwise")]
)
def test_only_what_can_run_in_place_is_measured_so(problem: GemmProblem | ConvProblem, can_or_not: str):
    """An in-place run adds to its operand, which is reset before each run."""
    strides = problem.out_strides
    given = Request(problem, SUM, ((), strides), 1, True)
    found = {}
    for solver in GEMM_SOLVERS if isinstance(problem, GemmProblem) else CONV_SOLVERS:
        if solver.refusal(problem) is not None:
            continue
        launches = solver.plan(problem, SUM, given.strides, 1).launches
        can = len(launches) == 1 and launches[0].replaceable == ("e1",)
        found[solver.name] = can
        for replaced in ("", "e1"):
            request = Request(problem, SUM, given.strides, 1, True, replaced)
            assert request.key() == given.key()
            bench = Bench(request)
            assert bench.sample(Candidate(solver)) > 0
            changed = not np.all(bench.inputs[2] == 0.5)
            assert changed == (can and bool(replaced)), solver.name
            bench.inputs[2][...] = np.inf if replaced else 0.5  # as if many runs had added to it
            assert bench.sample(Candidate(solver)) > 0 and np.isfinite(bench.inputs[2]).all()
    assert found[can_or_not] == (can_or_not != "conv_depthwise")
