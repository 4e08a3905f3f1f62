"""Operators that the frontend decomposes itself, and common divisors: beside PyTorch and SciPy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as f

from mgx_numba.errors import UnsupportedError
from mgx_numba.torch.backend import mgx_numba

from .exported import check
from .models import agree

INF, NAN = float("inf"), float("nan")
BESSEL = (torch.i0, torch.special.i0e, torch.special.i1, torch.special.i1e)


@pytest.mark.parametrize("function", BESSEL)
def test_modified_bessel_functions(function: Any) -> None:
    x = torch.tensor([0.0, -0.0, 1e-30, 0.5, -3, 7.9, 8.1, 17.9, -18.1, 60, 85, -100, INF, -INF, NAN])
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
        wide = x.to(dtype)
        expected = function(wide)
        check(lambda x, expected: function(x) / expected, [wide, expected], tolerance=tolerance)
    check(function, [torch.arange(-4, 5)], target="cpu", tolerance=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_mantissa_and_exponent(dtype: Any) -> None:
    values = [0.0, -0.0, 1, -2, 0.75, 1e-7, -1e-40, 5e-324, -1e-310, 1e300, 6e4, INF, -INF, NAN]
    check(torch.frexp, [torch.tensor(values, dtype=torch.float64).to(dtype)], tolerance=0)
    check(torch.frexp, [torch.randn(100).to(dtype)], target="cpu", tolerance=0)


@pytest.mark.parametrize("size", [0, 3, 40])
def test_nonzero_elements_of_a_fixed_number(size: int) -> None:
    x = torch.randint(0, 2, (3, 4, 2))
    options = {"size": size, "fill_value": -7}
    check(lambda x: torch.nonzero_static(x, **options), [x], target="cpu", tolerance=0)
    check(lambda x: torch.nonzero_static(x.flatten() > 0, **options), [x], tolerance=0)
    check(lambda x: torch.nonzero_static(x[0, 0, 0], **options), [x], tolerance=0)


@pytest.mark.parametrize("kind", [1.0, 2.0, INF])
def test_embeddings_of_a_largest_norm(kind: float) -> None:
    def shortened(weight: Any, places: Any) -> Any:
        return f.embedding(places, weight + 0, max_norm=1.5, norm_type=kind)

    check(shortened, [torch.randn(6, 4) * torch.arange(6)[:, None] / 4, torch.tensor([[5, 1, 1], [0, 2, 4]])])


def test_fake_quantisation() -> None:
    x = torch.randn(3, 4) * 3
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, 3, -128, 127), [x])
    scale, zero = torch.rand(4) / 50 + 0.001, torch.tensor([0, 5, -3, 1], dtype=torch.int32)
    check(lambda x: torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -128, 127), [x])
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, scale[0], zero[1], 0, 255), [x], target="cpu")


def test_product_with_a_weight_of_bytes() -> None:
    weight = torch.randint(-128, 128, (16, 32), dtype=torch.int8)
    args = [torch.randn(4, 32).bfloat16(), weight, (torch.rand(16) / 100).bfloat16()]
    check(torch.ops.aten._weight_int8pack_mm, args, tolerance=1e-2)


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_common_divisors_and_multiples(dtype: Any, target: str) -> None:
    def both(a: Any, b: Any) -> Any:
        return torch.gcd(a, b), torch.lcm(a, b)

    low = 0 if dtype is torch.uint8 else -100
    a, b = torch.randint(low, 100, (20,)).to(dtype), torch.randint(low, 100, (3, 20)).to(dtype)
    a[0] = b[0, 0] = 0
    if dtype is torch.int64:
        a[1], b[0, 1] = 7540113804746346429, 4660046610375530309  # two Fibonacci numbers: 90 divisions
    check(both, [a, b], target=target, tolerance=0)
    check(both, [a[3], b[1, 2]], target=target, tolerance=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_systems_and_logarithms_of_determinants_are_exported(dtype: torch.dtype) -> None:
    solve, slogdet = torch.linalg.solve, torch.linalg.slogdet
    x = torch.randn(3, 5, 5, dtype=dtype) + 2 * torch.eye(5, dtype=dtype)
    b, tolerance = torch.randn(3, 5, 2, dtype=dtype), 1e-4 if dtype is torch.float32 else 1e-12
    check(solve, [x, b], tolerance=tolerance)
    check(solve, [x[0], b], tolerance=tolerance)
    check(solve, [x, b[..., 0]], tolerance=tolerance)
    check(solve, [x[0], b[0, :, 0]], tolerance=tolerance)
    check(lambda x, b: solve(x, b, left=False), [x, b.mT], tolerance=tolerance)
    check(slogdet, [x], tolerance=tolerance)
    check(slogdet, [torch.tensor([[1.0, 2], [2, 4]], dtype=dtype)])  # singular
    check(slogdet, [torch.zeros(2, 0, 0, dtype=dtype)])
    largest = 32 if dtype is torch.float32 else 16
    tiny = torch.randn(largest, largest, dtype=dtype) * 1e-30
    check(slogdet, [tiny])
    with pytest.raises(UnsupportedError, match="linalg_slogdet"):
        check(slogdet, [torch.randn(largest + 1, largest + 1, dtype=dtype)])
    with pytest.raises(UnsupportedError, match="linalg_cholesky_ex"):
        check(torch.linalg.cholesky, [torch.eye(3, dtype=dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unitriangular", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_triangular_systems(upper: bool, unitriangular: bool, dtype: torch.dtype) -> None:
    """Elements outside the triangle, and with ``unitriangular`` the diagonal, are not read."""
    x, b = torch.randn(3, 7, 7, dtype=dtype) / 2, torch.randn(3, 7, 2, dtype=dtype)
    x.diagonal(dim1=1, dim2=2).add_(2)
    x[0, 0, 6 if not upper else 0] = NAN if unitriangular or not upper else 1.0
    x[1, 6, 0 if upper else 6] = INF if unitriangular or upper else 1.0
    tolerance = 1e-5 if dtype is torch.float32 else 1e-13

    def solve(x: torch.Tensor, b: torch.Tensor, left: bool = True) -> torch.Tensor:
        return torch.linalg.solve_triangular(x, b, upper=upper, left=left, unitriangular=unitriangular)

    check(solve, [x, b], tolerance=tolerance)
    check(solve, [x[:1], b], tolerance=tolerance)
    check(solve, [x[2].expand(7, 7, 7), x[2]], tolerance=tolerance)  # one matrix, no vector for each matrix
    check(lambda x, b: solve(x, b, False), [x, b.mT], tolerance=tolerance)
    check(solve, [x[:, :0, :0], b[:, :0]])
    torch._dynamo.reset()
    compiled = torch.compile(solve, backend=mgx_numba)
    agree(compiled(x, b), solve(x, b), tolerance)
    x[2, 3, 3], b[2, 1, 0], b[2, 3, 1] = 0, INF, 0  # no inverse, and infinities
    torch.testing.assert_close(compiled(x, b), solve(x, b), rtol=tolerance, atol=tolerance, equal_nan=True)
    check(solve, [x, b], target="cpu", tolerance=tolerance)


def test_singular_matrices_raise_where_pytorch_does_and_are_told_where_it_tells() -> None:
    x = torch.randn(2, 3, 3)
    for function in (torch.inverse, lambda x: torch.linalg.inv(x) * 2):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=mgx_numba)
        agree(compiled(x[:1]), function(x[:1]))
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(torch.zeros(1, 3, 3))
        check(function, [x[:1]])
    x[1] = 0
    check(lambda x: torch.linalg.inv_ex(x)[1] > 0, [x])
    check(lambda x: torch.linalg.inv_ex(x)[1] > 0, [x * torch.tensor(NAN)])
