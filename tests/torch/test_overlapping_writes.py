"""Writes to tensors whose elements share memory, and to inputs that share memory: as in eager mode."""

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


INPUTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "apart": lambda x, y: (x[:4], y[:4]),
    "overlapping": lambda x, y: (x[:4], x[2:6]),
    "swapped": lambda x, y: (x[2:6], x[:4]),
    "equal": lambda x, y: (x[:4], x[:4]),
    "neighbours": lambda x, y: (x[:4], x[4:8]),
    "columns": lambda x, y: (x.view(4, 4)[:, ::2], x.view(4, 4)[:, 1::2]),
}


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", ["apart", "overlapping", "equal"])
def test_inputs_that_share_memory_otherwise_than_at_the_first_call(first: str, dynamic: bool | None) -> None:
    def written(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        b.mul_(3)
        return a.sum(0) + b

    found = torch.compile(written, backend=mgx_numba, dynamic=dynamic, options={"target": "ref"})
    for name in (first, *INPUTS, first):
        x, y = torch.randn(8, 2), torch.randn(8, 2)
        mine = x.clone(), y.clone()
        expected, result = written(*INPUTS[name](x, y)), found(*INPUTS[name](*mine))
        torch.testing.assert_close((result, *mine), (expected, x, y), msg=name)


@torch.no_grad()
def test_an_assignment_of_data_is_left_to_pytorch(caplog: Any) -> None:
    def assigned(x: Tensor, y: Tensor) -> Tensor:
        x.data = y * 2
        return x + 1

    x, y = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(torch.compile(assigned, backend=mgx_numba)(x, y), y * 2 + 1)
    torch.testing.assert_close(x, y * 2)
    assert "aten.set_" in caplog.text
