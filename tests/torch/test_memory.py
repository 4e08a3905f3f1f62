"""Memory of weights: parameters are read in place."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
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
    constants = programs[-1].compiled.executable.plan.constants
    weights = [p.detach().numpy() for p in model.parameters()]
    copied = [c for c in constants if not any(np.shares_memory(c, w) for w in weights)]
    assert sum(c.nbytes for c in copied) < weights[0].nbytes / 4


def test_unknown_values_of_the_option_memory_are_refused() -> None:
    with pytest.raises(Exception, match="memory must be 'low' or None, got 'high'"):
        torch.compile(Heads(), backend="mgx_numba", options={"memory": "high"})(torch.randn(1, 640))


def _of_files(places: list[int]) -> list[int]:
    """Return the addresses whose next page is a page of a file without a name."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("(deleted)")]
    ranges = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    return [place for place in places if any(low <= place + mmap.PAGESIZE < high for low, high in ranges)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux maps parameters to a file")
@torch.no_grad()
def test_parameters_in_a_file_are_read_written_and_forgotten(programs: list[Any]) -> None:
    model, x = Heads().eval(), torch.randn(6, 640)
    expected, before = model(x), [p.clone() for p in model.parameters()]
    places = [p.data_ptr() for p in model.parameters() if p.dim() == 2]
    compiled = torch.compile(model, backend="mgx_numba", options={"memory": "file", "plan_cache": False})
    torch.testing.assert_close(compiled(x), expected, atol=1e-4, rtol=1e-4)
    assert places == [p.data_ptr() for p in model.parameters() if p.dim() == 2]
    assert all(map(torch.equal, before, model.parameters()))
    assert len(_of_files(places)) == 4
    model.out.weight.mul_(2)
    torch.testing.assert_close(compiled(x), 2 * expected, atol=1e-4, rtol=1e-4)
    copy = [p.clone() for p in model.parameters()]
    assert torch.equal(copy[-1], 2 * before[-1]) and len(programs) == 2
