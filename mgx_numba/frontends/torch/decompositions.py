"""Choice of PyTorch's decompositions: operators with a builder stay whole, all others are decomposed if they can be.
Decompositions of operators that PyTorch itself does not decompose are defined here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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


@functools.cache
def _composite(family: str) -> list[object]:
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


def _sum(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return a polynomial, whose constant comes first."""
    total = torch.full_like(x, coefficients[-1])
    for value in coefficients[-2::-1]:
        total = total * x + value
    return total


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


def int8_product(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Compute ``aten::_weight_int8pack_mm``: ``x @ weight.T`` with a scale for each row of an int8 weight."""
    return (x @ weight.t().to(x.dtype)) * scales


def inverse(x: Tensor) -> Tensor:
    """Compute ``aten::linalg_inv``; a program raises no error, and a singular matrix's inverse is not-a-number."""
    return torch.linalg.inv_ex(x)[0]


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
    _aten.erfc.default: erfc,
    _aten.special_erfcx.default: erfcx,
    _aten._weight_int8pack_mm.default: int8_product,
    _aten._native_multi_head_attention.default: attention,
    _aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
EXPORTED: dict[torch._ops.OpOverload, Callable[..., object]] = {
    _aten.linalg_inv.default: inverse,
    _aten.inverse.default: inverse,
}
"""Decompositions of exported graphs alone: `torch.compile` leaves the check of matrices to PyTorch."""
