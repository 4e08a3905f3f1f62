"""Decompositions of ATen operators that have no builder here, and that PyTorch itself does not decompose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

_MIDDLE = 18.0
"""Magnitude up to which Bessel functions are power series, and above which they are asymptotic series: the series of
36 terms is exact to 1e-19 there, the smallest term of the asymptotic series is exp(-36) = 2e-16."""
_TERMS, _FAR_TERMS = 40, 24
"""Terms of either series."""


def _sum(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return a polynomial, whose constant comes first."""
    total = torch.full_like(x, coefficients[-1])
    for value in coefficients[-2::-1]:
        total = total * x + value
    return total


def _bessel(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    """Return the modified Bessel function of the first kind of an order (DLMF 10.25.2, 10.40.1).

    Args:
        order: 0 or 1.
        scaled: multiply by ``exp(-abs(x))``.
    """
    near = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_TERMS)]
    far, term = [1.0], Fraction(1)
    for k in range(1, _FAR_TERMS):
        term *= Fraction((2 * k - 1) ** 2 - 4 * order**2, 8 * k)
        far.append(float(term))

    def bessel(x: Tensor) -> Tensor:
        wide = x.to(torch.float64)
        size = wide.abs()
        small, large = size.clamp(max=_MIDDLE), size.clamp(min=_MIDDLE)
        inner = _sum(near, small * small * 0.25)
        if order:
            inner = inner * small * 0.5
        outer = _sum(far, large.reciprocal()) * (large * (2 * math.pi)).rsqrt()
        inner, outer = (inner * (-small).exp(), outer) if scaled else (inner, outer * large.exp())
        found = torch.where(size <= _MIDDLE, inner, outer)
        found = torch.where(wide < 0, -found, found) if order else found
        return found.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())

    return bessel


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``aten::frexp.Tensor``: a mantissa in [0.5, 1) and a power of 2; 0, infinity and NaN stay."""
    wide = x.to(torch.float64)  # in which the numbers of narrower types have no leading zeros
    tiny = wide.abs() < 2.0**-1000
    bits = torch.where(tiny, wide * 2.0**60, wide).view(torch.int64)
    power = ((bits >> 52) & 0x7FF) - 1022
    mantissa = ((bits & ~(0x7FF << 52)) | (1022 << 52)).view(torch.float64)
    whole = (wide == 0) | ~wide.isfinite()
    power = torch.where(whole, 0, torch.where(tiny, power - 60, power))
    return torch.where(whole, x, mantissa.to(x.dtype)), power.to(torch.int32)


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Compute ``aten::nonzero_static``: the positions of the first ``size`` nonzero elements, a row for each."""
    flags = (x != 0).flatten()
    rank = flags.cumsum(0)
    rows = torch.where(flags & (rank <= size), rank - 1, size)
    numbers = torch.arange(flags.numel(), device=x.device)
    flat = torch.zeros(size + 1, dtype=torch.int64, device=x.device).scatter(0, rows, numbers)[:size]
    given = torch.arange(size, device=x.device) < flags.sum()
    columns, step = [], 1
    for length in reversed(x.shape):
        columns.append(torch.where(given, flat // step % length, fill_value))
        step = step * length
    return torch.stack(columns[::-1], 1) if columns else flat.new_empty(size, 0)


def embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Compute ``aten::embedding_renorm``: rows that indices name, shortened to a norm of ``max_norm``."""
    norms = torch.linalg.vector_norm(weight, norm_type, 1)
    named = torch.zeros(len(weight), dtype=torch.bool, device=weight.device).index_fill(0, indices.flatten(), True)
    factor = torch.where(named & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
    return weight * factor[:, None].to(weight.dtype)


def fake_quantize(x: Tensor, scale: Tensor | float, zero: Tensor | int, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Compute ``aten::fake_quantize_per_tensor_affine_cachemask``: ``x`` rounded to numbers of 8 bits, and where it
    is not limited."""
    inverse = scale.reciprocal() if isinstance(scale, Tensor) else 1 / scale
    number = (x * inverse).round() + zero
    return (number.clamp(low, high) - zero) * scale, (number >= low) & (number <= high)


def fake_quantize_of_channels(
    x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Compute ``aten::fake_quantize_per_channel_affine_cachemask``."""
    lens = [-1 if k == axis else 1 for k in range(x.dim())]
    return fake_quantize(x, scale.reshape(lens), zero.reshape(lens), low, high)


def fake_quantize_of_tensors(
    x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Compute ``aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams``, which may be disabled."""
    found, inside = fake_quantize(x, scale, zero, low, high)
    on = enabled != 0
    return torch.where(on, found, x), inside | ~on


def int8_product(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Compute ``aten::_weight_int8pack_mm``: ``x @ weight.T`` with a scale for each row of an int8 weight."""
    return (x @ weight.t().to(x.dtype)) * scales


def inverse(x: Tensor) -> Tensor:
    """Compute ``aten::linalg_inv``; a program raises no error, and a singular matrix's inverse is not-a-number."""
    return torch.linalg.inv_ex(x)[0]


_aten = torch.ops.aten
TABLE: dict[torch._ops.OpOverload, Callable[..., object]] = {
    _aten.i0.default: _bessel(0, False),
    _aten.special_modified_bessel_i0.default: _bessel(0, False),
    _aten.special_i0e.default: _bessel(0, True),
    _aten.special_i1.default: _bessel(1, False),
    _aten.special_modified_bessel_i1.default: _bessel(1, False),
    _aten.special_i1e.default: _bessel(1, True),
    _aten.frexp.Tensor: frexp,
    _aten.nonzero_static.default: nonzero_static,
    _aten.embedding_renorm.default: embedding_renorm,
    _aten.fake_quantize_per_tensor_affine_cachemask.default: fake_quantize,
    _aten.fake_quantize_per_channel_affine_cachemask.default: fake_quantize_of_channels,
    _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: fake_quantize_of_tensors,
    _aten._weight_int8pack_mm.default: int8_product,
}
EXPORTED: dict[torch._ops.OpOverload, Callable[..., object]] = {
    _aten.linalg_inv.default: inverse,
    _aten.inverse.default: inverse,
}
"""Decompositions of exported graphs alone: `torch.compile` leaves the check of matrices to PyTorch."""
