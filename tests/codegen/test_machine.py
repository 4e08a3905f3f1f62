"""The description of the machine for which plans are made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu import machine as module
from mgx_numba.codegen.cpu.contraction import solvers as judged
from mgx_numba.codegen.cpu.contraction.solver import peak_flops, seconds
from mgx_numba.codegen.cpu.loops import is_streamed
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.errors import OptionError

from ..features import ARM
from .launching import tensor_of


@pytest.mark.parametrize(
    ("sizes", "largest"),
    [(["48K", "1024K", "32M"], 32 << 20), (["1G"], 1 << 30), (["many", "512"], 512), ([], 32 << 20)],
)
def test_the_last_cache_is_the_largest_that_the_system_tells(
    sizes: list[str], largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k, size in enumerate(sizes):
        (tmp_path / f"index{k}").mkdir()
        (tmp_path / f"index{k}" / "size").write_text(size + "\n")
    monkeypatch.setattr(module, "_CACHES", tmp_path)
    assert module.last_cache_bytes() == largest


def test_the_machine_has_the_cpu_as_it_is_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host.ENVIRONMENT, "sse")
    assert machine().cpu == host.host() and machine().vector_bits == 128


def test_a_machine_is_in_use_inside_only_and_in_every_thread() -> None:
    found, whole = [], machine()
    x = np.zeros(1000, np.float32)
    assert not is_streamed([tensor_of(x)])
    with using(replace(whole, last_cache_bytes=x.nbytes)), using(replace(whole, last_cache_bytes=x.nbytes - 1)):
        thread = threading.Thread(target=lambda: found.append(is_streamed([tensor_of(x)])))
        thread.start()
        thread.join()
    assert found == [True] and machine() is whole


def test_estimates_go_by_clock_and_memory_of_the_machine(given_machine: Callable[..., None]) -> None:
    tile = tile_for(element_types("float32"))
    peak, moved = peak_flops(tile), seconds(tile, 0, 1e9, 64)  # more threads than share the memory
    given_machine(clock=machine().clock / 2)
    given_machine(bytes_per_second=machine().bytes_per_second / 4)
    assert peak_flops(tile) == peak / 2 and seconds(tile, 0, 1e9, 64) == 4 * moved


def test_no_plans_are_made_for_another_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    other = machine()
    monkeypatch.setenv(host.ENVIRONMENT, "-dotprod" if ARM else "sse")
    with pytest.raises(OptionError, match="as narrowed here"), using(other):
        pass
    assert machine().cpu == host.host()


def test_a_solver_of_equal_problems_is_judged_anew_on_another_machine() -> None:
    def cost(clock: float) -> float:
        with using(replace(machine(), clock=clock)) as used:
            return judged._cost(GemmProblem(m=64, n=512, k=512), 0, 1, used)

    assert cost(1e9) == cost(1e9) > cost(4e9)
