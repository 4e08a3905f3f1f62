"""Choice of PyTorch's decompositions: operators with a builder stay whole, all others are decomposed if they can be.
Decompositions of operators that PyTorch itself does not decompose are defined here."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor
from torch._decomp import core_aten_decompositions, global_decomposition_table
from torch.export.exported_program import _override_composite_implicit_decomp

from . import registry
from .flex_attention import plain_flex_attention

_FURTHER = ("backward", "_foreach")
"""Parts of names of operators whose decompositions no inference graph needs."""
_OF_COMPLEX = frozenset(("aten::complex", "aten::polar"))
"""Operators that `complex_values` takes whole; PyTorch's decompositions write to memory."""


def _name(op: torch._ops.OpOverload) -> str:
    return f"{op._schema.name}.{op._overloadname}".removesuffix(".default")


def decomposition_table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """Return the decompositions for AOTAutograd: PyTorch's, without those of operators that have a builder."""
    table = {**global_decomposition_table["post_autograd"], **core_aten_decompositions(), **TABLE}
    return {
        op: made
        for op, made in table.items()
        if isinstance(op, torch._ops.OpOverload)
        and registry.find(_name(op)) is None
        and op._schema.name not in _OF_COMPLEX
        and torch.Tag.nondeterministic_seeded not in op.tags
        and not any(part in op._schema.name for part in _FURTHER)
    }


@functools.cache
def _for_export() -> dict[object, object]:
    table = torch.export.default_decompositions()
    found = {**table.materialize(), **decomposition_table(), **EXPORTED}
    whole = (op for op in found if isinstance(op, torch._ops.OpOverload))
    for op in [op for op in whole if registry.find(_name(op)) is not None or op._schema.name in _OF_COMPLEX]:
        del found[op]
    return found


def export_table() -> dict[object, object]:
    """Return the decompositions for ``ExportedProgram.run_decompositions``.

    Composite operators that are missing from it stay whole, too.
    """
    return dict(_for_export())


@contextmanager
def whole_operators(autocast: bool) -> Iterator[None]:
    """Let AOTAutograd keep interpolations and recurrent layers whole, and trace the inside of flexible attention.

    PyTorch's kernels in Python would replace the former, before it looks at a table, by gathers and by unrolled steps.

    Args:
        autocast: leave recurrent layers to PyTorch's kernels, whose products autocast converts.
    """
    kept = dict.fromkeys(_composite("image"), _kept)
    if not autocast:
        kept.update(dict.fromkeys(_composite("recurrent"), _kept))
    with _override_composite_implicit_decomp(kept), plain_flex_attention():
        yield


@contextmanager
def open_steps() -> Iterator[None]:
    """Let ``torch.export`` infer the shapes of recurrent layers without unrolled steps, whose number would be fixed."""
    kept = dict.fromkeys(_composite("recurrent"), _kept)
    table = global_decomposition_table["post_autograd"]
    known = {op: table[op] for op in kept if op in table}
    table.update(dict.fromkeys(known, _recurrent_results))
    try:
        with _override_composite_implicit_decomp(kept):
            yield
    finally:
        table.update(known)


def _recurrent_results(x: Tensor, states: Tensor | Sequence[Tensor], *options: Any) -> tuple[Tensor, ...]:
    """Return empty results of ``aten::lstm.input``, ``aten::gru.input`` or ``aten::rnn_tanh.input``."""
    bidirectional, batch_first = options[-2:]
    last = [states] if isinstance(states, Tensor) else list(states)
    features = last[0].shape[-1] * (2 if bidirectional else 1)
    turned = batch_first and x.dim() == 3
    steps = x.transpose(0, 1) if turned else x
    hidden = steps.new_empty((*steps.shape[:-1], features))
    return (hidden.transpose(0, 1) if turned else hidden, *map(torch.empty_like, last))


@functools.cache
def _composite(family: str) -> list[torch._ops.OpOverload]:
    """Return the operators of a family of which PyTorch has a kernel in Python that decomposes them."""
    aten = torch.ops.aten
    names = dict.fromkeys(name.partition(".")[0] for name in registry.names(family))
    packets = [getattr(aten, name) for name in names]
    found = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return [
        op
        for op in found
        if torch._C.DispatchKey.CompositeImplicitAutograd in op.py_kernels and registry.find(_name(op)) is not None
    ]


def _kept(*_: object, **options: object) -> object:
    return NotImplemented


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
        return _as_function_of(x, torch.where(wide < 0, -found, found) if order else found)

    return bessel


