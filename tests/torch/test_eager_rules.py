"""Rules of eager mode besides values: which calls raise errors, devices, and strides of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mgx_numba.torch.backend import mgx_numba

from .models import agree

ROWS = torch.arange(12.0).reshape(3, 4)


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function that the backend compiles."""
    return torch.compile(function, backend=mgx_numba)


REFUSING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, i: functional.embedding(i, x),
    "embedding_bag": lambda x, i: functional.embedding_bag(i, x, torch.tensor([0, 1])),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 3.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], x, "amax"),
    "cross_entropy": lambda x, i: functional.cross_entropy(x[:2], i),
}
"""Functions for which a negative index is an error."""
COUNTING_FROM_THE_END: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda x, i: x[i],
    "index_put": lambda x, i: x.index_put((i,), x[:2]),
    "index_fill": lambda x, i: x.index_fill(0, i, 9.0),
    "take": lambda x, i: x.take(i),
    "put": lambda x, i: x.put(i, x[0, :2]),
}


@pytest.mark.parametrize("name", REFUSING)
def test_negative_indices_are_errors_where_eager_mode_has_them(name: str, programs: list[Any]) -> None:
    function = REFUSING[name]
    found = compiled(function)
    agree(found(ROWS, torch.tensor([0, 2])), function(ROWS, torch.tensor([0, 2])))
    for call in (function, found):
        with pytest.raises((IndexError, RuntimeError)):
            call(ROWS, torch.tensor([0, -1]))
    assert len(programs) == 1


@pytest.mark.parametrize("name", COUNTING_FROM_THE_END)
def test_negative_indices_count_from_the_end_elsewhere(name: str, programs: list[Any]) -> None:
    function = COUNTING_FROM_THE_END[name]
    agree(compiled(function)(ROWS, torch.tensor([0, -1])), function(ROWS, torch.tensor([0, -1])))
    assert len(programs) == 1


def test_asserted_conditions_are_checked_beside_one_program(programs: list[Any]) -> None:
    def checked(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all(), "not positive")
        y = x * 2 + 1
        torch._assert_async(y.sum() > 100, "too small")
        return y.exp()

    found = compiled(checked)
    agree(found(ROWS + 1), checked(ROWS + 1))
    with pytest.raises(RuntimeError, match="not positive"):
        found(-ROWS)
    with pytest.raises(RuntimeError, match="too small"):
        found((ROWS + 1) * 1e-3)
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        compiled(lambda x: functional.one_hot(x, 3) * 2)(torch.tensor([5]))
    assert len(programs) == 2


@pytest.mark.parametrize("function", [lambda x: x.max() + 1, lambda x: x.min() * 2])
def test_extremes_of_no_elements_are_errors(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="numel"):
        compiled(function)(torch.zeros(0, 3))


def test_results_on_the_device_meta_stay_there(programs: list[Any]) -> None:
    def moved(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to("meta") + 1, (x * 2 + 1).exp()

    found, expected = compiled(moved)(ROWS), moved(ROWS)
    assert found[0].device == expected[0].device
    agree(found[1], expected[1])
    assert len(programs) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.select_scatter(x, x[0], 0, 1),
        lambda x: torch.slice_scatter(x, x[:, :2], 1, 2, 4),
        lambda x: torch.diagonal_scatter(x, x[:, 0] + 1),
    ],
)
def test_results_have_the_gaps_of_eager_mode(function: Callable[[Tensor], Tensor], programs: list[Any]) -> None:
    x = torch.randn(6, 8, 10)[::2, ::2, ::2]
    agree(compiled(function)(x.select(0, 0)), function(x.select(0, 0)))
    assert len(programs) == 1


DIVIDING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "floor_divide": lambda x, y: x // y + 1,
    "remainder": lambda x, y: (x % y).to(torch.float32),
    "fmod": lambda x, y: torch.fmod(x, y) * 2,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc") - 1,
    "in place": lambda x, y: x.clone().floor_divide_(y),
    "of a number": lambda x, y: 7 // y + x,
    "by parts": lambda x, y: x // torch.where(x > 0, y, 1),
}
"""Divisions of integers, by tensors that may have zeros."""


@pytest.mark.parametrize("name", DIVIDING)
def test_integer_division_by_zero_is_the_error_of_eager_mode(name: str, programs: list[Any]) -> None:
    x, function = torch.arange(1, 13).reshape(3, 4), DIVIDING[name]
    found = compiled(function)
    for divisor in ([1, 2, -3, 4], [-1, 7, 2, 5]):
        agree(found(x, torch.tensor(divisor)), function(x, torch.tensor(divisor)))
    for call in (function, found):
        with pytest.raises(RuntimeError, match="^ZeroDivisionError$"):
            call(x, torch.tensor([1, 0, 2, 3]))
    assert len(programs) == 1


@pytest.mark.parametrize("divisor", [0, torch.tensor([1, 0, 2, 1])], ids=["number", "constant"])
def test_division_by_a_constant_that_is_zero_is_an_error(divisor: Tensor | int) -> None:
    with pytest.raises(RuntimeError, match="^ZeroDivisionError$"):
        compiled(lambda x: (x + 1) // divisor)(torch.arange(4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x // 3 % 5 + 1,
        lambda x: x // torch.tensor([1, 2, 3, 4]) + 1,
        lambda x: x // (x - 3).clamp(min=1) + 1,
        lambda x: x % torch.full((4,), 3) + 1,
        lambda x: x.float() // (x - 1),
        lambda x: x[:0] // (x - 1)[:0] + 1,
        lambda x: torch.nonzero_static(x[None, :0], size=3) * 2,
    ],
    ids=["number", "constant", "limited", "filled", "floats", "nothing", "inside an operator"],
)
def test_divisions_by_divisors_that_cannot_be_zero_have_no_check(
    function: Callable[[Tensor], Tensor], programs: list[Any]
) -> None:
    x = torch.arange(4)
    agree(compiled(function)(x), function(x))
    assert len(programs[0].get_output_shapes()) == 1
