"""Graphs of Dynamo's whose result of AOTAutograd is in the cache folder."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as f
from torch import nn

from mgx_numba.api.saved_plans import finish_writing
from mgx_numba.torch import backend, kept_graphs

from .models import agree


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The graphs that AOTAutograd traces during a test, with an empty cache folder."""
    found: list[Any] = []
    own = backend._by_autograd

    def noting(graph_module: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(graph_module)
        return own(graph_module, *args, **kwargs)

    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MGX_PLAN_CACHE", "1")
    monkeypatch.setattr(backend, "kept_path", kept_graphs.kept_path)
    monkeypatch.setattr(backend, "_by_autograd", noting)
    return found


def started(model: Any, *args: Any, **options: Any) -> Callable[..., Any]:
    """Return a model compiled as in a new process, after a call whose results agree with eager mode."""
    finish_writing()
    torch._dynamo.reset()
    found = torch.compile(model, backend=backend.mgx_numba, **options)
    with torch.no_grad():
        agree(found(*args), model(*args))
    return found


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    return nn.Sequential(*layers).eval()


def test_a_second_start_needs_no_autograd(traced: list[Any]) -> None:
    model, x = network(1), torch.randn(2, 3, 8, 8)
    for _ in range(3):
        found = started(model, x)
    assert len(traced) == 1
    other = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        agree(found(other), model(other))


def test_other_parameters_are_seen(traced: list[Any]) -> None:
    x = torch.randn(2, 3, 8, 8)
    started(network(1), x)
    model = network(2)
    found = started(model, x)
    assert len(traced) == 2  # the plan cache has no program for these parameters
    finish_writing()
    found = started(model, x)
    assert len(traced) == 2
    with torch.no_grad():
        model[0].weight.mul_(1.5)
        agree(found(x), model(x))
        model.load_state_dict(network(3).state_dict())
        agree(found(x), model(x))
        model[5].weight = nn.Parameter(torch.randn(5, 36))
        agree(found(x), model(x))


def test_views_and_random_values_stay_pytorchs(traced: list[Any]) -> None:
    def run(x: Any) -> Any:
        y = x.exp() + torch.rand_like(x)
        return y.view(2, 6), y.t(), y.unbind(0)[1]

    x = torch.randn(3, 4)
    for _ in range(2):
        torch._dynamo.reset()
        finish_writing()
        torch.manual_seed(5)
        found = torch.compile(run, backend=backend.mgx_numba)(x)
        torch.manual_seed(5)
        agree(found, run(x))
        assert found[0].data_ptr() == found[1].data_ptr() and found[1].stride() == (1, 4)
    assert len(traced) == 1


CALLS: dict[str, Callable[[Any], Any]] = {
    "two": lambda x: f.hardtanh(x, 0, 2) + 1,
    "three": lambda x: f.hardtanh(x, 0, 3) + 1,
    "float": lambda x: f.hardtanh(x, 0, 2) + 1.0,
    "true": lambda x: f.hardtanh(x, 0, 2) + True,
    "pool": lambda x: f.max_pool2d(x[None], 2),
    "other pool": lambda x: f.avg_pool2d(x[None], 2),
    "one axis": lambda x: f.max_pool1d(x, 2),
    "stride": lambda x: f.max_pool2d(x[None], 2, 1),
    "method": lambda x: x.sum(0),
    "other method": lambda x: x.mean(0),
    "keyword": lambda x: x.sum(0, keepdim=True),
    "type": lambda x: x.sum(0, dtype=torch.float64),
    "slice": lambda x: x[:, 1:],
    "step": lambda x: x[:, 1::2],
    "end": lambda x: x[..., :1],
    "none": lambda x: x[:, None, :1],
}
INPUTS = {
    "plain": lambda: torch.randn(4, 6),
    "shape": lambda: torch.randn(6, 4),
    "double": lambda: torch.randn(4, 6, dtype=torch.float64),
    "transposed": lambda: torch.randn(6, 4).t(),
    "offset": lambda: torch.randn(5, 6)[1:],
    "parts": lambda: torch.randn(4, 12)[:, ::2],
    "expanded": lambda: torch.randn(1, 6).expand(4, 6),
    "negative": lambda: torch.randn(4, 6, dtype=torch.complex64).conj().imag,
}


def test_keys_differ_where_results_do(traced: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path | None] = []

    def path(*args: Any) -> None:
        found.append(kept_graphs.kept_path(*args))

    monkeypatch.setattr(backend, "kept_path", path)
    monkeypatch.setattr(backend, "_by_autograd", lambda graph, *_: graph.forward)

    def key(run: Any, *args: Any, **options: Any) -> Path | None:
        torch._dynamo.reset()
        torch.compile(run, backend=backend.mgx_numba, **options)(*args)
        return found[-1]

    x, plain = torch.randn(4, 6), CALLS["two"]
    states = {
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "half": torch.autocast("cpu", torch.float16),
        "gradients": torch.enable_grad(),
        "kernels": torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        "functorch": torch._functorch.config.patch(functionalize_rng_ops=True),
    }
    with torch.no_grad():
        keys = {name: key(run, x) for name, run in CALLS.items()}
        keys |= {name: key(lambda x: x * 3, make()) for name, make in INPUTS.items()}
        for name, state in states.items():
            with state:
                keys[name] = key(plain, x)
        keys["fast"] = key(plain, x, options={"fast_math": True})
        keys["ref"] = key(plain, x, options={"target": "ref"})
        keys["parameter"] = key(plain, nn.Parameter(x))
        torch.use_deterministic_algorithms(True)
        keys["deterministic"] = key(plain, x)
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float64)
        keys["default type"] = key(plain, x)
        torch.set_default_dtype(torch.float32)
        assert key(plain, x) == keys["two"]
    assert None not in keys.values()
    assert not [(a, b) for a, b in itertools.combinations(keys, 2) if keys[a] == keys[b]]


