"""Networks of similar layers, at lengths that were not compiled for: each layer has its own weights."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.api.program import program as public_program
from mgx_numba.codegen.cpu.host import EMULATED_TILES, host
from mgx_numba.core.shape import DynamicDimension
from mgx_numba.frontends.onnx import parse_onnx

from ..features import features
from .models import FLOAT, Case, Feeds, Graph, encoder

WIDTH = 32
FORMS = ["", *([EMULATED_TILES] if host().vector_bits >= 512 else [])]
form = features(FORMS)


def layers(weights: list[np.ndarray], twice: bool = False) -> Case:
    """Products in a row with a sum and a relu each; the first matrix is also taken ``twice``."""
    g = Graph()
    y = "x"
    taken = [g.const(array) for array in weights]
    for matrix in [*taken, *(taken[:1] if twice else [])]:
        y = g.op("Relu", g.op("Add", g.op("MatMul", y, matrix), g.weights(WIDTH)))
    return Case(g.model({"x": (FLOAT, ["N", WIDTH])}, [y]), rows)


def rows(rng: np.random.Generator) -> Feeds:
    return {"x": rng.standard_normal((int(rng.integers(1, 40)), WIDTH)).astype(np.float32)}


def matrices(count: int) -> list[np.ndarray]:
    """Different ones of numbers that bfloat16 has."""
    rng = np.random.default_rng(3)
    drawn = [rng.standard_normal((WIDTH, WIDTH)) / 8 for _ in range(count)]
    return [array.astype(ml_dtypes.bfloat16).astype(np.float32) for array in drawn]


def images() -> Case:
    """Return residual convolutions of open batch and sizes; the last convolution has more channels."""
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
    drawn = np.random.default_rng(seed).standard_normal((out, channels, 3, 3)).astype(np.float32) / 8
    return g.const(drawn), g.weights(out)


def check(case: Case, tolerance: float, count: int = 5, **options: Any) -> None:
    """Check results at random lengths against the reference target."""
    program = public_program.wrap(parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096)))
    reference = program.clone().compile("ref")
    program.compile("cpu", **options)
    rng = np.random.default_rng(5)
    for _ in range(count):
        feeds = case.draw(rng)
        found, wanted = (np.asarray(p.run(feeds)[0], np.float64) for p in (program, reference))
        assert found.shape == wanted.shape
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(found), finite)
        most = np.abs(wanted[finite]).max(initial=0)
        np.testing.assert_allclose(found[finite], wanted[finite], rtol=0, atol=tolerance * most)


@pytest.mark.parametrize(("precision", "tolerance"), [("highest", 1e-5), ("high", 1e-4), ("medium", 3e-2)])
def test_encoders_of_equal_layers(precision: str, tolerance: float, form: str) -> None:
    check(encoder(3), tolerance, float32_matmul_precision=precision)


@pytest.mark.parametrize(("precision", "tolerance"), [("highest", 1e-4), ("high", 1e-4)])
def test_convolutions_with_sums_of_residuals(precision: str, tolerance: float, form: str) -> None:
    check(images(), tolerance, 3, fast_math=True, float32_matmul_precision=precision)


def test_a_matrix_that_two_products_have() -> None:
    check(layers(matrices(3), twice=True), 1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("high", 1e-4), ("medium", 3e-2)])
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_weights_that_a_solver_refuses_were_taken_for_those_of_another_layer(
    precision: str, tolerance: float, place: int, value: float, form: str
) -> None:
    weights = matrices(4)
    weights[place] = weights[place].copy()
    weights[place][1, 2] = value
    check(layers(weights), tolerance, 2, float32_matmul_precision=precision)


def test_matrices_of_other_lengths_types_and_strides() -> None:
    g = Graph()
    wide = g.const(matrices(1)[0])
    turned = g.op("Transpose", g.const(matrices(2)[1]), perm=[1, 0])
    y = g.op("Relu", g.op("MatMul", g.op("Relu", g.op("MatMul", "x", wide)), turned))
    y = g.op("Relu", g.op("MatMul", y, g.weights(WIDTH, 2 * WIDTH)))
    y = g.op("Sigmoid", g.op("MatMul", y, g.weights(2 * WIDTH, WIDTH)))
    check(Case(g.model({"x": (FLOAT, ["N", WIDTH])}, [y]), rows), 1e-5)
