"""Higher-order operators of PyTorch: branches and loops with bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: tests of its frontend do not run")
from torch._higher_order_ops.map import map as each  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

import mgx_numba.torch  # noqa: E402, F401

from .exported import check  # noqa: E402

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cond": lambda x, y: torch.cond(y.sum() > 0, lambda x: x.sin() + 1, lambda x: x * 2, (x,)),
    "while_loop": lambda x, y: while_loop(
        lambda i, x: i < y.sum(), lambda i, x: (i + 1, x * 2 + y), (torch.tensor(0), x)
    ),
    "scan": lambda x, y: scan(lambda c, row: (c + row * y, c.sum()), x[0].clone(), x, reverse=True),
    "scan of scalars": lambda x, y: scan(lambda c, row: (c + row.sum(), c * 2), y[0].clone(), x),
    "map": lambda x, y: each(lambda row, y: (row * 2 + y, row.max()), x, y),
    "nested": lambda x, y: each(
        lambda row, y: torch.cond(row.sum() > 0, lambda r, y: r * y, lambda r, y: r - 1, (row, y)), x, y
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bodies_become_submodules(name: str, programs: list[Any]) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="mgx_numba", fullgraph=True)
    for sign in (1.0, -1.0):
        args = [torch.randn(4, 3), torch.full((3,), sign)]
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), function(*args))
    (made,) = programs
    assert ("if" if "cond" in name else "loop") in {i.name for i in made.portable.main}


def test_exported_branch_of_an_open_length() -> None:
    n = torch.export.Dim("n", min=2, max=9)
    model = FUNCTIONS["cond"]
    check(model, [torch.randn(4, 3), torch.ones(3)], [torch.randn(7, 3), -torch.ones(3)], dynamic=({0: n}, None))


def test_bodies_that_differ_in_a_constant_are_different_programs(programs: list[Any]) -> None:
    """Programs in the plan cache are found by the text of the graph, with those of its bodies."""
    x = torch.ones(3)

    def made(factor: int, offset: float) -> Any:
        torch._dynamo.reset()
        return torch.compile(
            lambda x: torch.cond(x.sum() > 0, lambda x: x * factor, lambda x: -x, (x,)) + torch.tensor([offset, 0, 1]),
            backend="mgx_numba",
            fullgraph=True,
        )

    with torch.no_grad():
        for factor, offset in ((3, 0.0), (4, 0.0), (4, 5.0)):
            assert torch.equal(made(factor, offset)(x), x * factor + torch.tensor([offset, 0, 1]))
    assert len(programs) == 3


@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_one_program_with_one_plan_is_for_all_lengths(name: str, programs: list[Any]) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="mgx_numba", dynamic=True, fullgraph=True)
    for n, m in ((4, 3), (6, 3), (9, 5), (2, 2)):
        args = [torch.randn(n, m), torch.ones(m)]
        torch.testing.assert_close(compiled(*args), function(*args))
    (made,) = programs
    assert len(made.open_plans()) == 1


@pytest.mark.parametrize("name", ["scan", "map"])
def test_exported_loop_over_an_open_length(name: str) -> None:
    n = torch.export.Dim("n", min=2, max=9)
    shapes = ({0: n}, None)
    check(FUNCTIONS[name], [torch.randn(4, 3), torch.ones(3)], [torch.randn(7, 3), -torch.ones(3)], dynamic=shapes)
