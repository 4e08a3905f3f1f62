"""pytest's plugin for parts of many cases: one case of each test function, solver, Winograd form and register tile.

Thousands of cases that differ in lengths alone would take hours in the emulator. In a session of ``tests/codegen`` a
solver or register tile of this CPU that no case ran is a failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.solver import Solver
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, GEMM_SOLVERS
from mgx_numba.codegen.cpu.contraction.winograd.form import Form
from mgx_numba.codegen.cpu.microkernels.register_tile import RegisterTile
from mgx_numba.codegen.cpu.microkernels.tile_table import TILES, declared_tile, tile_for
from mgx_numba.codegen.cpu.toolchain import loader
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.problems.element_types import element_types

SOLVERS = (*GEMM_SOLVERS, *CONV_SOLVERS)
NEEDS = {"Amx": "amx-tile", "Bfloat16": "bf16", "QuantBytes": "i8mm", "Residual": "avx2"}
"""Feature of the CPU that a solver needs, by a part of its class's name; no ARM CPU has those of x86-64."""

_planned: set[str] = set()
_loaded: set[tuple[str, str]] = set()


def pytest_configure() -> None:
    for solver in {type(solver) for solver in SOLVERS}:
        solver.solve = _noted(solver.solve)  # type: ignore[method-assign]
    objects_of = loader.objects_of

    def noted(sources: Sequence[KernelSource], *given: Any, **named: Any) -> dict[str, bytes]:
        _loaded.update((source.name, source.text) for source in sources if "tile" in source.name)
        return objects_of(sources, *given, **named)

    loader.objects_of = noted


def _noted(solve: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(solve)
    def noted(self: Solver[Any], *given: Any, **named: Any) -> Any:
        _planned.add(self.name)
        return solve(self, *given, **named)

    return noted


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first case of each test function, solver and tile."""
    kinds = (RegisterTile, Form, *{type(solver) for solver in SOLVERS})
    kept: dict[tuple[str, ...], pytest.Item] = {}
    for item in items:
        values = item.callspec.params if hasattr(item, "callspec") else {}
        named = (str(value) for name, value in values.items() if name == "types" or isinstance(value, kinds))
        kept.setdefault((item.nodeid.partition("[")[0], *named), item)
    chosen = list(kept.values())
    left = {id(item) for item in chosen}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    items[:] = chosen


def _idle() -> list[str]:
    """Return the solvers and tiles of this CPU that no test ran."""
    features = host.host().features
    lacking = [part for part, feature in NEEDS.items() if feature not in features]
    tile = tile_for(element_types("float32"))
    if max(tile.variants()) > tile.lanes:  # see `GemmStrassen.declines`
        lacking.append("Strassen")
    solvers = {solver.name for solver in SOLVERS if not any(part in type(solver).__name__ for part in lacking)}
    idle = [f"{tile.name} {tile.types}" for tile in TILES if declared_tile(tile.types) is tile and not _ran(tile)]
    return [*sorted(solvers - _planned), *idle]


def _ran(tile: RegisterTile) -> bool:
    prefix = f"{tile.name}_{tile.types.accumulator}_"
    words = {f"{word}(" for word in (tile.intrinsic, tile.finishing) if word}
    return any(name.startswith(prefix) and any(word in text for word in words) for name, text in _loaded)


def pytest_sessionfinish(session: pytest.Session) -> None:
    chosen = session.config.option.keyword  # a choice of tests proves nothing of others
    if "tests/codegen" in session.config.args and not chosen and session.exitstatus == pytest.ExitCode.OK and _idle():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if "tests/codegen" in config.args:
        idle = _idle()
        terminalreporter.write_line(
            f"no test ran {', '.join(idle)}" if idle else "each solver and register tile of this CPU ran"
        )
