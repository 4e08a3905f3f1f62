"""``torch.compile`` with the backend: results, layouts, views, updates of buffers, and what runs in eager mode."""

from __future__ import annotations

import configparser
import copy
import importlib
import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mgx_numba as mgx
from mgx_numba.errors import MgxError, OptionError
from mgx_numba.torch.backend import mgx_numba
from mgx_numba.torch.options import parse_options

from .exported import module_of
from .models import Block, Caching, Counting, Images, Odd, agree, odd


def compiled(model: Any, **options: Any) -> Any:
    """Return a model or function that the backend compiles."""
    return torch.compile(model, backend=mgx_numba, options=options)


@torch.no_grad()
def test_results_share_memory_as_in_eager_mode_and_buffers_are_updated(programs: list[Any]) -> None:
    model = Counting().eval()
    expected, found, x = copy.deepcopy(model), compiled(model), torch.randn(3, 4)
    for _ in range(3):
        results = found(x)
        agree(results, expected(x))
        assert results[0].data_ptr() == results[3].data_ptr()
        assert results[1].data_ptr() == x[1:].data_ptr()
    agree(model.calls, expected.calls)
    assert len(programs) == 1


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3, 0])
def test_a_step_of_a_decoder_updates_its_caches(batch: int) -> None:
    ours, theirs = Caching(), Caching()
    run = compiled(ours)
    state = [[torch.zeros(batch, 2, 7, 4), torch.tensor([2])] for _ in range(2)]
    for _ in range(3):
        x = torch.randn(batch, 2, 1, 4)
        agree(run(x, *state[0]), theirs(x, *state[1]))
        for a, b in zip(*state):
            agree(a, b)


@torch.no_grad()
def test_inputs_take_the_values_that_others_had() -> None:
    def exchange(a: Tensor, b: Tensor) -> Tensor:
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
        return a - b

    a, b = torch.ones(3), torch.zeros(3)
    agree(compiled(exchange)(a, b), torch.tensor([-1.0, -1.0, -1.0]))
    agree(a, torch.zeros(3))
    agree(b, torch.ones(3))

    def returned(a: Tensor) -> Tensor:
        made = a * 2
        a.copy_(made)
        return made

    a = torch.ones(3)
    made = compiled(returned)(a)
    a.add_(1)
    agree(made, torch.full((3,), 2.0))


@torch.no_grad()
def test_views_of_inputs_are_updated_in_place() -> None:
    ours, theirs = (torch.arange(12.0).view(3, 4), torch.ones(4)), (torch.arange(12.0).view(3, 4), torch.ones(4))
    found = compiled(lambda x, y: (x[1:].mul_(2), y.add_(x.sum(0)))[1] * 2)(*ours)
    theirs[0][1:].mul_(2)
    agree(found, theirs[1].add_(theirs[0].sum(0)) * 2)
    agree(ours, theirs)


@torch.no_grad()
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_have_the_layout_of_eager_mode(channels_last: bool, programs: list[Any]) -> None:
    model, x = Images().eval(), torch.randn(2, 3, 8, 8)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    agree(compiled(model)(x), model(x))
    agree(compiled(model)(x[:, :, 1:]), model(x[:, :, 1:]))
    assert len(programs) == 2


@torch.no_grad()
def test_types_without_a_numpy_type_pass() -> None:
    x = torch.randn(5, 7).bfloat16()
    agree(compiled(lambda x: x * 2 + 1)(x), x * 2 + 1)
    agree(compiled(lambda x: x.t().float() - 1)(x.t()), x.float() - 1)


@torch.no_grad()
def test_conversions_by_primitive_operators_are_compiled(programs: list[Any]) -> None:
    def convert(x: Tensor) -> Tensor:
        return torch.ops.prims.convert_element_type(x, torch.int32) * 2

    x = torch.tensor([[1.5, -2.5, 0.0]])
    agree(compiled(convert)(x), convert(x))
    assert len(programs) == 1


@torch.no_grad()
def test_empty_tensors_and_tensors_without_axes_pass() -> None:
    step = torch.tensor(2.5)
    for x in (torch.randn(0, 3), torch.randn(2, 3), torch.randn(2, 3)[:, ::2], torch.randn(1, 3).expand(4, 3)):
        agree(compiled(lambda x, s: (x * s + 1, s * 2))(x, step), (x * step + 1, step * 2))


