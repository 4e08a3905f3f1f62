"""Tuning of convolutions that have a prologue."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu.contraction.solver import NO_EPILOGUE
from mgx_numba.codegen.cpu.contraction.tuning_candidates import SOLVERS
from mgx_numba.codegen.cpu.fingerprint import device_fingerprint
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.epilogue import Prologue, PrologueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.codegen.tuning.request import Request, problem_of
from mgx_numba.core.types import Type
from mgx_numba.targets.cpu.measuring import Bench

from .support import choices

LENS = (2, 20, 5, 7)
PROLOGUE = Prologue(
    (PrologueOperand("float32", "per_k", (20,)), PrologueOperand("float64", "scalar", (0,))),
    scalar_body(
        lambda s, term, a0, a1: s.add(s.mul(term, a0), s.cast(a1, Type.float_type)),
        [Type.float_type, Type.float_type, Type.double_type],
    ),
    False, "mul_add",
)  # fmt: skip
CONVOLUTION = ConvProblem(2, 20, 9, (5, 7), (1, 1), prologue=PROLOGUE)
PRODUCT = GemmProblem(7, 9, 20, (2,), prologue=PROLOGUE)


def network() -> migraphx.program:
    """A 3x3 convolution, whose result is returned too; a scale of each image and channel; a 1x1 convolution."""
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=list(LENS)))
    scale = main.add_parameter("s", migraphx.shape(type="float_type", lens=[2, 20, 1, 1]))
    scale = main.add_instruction(migraphx.op("multibroadcast", out_lens=list(LENS)), [scale])
    rng = np.random.default_rng(0)
    w = main.add_literal(rng.standard_normal((20, 20, 3, 3)).astype(np.float32))
    x = main.add_instruction(migraphx.op("convolution", padding=[1, 1]), [x, w])
    w = main.add_literal(rng.standard_normal((9, 20, 1, 1)).astype(np.float32))
    scaled = main.add_instruction(migraphx.op("mul"), [x, scale])
    main.add_return([main.add_instruction(migraphx.op("convolution"), [scaled, w]), x])
    return net


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(lens).astype(np.float32) for name, lens in (("x", LENS), ("s", (2, 20, 1, 1)))}


def test_tuned_network_is_right_and_keeps_its_choice():
    net, again, wanted = network(), network(), network()
    net.compile(exhaustive_tune=True, num_threads=2)
    assert any("mul_gemm" in step for step in choices(net))
    (record,) = (r for r in net.tuning_records if "prologue" in r.problem.fields)
    assert record.solver == "conv_1x1"
    assert record.problem.fields["prologue"] == {"name": "mul", "operands": [["float32", "per_k", [20]]]}
    wanted.compile(migraphx.get_target("ref"))
    np.testing.assert_allclose(np.array(net.run(feeds())[0]), np.array(wanted.run(feeds())[0]), rtol=1e-3, atol=1e-3)
    again.compile(num_threads=2)
    assert choices(again) == choices(net)


@pytest.mark.parametrize("problem", [CONVOLUTION, PRODUCT])
def test_every_candidate_is_measured(problem: ConvProblem | GemmProblem):
    request = Request(problem, NO_EPILOGUE, (), 1, False)
    (only,) = SOLVERS.candidates(request)
    bench = Bench(request)
    assert all(bench.sample(candidate) > 0 for candidate in (only, *SOLVERS.refinements(request, only)))


@pytest.mark.parametrize("problem", [CONVOLUTION, PRODUCT])
def test_keys(problem: ConvProblem | GemmProblem):
    request = Request(problem, NO_EPILOGUE, (), 1, False)
    without = dataclasses.replace(problem, prologue=None)
    plain = dataclasses.replace(request, problem=without)
    assert "prologue" not in plain.key().fields
    assert {k: v for k, v in request.key().fields.items() if k != "prologue"} == plain.key().fields
    other = dataclasses.replace(PROLOGUE, fast_math=True)  # of which the request has a field
    assert dataclasses.replace(request, problem=dataclasses.replace(problem, prologue=other)).key() == request.key()
    record = TuningRecord(request.key(), device_fingerprint(), "gemm", {}, 1.0)
    assert problem_of(record) == without
