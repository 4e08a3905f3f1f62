"""ATen operators beside PyTorch: odd lengths, empty tensors, tensors without axes, NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx

torch = pytest.importorskip("torch", reason="PyTorch is not installed: tests of its frontend do not run")
import torch.nn.functional as f  # noqa: E402

from .exported import array, check, module_of, results_of  # noqa: E402

INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, -2.5, 0.3, 1e-4, -3e-3, 7.0, INF, -INF, NAN]


def special() -> Any:
    return torch.tensor(SPECIAL)


def pair() -> list[Any]:
    a = special()
    return [a[:, None].contiguous(), torch.tensor([1.0, -2.0, 0.5, 0.0, -0.0, INF, NAN])]


def ints() -> list[Any]:
    return [torch.tensor([-7, -3, 0, 3, 7, 8]), torch.tensor([2, -2, 3, -3, 2, 5])]


UNARY: dict[str, Any] = {
    "rounding": lambda x: (
        x.trunc(),
        x.frac().nan_to_num(),
        x.round(),
        x.floor(),
        x.ceil(),
        torch.round(x, decimals=1),
    ),
    "signs": lambda x: (x.sign(), x.sgn(), x.signbit(), x.copysign(torch.tensor(-0.0)), x.abs(), -x),
    "special": lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.isneginf(), x.isposinf(), x.nan_to_num(1, 2, -3)),
    "powers": lambda x: (x**2, x**3, x**-1, x.square(), x.pow(0.5), x.rsqrt(), 2**x, x.reciprocal()),
    "small": lambda x: (x.expm1(), x.log1p(), x.exp2(), x.log10(), x.erfc(), x.rad2deg()),
    "activations": lambda x: (f.relu(x), f.relu6(x), f.elu(x), f.selu(x), f.celu(x, 0.7), f.leaky_relu(x), f.silu(x)),
    "gates": lambda x: (f.hardtanh(x), f.hardsigmoid(x), f.hardswish(x), f.softplus(x), f.softplus(x, 2, 5)),
    "shrinks": lambda x: (f.softshrink(x), f.hardshrink(x), f.threshold(x, 0.2, 9.0), f.logsigmoid(x)),
    "clamps": lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0), x.clamp(torch.tensor(0.5), torch.tensor(1.0))),
}


@pytest.mark.parametrize("name", UNARY)
def test_pointwise_of_special_values(name: str) -> None:
    check(UNARY[name], [special()])


BINARY: dict[str, Any] = {
    "arithmetic": lambda a, b: (a + 2 * b, torch.sub(a, b, alpha=3), 1 - a, a * b, a / b, torch.rsub(a, b)),
    "division": lambda a, b: (torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b)),
    "extremes": lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b)),
    "comparisons": lambda a, b: (a == b, a != b, a < b, a <= b, a > b, a >= b, a == 1),
    "logic": lambda a, b: (a.logical_and(b), a.logical_or(b), a.logical_xor(b), a.logical_not()),
    "composed": lambda a, b: (torch.atan2(a, b), torch.logaddexp(a, b), torch.lerp(a, b, 0.3), torch.heaviside(a, b)),
    "where": lambda a, b: (torch.where(a > 0, a, b), a.masked_fill(b > 0, -INF), torch.where(a > b, 1.5, 2.5)),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_of_special_values(name: str) -> None:
    check(BINARY[name], pair())


def test_integers_and_type_promotion() -> None:
    def mixed(a: Any, b: Any) -> Any:
        half = torch.tensor(0.5, dtype=torch.float64)
        return (
            *(a // b, a % b, torch.div(a, b, rounding_mode="trunc"), a / b, a + 1.5, a * half, a + (b > 0)),
            *((a > 0) + (b > 0), (a > 0) * (b > 0), a & b, a | 3, ~a, ~(a > 0), a << 1, b >> 1, a > 0.5),
            *(a.to(torch.int8) + 200, a.to(torch.uint8), a.float() + a.double(), a.sum(), a.float().long(), a.bool()),
            *((a > 0).sum(), a.prod(), a.float().mean(), a.max(), a.argmin(), a.any(), (a > 0).all(0), a.cumsum(0)),
        )

    check(mixed, ints())


def test_half_is_combined_with_exact_numbers() -> None:
    x = torch.randn(37).half()
    check(lambda x: (x * 0.1, x + 0.3, x / 3, f.softmax(x, 0), f.gelu(x), x.float() * 0.1), [x], tolerance=1e-3)


@pytest.mark.parametrize(
    "function",
    [
        torch.log10,
        torch.expm1,
        torch.logaddexp,
        torch.atan2,
        torch.hypot,
        lambda x, y: torch.linalg.vector_norm(x, 6),
        lambda x, y: torch.linalg.vector_norm(x[:1], 6, keepdim=True) + y,
        lambda x, y: torch.linalg.vector_norm(x * 300),
        lambda x, y: torch.addcdiv(x, x, y),
    ],
    ids="log10 expm1 logaddexp atan2 hypot norm norm_of_one norm_of_large addcdiv".split(),
)
def test_half_is_rounded_once_an_operator(function: Callable[..., Any]) -> None:
    x, y = torch.rand(2, 301).half() * 8 + 0.1
    args = [x, y] if getattr(function, "__name__", "") not in ("log10", "expm1") else [x]
    expected = function(*(value.double() for value in args))
    program = mgx.from_torch(module_of(function), tuple(args))
    program.compile(mgx.get_target("ref"))
    (found,) = results_of(program, args)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float64), array(expected), rtol=2.0**-11 * 1.02)


def test_remainders_of_half_take_rounded_numbers_and_quotients_exact_ones() -> None:
    x = (torch.arange(-2000, 2000) * 0.01).half()
    check(
        lambda x: (x % 0.7, torch.fmod(x, 0.3), x // 0.7, torch.div(x, 1.1, rounding_mode="trunc")), [x], tolerance=2e-3
    )


LAYOUTS: dict[str, Any] = {
    "views": lambda x: (x.view(-1), x.reshape(4, -1), x.t(), x.unsqueeze(1), x[None].squeeze(), x.flatten(), x.T),
    "copies": lambda x: (x.repeat(2, 1, 3), x.expand(2, 3, 4), x.repeat_interleave(2, 1), x.tile(2), x.roll(1, 0)),
    "slices": lambda x: (x[1:], x[:, ::2], x[:, -1], x[5:], x[-2:, 1:3], x.narrow(1, 1, 2), x[:, :-1], x[..., 0]),
    "parts": lambda x: (*x.split(2), *x.chunk(2, 1), *x.unbind(), *x.split([1, 3], 1), torch.stack([x, x], 1)),
    "flips": lambda x: (x.flip(0, 1), x.roll((1, -1), (0, 1)), x.roll(2), torch.cat([x, x[:0]]), x.unfold(1, 2, 1)),
    "triangles": lambda x: (x.tril(), x.triu(1), x.tril(-1), x.diagonal(), x.diagonal(1), torch.eye(3, 4) + x),
    "pads": lambda x: (f.pad(x, (1, 2)), f.pad(x, (-1, 0, 1, 0), value=2), f.pad(x[None], (1, 2), mode="reflect")),
    "strides": lambda x: (x.as_strided((2, 2), (4, 1), 1), x.as_strided((3, 4), (4, 1))),
    "strides of other orders": lambda x: (
        x.t().as_strided((2, 5), (4, 1), 1),
        (x.t() * 2).as_strided((12,), (1,)),
        x.view(3, 2, 1, 2).permute(3, 2, 0, 1).sin().as_strided((3, 2, 2), (4, 2, 1)),
    ),
    "bits": lambda x: (x.view(torch.int32), torch.full((2,), 3), torch.zeros_like(x), torch.ones(2, dtype=torch.bool)),
    "scatters": lambda x: (
        x.select_scatter(x[0], 0, -1),
        x.slice_scatter(x[:1], 0, 1, 2),
        x.slice_scatter(x[:, :2], 1, 0, 4, 2),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    check(LAYOUTS[name], [torch.arange(12.0).reshape(3, 4)])


def _index_put(x: Any, i: Any, m: Any) -> Any:
    y, z, w, v = x.clone(), x.clone(), x.clone(), x.clone()
    y[i[0]] = 7
    z[:, i[1], i[1]] += 1
    w[m] = 0
    v.index_put_((i[1],), x[0], accumulate=True)
    return y, z, w, v


INDEXING: dict[str, Any] = {
    "index": lambda x, i, m: (x[i], x[:, i], x[i[0], i[1]], x[:, i[0], i[1]], x[i[0], :, i[1]], x[:, i[0]][:, None]),
    "gather": lambda x, i, m: (x.gather(1, i[None, :, :].clamp(min=0)), x.index_select(2, i[0] % 3), x.take(i % 3)),
    "index_put": _index_put,
    "scatter": lambda x, i, m: (
        x.scatter(0, i[None] % 3, 5.0),
        x.scatter_add(1, i[None] % 3, x),
        x.scatter_reduce(0, i[None] % 3, x, "amax", include_self=False),
        x.scatter_reduce(0, i[None] % 3, x, "mean"),
        x.index_add(1, i[0] % 3, x[:, :2]),
        x.index_copy(0, i[0] % 3, x[:2]),
        x.index_fill(2, i[0] % 3, 1.0),
    ),
    "masks": lambda x, i, m: (x.masked_fill(m, 1), x.masked_scatter(m, x * 2), f.one_hot(i % 3, 4)),
    "order": lambda x, i, m: (*x.topk(2), *x.sort(1, descending=True), x.argsort(), *x.kthvalue(2, 0)),
    "search": lambda x, i, m: (
        torch.searchsorted(x[0, 0].sort()[0], x),
        torch.bucketize(x, x[0, 0].sort()[0], right=True),
    ),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 3, 3)
    check(INDEXING[name], [x, torch.tensor([[0, -1], [2, 1]]), x > 0.5])


REDUCTIONS: dict[str, Any] = {
    "sums": lambda x: (x.sum(1), x.mean((0, 2), keepdim=True), x.amax(-1), x.amin((0, 1)), x.prod(1), x.nansum()),
    "extremes": lambda x: (*x.max(1), *x.min(0, keepdim=True), x.argmax(), x.argmin(1, keepdim=True), *x.aminmax()),
    "spread": lambda x: (
        x.var(),
        x.std(1),
        x.var(1, unbiased=False),
        *torch.var_mean(x, (0, 1)),
        x.std((1, 2), keepdim=True),
    ),
    "norms": lambda x: (
        x.norm(),
        x.norm(dim=1),
        torch.linalg.vector_norm(x, 1, -1),
        torch.linalg.vector_norm(x, INF),
        x.norm(p=3),
    ),
    "running": lambda x: (x.cumsum(1), x.cumprod(2), x.logcumsumexp(1), x.logsumexp((1, 2)), (x > 0).cumsum(0)),
    "quantifiers": lambda x: (
        (x > 0).any(),
        (x > 0).all(1),
        x.any(2),
        x.count_nonzero(1),
        (x > 0).any(0, keepdim=True),
    ),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(0), x.sum().softmax(0), f.glu(x[..., :2]), f.normalize(x, dim=1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    torch.manual_seed(2)
    check(REDUCTIONS[name], [torch.randn(3, 5, 3)])


IMAGES: dict[str, Any] = {
    "nearest": lambda x: (
        f.interpolate(x, scale_factor=2),
        f.interpolate(x, (4, 9)),
        f.interpolate(x, (3, 2), mode="nearest-exact"),
    ),
    "linear": lambda x: (
        f.interpolate(x, (9, 4), mode="bilinear"),
        f.interpolate(x, (9, 4), mode="bilinear", align_corners=True),
        f.interpolate(x, scale_factor=1.7, mode="bilinear"),
        f.interpolate(x, (3, 11), mode="bicubic"),
        f.interpolate(x, (3, 4), mode="bilinear", antialias=True),
        f.interpolate(x, (3, 9), mode="bicubic", antialias=True),
    ),
    "pools": lambda x: (
        f.avg_pool2d(x, 2, ceil_mode=True),
        f.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        *f.max_pool2d(x, 3, 2, 1, return_indices=True),
        f.adaptive_avg_pool2d(x, (2, 3)),
        f.adaptive_avg_pool2d(x, 1),
        f.adaptive_max_pool2d(x, (2, 3)),
        f.avg_pool1d(x[0], 3, 2),
        f.max_pool1d(x[0], 2),
        f.lp_pool2d(x, 2, 2),
    ),
    "shuffles": lambda x: (f.pixel_shuffle(x, 2), f.pixel_unshuffle(x[..., :4, :6], 2), f.channel_shuffle(x, 2)),
    "columns": lambda x: (f.unfold(x, (2, 3), padding=1, stride=2), f.fold(f.unfold(x, 2), (5, 7), 2)),
    "norms": lambda x: (f.instance_norm(x), f.local_response_norm(x, 3), f.group_norm(x, 2), f.rms_norm(x, (7,))),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    torch.manual_seed(3)
    check(IMAGES[name], [torch.randn(2, 4, 5, 7)])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sampler(padding: str) -> None:
    torch.manual_seed(4)

    def sampled(x: Any, grid: Any) -> Any:
        modes = ("bilinear", "nearest", "bicubic")
        return [f.grid_sample(x, grid, m, padding, corners) for m in modes for corners in (False, True)]

    check(sampled, [torch.randn(2, 3, 4, 5), torch.rand(2, 3, 2, 2) * 3 - 1.5], tolerance=1e-4)


def test_products() -> None:
    def products(a: Any, b: Any, v: Any) -> Any:
        return (
            *(a @ b, a[0] @ b[0], a @ v, v @ b[0], v @ v, torch.einsum("bij,bjk->bik", a, b), torch.outer(v, v)),
            *(torch.addmm(v[:2], a[0], b[0], beta=0.5, alpha=2.0), torch.baddbmm(a[..., :2], a, b), torch.cdist(a, a)),
            *(f.linear(a, b[0].t(), v[:2]), torch.cross(a[:, :, :3], a[:, :, 1:], -1)),
        )

    torch.manual_seed(5)
    check(products, [torch.randn(2, 3, 4), torch.randn(2, 4, 2), torch.randn(4)])


def test_attention_forms() -> None:
    torch.manual_seed(6)
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8)

    def attention(q: Any, k: Any, mask: Any) -> Any:
        call = f.scaled_dot_product_attention
        return (
            call(q, k, k, mask, enable_gqa=True),
            call(q, k, k, is_causal=True, enable_gqa=True, scale=0.3),
            call(q[0, 0], k[0, 0], k[0, 0], mask[0, 0]),
            call(q[0], q[0], q[0], is_causal=True),
        )

    check(attention, [q, k, torch.rand(2, 1, 3, 5) > 0.4])
    check(attention, [q, k, torch.randn(2, 1, 3, 5)])


def test_attention_broadcasts_outer_axes() -> None:
    """Lengths of 1 and missing axes of the queries, and merged axes of masks, were refused."""

    def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
        call = f.scaled_dot_product_attention
        return (
            *(call(q, k[0], v[0], is_causal=True), call(q[0], k[0, 0], v[0, 0]), call(q[0, 0], k, v)),
            *(call(q[:, :1], k[0, :1], v[:1]), call(k[:, :1], k, v, mask[0]), call(k, k, v, mask)),
        )

    torch.manual_seed(12)
    q, k, v = torch.randn(1, 2, 3, 8), torch.randn(3, 2, 2, 5, 8), torch.randn(3, 2, 2, 5, 6)
    check(attention, [q, k, v, torch.randn(1, 2, 1, 5, 5)])


def test_scalars_as_vectors() -> None:
    check(
        lambda s, x: (torch.inner(s, x), torch.inner(x, s), s.unfold(0, 1, 1), s.unfold(0, 0, 1)),
        [torch.tensor(2.5), torch.randn(2, 3)],
    )


def test_tensors_that_are_empty_or_without_axes() -> None:
    def edge(x: Any, s: Any) -> Any:
        return (
            *(x + 1, x.sum(), x.sum(0), torch.cat([x, x]), x.reshape(0, 5), x.softmax(1), x @ x.t(), x.max(1)[0]),
            *(s + x, s.sum(), s.softmax(0), s.squeeze(), s.view(1), s.max(), s.cumsum(0), s.expand(2), s[None] * 2),
            *(s.clamp(0, 1), s.reshape(1, 1), s.topk(1)[0], s.argmax()),
        )

    check(edge, [torch.zeros(0, 3), torch.tensor(2.5)])


def test_lengths_that_depend_on_data() -> None:
    check(lambda x: (x > 0).nonzero(), [torch.tensor([[1.0, -1.0, 2.0], [0.0, 3.0, -2.0]])])


def test_products_of_groups_as_mixtures_of_experts_have_them() -> None:
    def experts(x: Any, w: Any, ids: Any) -> Any:
        counts = torch.histc(ids.float(), bins=4, min=0, max=3)
        return counts, torch._grouped_mm(x, w, counts.cumsum(0).to(torch.int32))

    torch.manual_seed(7)
    ids = torch.tensor([3, 0, 0, 2, 3, 3, 0, 2])
    check(experts, [torch.randn(8, 16).bfloat16(), torch.randn(4, 16, 8).bfloat16(), ids], tolerance=1e-2)


def test_running_extremes_and_medians_with_positions() -> None:
    torch.manual_seed(8)
    x = torch.randn(4, 7).round(decimals=0)
    x[1, 3], x[2, 0], x[3] = NAN, INF, NAN
    check(lambda x: (*x.cummax(1), *x.cummin(0), x.median(), x.nanmedian()), [x])
    check(lambda x: (*x.long().clamp(-3, 3).cummax(0), x.long().median()), [x.nan_to_num(0, 1)])
    check(lambda x: (*x.median(1), *x.nanmedian(0, keepdim=True)), [torch.where(x.isnan(), x, torch.randn(4, 7))])
    check(lambda s: (*s.cummax(0), *s.median(0), s.median()), [torch.tensor(2.0)])


def test_slices_added_to_tensors_without_axes() -> None:
    def added(s: Any, i: Any) -> Any:
        return s.index_add(0, i, s * 2), s.index_copy(0, i, s * 3), s.index_fill(0, i, 4.0), s.nonzero()

    check(added, [torch.tensor(1.5), torch.tensor([0])])


def test_slices_reduced_and_elements_put() -> None:
    def reduced(x: Any, i: Any) -> Any:
        return (
            *(x.index_reduce(1, i, x[:, :3] * 2, how) for how in ("amax", "amin", "prod", "mean")),
            x.put(i[None], x[:1, :3]),
            x.put(i, x[0, :3], accumulate=True),
            x.long().scatter_reduce(0, i[None], -x[:1, :3].long() * 7, "mean"),
        )

    torch.manual_seed(9)
    check(reduced, [torch.randn(5, 5) * 3, torch.tensor([4, 0, 4])])


def test_products_of_three_tensors_and_pairs() -> None:
    def products(a: Any, b: Any, w: Any) -> Any:
        return (
            *(f.bilinear(a, b, w), torch.addbmm(a, w.transpose(1, 2), w[:, :, :3], beta=0.5, alpha=2)),
            *(f.pdist(a), f.pdist(b, 1), torch.linalg.det(w), a.angle(), (a + b).long().angle()),
        )

    torch.manual_seed(10)
    check(products, [torch.randn(3, 3), torch.randn(3, 3), torch.randn(4, 3, 3)])


def test_distances_of_each_order() -> None:
    orders = (0.0, 0.5, 1.0, 2.0, 3.5, float("inf"))
    for a, b in ((torch.randn(2, 4, 3).round(), torch.randn(1, 5, 3).round()), (torch.ones(4, 0), torch.ones(2, 0))):
        check(lambda a, b: [torch.cdist(a, b, p) for p in orders], [a, b])
        check(lambda a: [f.pdist(a.flatten(0, -2), p) for p in orders], [a])


def test_search_in_a_sequence_sorted_by_positions() -> None:
    torch.manual_seed(11)
    check(lambda x, v: torch.searchsorted(x, v, sorter=x.argsort(-1)), [torch.randn(2, 9), torch.randn(2, 4)])


def test_positions_repeated_by_counts() -> None:
    check(lambda x, n: x.repeat_interleave(n, 0, output_size=7), [torch.randn(4, 2), torch.tensor([3, 0, 1, 3])])


def test_distinct_elements() -> None:
    x = torch.tensor([[3, 1, 3], [2, 1, 7]])
    check(lambda x: torch.unique(x, return_inverse=True, return_counts=True), [x])


def test_operators_of_object_detectors() -> None:
    ops = pytest.importorskip("torchvision", reason="torchvision is not installed").ops
    torch.manual_seed(12)
    corners = torch.rand(20, 2) * 20
    boxes = torch.cat([corners, corners + torch.rand(20, 2) * 12], 1)
    check(lambda b, s: ops.nms(b, s, 0.3), [boxes, torch.rand(20)])
    rois = torch.cat([torch.randint(0, 2, (20, 1)).float(), boxes], 1)
    for aligned, ratio in ((True, -1), (False, 2)):
        check(
            lambda x, r, a=aligned, n=ratio: ops.roi_align(x, r, (3, 4), 0.5, n, a), [torch.randn(2, 3, 15, 16), rois]
        )


@pytest.mark.parametrize(
    ("groups", "offset_groups", "steps"),
    [
        (1, 1, {}),
        (2, 2, {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}),
        (1, 4, {"padding": 1, "dilation": 2}),
        (4, 2, {"stride": 3}),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_deformable_convolution(groups: int, offset_groups: int, steps: dict[str, Any], masked: bool) -> None:
    ops = pytest.importorskip("torchvision", reason="torchvision is not installed").ops
    torch.manual_seed(13)
    x, w, bias = torch.randn(2, 8, 9, 10), torch.randn(4, 8 // groups, 3, 2), torch.randn(4)
    lens = torch.nn.functional.conv2d(x, w, None, groups=groups, **steps).shape[2:]
    offset = torch.randn(2, offset_groups * 3 * 2 * 2, *lens) * 3
    mask = torch.rand(2, offset_groups * 3 * 2, *lens) if masked else None
    with_bias = [x, offset, *([mask] if masked else [])]
    check(lambda x, o, m=None: ops.deform_conv2d(x, o, w, bias, mask=m, **steps), with_bias)
    check(lambda x, o, m=None: ops.deform_conv2d(x, o, w, None, mask=m, **steps), with_bias)
    empty = torch.zeros(0, 8, 9, 10), torch.zeros(0, *offset.shape[1:])
    check(lambda x, o: ops.deform_conv2d(x, o, w, bias, **steps), [*empty])


def test_gather_by_indices_of_another_rank_and_crossed_limits() -> None:
    x = torch.tensor([0.1, 0.7, 0.9])
    check(
        lambda x, i, e: (x.gather(0, i), x.gather(0, e), x.logit(0.6)), [x, torch.tensor(2), torch.zeros(2, 0).long()]
    )


def test_quotients_and_remainders_of_zeros_and_infinities_are_rounded_down_as_in_python() -> None:
    def signs(*results: Any) -> tuple[Any, ...]:
        return tuple(y for x in results for y in (x, x.nan_to_num(1).signbit()))

    a, b = special()[:, None].contiguous(), special()
    check(lambda a, b: signs(a // b, a % b, a // 2, a % -3, 1 // a, torch.div(a, 0.5, rounding_mode="floor")), [a, b])


def test_floats_wrap_around_in_integers_of_few_bits() -> None:
    x = torch.tensor([0.0, -1, -2.7, 127.9, 128, -129, 255, 256, 300, 40000, -40000])
    check(lambda x: (x.to(torch.uint8), x.to(torch.int8), x.to(torch.int16), x.double().to(torch.uint8)), [x])


def test_runs_of_equal_elements_and_distinct_nans() -> None:
    def runs(x: Any) -> Any:
        every = torch.unique_consecutive(x, return_inverse=True, return_counts=True)
        return *every, *torch.unique_consecutive(x[None].expand(2, -1), dim=1, return_counts=True), torch.unique(x)

    check(runs, [torch.tensor([1, 1, 2, 2, 2, 1, NAN, NAN, 3])])
    check(lambda x: torch.unique_consecutive(x, return_inverse=True), [torch.zeros(0, 2)])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_without_padding(mode: str) -> None:
    bags, flat, starts = torch.tensor([[1, 2, 2], [2, 2, 2]]), torch.tensor([4, 2, 2, 0, 1]), torch.tensor([0, 2, 2, 5])

    def embedded(w: Any, bags: Any, flat: Any, starts: Any) -> Any:
        last = f.embedding_bag(flat, w, starts, mode=mode, include_last_offset=True)
        return f.embedding_bag(bags, w, mode=mode, padding_idx=2), f.embedding_bag(flat, w, starts, mode=mode), last

    check(embedded, [torch.randn(5, 3), bags, flat, starts])


def test_diagonals_replaced_and_single_numbers_searched() -> None:
    def found(x: Any, s: Any, q: Any) -> Any:
        search = (torch.bucketize(0.3, s), torch.searchsorted(s, 0.5, right=True), torch.bucketize(q, s))
        return x.diagonal_scatter(x.diagonal() * 2), x.diagonal_scatter(x.diagonal(1, 0, -1) * 0, 1, 0, -1), *search

    check(found, [torch.randn(3, 5, 4), torch.tensor([-1.0, 0, 0.5, 2]), torch.tensor([NAN, 0.5, INF, -INF])])


def test_means_with_a_divisor_and_windows_beyond_the_image() -> None:
    def means(x: Any) -> Any:
        partly = f.avg_pool2d(x, 2, 3, 1, True, False, divisor_override=2)
        return partly, f.avg_pool2d(x, (2, 3), (1, 2), 1, True, divisor_override=5)

    check(means, [torch.randn(2, 3, 6, 7)])


def test_diagonals_filled_and_elements_taken_along_no_axis() -> None:
    def filled(x: Any, i: Any) -> Any:
        return (x * 2).fill_diagonal_(4), torch.take_along_dim(x, i), torch.take_along_dim(x, i[:, :1], 1)

    check(filled, [torch.randn(3, 4), torch.tensor([[0, 1], [2, 1], [3, 0]])])


def test_tensors_with_few_axes_side_by_side() -> None:
    def stacked(a: Any, b: Any, c: Any) -> Any:
        return (
            torch.hstack([a, a]),
            torch.hstack([b, b]),
            torch.hstack([c, c]),
            torch.vstack([a, a]),
            torch.vstack([b, b]),
        )

    check(stacked, [torch.tensor(2.0), torch.randn(3), torch.randn(2, 3)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.float32])
def test_ranges_of_integers_between_fractions(dtype: Any) -> None:
    """Ends were truncated after the numbers between them were computed."""

    def ranges(x: Any) -> Any:
        ends = (0.1, -7.9, -4.0), (0.9, 5.9, 1.5), (-0.5, 3.5, 1.9), (-3.5, 3, 2), (4, 4, 1), (2.5, 0.5, -1)
        spaces = [(4.3, 0, 50), (-7.9, 3.2, 7), (3, -3, 1), (3, -3, 2), (0.5, 2.5, 0)]
        made = [torch.arange(*e, dtype=dtype) for e in ends] + [torch.linspace(*e, dtype=dtype) for e in spaces]
        return tuple(m + x for m in made)

    check(ranges, [torch.zeros((), dtype=dtype)])


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_floor_division_of_the_least_integer(target: str, dtype: Any) -> None:
    """The dividend less its remainder overflowed."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    a = torch.tensor([least, least + 1, least + 2, 0, 1, most - 1, most]).to(dtype)
    b = torch.tensor([1, 2, 3, 7, most, most - 1, least, -3, -7]).to(dtype)  # PyTorch divides least / -1 by a trap
    b = b[b != 0]

    def divisions(x: Any, y: Any) -> Any:
        quotients = x // 3, torch.div(x, 7, rounding_mode="floor"), x // y
        return *quotients, torch.div(x, y, rounding_mode="trunc"), x % y, torch.fmod(x, y)

    columns = a[:, None].expand(-1, len(b)).contiguous()
    check(divisions, [columns, b], target=target, tolerance=0)


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_hypotenuses_whose_squares_overflow(target: str, dtype: Any) -> None:
    """Squares were added as they are: 1e30 gave infinity, 1e-30 gave 0; NaN hid infinities."""
    least, most = torch.finfo(dtype).tiny, torch.finfo(dtype).max / 2
    x = torch.tensor([0.0, -0.0, 3.0, -4.0, least, -most, most, 300.0, INF, -INF, NAN]).to(dtype)
    check(torch.hypot, [x[:, None].repeat(1, len(x)), x.repeat(len(x), 1)], target=target, tolerance=1e-2)
    tiny = torch.tensor([least, 4 * least], dtype=dtype)
    check(lambda a, b: torch.hypot(a, b) / least, [3 * tiny, 4 * tiny], target=target, tolerance=1e-2)


def test_ranges_between_tensors() -> None:
    def ranges(a: Any, b: Any) -> Any:
        ends = (a, b), (a, 3), (1, b)
        return [torch.linspace(*e, n, dtype=t) for e in ends for n in (0, 1, 2, 7) for t in (None, torch.int64)]

    for pair in ((torch.tensor(-1.5), torch.tensor(4.0)), (torch.tensor(9), torch.tensor(-2))):
        check(ranges, pair, tolerance=1e-6)