def _subclass() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.randn(3, 4), torch.randn(3, 4))


@torch.library.custom_op("mgx_test_kept::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Return twice a tensor."""
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _written(x: Any) -> Any:
    x.add_(1)
    return x * 2


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], Any], dict[str, Any]]] = {
    "written": (_written, lambda: torch.randn(3, 4), {}),
    "view of an input": (lambda x: (x[1:], x.exp()), lambda: torch.randn(3, 4), {}),
    "input": (lambda x: (x, x.exp()), lambda: torch.randn(3, 4), {}),
    "open lengths": (lambda x: x.exp() * x.shape[0], lambda: torch.randn(3, 4), {"dynamic": True}),
    "custom operator": (lambda x: twice(x) + 1, lambda: torch.randn(3, 4), {}),
    "branch": (
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        lambda: torch.randn(3, 4),
        {},
    ),
    "constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), lambda: torch.randn(3, 4), {}),
    "vmap": (torch.vmap(lambda x: x.sum() * 2), lambda: torch.randn(3, 4), {}),
    "subclass": (lambda x: x.exp() + 1, _subclass, {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_graphs_are_traced_again_or_right(traced: list[Any], name: str) -> None:
    run, make, options = REFUSED[name]
    made = make()
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            finish_writing()
            mine, own = (made.clone() for _ in range(2))
            agree(torch.compile(run, backend=backend.mgx_numba, **options)(mine), run(own))
            agree(mine, own)
    if name not in ("input", "constant", "vmap"):
        assert len(traced) == 2


def graph_of(run: Callable[[Any], Any]) -> Any:
    """Return a graph as Dynamo gives it for an input of two elements."""
    graph = torch.fx.symbolic_trace(run)
    for node in graph.graph.find_nodes(op="placeholder"):
        node.meta["example_value"] = torch.ones(2)
    return graph


def test_modes_refuse_a_key(traced: list[Any]) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return op(*args, **(kwargs or {}))

    graph, options = graph_of(lambda x: torch.relu(x)), backend.parse_options(None)
    for context, refuses in ((contextlib.nullcontext(), False), (Mode(), True), (torch.device("meta"), True)):
        x = torch.ones(2)
        with context:
            assert (kept_graphs.kept_path(graph, [x], options) is None) == refuses


def test_functions_that_are_replaced_have_no_key(traced: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, options = graph_of(lambda x: f.relu(x)), backend.parse_options(None)
    assert kept_graphs.kept_path(graph, [torch.ones(2)], options)
    monkeypatch.setattr(f, "relu", lambda x: x)
    assert kept_graphs.kept_path(graph, [torch.ones(2)], options) is None


@pytest.mark.parametrize("damage", ["body", "plan", "json"])
def test_damaged_files_are_not_used(traced: list[Any], tmp_path: Path, damage: str) -> None:
    model, x = network(1), torch.randn(2, 3, 8, 8)
    started(model, x)
    finish_writing()
    (file,) = [p for p in (tmp_path / "plans" / "models").iterdir() if b'"static"' in p.read_bytes()]
    if damage == "body":
        file.write_bytes(file.read_bytes().replace(b'"static": [', b'"static": [7, '))
    elif damage == "json":
        file.write_bytes(b"{}")
    else:
        for other in (tmp_path / "plans").rglob("*"):
            if other.is_file() and other != file:
                other.unlink()
    started(model, x)
    assert len(traced) == 2
    started(model, x)
    assert len(traced) == 2
