"""Writes to tensors whose elements share memory: as in eager mode, an error or its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mgx_numba.torch.backend import mgx_numba

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda y: y.add_(1),
    "multiply": lambda y: y.mul_(2),
    "assign": lambda y: y.__setitem__(slice(None), 5.0),
    "row": lambda y: y.__setitem__(0, 5.0),
    "fill": lambda y: y.fill_(2.0),
    "mask": lambda y: y.masked_fill_(y > 1, 0.0),
    "index": lambda y: y.__setitem__(torch.tensor([0, 1]), 1.0),
    "scatter": lambda y: y.scatter_(0, torch.zeros(1, 4, dtype=torch.int64), 1.0),
    "one": lambda y: y[0].add_(1),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "expand": lambda x: x.expand(3, 4),
    "broadcast": lambda x: torch.broadcast_tensors(x, torch.ones(3, 4))[0],
    "strides": lambda x: x.as_strided((3, 2), (1, 1)),
    "windows": lambda x: x.unfold(0, 2, 1),
}


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Use of")
@pytest.mark.parametrize(
    "write, view", [*((w, "expand") for w in WRITES), ("add", "broadcast"), ("multiply", "strides"), ("add", "windows")]
)
def test_writes_through_views_whose_elements_share_memory(write: str, view: str) -> None:
    def run(function: Callable[[Tensor], Any]) -> Any:
        x = torch.arange(4.0)
        try:
            return function(x), x
        except RuntimeError as error:
            return str(error)

    def written(x: Tensor) -> Tensor:
        y = VIEWS[view](x)
        WRITES[write](y)
        return y * 1 + x.sum()

    expected, found = run(written), run(torch.compile(written, backend=mgx_numba))
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_an_expanded_input_is_written() -> None:
    x = torch.arange(4.0).expand(3, 4)
    found = torch.compile(lambda x: x.zero_() + 1, backend=mgx_numba)(x)
    assert bool((found == 1).all()) and not bool(x.any())