_SHIFT = 10
"""Terms of Hurwitz' zeta function that are added before the Euler-Maclaurin series."""
_CORRECTIONS = [Fraction(1, 6), Fraction(-1, 30), Fraction(1, 42), Fraction(-1, 30), Fraction(5, 66)]
_CORRECTIONS += [
    Fraction(-691, 2730),
    Fraction(7, 6),
    Fraction(-3617, 510),
    Fraction(43867, 798),
    Fraction(-174611, 330),
]
"""Bernoulli's numbers B(2), B(4), ... of that series (DLMF 25.11.5)."""


def _zeta(order: int, q: Tensor) -> Tensor:
    """Return Hurwitz' zeta function ``sum_k (q + k)**-order`` for ``q`` > 0 in float64."""
    total = q.pow(-order)
    for k in range(1, _SHIFT):
        total = total + (q + k).pow(-order)
    inverse = (q + _SHIFT).reciprocal()
    series, factor = [0.5], Fraction(1)
    for j, number in enumerate(_CORRECTIONS, 1):
        factor = (
            Fraction(order) / 2
            if j == 1
            else factor * (order + 2 * j - 3) * (order + 2 * j - 2) / (2 * j * (2 * j - 1))
        )
        series.append(float(number * factor))
    rest = _sum(series[1:], inverse * inverse) * inverse + 0.5
    return total + inverse.pow(order) * rest + inverse.pow(order - 1) / (order - 1)


def polygamma(n: int, x: Tensor) -> Tensor:
    """Compute ``aten::polygamma``, derivative ``n`` of the digamma function, by Hurwitz' zeta function.

    An argument below 0.5 is reflected: the derivative of ``pi * cot(pi * x)`` is a polynomial of the cotangent.
    """
    if n == 0:
        return torch.digamma(x)
    wide = x.to(torch.float64)
    left = wide < 0.5
    sign = -((-1.0) ** n)
    value = _zeta(n + 1, torch.where(left, 1 - wide, wide)) * (sign * math.factorial(n))
    cotangent = [0.0, 1.0]  # coefficients, the constant first
    for _ in range(n):
        slope = [k * c for k, c in enumerate(cotangent)][1:]
        cotangent = [a + b for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope])]
        cotangent = [-math.pi * c for c in cotangent]
    beside = (wide - wide.round()) * math.pi
    reflected = value * (-1.0) ** n - math.pi * _sum(cotangent, beside.tan().reciprocal())
    reflected = torch.where(beside == 0, sign * math.inf, reflected)
    return _as_function_of(x, torch.where(left, reflected, value))


_CENTRE = 3.75
"""The argument of `_scaled_tail` that is 0 in the polynomial."""
_SCALED = (
    1.2375126308378275,
    -0.14024059858554697,
    0.0035854154854790257,
    0.0822767384901452,
    -0.10880393014244462,
    0.09230432116037748,
    -0.05869339857664934,
    0.028362277418956406,
    -0.009746579683265262,
    0.0017556258528952954,
    0.000293714378044958,
    -0.0002901540805408417,
    5.164652974177416e-05,
    2.238423915508223e-05,
    -1.1438048033346894e-05,
    -9.73559896736777e-07,
    1.7419821586224823e-06,
    -5.721823060322171e-08,
    -2.48571262480168e-07,
    2.3263508708857417e-08,
    3.197926671666828e-08,
    -3.744210080961323e-09,
    -2.6231073471335185e-09,
    3.111433380978696e-10,
)
"""Polynomial of ``t = (x - 3.75) / (x + 3.75)`` for ``(1 + 2 * x) * exp(x**2) * erfc(x)``, as Shepherd and Laframboise
propose: the Chebyshev series of 60 nodes up to T(23), made with mpmath; exact to 8e-16."""


def _scaled_tail(x: Tensor) -> Tensor:
    """Return ``exp(x**2) * erfc(x)`` for ``x`` from 0 on, in float64."""
    t = 1 - 2 * _CENTRE / (x + _CENTRE)
    return _sum(_SCALED, t) / (1 + 2 * x)


def erfc(x: Tensor) -> Tensor:
    """Compute ``aten::erfc`` with small relative errors, unlike ``1 - erf(x)``."""
    wide = x.to(torch.float64)
    tail = (-wide * wide).exp() * _scaled_tail(wide.abs())
    return _as_function_of(x, torch.where(wide < 0, 2 - tail, tail))


def erfcx(x: Tensor) -> Tensor:
    """Compute ``aten::special_erfcx``: ``exp(x**2) * erfc(x)``."""
    wide = x.to(torch.float64)
    tail = _scaled_tail(wide.abs())
    return _as_function_of(x, torch.where(wide < 0, 2 * (wide * wide).exp() - tail, tail))


