"""Instructions that are alike in plans for new lengths: what one rule did is repeated where nothing else matters."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.cpu.host import EMULATED_TILES, host
from mgx_numba.codegen.cpu.microkernels.tile_table import matrix_tile
from mgx_numba.codegen.problems.element_types import FLOAT32
from mgx_numba.core.shape import DynamicDimension
from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.copies import Numbered
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.runtime.plan import Plan
from mgx_numba.targets.cpu import lower as cpu_lower
from mgx_numba.targets.cpu import program as cpu_program
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.lowering.likeness import Recipe
from mgx_numba.targets.lowering.lowering import Lowering
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.passes import SOURCE_PASSES
from mgx_numba.targets.samples import sample_lengths
from mgx_numba.targets.settled import settling

from ..features import features
from ..plans.record import Record
from .models import FLOAT, Case, Feeds, Graph, encoder

WIDTH = 32


def layers(weights: list[np.ndarray], twice: bool = False) -> Case:
    """Products in a row with a sum and a relu each; the first matrix is also taken ``twice``."""
    g = Graph()
    y = "x"
    taken = [g.const(array) for array in weights]
    for matrix in [*taken, *(taken[:1] if twice else [])]:
        y = g.op("Relu", g.op("Add", g.op("MatMul", y, matrix), g.weights(WIDTH)))

    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": rng.standard_normal((int(rng.integers(1, 40)), WIDTH)).astype(np.float32)}

    return Case(g.model({"x": (FLOAT, ["N", WIDTH])}, [y]), draw)


def matrices(count: int) -> list[np.ndarray]:
    """Different ones of numbers that bfloat16 has."""
    rng = np.random.default_rng(3)
    drawn = [rng.standard_normal((WIDTH, WIDTH)) / 8 for _ in range(count)]
    return [array.astype(ml_dtypes.bfloat16).astype(np.float32) for array in drawn]


def images() -> Case:
    """Convolutions of open batch and sizes, with residual sums, of which the last is of other channels."""
    g = Graph()
    y = g.op("Relu", g.op("Conv", "x", *filters(g, 16, 3, 0), pads=[1, 1, 1, 1]))
    for seed in range(1, 4):
        y = g.op("Relu", g.op("Add", g.op("Conv", y, *filters(g, 16, 16, seed), pads=[1, 1, 1, 1]), y))
    y = g.op("Conv", y, *filters(g, 24, 16, 9), pads=[1, 1, 1, 1])

    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": rng.standard_normal((int(rng.integers(1, 4)), 3, *rng.integers(5, 20, 2))).astype(np.float32)}

    return Case(g.model({"x": (FLOAT, ["N", 3, "H", "W"])}, [y]), draw)


def filters(g: Graph, out: int, channels: int, seed: int) -> tuple[str, str]:
    """Weights of 3 by 3 taps, and a bias."""
    drawn = np.random.default_rng(seed).standard_normal((out, channels, 3, 3)).astype(np.float32)
    return g.const(drawn), g.weights(out)


class Plans:
    """Plans of a model for lengths, as runs make them, and as they are made when nothing is known."""

    def __init__(self, case: Case, **options: Any) -> None:
        self.options = TargetOptions(num_threads=2, **options)
        self.source = parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096))
        run_passes(self.source, SOURCE_PASSES)
        self.shared = cpu_program._shared(self.source, self.options)
        self._settled = settling(self.source, self.options, pass_options(self.options))
        self.kept: list[Plan] = []
        for lens in list(sample_lengths(self.source))[:8]:
            with contextlib.suppress(MgxError):  # beyond the table of positions
                self._optimized(self._settled(lens))

    def _optimized(self, settled: Numbered) -> Program:
        return cpu_program._optimized(settled.program, self.options, self.shared, settled)

    def in_a_run(self, feeds: Feeds) -> Plan:
        """With all kernels there."""
        low = cpu_lower._lowering(self._optimized(self._settled(lens_of(feeds))), self.options)
        low.ready = lambda kernel: True
        low.shared, low.solutions = self.shared.weights, self.shared.solutions
        self.kept.append(low.run())
        return self.kept[-1]

    def anew(self, feeds: Feeds) -> Plan:
        """Without what plans have in common."""
        settled = self._settled(lens_of(feeds)).program
        return cpu_lower.lower(cpu_program.optimize(settled, self.options), self.options)


def lens_of(feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """Lengths by name."""
    return {name: array.shape for name, array in feeds.items()}


FORMS = ["", *([EMULATED_TILES] if host().vector_bits >= 512 else [])]
form = features(FORMS)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the instructions whose steps were repeated, by name."""
    counts: Counter[str] = Counter()
    follow = Recipe.follow

    def counted(self: Recipe, low: Lowering, ins: Instruction) -> None:
        counts[ins.name] += 1
        follow(self, low, ins)

    monkeypatch.setattr(Recipe, "follow", counted)
    return counts


