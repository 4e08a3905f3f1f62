"""The backend on tensors of a CUDA device; skipped, with the reason, where there is none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mgx_numba.errors import MgxError
from mgx_numba.torch.backend import mgx_numba
from mgx_numba.torch.fx import lower_to_mgx

from .models import Block, Caching, Counting, Images, Odd, agree

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=mgx_numba, **options)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_a_device_are_used_where_they_lie(dtype: torch.dtype, programs: list[Any]) -> None:
    model = Block(64).to("cuda", dtype).eval()
    run = compiled(model)
    for _ in range(3):
        x = torch.randn(32, 64, device="cuda", dtype=dtype)
        found = run(x)
        assert found.device == x.device
        agree(found, model(x), 2e-2 if dtype is not torch.float32 else 1e-3)
    assert len(programs) == 1


@torch.no_grad()
def test_results_stay_as_they_are_when_the_program_runs_again() -> None:
    model = Block(64).cuda().eval()
    run = compiled(model)
    inputs = [torch.randn(8, 64, device="cuda") for _ in range(20)]
    found = [run(x) for x in inputs]
    for one, x in zip(found, inputs):
        agree(one, model(x), 1e-3)


@torch.no_grad()
def test_views_and_transposed_inputs_of_a_device() -> None:
    model = Block(64).cuda().eval()
    run = compiled(model)
    wide = torch.randn(64, 64, device="cuda")
    for x in (wide, wide.t(), wide[1:9], wide[:, None, ::1][:, 0]):
        agree(run(x), model(x), 1e-3)


@torch.no_grad()
def test_memory_of_inputs_and_results_is_used_again_in_order() -> None:
    """PyTorch gives the memory of a deleted tensor to the next one at once, while kernels may still read it."""
    model = Block(512).cuda().eval()
    run = compiled(model)
    starts = [torch.randn(512, 512, device="cuda") for _ in range(4)]
    wanted = [model(model(x) / 8) for x in starts]
    run(starts[0])
    for x, expected in zip(starts * 5, wanted * 5):
        agree(run(run(x.clone()) / 8), expected, 1e-3)


@torch.no_grad()
def test_tensors_of_other_kinds_than_at_compilation() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (x * 2 + y).relu()

    x, y = torch.randn(4, 8, device="cuda"), torch.randn(8, device="cuda")
    module = lower_to_mgx(Sum().eval(), [x, y])
    agree(module(x, y), Sum()(x, y))
    agree(module(x.t().contiguous().t(), y), Sum()(x, y))
    imaginary = torch.complex(x, -x).conj().imag
    assert imaginary.is_neg()
    agree(module(imaginary, y), Sum()(x, y))
    for wrong in ((x[:3], y), (x.double(), y)):
        with pytest.raises(MgxError, match="x"):
            module(*wrong)


@torch.no_grad()
def test_work_is_ordered_with_the_current_stream() -> None:
    model = nn.Sequential(*(Block(256) for _ in range(4))).cuda().eval()
    run = compiled(model)
    start = torch.randn(256, 256, device="cuda")
    run(start)
    expected = start
    for _ in range(5):
        expected = model(expected / 8)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for stream in (*streams, torch.cuda.current_stream()):
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            x = start.clone()
            for _ in range(5):
                x = run(x / 8)
            host = x.cpu()
        agree(host, expected.cpu(), 1e-3)


@torch.no_grad()
def test_convolutions_of_channels_last_tensors_keep_their_strides() -> None:
    model = Images().to("cuda", memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    x = torch.randn(2, 3, 24, 24, device="cuda").to(memory_format=torch.channels_last)
    agree(compiled(model)(x), model(x), 1e-3)


@torch.no_grad()
def test_lengths_that_change_on_a_device() -> None:
    model = Block(64).cuda().eval()
    run = compiled(model, dynamic=True)
    for rows in (5, 7, 64, 1, 33):
        x = torch.randn(rows, 64, device="cuda")
        agree(run(x), model(x), 1e-3)


@torch.no_grad()
def test_buffers_change_and_foreign_operators_run_between_on_a_device() -> None:
    model, other = Counting().cuda().eval(), Counting().cuda().eval()
    other.load_state_dict(model.state_dict())
    run = compiled(model)
    for _ in range(3):
        x = torch.randn(6, 4, device="cuda")
        agree(run(x), other(x), 1e-3)
    agree(model.calls, other.calls)
    odd = Odd().cuda().eval()
    x = torch.randn(3, 8, device="cuda")
    agree(compiled(odd)(x), odd(x), 1e-3)


@torch.no_grad()
def test_new_parameters_are_seen_on_a_device() -> None:
    model, other = Block(32).cuda().eval(), Block(32).cuda().eval()
    run, x = compiled(model), torch.randn(4, 32, device="cuda")
    run(x)
    model.load_state_dict(other.state_dict())
    agree(run(x), other(x), 1e-3)


@torch.no_grad()
def test_attention_under_autocast_on_a_device() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval()

    class Encoder(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.float16):
                found: Tensor = layer(x)
            return found

    x = torch.randn(2, 20, 64, device="cuda")
    torch.backends.mha.set_fastpath_enabled(False)
    agree(compiled(Encoder())(x), Encoder()(x), 2e-2)


@torch.no_grad()
def test_memory_of_a_device_does_not_grow_with_runs() -> None:
    model = Block(1024).cuda().eval()
    run, x = compiled(model), torch.randn(4096, 1024, device="cuda")
    for _ in range(3):
        run(x)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(50):
        run(x)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] > free - 64 * 2**20


class Positions(nn.Module):
    """Adds a table that is no buffer, which stays in host memory, as VideoMAE's table of positions does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.table = torch.randn(1, 8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.table.type_as(x).detach().to(x.device, copy=True))


@torch.no_grad()
def test_tables_in_host_memory_are_copied_to_the_device() -> None:
    model = Positions().cuda().half().eval()
    run, x = compiled(model), torch.randn(4, 8, 16, device="cuda", dtype=torch.float16)
    agree(run(x), model(x), 1e-2)
    model.table.mul_(2)
    agree(run(x), model(x), 1e-2)


@torch.no_grad()
@pytest.mark.parametrize("lens", [(2, 4, 64, 32), (1, 2, 7, 4)])
def test_caches_are_updated_where_they_lie(lens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Tensor] = []
    copy = torch._foreach_copy_

    def counted(targets: list[Tensor], values: list[Tensor]) -> None:
        copied.extend(targets)
        copy(targets, values)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    ours, theirs = Caching(), Caching()
    run = compiled(ours)
    state = [[torch.zeros(lens, device="cuda"), torch.tensor([2], device="cuda")] for _ in range(2)]
    for _ in range(4):
        x = torch.randn(*lens[:2], 1, lens[3], device="cuda")
        torch.testing.assert_close(run(x, *state[0]), theirs(x, *state[1]), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(state[0], state[1])
    assert {x.data_ptr() for x in copied} == {state[0][1].data_ptr()}
    transposed = torch.zeros(lens[0], lens[2], lens[1], lens[3], device="cuda").transpose(1, 2)
    unaligned = torch.zeros(math.prod(lens) + 1, device="cuda")[1:].view(lens)
    for cache in (transposed, unaligned):
        place, other = torch.tensor([1], device="cuda"), cache.clone()
        wanted = theirs(x, other, place.clone())
        torch.testing.assert_close(run(x, cache, place), wanted, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(cache, other)
