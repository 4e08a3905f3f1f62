"""Worker processes: forks of the first worker, and kernels compiled while a plan is built."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mgx_numba.codegen.elf import read_object
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.store import ObjectStore
from mgx_numba.codegen.workers import batch
from mgx_numba.codegen.workers.background import BackgroundCompilation
from mgx_numba.codegen.workers.objects import objects_of
from mgx_numba.runtime.cpu import early


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each worker is started there")
def test_each_worker_imported_numba_again(
    distinct: Callable[[int], KernelSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers but the first are its forks."""
    sources, started, start = [distinct(i) for i in range(400, 440)], [], batch.start_worker
    monkeypatch.setattr(batch, "_affinity", lambda: range(3))
    monkeypatch.setattr(batch, "start_worker", lambda *given: started.append(start(*given)) or started[-1])
    work = batch.ObjectBatch()
    objects = batch.compile_objects(sources, workers=3, batch=work)
    work.close()
    assert all(source.symbol in read_object(data).defined for source, data in zip(sources, objects, strict=True))
    (process,) = started
    assert work.hired == 3
    assert process.wait(10) == 0


def test_kernels_are_compiled_while_the_plan_is_made(
    distinct: Callable[[int], KernelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_affinity", lambda: range(2))
    store = ObjectStore(tmp_path)
    always, found = [distinct(500), distinct(501)], [distinct(i) for i in range(502, 506)]
    told: list[int] = []
    with BackgroundCompilation(lambda kernel: False, store, always) as ahead:
        for kernel in found:
            ahead.add([kernel, found[0]])
        assert ahead.batch is not None
        ahead.batch.wait(always, None)  # before anybody asked for objects
        objects = objects_of([*found, *always], lambda done, total, name: told.append(total), store, ahead=ahead)
    assert all(source.symbol in read_object(objects[source.symbol]).defined for source in (*always, *found))
    assert told == [6] * 6
    with BackgroundCompilation(lambda kernel: False, store, always) as ahead:
        ahead.add(found)
        assert ahead.batch is None
        assert objects_of(found, None, store, ahead=ahead) == {k.symbol: objects[k.symbol] for k in found}


def test_kernels_that_pack_weights_were_compiled_in_the_process_that_plans(
    distinct: Callable[[int], KernelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that planning needs at once goes to the workers, which then continue with the others."""
    monkeypatch.setattr(batch, "_affinity", lambda: range(2))
    monkeypatch.setattr(batch, "compiled_here", lambda source: pytest.fail(f"compiled {source.name} here"))
    store = ObjectStore(tmp_path)
    always, (needed, *later) = [distinct(520)], [distinct(i) for i in range(521, 525)]
    with BackgroundCompilation(lambda kernel: False, store, always) as ahead:
        ahead.add(later[:2])
        first = objects_of([needed], None, store, ahead=ahead)
        ahead.add(later[2:])
        objects = first | objects_of([*always, *later], None, store, ahead=ahead)
    assert all(source.symbol in read_object(objects[source.symbol]).defined for source in (needed, *always, *later))


@pytest.fixture
def begun(
    distinct: Callable[[int], KernelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BackgroundCompilation]:
    """The compilation that begins when a model is read by a process that has no kernels, with an empty cache folder."""
    monkeypatch.setattr(batch, "_affinity", lambda: range(2))
    monkeypatch.setattr(early, "COMMON_KERNELS", (distinct(530), distinct(531)))
    monkeypatch.setattr(early, "loaded", lambda kernel: False)
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "first"))
    early.compile_soon()
    early.compile_soon()
    ((compilation, _),) = early.waiting
    yield compilation
    early.finish_unused()
    assert not early.waiting


def test_workers_started_after_the_model_was_read(begun: BackgroundCompilation) -> None:
    assert begun.batch is not None
    with early.compile_in_background(None) as ahead:
        assert ahead is begun
        objects = objects_of(early.COMMON_KERNELS, ahead=ahead)
    assert all(kernel.symbol in read_object(objects[kernel.symbol]).defined for kernel in early.COMMON_KERNELS)
    assert early.compile_in_background(None) is not begun and not begun.batch.open


def test_workers_of_a_model_that_is_not_compiled_end(begun: BackgroundCompilation) -> None:
    early.finish_unused()
    assert begun.batch is not None and not begun.batch.open
    assert all(begun.store.get(kernel) is not None for kernel in early.COMMON_KERNELS)
    early.compile_soon()  # all are stored
    assert not early.waiting


def test_a_model_is_read_where_no_thread_can_start(
    begun: BackgroundCompilation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    waiting = early.waiting.copy()
    early.waiting.clear()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        early.compile_soon()
    assert not early.waiting
    early.waiting += waiting


def test_workers_for_another_cache_folder_are_not_taken(
    begun: BackgroundCompilation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "second"))
    assert early.compile_in_background(None) is not begun
    assert begun.batch is not None and not begun.batch.open


def test_workers_of_a_plan_that_failed_end(
    distinct: Callable[[int], KernelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_affinity", lambda: range(2))
    with (
        pytest.raises(ValueError, match="no plan"),
        BackgroundCompilation(lambda kernel: False, ObjectStore(tmp_path), [distinct(600)]) as ahead,
    ):
        assert ahead.batch is not None
        ahead.batch.wait([distinct(600)], None)
        raise ValueError("no plan")
    for helper in ahead.batch.helpers:
        helper.join(10)
        assert not helper.is_alive()
