"""Small modules of PyTorch's for the tests of the backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Block", "Counting", "Images", "Odd", "agree", "odd"]


@torch.library.custom_op("mgx_tests::odd", mutates_args=())
def odd(x: Tensor) -> Tensor:
    """An operator that no frontend knows: the sine, doubled."""
    return x.sin() * 2


@odd.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Block(nn.Module):
    """A residual layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x)) + x


class Counting(nn.Module):
    """A layer that counts its calls in a buffer, and gives views of a result, of an input, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.register_buffer("calls", torch.zeros(5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, int, Tensor]:
        self.calls.add_(1)
        y = torch.relu(self.inner(x)) * 2
        return y.t(), x[1:], x.shape[0] * 2, y


class Images(nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Odd(nn.Module):
    """Layers with an operator between them that cannot be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = odd(torch.relu(self.first(x)) * 3)
        return torch.relu(self.second(y)) + 1


def agree(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Check that results have the same tensors, with the same strides, and equal other values."""
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        assert found.stride() == expected.stride()
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            agree(one, other, tolerance)
    else:
        assert found == expected


class Caching(nn.Module):
    """Attention of one token to a cache, to which it adds a row."""

    def forward(self, x: Tensor, cache: Tensor, place: Tensor) -> Tensor:
        cache.index_copy_(2, place, x * 2)
        seen = torch.arange(cache.shape[2], device=x.device) <= place
        place.add_(1)
        return nn.functional.scaled_dot_product_attention(x, cache, cache, seen[None])
