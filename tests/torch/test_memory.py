"""Memory of weights: parameters are read in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: tests of its frontend do not run")


class Heads(torch.nn.Module):
    """Three projections of an input, which passes would join, followed by a product."""

    def __init__(self, width: int = 640) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x: Any) -> Any:
        a, b, c = (part(x) for part in self.parts)
        return self.out(torch.relu(a) * b.sigmoid() + c)


@pytest.mark.parametrize("rows", [1, 6, 80])
def test_large_weights_are_not_held_twice_with_low_memory(rows: int, programs: list[Any]) -> None:
    model = Heads().eval()
    compiled = torch.compile(model, backend="mgx_numba", options={"memory": "low", "plan_cache": False})
    x = torch.randn(rows, 640)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    constants = programs[-1]._compiled.executable.plan.constants
    weights = [p.detach().numpy() for p in model.parameters()]
    copied = [c for c in constants if not any(np.shares_memory(c, w) for w in weights)]
    assert sum(c.nbytes for c in copied) < weights[0].nbytes / 4


def test_unknown_values_of_the_option_memory_are_refused() -> None:
    with pytest.raises(Exception, match="memory must be 'low' or None, got 'high'"):
        torch.compile(Heads(), backend="mgx_numba", options={"memory": "high"})(torch.randn(1, 640))
