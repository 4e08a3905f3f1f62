"""Graphs in which lengths follow from data, compiled whole: Dynamo's symbols without examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mgx_numba.torch  # noqa: F401  # registers the backend

from .models import agree

CASES: dict[str, Callable[..., Any]] = {
    "unique": lambda a: torch.unique((a * 3).long(), return_inverse=True, return_counts=True),
    "view of chosen rows": lambda a: a[a[:, 0] > 0].view(-1, 2, 4).transpose(1, 2).reshape(-1, 8),
    "products of chosen rows": lambda a: (a[a[:, 0] > 0] @ torch.ones(8, 3)).relu(),
    "parts": lambda a: torch.cat([a[a[:, 0] > 0] * 2, a[a[:, 0] <= 0]]),
    "number of rows": lambda a: a.narrow(0, 0, (a[:, 0] > 0).sum().item()) * 2,
}


def _rows(count: int, chosen: int) -> torch.Tensor:
    """Return a tensor of ``count`` rows, of which ``chosen`` have elements above 0."""
    signs = torch.cat([torch.ones(chosen), -torch.ones(count - chosen)])[torch.randperm(count)]
    return signs[:, None] * (torch.rand(count, 8) + 0.1)


@pytest.mark.parametrize("name", CASES)
def test_lengths_follow_from_data(name: str, programs: list[Any]) -> None:
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings), torch.no_grad():
        compiled = torch.compile(CASES[name], backend="mgx_numba", dynamic=True, fullgraph=True)
        for count, chosen in ((6, 3), (7, 5), (4, 1), (5, 0), (3, 3)):
            rows = _rows(count, chosen)
            agree(compiled(rows.clone()), CASES[name](rows))
    assert programs
