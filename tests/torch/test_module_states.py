"""Compiled modules that are moved, copied, sent to processes, trained, hooked, or fail in the middle."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mgx_numba as mgx
from mgx_numba.torch.backend import mgx_numba

from .models import Block, agree


def compiled(model: Any, **options: Any) -> Any:
    """Return a model that the backend compiles for the reference target."""
    return torch.compile(model, backend=mgx_numba, options={"target": "ref"}, **options)


@torch.no_grad()
def test_parameters_moved_to_other_types_and_layouts() -> None:
    model, x = Block().eval(), torch.randn(4, 16)
    found = compiled(model)
    for dtype, tolerance in ((torch.float64, 1e-7), (torch.bfloat16, 0.1), (torch.float32, 1e-2)):
        model.to(dtype)
        torch.testing.assert_close(found(x.to(dtype)), model(x.to(dtype)), atol=tolerance, rtol=tolerance)
    model.inner.weight.data = model.inner.weight.data.t().contiguous().t()
    agree(found(x), model(x))


def test_gradients_needed_and_not_needed_from_call_to_call() -> None:
    model, x = Block().eval().requires_grad_(False), torch.randn(4, 16)
    found = compiled(model)
    agree(found(x), model(x))
    model.inner.weight.requires_grad_(True)
    found(x).sum().backward()
    own, model.inner.weight.grad = model.inner.weight.grad, None
    model(x).sum().backward()
    agree(own, model.inner.weight.grad)
    with torch.no_grad():
        assert not found(x).requires_grad
        model.inner.weight -= 0.1 * own
        agree(found(x), model(x))
    with torch.inference_mode():
        assert found(x).is_inference()


@torch.no_grad()
def test_training_mode_updates_running_statistics() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).train()
    expected, found = copy.deepcopy(model), compiled(model)
    for _ in range(2):
        x = torch.randn(5, 4)
        agree(found(x), expected(x))
        agree(list(model.buffers()), list(expected.buffers()))
    agree(found.eval()(x), expected.eval()(x))


@torch.no_grad()
def test_copies_of_a_compiled_module_have_parameters_of_their_own() -> None:
    model, x = Block().eval(), torch.randn(4, 16)
    found = compiled(model)
    before = found(x)
    stored = io.BytesIO()
    torch.save(found.state_dict(), stored)
    for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        agree(other(x), before)
        other.inner.weight.mul_(2)
        assert not torch.allclose(other(x), before)
        stored.seek(0)
        other.load_state_dict(torch.load(stored))
        agree(other(x), before)
    agree(found(x), before)


def _called(queue: Any, function: Any, x: Tensor) -> None:
    with torch.no_grad():
        queue.put(function(x).tolist())


@torch.no_grad()
def test_a_forked_process_calls_a_module_that_its_parent_compiled() -> None:
    context = multiprocessing.get_context("fork")
    model, x, queue = Block().eval().share_memory(), torch.randn(4, 16), context.Queue()
    found = torch.compile(model, backend=mgx_numba)
    expected = found(x)
    process = context.Process(target=_called, args=(queue, found, x))
    process.start()
    agree(torch.tensor(queue.get(timeout=60)), expected)
    process.join()


@torch.no_grad()
def test_hooks_of_modules_run() -> None:
    model, x, seen = Block().eval(), torch.randn(4, 16), []
    found = compiled(model)
    expected = found(x)
    hook = found.register_forward_hook(lambda module, inputs, result: result + 1)
    agree(found(x), expected + 1)
    hook.remove()
    torch._dynamo.reset()  # PyTorch expects hooks of inner modules before the first call
    model.inner.register_forward_hook(lambda module, inputs, result: seen.append(result.shape))
    agree(found(x), expected)
    assert len(seen) == 1


@torch.no_grad()
def test_lengths_beyond_a_stated_range() -> None:
    model, x = Block().eval(), torch.randn(5, 16)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    found = compiled(model)
    for lens in (5, 2, 8, 20, 1):
        given = x if lens == 5 else torch.randn(lens, 16)
        agree(found(given), model(given))
    n = torch.export.Dim("n", min=2, max=8)
    exported = torch.export.export(model, (torch.randn(4, 16),), dynamic_shapes=({0: n},))
    program = mgx.from_torch(exported)
    program.compile("ref")
    for lens in (1, 9):
        with pytest.raises(mgx.MgxError, match=r"\[2\.\.8\]"):
            program.run({"x": torch.zeros(lens, 16).numpy()})
    with pytest.raises(AssertionError, match="Guard failed"):
        compiled(exported.module())(torch.zeros(9, 16))


@torch.no_grad()
def test_an_index_out_of_range_is_an_index_error_and_the_next_call_right() -> None:
    table = nn.Embedding(5, 3)
    found = torch.compile(table, backend=mgx_numba)
    for wrong in (7, -6):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range"):
            found(torch.tensor([wrong, 2]))
        agree(found(torch.tensor([4, 0])), table(torch.tensor([4, 0])))
