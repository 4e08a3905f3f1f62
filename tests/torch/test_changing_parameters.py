"""Parameters that are constants of a program, and change, go, or are others from call to call."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mgx_numba.torch import region
from mgx_numba.torch.backend import mgx_numba

from .models import Block, agree


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The names of the constants of each program that is compiled during a test."""
    found: list[Any] = []
    own = region.compiled_program

    def noting(graph_module: Any, constants: Any, *others: Any) -> Any:
        found.append(list(constants))
        return own(graph_module, constants, *others)

    monkeypatch.setattr(region, "compiled_program", noting)
    return found


@torch.no_grad()
def test_parameters_that_change_between_calls_are_seen(made: list[Any]) -> None:
    model, x = Block().eval(), torch.randn(4, 16)
    found = torch.compile(model, backend=mgx_numba)
    agree(found(x), model.forward(x))
    model.inner.weight.mul_(2)
    agree(found(x), model.forward(x))
    model.inner.bias.data = torch.randn(16)
    agree(found(x), model.forward(x))
    model.load_state_dict(Block().state_dict())
    agree(found(x), model.forward(x))
    model.load_state_dict(Block().state_dict(), assign=True)
    agree(found(x), model.forward(x))
    assert all(len(constants) == 2 for constants in made) and len(made) == 5
    agree(found(x), model.forward(x))
    assert len(made) == 5


@torch.no_grad()
def test_a_buffer_that_others_change_at_each_call_becomes_an_input(made: list[Any]) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.register_buffer("shift", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.shift

    model, x = Shifted().eval(), torch.randn(3, 8)
    found = torch.compile(model, backend=mgx_numba)
    for _ in range(8):
        agree(found(x), model.forward(x))
        model.shift += 1
    assert [len(constants) for constants in made] == [3, 3, 3, 2]


@torch.no_grad()
def test_blocks_of_one_class_have_their_own_weights(made: list[Any]) -> None:
    blocks = [Block().eval() for _ in range(3)]
    for block in blocks:
        block.compile(backend=mgx_numba)
    x = torch.randn(2, 16)
    for _ in range(3):
        expected = found = x
        for block in blocks:
            expected, found = block.forward(expected), block(found)
        agree(found, expected)
    assert len(made) == 3
    blocks[1].inner.weight.neg_()
    agree(blocks[1](x), blocks[1].forward(x))
    agree(blocks[0](x), blocks[0].forward(x))
    assert len(made) == 4


@torch.no_grad()
def test_a_model_that_is_deleted_leaves_no_weights() -> None:
    model, x = Block().eval(), torch.randn(2, 16)
    found = torch.compile(model, backend=mgx_numba)
    found(x)
    weight = weakref.ref(model.inner.weight)
    del model, found
    gc.collect()
    assert weight() is None
    other = Block().eval()
    agree(torch.compile(other, backend=mgx_numba)(x), other(x))


@torch.no_grad()
def test_parameters_that_are_passed_anew_at_each_call_are_right(made: list[Any]) -> None:
    model, x = Block().eval(), torch.randn(2, 16)
    found = torch.compile(model, backend=mgx_numba)
    for _ in range(6):
        own = copy.deepcopy(model)
        for name, parameter in own.inner.named_parameters():
            setattr(model.inner, name, parameter)
        agree(found(x), own(x))


@pytest.mark.parametrize("fused", [True, False])
def test_steps_of_an_optimizer_are_seen(made: list[Any], fused: bool) -> None:
    """A fused optimizer does not count versions."""
    model, x = Block().eval(), torch.randn(4, 16)
    frozen = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam([*model.parameters(), *frozen.parameters()], lr=0.1, fused=fused)
    found, other = (torch.compile(m, backend=mgx_numba) for m in (model, frozen))
    for _ in range(3):
        with torch.no_grad():
            agree(found(x), model(x))
            agree(other(x), frozen(x))
        model(x).sum().backward()
        optimizer.step()
    assert len(made) == 4


@torch.no_grad()
def test_running_statistics_that_eager_mode_updates_are_seen(made: list[Any]) -> None:
    """Batch normalisation in training mode does not count versions of its statistics."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    found, x = torch.compile(model, backend=mgx_numba, options={"target": "ref"}), torch.randn(2, 3, 5, 5)
    for _ in range(2):
        for _ in range(2):
            agree(found(x), model.forward(x))
        model.train().forward(x)
        model.eval()
    agree(found(x), model.forward(x))
    assert len(made) == 3


DOUBLE = """
import mmap, sys
with mmap.mmap(int(sys.argv[1]), int(sys.argv[2])) as shared, memoryview(shared).cast("f") as numbers:
    for k in range(len(numbers)):
        numbers[k] *= 2
"""
"""Doubles the float32 numbers of a shared memory's file descriptor; a process that imports PyTorch takes seconds."""


def test_parameters_in_shared_memory_that_another_process_writes(caplog: Any) -> None:
    """The version counter of this process is the same after such a write."""
    model, x = nn.Linear(8, 4).requires_grad_(False).share_memory(), torch.randn(3, 8)
    compiled = torch.compile(model, backend="mgx_numba")
    agree(compiled(x), model(x))
    version = model.weight._version
    before = model.weight.clone()
    descriptor, size = model.weight.untyped_storage()._share_fd_cpu_()
    subprocess.run([sys.executable, "-S", "-c", DOUBLE, f"{descriptor}", f"{size}"], pass_fds=[descriptor], check=True)
    assert model.weight._version == version and torch.equal(model.weight, 2 * before)
    agree(compiled(x), model(x))
    assert "memory that processes share" in caplog.text
