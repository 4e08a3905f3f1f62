"""Graphs in which lengths follow from data, compiled whole: Dynamo's symbols without examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mgx_numba.torch  # noqa: F401  # registers the backend
from mgx_numba.errors import MgxError
from mgx_numba.frontends.torch import gather

from .exported import check
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


EXPORTED: dict[str, Callable[..., Any]] = {
    **CASES,
    "number as a factor": lambda a: a * (a[0, 0] * 3).item(),
    "number as a length": lambda a: a.new_zeros((a[:, 0] > 0).sum().item() + 2, 3) + 1,
    "rows by their positions": lambda a: a[torch.nonzero(a[:, 0] > 0).flatten()].T.reshape(2, 4, -1),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_lengths_follow_from_data(name: str) -> None:
    """They were refused: no input has such a length."""
    check(EXPORTED[name], [_rows(6, 3)], *([_rows(6, chosen)] for chosen in (0, 1, 6)))


def _put(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor, before: int = 0) -> torch.Tensor:
    changed = x.clone()
    changed[(slice(None),) * before + (mask,)] = values
    return changed


@pytest.mark.parametrize("chosen", [0, 1, 4])
@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_replace_the_elements_of_a_mask(chosen: int, dynamic: bool) -> None:
    """The first run failed: the number of elements of a mask is open."""
    torch.manual_seed(chosen)
    x, mask = torch.randn(3, 5, 4), (torch.randperm(15) < chosen).view(3, 5)
    columns = mask.flatten()[:5]
    cases: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
        *((_put, (x, mask, values)) for values in (torch.randn(chosen, 4), torch.randn(chosen, 1), torch.randn(1, 4))),
        (_put, (x, x > 1, torch.randn(int((x > 1).sum())))),
        (lambda x, m, v: x.index_put((m,), v, accumulate=True), (x, mask, torch.randn(chosen, 4))),
        (lambda x, m, v: _put(x, m, v, 1), (x, columns, torch.randn(3, int(columns.sum()), 1))),
        (lambda x, m, v: _put(x, m, v, 1), (x, columns, torch.randn(3, 1, 4))),
        (lambda x, m, v: _put(x, m, x[m] + v), (x, mask, torch.randn(4))),
        (lambda x, m, v: x.masked_scatter(m, v), (x, mask[..., None].expand(3, 5, 4), torch.randn(chosen * 4))),
    ]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        for function, args in cases:
            torch._dynamo.reset()
            agree(torch.compile(function, backend="mgx_numba", dynamic=dynamic)(*args), function(*args))


def test_fewer_rows_than_elements_of_a_mask_are_an_error() -> None:
    x, mask = torch.randn(3, 5), torch.ones(3, dtype=torch.bool)
    with torch.no_grad(), pytest.raises((IndexError, RuntimeError, MgxError), match="out of range|shape mismatch"):
        torch.compile(_put, backend="mgx_numba")(x, mask, torch.randn(2, 5))


def test_a_node_that_cannot_be_translated_in_the_first_run_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With known lengths of all inputs the error was the caller's."""
    monkeypatch.setattr(gather, "_where_mask", lambda *_: None)
    x, mask = torch.randn(3, 5), torch.tensor([True, False, True])
    values = torch.randn(2, 5)
    compiled = torch.compile(lambda x, m, v: _put(x * 3, m, v) + 1, backend="mgx_numba")
    with torch.no_grad():
        for _ in range(2):
            agree(compiled(x, mask, values), _put(x * 3, mask, values) + 1)
