"""Launches that are had from a trace tree: those that the back end plans, for lengths of all kinds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.attention.flash import attention_refusal, attention_solution
from mgx_numba.codegen.gpu.backend import BACKEND
from mgx_numba.codegen.gpu.contraction.placed import PlacedRequest
from mgx_numba.codegen.gpu.contraction.solvers import SOLVERS, own_candidates
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import TileQuestion, _weighed, weighed_tiles
from mgx_numba.codegen.problems.attention import AttentionProblem, MaskLayout
from mgx_numba.codegen.problems.cluster import PointwiseProblem, ReductionProblem, Tensor
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.core.shape import DynamicDimension, Shape, row_major_strides
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.module import Module
from mgx_numba.ops.base import make_op
from mgx_numba.runtime.plan import Plan, Step
from mgx_numba.targets.gpu.ranges import LengthRanges
from mgx_numba.targets.lowering.guarded_int import LengthTrace, UntraceableError
from mgx_numba.targets.lowering.solutions import Solutions
from mgx_numba.targets.lowering.trace_trees import TraceTrees
from mgx_numba.targets.options import TargetOptions

from ..dynamic.models import MODELS

ARCHITECTURES = ["sm_75", "sm_80", "sm_90a", "gfx90a", "gfx1100"]
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128, 200, 256, 257, 500, 512, 1000, 1024, 3000)
ROUNDS = 60


@dataclass(frozen=True)
class Question:
    """A problem of two integers, and one that is no length."""

    a: int
    b: tuple[int, ...]
    name: str = "x"


def walked(question: Question) -> tuple[Any, ...]:
    """A bit of all that is done with integers."""
    a, b = question.a, question.b[0]
    text = f"{a % 3} {'even' if a % 2 == 0 else 'odd'} {len(range(b % 4))} {question.name}"
    halves, rest = divmod(a, 2)
    wide = 1 << max(a - 1, 0).bit_length() >> 1
    return (text, a * b - 1, (max(a, b), -a, abs(b - a)), halves, rest, wide, b in (1, 2), question.b, f"{b % 5:03}")


def test_a_tree_gives_what_its_function_gives() -> None:
    trees, calls = TraceTrees(), []

    def asked(question: Question) -> tuple[Any, ...]:
        calls.append(question)
        return walked(question)

    rng = random.Random(1)
    for _ in range(400):
        question = Question(rng.randrange(40), (rng.randrange(60), rng.randrange(3)), rng.choice("xy"))
        found = trees.of("walked", question, None, asked)
        assert found in (None, walked(question))
        if found is not None:
            assert all(type(part) in (str, int, bool, tuple) for part in found)
    assert len(calls) < 400


def test_what_cannot_be_noted_is_left_to_others() -> None:
    def keyed(question: Question) -> int:
        return {1: 5, question.a: 3}[1]

    def divided(question: Question) -> float:
        return question.a / 2

    def counted(question: Question) -> dict[str, int]:
        return {"a": question.a}

    for function in (keyed, divided, counted):
        trees = TraceTrees()
        assert [trees.of("f", Question(k, (k,)), None, function) for k in (1, 2, 1)] == [None] * 3


def test_what_depends_on_more_than_integers_is_not_kept() -> None:
    trees, turns = TraceTrees(), []

    def fickle(question: Question) -> int:
        turns.append(0)
        return int(question.a > 3) if len(turns) % 2 else int(question.a % 5 == 1)

    for k in range(2, 40):
        trees.of("f", Question(k, ()), None, fickle)
    assert len(turns) == 2
    assert trees.of("f", Question(3, ()), None, fickle) in (None, 0)


def test_errors_are_raised_by_whoever_computes() -> None:
    def halved(question: Question) -> int:
        if question.a % 2:
            raise MgxError("odd")
        return question.a // 2

    solutions = Solutions(traced=True)
    assert [solutions.solved("half", Question(k, ()), halved) for k in (4, 6, 8)] == [2, 3, 4]
    with pytest.raises(MgxError, match="odd"):
        solutions.solved("half", Question(3, ()), halved)
    assert solutions.solved("half", Question(10, ()), halved) == 5


def test_integers_of_two_traces_do_not_meet() -> None:
    (one,), (other,) = LengthTrace([1]).symbols, LengthTrace([2]).symbols
    with pytest.raises(UntraceableError, match="another trace"):
        one + other


def test_an_integer_is_no_key() -> None:
    (one,) = LengthTrace([1]).symbols
    with pytest.raises(UntraceableError, match="no key"):
        hash((one, "x"))


def random_request(rng: random.Random, type: str, structure: random.Random) -> PlacedRequest:
    """Lengths are drawn from ``rng``, what they do not touch from ``structure``."""
    some = lambda: rng.choice(LENGTHS)  # noqa: E731
    types = ElementTypes(type, type, type, type)
    problem: GemmProblem | ConvProblem
    if structure.random() < 0.6:
        batch = tuple(rng.choice((1, 2, 3, 8)) for _ in range(structure.choice((0, 0, 1, 2))))
        m, n, k, pad = some(), some(), some(), structure.choice((0, 0, 8))
        right = (*row_major_strides((*batch, n, k))[:-2], 1, k) if structure.random() < 0.5 else ()
        left = row_major_strides((*batch, m, k + pad))
        problem = GemmProblem(m, n, k, batch, left, right, types=types, b_constant=False)
    else:
        taps = rng.choice((1, 3, 5))
        groups = structure.choice((1, 1, 2))
        problem = ConvProblem(
            rng.choice((1, 2, 9)), groups * some(), groups * some(), (rng.randrange(taps, 40), rng.randrange(taps, 40)),
            (taps, taps), stride=(rng.choice((1, 2)),) * 2, groups=groups, types=types,
        )  # fmt: skip
    precision = structure.choice(("highest", "high", "medium"))
    constant = structure.random() < 0.5
    return PlacedRequest(
        Request(problem, Epilogue(), (), 1, False), rng.choice((4, 8, 16)), precision, constant, constant
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_contractions(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", arch)
    solutions, solved, asked = Solutions(traced=True), dict.fromkeys((s.name for s in SOLVERS), 0), 0
    for form in range(6):
        for round in range(ROUNDS // 2):
            type = ("float32", "float16", "float64")[form % 3]
            placed = random_request(random.Random(100 * form + round), type, random.Random(form))
            for candidate in own_candidates(placed):
                tiling = candidate.solver.chosen(placed)

                def plan(placed: PlacedRequest, solver: Any = candidate.solver, tiling: Any = tiling) -> Any:
                    nonlocal asked
                    asked += 1
                    return solver.plan(placed, tiling)

                name = candidate.solver.name
                solved[name] += 1
                found = solutions.solved((name, tiling), placed, plan)
                assert found == candidate.solver.plan(placed, tiling), (name, placed)
    assert sum(map(bool, solved.values())) >= 3
    assert asked < 0.6 * sum(solved.values())


def test_tiles_of_sums_that_are_whole_are_weighed_once_for_rows_of_whole_tiles() -> None:
    rng = random.Random(2)
    for _ in range(100):
        sizes = rng.randrange(1, 5000), rng.choice((64, 96, 768)), rng.randrange(1, 7), rng.choice((1, 12))
        question = TileQuestion(*sizes, 8, *(rng.random() < 0.5 for _ in range(6)))
        assert weighed_tiles(question, 132) == _weighed(question, 132)
    before = _weighed.cache_info().misses
    for rows in range(1, 129):
        weighed_tiles(TileQuestion(rows, 80, 2, 1), 132)
    assert _weighed.cache_info().misses - before <= 2


def softmax_module(lens: tuple[int, ...], type: Type) -> Module:
    module = Module("rows")
    x = module.add_parameter("x0", Shape(type, lens))
    peak = module.add_instruction(make_op("reduce_max", axes=(len(lens) - 1,)), [x])
    spread = module.add_instruction(make_op("multibroadcast", out_lens=lens), [peak])
    power = module.add_instruction(make_op("exp"), [module.add_instruction(make_op("sub"), [x, spread])])
    total = module.add_instruction(make_op("reduce_sum", axes=(len(lens) - 1,)), [power])
    whole = module.add_instruction(make_op("multibroadcast", out_lens=lens), [total])
    module.add_return([module.add_instruction(make_op("div"), [power, whole])])
    return module


def mean_module(lens: tuple[int, ...], type: Type, axis: int) -> Module:
    module = Module("mean")
    x = module.add_parameter("x0", Shape(type, lens))
    module.add_return([module.add_instruction(make_op("reduce_mean", axes=(axis,)), [x])])
    return module


def sum_module(type: Type) -> Module:
    module = Module("sum")
    x, y = (module.add_parameter(f"x{k}", Shape(type)) for k in range(2))
    module.add_return([module.add_instruction(make_op("add"), [x, y])])
    return module


def tensor(rng: random.Random, type: Type, lens: tuple[int, ...], turned: bool = False) -> Tensor:
    strides = row_major_strides(lens[::-1])[::-1] if turned else row_major_strides(lens)
    return Tensor(type, lens, strides, rng.choice((0, 0, 4, 5)))


def clusters(rng: random.Random, type: Type) -> Iterator[PointwiseProblem | ReductionProblem]:
    lens = tuple(rng.choice(LENGTHS) for _ in range(rng.choice((1, 2, 3))))
    x, out = tensor(rng, type, lens), tensor(rng, type, lens)
    other = tensor(rng, type, lens, turned=rng.random() < 0.3)
    spread = Tensor(type, lens, (*(0 for _ in lens[1:]), 1))
    module = sum_module(type)
    for second in (other, spread):
        yield PointwiseProblem(module, (x, second), (out,))
    axis = rng.randrange(len(lens))
    short = (*lens[:axis], 1, *lens[axis + 1 :])
    for general in (False, True):
        yield ReductionProblem(softmax_module(lens, type), (len(lens) - 1,), (x,), (out,), general=general)
        yield ReductionProblem(
            mean_module(lens, type, axis), (axis,), (x,), (tensor(rng, type, short),), general=general
        )


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "gfx90a"])
@pytest.mark.parametrize("type", [Type.float_type, Type.half_type])
def test_clusters(arch: str, type: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", arch)
    solutions, rng = Solutions(traced=True), random.Random(3)
    for _ in range(ROUNDS):
        for problem in clusters(rng, type):
            assert solutions.plan(BACKEND, problem) == BACKEND.plan(problem), problem


def test_clusters_of_new_lengths_are_seldom_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    solutions, counted = Solutions(traced=True), []
    plan = type(BACKEND).plan
    monkeypatch.setattr(type(BACKEND), "plan", lambda self, problem: counted.append(problem) or plan(self, problem))
    for length in range(60, 160):
        lens = (length, 64)
        shape = Tensor(Type.float_type, lens, row_major_strides(lens))
        solutions.plan(BACKEND, ReductionProblem(softmax_module(lens, Type.float_type), (1,), (shape,), (shape,)))
    assert len(counted) <= 2


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [*((arch, "float16") for arch in ARCHITECTURES), *((arch, "float32") for arch in ARCHITECTURES[1:-1])],
)
def test_attention(arch: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", arch)
    solutions, rng, asked, solved = Solutions(traced=True), random.Random(5), 0, 0
    for round in range(ROUNDS):
        batch, heads, depth = rng.choice((1, 2, 3)), rng.choice((1, 4)), (16, 64)[round % 2]
        queries, keys = rng.choice((1, 5, 64, 100, 700)), rng.choice((1, 8, 64, 77, 513, 4096))
        own, theirs = (row_major_strides((batch, heads, n, depth)) for n in (queries, keys))
        mask = MaskLayout("bool", (0, 0, keys, 1)) if round % 3 == 0 else None
        problem = AttentionProblem(
            batch, heads, heads, queries, keys, depth, depth, own, theirs, theirs, own,
            dtype, 0.125, round % 4 == 0, mask,
        )  # fmt: skip
        precision = ("high", "medium")[round % 2]
        if attention_refusal(problem, precision):
            continue

        def plan(problem: AttentionProblem, precision: str = precision) -> Any:
            nonlocal asked
            asked += 1
            return attention_solution(problem, precision, "", True)

        solved += 1
        found = solutions.solved(("attention", precision), problem, plan)
        assert found == attention_solution(problem, precision, "", True), problem
    assert asked < 0.8 * solved


def told(plan: Plan) -> tuple[Any, ...]:
    """All that a plan does on the device."""
    steps = [
        (s.label, s.kernel, s.args, s.geometry) if isinstance(s, Step) else (s.label, s.inputs, s.outputs)
        for s in plan.steps
    ]
    return steps, plan.arena_bytes, plan.uses, plan.outputs, [(a.shape, a.tobytes()) for a in plan.constants]


def test_problems_of_new_lengths_are_seldom_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an encoder whose kernels are known: what is planned beyond the first sets are answers not given before."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    case, met = MODELS["encoder"](), {"of": 0, "_grown": 0}
    ranges = LengthRanges(
        parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096)), TargetOptions(), lambda kernel: True
    )

    def counted(name: str) -> None:
        function = getattr(TraceTrees, name)

        def counting(self: TraceTrees, *rest: Any) -> Any:
            met[name] += 1
            return function(self, *rest)

        monkeypatch.setattr(TraceTrees, name, counting)

    for name in met:
        counted(name)
    rng, shares = np.random.default_rng(4), []
    for _ in range(24):
        feeds = case.draw(rng)
        ranges.planned({key: feeds[key].shape for key in ranges.names})
        shares.append(met["_grown"] / met["of"])
        met.update(dict.fromkeys(met, 0))
    assert shares[0] > 0.5
    assert sum(shares[12:]) / 12 < 0.25


@pytest.mark.parametrize("name", ["encoder", "single_shot", "shuffle_net", "detector_head", "two_stages"])
def test_plans_of_new_lengths_are_those_without_trees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit what is planned of the lengths alone: texts, arguments, memory."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    case = MODELS[name]()
    program = parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096))
    ranges = LengthRanges(program, TargetOptions())
    rng = np.random.default_rng(11)
    traced = ranges._shared
    for _ in range(8):
        feeds = case.draw(rng)
        lens = {key: feeds[key].shape for key in ranges.names}
        plans = []
        for shared in (traced, replace(traced, solutions=Solutions())):
            ranges._shared = shared
            plans.append(told(ranges.planned(lens)[0]))
        assert plans[0] == plans[1], lens
