"""Subclasses of `torch.Tensor` without a ``__torch_dispatch__`` as inputs, parameters and buffers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mgx_numba.torch  # noqa: E402, F401
from mgx_numba.torch import region  # noqa: E402


class Named(torch.Tensor):
    """A subclass that changes nothing."""


class Traced(torch.Tensor):
    """A subclass with a ``__torch_function__``."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


class Scaled(torch.nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.linear.weight = torch.nn.Parameter(torch.randn(4, 4).as_subclass(kind))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def added(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize("kind", [Named, Traced])
@pytest.mark.parametrize(
    "function",
    [lambda x: x.relu() + 1, added, lambda x: torch.linalg.matrix_exp(x) + 1, lambda x: x.t()],
    ids=["pointwise", "in place", "eager operator", "view"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_of_a_subclass_give_results_of_the_subclass(kind: type, function: Any, dtype: Any) -> None:
    torch._dynamo.reset()
    mine, theirs = (torch.arange(16, dtype=dtype).sin().reshape(4, 4).as_subclass(kind) for _ in range(2))
    compiled = torch.compile(function, backend="mgx_numba")
    with torch.no_grad():
        for _ in range(2):
            found, expected = compiled(mine), function(theirs)
            assert type(found) is kind
            torch.testing.assert_close(found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    torch.testing.assert_close(mine.as_subclass(torch.Tensor), theirs.as_subclass(torch.Tensor), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [Named, Traced])
def test_a_parameter_of_a_subclass_stays_a_constant_until_it_changes(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    compilations, compile = [], region.compiled_program
    monkeypatch.setattr(region, "compiled_program", lambda *given: (compilations.append(1), compile(*given))[1])
    module, x = Scaled(kind).eval(), torch.randn(2, 4)
    compiled = torch.compile(module, backend="mgx_numba")
    with torch.no_grad():
        for changed in ("", "version", "memory"):
            if changed == "version":
                module.linear.weight.mul_(2)
            if changed == "memory":
                module.linear.weight.data = torch.randn(4, 4)
            for _ in range(3):
                torch.testing.assert_close(
                    compiled(x).as_subclass(torch.Tensor), module(x).as_subclass(torch.Tensor), rtol=1e-5, atol=1e-6
                )
    assert len(compilations) == 3
