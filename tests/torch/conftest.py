"""Tests of PyTorch are left out where it is not installed; pytest says so."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

Override = Callable[[Mapping[Any, object]], AbstractContextManager[None]]
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


def pytest_report_header() -> str | None:
    """Say that these tests do not run."""
    return "tests/torch: skipped, PyTorch is not installed" if collect_ignore_glob else None


@pytest.fixture(scope="session", autouse=True)
def _pytorch_works_less() -> Iterator[None]:
    """Leave out work of PyTorch's that has no effect on results.

    - For each export it looks up its thousand composite operators of C++, in case that a library with more of them was
      loaded, and writes kernels for them.
    - For each compilation it empties the processor's caches, to measure how long guards take, and looks for garbage.
    """
    import torch
    from torch._dynamo import guards
    from torch._export import utils
    from torch.export import exported_program

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "profile_guard_manager", lambda *args: 0.0)
        patch.setattr(torch._dynamo.config, "run_gc_after_compile", False)
        name = "_materialize_cpp_cia_ops"
        patch.setattr(utils, name, functools.cache(getattr(utils, name)))
        name = "_override_composite_implicit_decomp"
        patch.setattr(exported_program, name, _written_once(getattr(exported_program, name)))
        yield


def _written_once(override: Override) -> Override:
    """Return PyTorch's context that lets exports keep composite operators, with its kernels written once.

    PyTorch writes 16 kernels for each of 700 operators at each export: two fifths of the time of exporting an operator.
    """
    from torch._subclasses.fake_impls import op_implementations_dict as rules

    kept: dict[object, tuple[dict[Any, dict[object, object]], dict[Any, object]]] = {}

    @contextlib.contextmanager
    def quick(kernels: Mapping[Any, object]) -> Iterator[None]:
        key = frozenset(kernels.items())
        if key not in kept:
            before = set(rules)
            with override(kernels):
                kept[key] = {op: dict(op.py_kernels) for op in kernels}, {op: rules[op] for op in rules.keys() - before}
                yield
            return
        written, added = kept[key]
        saved = {op: dict(op.py_kernels) for op in written}
        try:
            rules.update(added)
            for op, own in written.items():
                op.py_kernels.update(own)
                op._dispatch_cache.clear()
            yield
        finally:
            for op, own in saved.items():
                op.py_kernels.clear()
                op.py_kernels.update(own)
                op._dispatch_cache.clear()
            for op in added:
                rules.pop(op, None)

    return quick


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no test see what was compiled for another, and none pass because a graph ran in eager mode."""
    import torch

    from mgx_numba.torch import backend, logs

    monkeypatch.setattr(backend, "kept_path", lambda *args: None)
    lines: set[str] = set()
    monkeypatch.setattr(logs, "_warned", lines)
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    failed = [line for line in lines if "cannot be compiled: " in line and not line.startswith("PyTorch runs")]
    assert not failed


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that the backend compiles during a test."""
    from mgx_numba.torch import region

    made: list[Any] = []
    own = region.compiled_program

    def noting(*args: Any) -> Any:
        made.append(own(*args))
        return made[-1]

    monkeypatch.setattr(region, "compiled_program", noting)
    return made