@torch.no_grad()
def test_an_operator_that_is_lacking_runs_in_eager_mode(programs: list[Any], caplog: Any) -> None:
    model, x = Odd().eval(), torch.randn(3, 8)
    with caplog.at_level(logging.WARNING, "mgx_numba.torch"):
        agree(compiled(model)(x), model(x))
    assert len(programs) == 2
    assert len([r for r in caplog.records if "mgx_tests.odd" in r.getMessage()]) == 1
    torch._dynamo.reset()
    agree(compiled(model, min_acc_module_size=50)(x), model(x))
    agree(compiled(lambda x: odd(odd(x)))(x), odd(odd(x)))
    assert len(programs) == 2  # no part was as large as that


@torch.library.custom_op("mgx_tests::shift", mutates_args=("x",))
def shift(x: Tensor) -> None:
    """An operator that no frontend knows, and that changes its input."""
    x.add_(1)


@torch.no_grad()
def test_the_log_names_operators_inside_wrappers_and_no_checks(caplog: Any) -> None:
    def shifted(x: Tensor) -> Tensor:
        y = torch.linalg.inv(x)
        shift(y)
        return y * 2

    x = torch.randn(3, 3)
    with caplog.at_level(logging.WARNING, "mgx_numba.torch"):
        agree(compiled(shifted)(x), shifted(x), 1e-4)
    assert "mgx_tests.shift" in caplog.text
    assert "functionalized" not in caplog.text
    assert "effects" not in caplog.text


def test_graphs_that_need_gradients_run_in_eager_mode(caplog: Any) -> None:
    model = Block()
    expected = copy.deepcopy(model)
    x = torch.randn(2, 16)
    found = compiled(model)
    for one in (found, expected):
        one(x).sum().backward()
    agree(model.inner.weight.grad, expected.inner.weight.grad)
    with torch.no_grad():
        agree(found(x), expected(x))


def test_a_graph_without_parameters_is_compiled_while_gradients_are_on(programs: list[Any]) -> None:
    x = torch.randn(4, 4)
    agree(compiled(lambda x: (x @ x).relu())(x), (x @ x).relu())
    assert len(programs) == 1


@torch.no_grad()
def test_lengths_may_change_without_another_compilation(programs: list[Any]) -> None:
    model = nn.Sequential(Block(), nn.LayerNorm(16), Block()).eval()
    found = torch.compile(model, backend=mgx_numba, dynamic=True)
    for length in (5, 3, 17, 2, 40):
        x = torch.randn(2, length, 16)
        agree(found(x), model(x))
    assert len(programs) == 1


@torch.no_grad()
def test_numbers_that_follow_from_lengths_are_results() -> None:
    def numbers(x: Tensor) -> tuple[Tensor, int, Tensor]:
        return x.view(-1, 2) * x.shape[0], x.shape[0] * x.shape[1] + 1, torch.full((x.shape[0],), 2.0) + x.shape[1]

    found = torch.compile(numbers, backend=mgx_numba, dynamic=True)
    for lens in ((3, 4), (5, 2), (7, 6)):
        x = torch.randn(lens)
        agree(found(x), numbers(x))


@torch.no_grad()
def test_a_graph_break_makes_two_programs(programs: list[Any]) -> None:
    def broken(x: Tensor) -> Tensor:
        y = (x @ x).relu()
        torch._dynamo.graph_break()
        return (y @ x).sigmoid()

    x = torch.randn(4, 4)
    agree(compiled(broken)(x), broken(x))
    assert len(programs) == 2


@torch.no_grad()
def test_autocast_computes_in_its_type() -> None:
    model, x = Block().eval(), torch.randn(4, 16)
    found = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        agree(found(x), model(x), 2e-2)


def test_inference_mode() -> None:
    model = Block().eval()
    with torch.inference_mode():
        x = torch.randn(4, 16)
        result = compiled(model)(x)
        agree(result, model(x))
        assert result.is_inference()
        model = Block().eval()  # its parameters have no version counter
        found = compiled(model)
        for factor in (1, 2, 3):
            model.inner.weight.mul_(factor)
            agree(found(x), model(x))


@torch.no_grad()
def test_a_call_that_fails_leaves_the_next_one_right() -> None:
    table = nn.Embedding(10, 4)
    found = compiled(lambda ids: table(ids) * 2)
    for ids in (torch.tensor([1, 2]), torch.tensor([9, 0])):
        agree(found(ids), table(ids) * 2)
    with pytest.raises((MgxError, IndexError)):
        found(torch.tensor([1, 10]))
    agree(found(torch.tensor([3, 4])), table(torch.tensor([3, 4])) * 2)