def _as_function_of(x: Tensor, value: Tensor) -> Tensor:
    """Convert a result in float64 to the type of a function of ``x``: that of floats, the default type for integers."""
    return value.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


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


def solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    """Compute ``aten::linalg_solve``; ``b`` may be a vector of each matrix."""
    is_vector = b.dim() == 1 or b.shape == a.shape[:-1]
    x = _solved(a, b[..., None] if is_vector else b, left)
    return x[..., 0] if is_vector else x


def _solved(a: Tensor, b: Tensor, left: bool) -> Tensor:
    """Solve linear systems by the inverse in float64; a step of refinement removes most of its error."""
    wide, given = a.double(), b.double()
    inverted = torch.linalg.inv_ex(wide)[0]

    def product(matrix: Tensor, other: Tensor) -> Tensor:
        return matrix @ other if left else other @ matrix

    x = product(inverted, given)
    return (x + product(inverted, given - product(wide, x))).to(a.dtype)


_SMALL = {torch.float32: 32, torch.float64: 16}
"""Lengths of matrices up to which the determinant of rows scaled to 1 is a number in float64, where no singular value
is below the type's precision: 2**-24 ** 31 = 1e-224, 2**-53 ** 15 = 1e-240."""


def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``aten::linalg_slogdet`` of small matrices: sign and logarithm of the magnitude of the determinant."""
    length = x.shape[-1]
    if not isinstance(length, int) or length > _SMALL.get(x.dtype, 0):
        return NotImplemented  # type: ignore[no-any-return]
    wide = x.double()
    most = wide.abs().amax(-1, keepdim=True) if length else wide
    most = torch.where((most > 0) & ~most.isinf(), most, 1.0)
    found = torch.linalg.det(wide / most)
    size = found.abs().log() + most.log().sum((-2, -1))
    return found.sign().to(x.dtype), size.to(x.dtype)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute ``aten::_native_multi_head_attention``, whose mask is true where attention is not paid."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
    projected = (f.linear(x, weight, bias) for x, weight, bias in parts)
    q, k, v = (x.unflatten(2, (num_head, embed_dim // num_head)).transpose(1, 2) for x in projected)
    kept = None
    if mask is not None:
        kept = mask.to(torch.bool).logical_not()
        kept = kept[:, None, None, :] if mask_type == 1 else kept
    if need_weights:
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(2, 3)
        weights = (scores if kept is None else scores.masked_fill(~kept, float("-inf"))).softmax(3)
        found = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        weights = query.new_empty(0)
        found = f.scaled_dot_product_attention(q, k, v, kept)
    return f.linear(found.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Compute ``aten::_transformer_encoder_layer_fwd``."""

    def first(x: Tensor) -> Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def second(x: Tensor) -> Tensor:
        hidden = f.linear(x, ffn_weight_1, ffn_bias_1)
        return f.linear(f.gelu(hidden) if use_gelu else f.relu(hidden), ffn_weight_2, ffn_bias_2)

    x = src
    for part, weight, bias in ((first, norm_weight_1, norm_bias_1), (second, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = x + part(f.layer_norm(x, (embed_dim,), weight, bias, eps))
        else:
            x = f.layer_norm(x + part(x), (embed_dim,), weight, bias, eps)
    return x


_aten = torch.ops.aten
TABLE: dict[torch._ops.OpOverload, Callable[..., object]] = {
    _aten.i0.default: _bessel(0, False),
    _aten.special_modified_bessel_i0.default: _bessel(0, False),
    _aten.special_i0e.default: _bessel(0, True),
    _aten.special_i1.default: _bessel(1, False),
    _aten.special_modified_bessel_i1.default: _bessel(1, False),
    _aten.special_i1e.default: _bessel(1, True),
    _aten.erfc.default: erfc,
    _aten.special_erfcx.default: erfcx,
    _aten.polygamma.default: polygamma,
    _aten.frexp.Tensor: frexp,
    _aten.nonzero_static.default: nonzero_static,
    _aten.embedding_renorm.default: embedding_renorm,
    _aten.fake_quantize_per_tensor_affine_cachemask.default: fake_quantize,
    _aten.fake_quantize_per_channel_affine_cachemask.default: fake_quantize_of_channels,
    _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: fake_quantize_of_tensors,
    _aten._weight_int8pack_mm.default: int8_product,
    _aten._native_multi_head_attention.default: attention,
    _aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
EXPORTED: dict[torch._ops.OpOverload, Callable[..., object]] = {
    _aten.linalg_inv.default: inverse,
    _aten.inverse.default: inverse,
    _aten.linalg_solve.default: solve,
    _aten.linalg_slogdet.default: slogdet,
}
"""Decompositions of exported graphs alone: `torch.compile` leaves the check of matrices to PyTorch."""