def check(case: Case, count: int = 6, **options: Any) -> None:
    """Plans that are made in runs are those that are made anew."""
    plans, rng = Plans(case, **options), np.random.default_rng(5)
    for _ in range(count):
        feeds, record = case.draw(rng), Record()
        assert record.plan(plans.in_a_run(feeds)) == record.plan(plans.anew(feeds)), lens_of(feeds)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_products_and_attention_of_equal_layers_are_repeated(followed: Counter[str], precision: str, form: str) -> None:
    """Where values are written in parts for their readers, rules are tried for each."""
    check(encoder(3), float32_matmul_precision=precision)
    if precision == "highest" and matrix_tile(FLOAT32) is None:
        assert followed["attention"] and followed["fused_contraction"]


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_convolutions_with_sums_of_residuals_are_as_they_are_alone(precision: str, form: str) -> None:
    check(images(), 3, fast_math=True, float32_matmul_precision=precision)


@pytest.mark.usefixtures("vector_code")
def test_one_matrix_that_two_products_have_is_packed_once(followed: Counter[str]) -> None:
    case = layers(matrices(3), twice=True)
    check(case)
    assert followed["fused_contraction"]
    plans, rng = Plans(case), np.random.default_rng(0)
    one, other = (plans.in_a_run(case.draw(rng)) for _ in range(2))
    addresses = [{id(a) for a in plan.constants if a.size} for plan in (one, other)]
    assert addresses[0] & addresses[1], "plans for other lengths share packed weights"


@pytest.mark.parametrize("precision", ["high", "medium"])
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_weights_that_a_solver_refuses_are_not_taken_for_those_of_another_layer(
    precision: str, place: int, value: float, form: str
) -> None:
    weights = matrices(4)
    weights[place] = weights[place].copy()
    weights[place][1, 2] = value
    check(layers(weights), 2, float32_matmul_precision=precision)


def test_matrices_of_other_lengths_types_and_strides_are_not_alike() -> None:
    g = Graph()
    wide = g.const(matrices(1)[0])
    turned = g.op("Transpose", g.const(matrices(2)[1]), perm=[1, 0])
    y = g.op("Relu", g.op("MatMul", g.op("Relu", g.op("MatMul", "x", wide)), turned))
    y = g.op("Relu", g.op("MatMul", y, g.weights(WIDTH, 2 * WIDTH)))
    y = g.op("Sigmoid", g.op("MatMul", y, g.weights(2 * WIDTH, WIDTH)))

    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": rng.standard_normal((int(rng.integers(1, 40)), WIDTH)).astype(np.float32)}

    check(Case(g.model({"x": (FLOAT, ["N", WIDTH])}, [y]), draw))


@pytest.mark.usefixtures("vector_code")
def test_packing_room_that_is_used_up_counts(followed: Counter[str]) -> None:
    """A rule is tried again for an instruction that is alike if weights may grow less by then."""
    case = layers(matrices(5))
    plans = Plans(case)
    feeds = case.draw(np.random.default_rng(1))
    followed.clear()
    plans.in_a_run(feeds)
    assert followed["fused_contraction"]
    low = cpu_lower._lowering(plans._optimized(plans._settled(lens_of(feeds))), plans.options)
    low.ready = lambda kernel: True
    low.shared, low.solutions = plans.shared.weights, plans.shared.solutions
    lowered = low._lower

    def lower(ins: Instruction) -> None:
        lowered(ins)
        low.packing_room -= 1

    low._lower = lower  # type: ignore[method-assign]
    followed.clear()
    low.run()
    assert not followed["fused_contraction"]


def test_numbers_of_a_copy_are_those_of_its_program() -> None:
    """Passes are replayed by what is known of a copy, without reading it."""
    case = encoder(2)
    plans, rng = Plans(case), np.random.default_rng(2)
    for _ in range(4):
        settled = plans._settled(lens_of(case.draw(rng)))
        read = Numbered.of(settled.program).numbers
        known = settled.numbers
        assert (known.form, known.values) == (read.form, read.values)
        assert all(a is b for a, b in zip(known.literals, read.literals, strict=True))