def test_threads_share_one_compilation(programs: list[Any]) -> None:
    model, x = Block().eval(), torch.randn(4, 16)
    found = compiled(model)
    with torch.no_grad():
        expected = found(x)
        agree(expected, model(x))
    wrong: list[Any] = []

    def work() -> None:
        with torch.no_grad():
            wrong.extend(1 for _ in range(20) if not torch.allclose(found(x), expected, atol=1e-5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(programs) == 1


@torch.no_grad()
def test_a_second_compilation_is_in_the_plan_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MGX_PLAN_CACHE", "1")
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path))
    model, x = Images().eval(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    agree(compiled(model)(x), expected)
    parser = importlib.import_module("mgx_numba.frontends.torch.parser")

    def parse(*args: Any, **named: Any) -> Any:
        raise AssertionError("the graph is parsed again")

    monkeypatch.setattr(parser, "parse_graph", parse)
    torch._dynamo.reset()
    agree(compiled(model)(x), expected)
    torch._dynamo.reset()
    model.first.bias += 1
    with pytest.raises(AssertionError, match="parsed again"):
        compiled(model)(x)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["fp16", "bf16", "int8"])
def test_quantised_graphs_are_near(kind: str) -> None:
    model, x = Block().eval(), torch.randn(4, 16)
    result = compiled(model, quantize=kind)(x)
    assert result.dtype is torch.float32
    assert 0 < (result - model(x)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("options", "mode", "message"),
    [
        ({"fast_mth": True}, None, "fast_mth.*did you mean fast_math"),
        ({"target": "tpu"}, None, "target must be cpu, gpu, ref or None, got 'tpu'"),
        ({"quantize": "fp4"}, None, "quantize must be of fp16"),
        ({"min_acc_module_size": 0}, None, "min_acc_module_size must be an integer from 1 on, got 0"),
        ({"fp16": "yes"}, None, "use_fp16 must be True or False, got 'yes'"),
        ({}, "fastest", "unknown mode 'fastest'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], mode: str | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(options, mode)


def test_options_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = parse_options({"fp16": True, "fast_math": False, "num_threads": 1}, "max-autotune").compile
    assert asked == {"use_fp16": True, "fast_math": False, "num_threads": 1, "exhaustive_tune": True}
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert parse_options({}).compile == {"float32_matmul_precision": "high"}


def test_the_names_of_the_backend_are_entry_points() -> None:
    config = configparser.ConfigParser()
    config.read(Path(__file__).resolve().parents[2] / "setup.cfg")
    lines = config["options.entry_points"]["torch_dynamo_backends"].split("\n")
    places = dict(line.split(" = ") for line in lines if line)
    assert set(places) == {"mgx_numba", "migraphx"}
    for place in places.values():
        module, _, name = place.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        assert found is mgx_numba


@pytest.mark.parametrize("dynamic", [False, True])
def test_node_whose_translation_fails_runs_in_eager_mode_alone(dynamic: bool, programs: list[Any]) -> None:
    """Only the node that a builder refuses is left to PyTorch, at run time too, when its lengths are known at last."""

    def places(x: Any, w: Any) -> Any:
        own = torch.histc((x.sin() @ w).relu(), 5)
        return own * 2 + x.sum() + w.cos().sum()

    compiled = torch.compile(places, backend="mgx_numba", dynamic=dynamic)
    with torch.no_grad():
        for n in (6, 7):
            args = torch.randn(2, 3, n, n), torch.randn(n, n)
            torch.testing.assert_close(compiled(*args), places(*args), atol=1e-4, rtol=1e-4)
    assert len(programs) >= 2


def test_random_numbers_follow_pytorchs_generator() -> None:
    def noisy(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5, True) + torch.rand_like(x) * x.sin() + torch.randn(x.shape[0])

    x = torch.randn(5)
    found = []
    with torch.no_grad():
        for call in (noisy, torch.compile(noisy, backend="mgx_numba")):
            torch.manual_seed(3)
            found.append(call(x))
    torch.testing.assert_close(*found)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_lengths_that_follow_from_data_are_captured() -> None:
    def chosen(x: Any) -> Any:
        return x[x > 0].sum(), x.nonzero() * 2, torch.unique((x * 3).long()).sum(), torch.masked_select(x, x > 0) * 2

    compiled = torch.compile(chosen, backend="mgx_numba", fullgraph=True)
    with torch.no_grad():
        for n in (5, 9, 30):
            x = torch.randn(n)
            torch.testing.assert_close(compiled(x), chosen(x))


def test_result_that_a_builder_does_not_give_runs_in_eager_mode() -> None:
    """The logarithm of the sums of attention, where a later operator reads it."""

    def sums(x: Any) -> Any:
        made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)
        return made[0] * 2, made[1] + 1

    x = torch.randn(1, 2, 5, 8)
    compiled = torch.compile(sums, backend="mgx_numba")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), sums(x), atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_that_are_results_and_read_lie_where_eager_mode_has_them(dynamic: bool) -> None:
    def parts(x: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        inner, y = x[0].tensor_split(3)[1], x[0, :, :2] + 1
        first, second = y.split(1, 1)
        return inner, inner.roll(1, 0), y, first, first.cos(), second[1:]

    function = torch.compile(parts, backend=mgx_numba, dynamic=dynamic, options={"target": "ref"})
    mine, theirs = (torch.arange(72.0).reshape(3, 8, 3).transpose(0, 2) for _ in range(2))
    found, expected = function(mine), parts(theirs)
    agree(found, expected)
    agree(mine, theirs)
    for own, other, base in ((found, mine, found[2]), (expected, theirs, expected[2])):
        assert [own[0].data_ptr() - other.data_ptr(), own[0].stride()] == [36, (3, 24)]
        assert [own[5].data_ptr() - base.data_ptr(), own[5].stride()] == [36, (1, 8)]


@torch.no_grad()
def test_numbers_with_fractions_follow_from_lengths(programs: list[Any]) -> None:
    def scaled(x: Tensor) -> tuple[Tensor, ...]:
        sizes = (nn.functional.interpolate(x, size=(7,)), nn.functional.interpolate(x, scale_factor=0.7))
        own = nn.functional.interpolate(x, scale_factor=1.5, mode="nearest-exact", recompute_scale_factor=True)
        return *sizes, own, x * x.shape[-1] ** 0.5, x * (x.shape[1] / x.shape[2])

    function = torch.compile(scaled, backend=mgx_numba, dynamic=True)
    for lens in ((2, 3, 5), (4, 2, 9)):
        x = torch.randn(lens)
        agree(function(x), scaled(x))
    assert len(programs) == 1


@torch.no_grad()
def test_unread_results_of_deferred_operators_and_empty_complex_results() -> None:
    def attended(q: Tensor, k: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, k)

    function = torch.compile(attended, backend=mgx_numba, dynamic=True, options={"target": "ref"})
    for length in (4, 6):
        q, k = torch.randn(2, 2, length, 8), torch.randn(2, 2, length + 1, 8)
        agree(function(q, k), attended(q, k))
    z = torch.zeros(2, 0, dtype=torch.complex64)
    agree(compiled(lambda z: z * 2 + z)(z), z)


@torch.no_grad()
def test_views_by_strides_are_those_of_the_memory() -> None:
    def strided(x: Tensor, y: Tensor) -> Tensor:
        return x.as_strided((2, 2), (1, 3), 1) + y.as_strided((2, 2), (1, 3), 1)

    x, y = torch.randn(3, 4).t(), torch.randn(4, 4)[1:]
    agree(compiled(strided)(x, y), strided(x, y))
    with pytest.raises(MgxError, match="as_strided.*no known order in memory"):
        mgx.from_torch(module_of(strided), (x, y))


@torch.no_grad()
def test_views_by_strides_of_permuted_values_are_compiled(programs: list[Any]) -> None:
    """Overlapping chunks, as Longformer has them, divided the graph."""

    class Chunks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.weight = nn.Parameter(torch.randn(4, 8).t())

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x).view(1, 12, 2, 4).transpose(1, 2).reshape(2, 12, 4)
            chunks = y.as_strided((2, 5, 4, 4), (y.stride(0), 2 * y.stride(1), y.stride(1), y.stride(2)))
            return chunks.relu() + self.weight.as_strided((4, 4), (8, 1), 3)

    model, x = Chunks().eval(), torch.randn(1, 12, 8)
    agree(compiled(model)(x), model(x))
    assert len(programs) == 1


def test_numbers_of_a_random_generator_are_computed_in_their_own_type(programs: list[Any]) -> None:
    """Dynamo gives them as float64, in a graph that declares float32: the call was refused."""

    def shifted(x: Tensor) -> Tensor:
        own = random.Random(3)
        return x * own.uniform(2, 3) + own.random() - own.randint(1, 9) + x.sum()

    x = torch.randn(3, 4)
    agree(compiled(shifted)(x), shifted(x))
    assert programs


@torch.no_grad()
def test_random_leaky_relu_of_inference_is_compiled(programs: list[Any]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.RReLU(), nn.Linear(3, 2)).eval(), torch.randn(3, 4)
    agree(compiled(model, target="ref")(x), model(x))
    assert len(programs) == 1
