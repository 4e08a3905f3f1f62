"""Determinants and inverses by kernels, against LAPACK."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program

from ..values import normal

TYPES = {"float16": Type.half_type, "float32": Type.float_type, "float64": Type.double_type}
LENS = (
    (0, 0),
    (2, 0, 0),
    (0, 4, 4),
    (1, 1),
    (2, 2),
    (3, 3, 3),
    (100, 4, 4),
    (2, 3, 5, 5),
    (8, 8),
    (9, 17, 17),
    (2, 66, 66),
)


def run(name: str, x: np.ndarray, permutation: tuple[int, ...] | None = None, threads: int = 1) -> np.ndarray:
    program = Program()
    given = program.main.add_parameter("x", Shape(TYPES[x.dtype.name], x.shape))
    if permutation is not None:
        given = program.main.add_instruction("transpose", [given], permutation=permutation)
    program.main.add_return([program.main.add_instruction(name, [given])])
    made = public_program.wrap(program).compile("cpu", num_threads=threads)
    labels: list[str] = []
    assert made.compiled is not None
    (found,) = made.compiled.observe({"x": x}, lambda seen: labels.append(seen.label))
    assert not labels or f"cpu::{name}_kernel" in labels
    return np.asarray(found)


def bound(dtype: str) -> float:
    """Float32 is computed in float64 and rounded once; float16 is rounded twice."""
    return {"float16": 2e-3, "float32": 2e-7, "float64": 1e-11}[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("lens", LENS, ids=str)
def test_inverses_are_those_of_lapack(lens: tuple[int, ...], dtype: str) -> None:
    """A fallback step took 12 times as long as ONNX Runtime."""
    x = normal(*lens).astype(dtype) + np.eye(lens[-1], dtype=dtype) * np.asarray(3, dtype)
    found, wanted = run("inverse", x), np.linalg.inv(x.astype(np.float64))
    assert found.dtype == x.dtype and found.shape == x.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound(dtype) * max(1, np.abs(wanted).max(initial=0)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("lens", LENS, ids=str)
def test_determinants_are_those_of_lapack(lens: tuple[int, ...], dtype: str) -> None:
    x = (normal(*lens) / np.sqrt(max(1, lens[-1]))).astype(dtype)
    found, wanted = run("determinant", x), np.linalg.det(x.astype(np.float64))
    assert found.dtype == x.dtype and found.shape == lens[:-2]
    np.testing.assert_allclose(found, wanted, rtol=bound(dtype), atol=1e-7 if dtype == "float16" else 1e-30)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_swapped_for_pivots(dtype: str) -> None:
    """Zeros on the diagonal, and pivots that are small beside the elements below them."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(9) for _ in range(20)]
    x = np.stack([np.eye(9)[order] * rng.choice([1, -2, 0.5, 1e-9], 9) for order in orders]).astype(dtype)
    np.testing.assert_allclose(run("inverse", x, threads=2), np.linalg.inv(x), rtol=1e-6)
    np.testing.assert_allclose(run("determinant", x, threads=2), np.linalg.det(x), rtol=1e-6)
    small = np.array([[1e-20, 1], [1, 1]], dtype)
    np.testing.assert_allclose(run("inverse", small), [[-1, 1], [1, -1e-20]], rtol=1e-6, atol=1e-19)


def test_matrices_in_any_order_of_axes() -> None:
    x = normal(5, 7, 5) + 4 * np.eye(5, dtype=np.float32)[:, None]
    wanted = x.transpose(1, 2, 0)
    np.testing.assert_allclose(run("inverse", x, (1, 2, 0)), np.linalg.inv(wanted), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(run("determinant", x, (1, 2, 0)), np.linalg.det(wanted), rtol=1e-5)


def test_singular_matrices_and_nan_stay_within_their_matrix() -> None:
    x = np.stack([np.eye(3), np.ones((3, 3)), np.zeros((3, 3)), 2 * np.eye(3), np.eye(3)]).astype(np.float32)
    x[4, 1, 2] = np.nan
    with np.errstate(all="ignore"):
        found, wanted = run("determinant", x), np.linalg.det(x)
    np.testing.assert_array_equal(found, [1, 0, 0, 8, 1 if not np.isnan(wanted[4]) else np.nan])
    inverse = run("inverse", x)
    np.testing.assert_array_equal(inverse[[0, 3]], [np.eye(3), np.eye(3) / 2])
    assert np.isnan(inverse[1:3]).all() and np.isnan(inverse[4]).any()


def test_products_beyond_float32_are_those_of_float64() -> None:
    x = np.diag([1e30, 1e30, 1e-30, 1e-25]).astype(np.float32)
    np.testing.assert_allclose(run("determinant", x), 1e5, rtol=1e-6)
    assert run("determinant", np.diag([1e30, 1e30]).astype(np.float32)) == np.inf
