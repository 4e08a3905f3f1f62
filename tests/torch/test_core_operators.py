"""Which of PyTorch's core operators have no builder, and why; special functions, bits, counts, fused layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mgx_numba.frontends.torch import registry
from mgx_numba.frontends.torch.parser import DECOMPOSITIONS
from mgx_numba.torch.backend import mgx_numba

from .exported import check
from .models import agree

INF, NAN = float("inf"), float("nan")
WITHOUT = {
    "backward": "gradients: training runs in eager mode",
    "rand": "random numbers of PyTorch's generator",
    "_fft": "complex transforms by PyTorch's library",
    "_local_scalar_dense": "gives a Python number",
    "sym_storage_offset": "gives a Python number",
    "resize_": "changes its argument in place: functional graphs have none",
}
"""Parts of the names of core operators without a builder, each with the reason."""


def test_core_operators_have_a_builder_or_a_reason() -> None:
    lacking = set()
    for name in torch._C._dispatch_get_all_op_names():  # attributes of torch.ops.aten are only those in use so far
        library, _, name = name.partition("::")
        packet, _, overload = name.partition(".")
        found = getattr(torch.ops.aten, packet, None) if library == "aten" else None
        op = getattr(found, overload or "default", None)
        if op is None or torch.Tag.core not in op.tags:
            continue
        if registry.find(f"aten::{name}") is None and op not in DECOMPOSITIONS:
            lacking.add(name)
    assert not [name for name in lacking if not any(part in name for part in WITHOUT)]
    assert not [part for part in WITHOUT if not any(part in name for name in lacking)]


SPECIAL = [0.0, -0.0, 1.0, 2.0, -1.0, 0.5, -0.5, -1.5, 1e-3, -1e-3, 7.9, 8.1, 30.0, 1e10, -30.5, INF, -INF, NAN]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-13), (torch.bfloat16, 1e-2)])
def test_special_functions(dtype: Any, tolerance: float) -> None:
    x = torch.tensor(SPECIAL).to(dtype)
    check(lambda x: (torch.lgamma(x), torch.digamma(x) * 1, torch.erfinv(x)), [x.clamp(-2, 30)], tolerance=tolerance)
    check(lambda x: (torch.lgamma(x).clamp(max=1e12), torch.logcumsumexp(x, 0)), [x], tolerance=tolerance)
    check(lambda a, b: torch.nextafter(a, b), [x[:, None].repeat(1, len(x)), x.repeat(len(x), 1)], tolerance=0)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1.5e-6), (torch.float64, 1e-13)])
def test_special_functions_have_small_relative_errors(dtype: Any, tolerance: float, programs: list[Any]) -> None:
    def functions(x: Any) -> Any:
        tails = torch.erfc(x), torch.special.erfcx(x.clamp(min=-5)), torch.special.log_ndtr(x.clamp(max=0))
        return *tails, torch.expm1(x), torch.log1p(x.abs()), torch.log1p(x.clamp(-0.1, 0.1))

    x = torch.cat([torch.linspace(-9, 9, 199), torch.logspace(-8, 0, 99), torch.tensor([0.0, INF, -INF, NAN])]).to(
        dtype
    )
    found = torch.compile(functions, backend=mgx_numba)(x)
    for own, exact in zip(found, functions(x.double()), strict=True):
        torch.testing.assert_close(own, exact.to(dtype), rtol=tolerance, atol=0, equal_nan=True)
    assert len(programs) == 1


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_derivatives_of_the_digamma_function(order: int, programs: list[Any]) -> None:
    x = torch.cat(
        [torch.linspace(0.01, 40, 99), torch.linspace(-8.9, -0.07, 60), torch.tensor([0.0, 0.5, NAN])]
    ).double()
    found = torch.compile(lambda x: torch.polygamma(order, x), backend=mgx_numba)
    torch.testing.assert_close(found(x), torch.polygamma(order, x), rtol=1e-9, atol=1e-12, equal_nan=True)
    agree(found(torch.arange(1, 4)), torch.polygamma(order, torch.arange(1, 4)))
    assert len(programs) == 2


def test_bits_as_elements_of_another_size() -> None:
    def views(x: Any, y: Any) -> Any:
        own = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64)
        return *(x.view(t).flip(0) for t in own), *(y.view(t).flip(0) for t in own)

    check(views, [torch.randn(3, 4), torch.randint(0, 100, (2, 16)).to(torch.uint8)], tolerance=0)
    check(lambda x: x.view(torch.int16).view(torch.float64).flip(0), [torch.randn(3, 4)], target="cpu", tolerance=0)
    check(lambda x: x.view(torch.int8).flip(0), [torch.randn(0, 4)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float32])
def test_the_most_frequent_element_and_its_last_position(dtype: Any) -> None:
    x = torch.randint(0, 4, (3, 7, 5)).to(dtype)
    check(lambda x: (*x.mode(0), *x.mode(1, keepdim=True), *x.mode(-1)), [x])


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_counts_of_numbers(programs: list[Any]) -> None:
    def counts(x: Any, w: Any) -> Any:
        return torch.bincount(x, minlength=3) * 2, torch.bincount(x, w) * 2

    found = torch.compile(counts, backend=mgx_numba)
    for length in (20, 9):
        args = torch.randint(0, 6, (length,)), torch.rand(length)
        agree(found(*args), counts(*args))
    assert programs


@torch.no_grad()
def test_fused_transformer_layers_are_compiled(programs: list[Any]) -> None:
    x, options = torch.randn(2, 5, 8), {"batch_first": True}
    layers = [nn.TransformerEncoderLayer(8, 2, 16, norm_first=first, **options).eval() for first in (False, True)]
    for layer in layers:
        agree(torch.compile(layer, backend=mgx_numba)(x), layer(x))
    masked = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    agree(torch.compile(layers[0], backend=mgx_numba)(x, masked), layers[0](x, masked))
    own = nn.MultiheadAttention(8, 2, **options).eval()
    padding = torch.tensor([[False] * 4 + [True], [False] * 5])
    for given in ({}, {"key_padding_mask": padding}, {"need_weights": False}, {"average_attn_weights": False}):
        agree(torch.compile(lambda x, given=given: own(x, x, x, **given), backend=mgx_numba)(x), own(x, x, x, **given))
    assert len(programs) == 7


def test_not_a_number_among_boundaries_and_scores() -> None:
    x = torch.tensor([NAN, INF, -INF, 0.0, 1.0, -0.0, 7.0])
    bounds = torch.tensor([0.0, 1, 1, 2, 5, INF, NAN])
    check(lambda x: torch.isin(x, torch.tensor([INF, NAN, 0, 5]).repeat(10)), [x], target="cpu", tolerance=0)
    for right in (False, True):
        check(lambda x, right=right: torch.searchsorted(bounds, x, right=right), [x[2:]], target="cpu", tolerance=0)
    rows = torch.tensor([[NAN, -INF, -INF], [NAN, 1, 2], [-INF] * 3, [INF, 1, -INF], [1, 2, -INF]])
    check(lambda x: torch.ops.aten._safe_softmax.default(x, 1), [rows])


def test_transposed_convolution_of_integers() -> None:
    for groups in (1, 2):
        args = [torch.randint(-9, 9, (1, 2, 5, 5)), torch.randint(-9, 9, (2, 4, 3, 3))]
        options = {"stride": 2, "groups": groups}
        check(
            lambda x, w, options=options: nn.functional.conv_transpose2d(x, w, **options),
            args,
            target="cpu",
            tolerance=0,
        )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_are_apart(mode: str) -> None:
    weight = torch.randn(6, 3)
    weight[1], weight[2, 0] = NAN, INF
    places, starts = torch.tensor([0, 3, 1, 5, 4, 2, 0, 5]), torch.tensor([0, 2, 2, 4, 7, 8])

    def bags(weight: Any, places: Any, starts: Any) -> Any:
        one = nn.functional.embedding_bag(places, weight, starts, mode=mode)
        return one, nn.functional.embedding_bag(places, weight, starts, mode=mode, padding_idx=5)

    for target in ("ref", "cpu"):
        check(bags, [weight, places, starts], target=target)
    check(bags, [torch.ones(6, 3).half(), torch.zeros(3000, dtype=torch.int64), torch.tensor([0, 1])])


def test_lengths_that_an_operator_refuses_when_they_are_known_run_in_eager_mode() -> None:
    def padded(x: Any) -> Any:
        return nn.functional.pad(x * 2, (-4, 5, 0, 0), mode="replicate") + 1

    compiled = torch.compile(padded, backend=mgx_numba, dynamic=True)
    for length in (4, 6):  # nothing is left of four elements to be repeated
        x = torch.randn(2, 3, 5, length)
        agree(compiled(x), padded(x))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_signs_and_infinities_of_integers(dtype: Any) -> None:
    x = torch.tensor([0, 1, 1, 0]).to(dtype)
    check(lambda x: (torch.isposinf(x), torch.isneginf(x), torch.sign(x), torch.sgn(x)), [x], target="cpu", tolerance=0)
