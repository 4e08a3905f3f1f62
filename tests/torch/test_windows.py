"""Windows of images at NaN and infinities, and operators that the backend keeps whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as f
from torch import nn

from mgx_numba.torch import backend as backends

from .exported import check

INF, NAN = float("inf"), float("nan")


def image() -> Any:
    """Return an image with NaN, two of them in one window, infinities, and a channel of negative infinities."""
    x = torch.randn(1, 2, 7, 9)
    for row, column, value in ((0, 2, NAN), (2, 4, INF), (3, 7, NAN), (6, 0, -INF)):
        x[0, 0, row, column : column + 2] = value
    x[0, 1] = -INF
    return x


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_the_position_of_a_maximum_is_that_of_the_last_nan(target: str) -> None:
    def pools(x: Any) -> Any:
        return (
            *f.max_pool2d(x, 3, 2, 1, return_indices=True),
            *f.max_pool2d(x, (2, 3), 1, (1, 0), (2, 1), True, return_indices=True),
            *f.max_pool1d(x[0], 3, 2, 1, return_indices=True),
            *f.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        )

    check(pools, [image()], target=target)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_windows_do_not_spread_infinities(target: str) -> None:
    def pools(x: Any) -> Any:
        resized = [f.interpolate(x, size, mode=m) for size in ((14, 18), (5, 4)) for m in ("bilinear", "bicubic")]
        corners = f.interpolate(x, (3, 20), mode="bilinear", align_corners=True)
        smooth = [f.interpolate(x, (10, 4), mode=m, antialias=True) for m in ("bilinear", "bicubic")]
        return *resized, corners, *smooth, f.adaptive_avg_pool2d(x, (3, 4)), f.adaptive_avg_pool2d(x, (0, 4))

    check(pools, [image()], target=target)


@torch.no_grad()
@torch._dynamo.config.patch(allow_rnn=True)
def test_interpolations_and_recurrent_layers_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    own = backends.compiled_graph

    def noting(graph: Any, *args: Any, **kwargs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return own(graph, *args, **kwargs)

    monkeypatch.setattr(backends, "compiled_graph", noting)
    models = [(kind(3, 4), torch.randn(5, 2, 3)) for kind in (nn.LSTM, nn.GRU, nn.RNN)]
    models += [(nn.Upsample(scale_factor=2, mode=m), torch.randn(1, 2, 3, 4)) for m in ("nearest", "bilinear")]
    for model, x in models:
        torch.testing.assert_close(torch.compile(model, backend=backends.mgx_numba)(x), model(x))
    for name in ("lstm.input", "gru.input", "rnn_tanh.input", "upsample_nearest2d", "upsample_bilinear2d"):
        assert any(name in operator for operator in seen), name
    assert not any("addmm" in operator or "_unsafe_index" in operator for operator in seen)


@torch.no_grad()
@torch._dynamo.config.patch(allow_rnn=True)
@pytest.mark.parametrize("inside", [False, True])
def test_recurrent_layers_under_autocast_give_the_type_of_eager_mode(inside: bool) -> None:
    model, x = nn.LSTM(3, 4), torch.randn(2, 2, 3)

    def run(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return model(x)[0]

    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        try:
            expected = run(x)
        except RuntimeError as error:  # oneDNN has no such layer in bfloat16 for CPUs without AVX-512
            pytest.skip(f"eager mode: {error}")
        found = torch.compile(run, backend=backends.mgx_numba)(x)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


@torch.no_grad()
@torch._dynamo.config.patch(allow_rnn=True)
def test_projected_states_of_open_lengths() -> None:
    """PyTorch ran layers with projections."""
    model = nn.LSTM(4, 6, bidirectional=True, proj_size=3)
    found = torch.compile(model, backend=backends.mgx_numba, dynamic=True)
    for steps, batch in ((5, 3), (7, 2), (1, 4)):
        x = torch.randn(steps, batch, 4)
        torch.testing.assert_close(found(x), model(x))


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_divisor_of_integers_divides_the_sum_of_a_window(target: str) -> None:
    """It multiplied the truncated mean."""

    def pools(x: Any) -> Any:
        padded = f.avg_pool2d(x, (2, 3), 1, 1, divisor_override=2), f.avg_pool2d(x, 3, 2, 1, True, divisor_override=-5)
        return *padded, f.avg_pool3d(x[None], (2, 2, 2), divisor_override=3)

    x = torch.randint(-(2**40), 2**40, (2, 6, 7))
    check(pools, [x], target=target, tolerance=0)
