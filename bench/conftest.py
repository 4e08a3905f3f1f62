"""Fixtures of the benchmarks: options, models as files, comparisons in turn, and fresh processes.

python -m pytest bench --benchmark-autosave
python -m pytest bench --benchmark-compare --benchmark-compare-fail=median:10%
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.cases import Case, case_names, prepare
from bench.compare import Comparison, compare
from bench.environment import describe_cpu
from bench.models import SCALES
from bench.peers import ENGINES, OURS, installed
from bench.probe import Probe, probe
from mgx_numba.runtime.cpu.threads import available_cores

WARM_PROBES = 3


@dataclass(frozen=True)
class Settings:
    """Models, engines and durations of measurements. ``enabled`` is False under ``--benchmark-disable``: everything
    runs once."""

    threads: int
    budget: float
    models: tuple[str, ...]
    engines: tuple[str, ...]
    scale: str
    enabled: bool

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """One thread, and all threads."""
        return (1, self.threads) if self.threads > 1 else (1,)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bench", "benchmarks of mgx_numba")
    group.addoption("--bench-threads", type=int, default=available_cores(), help="threads of every engine")
    group.addoption("--bench-budget", type=float, default=5.0, help="seconds for what is timed in turn")
    group.addoption("--bench-models", default="", help="cases, such as bert,light_resnet50@8 (default: all)")
    group.addoption("--bench-engines", default=",".join(ENGINES), help="engines (default: all)")
    group.addoption("--bench-scale", choices=SCALES, default="full", help="tiny: small models, to try the suite")


def _settings(config: pytest.Config) -> Settings:
    scale = config.getoption("--bench-scale")
    models = [name for name in config.getoption("--bench-models").split(",") if name]
    return Settings(
        threads=config.getoption("--bench-threads"),
        budget=config.getoption("--bench-budget"),
        models=tuple(models or case_names(scale)),
        engines=tuple(installed(config.getoption("--bench-engines").split(","))),
        scale=scale,
        enabled=not config.getoption("benchmark_disable", False),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise ``model`` and ``engine`` by the options; the engines of a model follow each other."""
    settings = _settings(metafunc.config)
    if "model" in metafunc.fixturenames:
        metafunc.parametrize("model", settings.models)
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", settings.engines)
    if "threads" in metafunc.fixturenames:
        metafunc.parametrize("threads", settings.thread_counts)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, object]) -> None:
    """Add the CPU as code generation sees it to every saved file."""
    machine_info["mgx_numba"] = {**describe_cpu(), "threads": _settings(config).threads}


@pytest.fixture(scope="session")
def settings(request: pytest.FixtureRequest) -> Settings:
    return _settings(request.config)


class Cases:
    """Cases by name; the files of one case at a time are kept."""

    def __init__(self, folder: Path, scale: str) -> None:
        self._folder, self._scale = folder, scale
        self._last: Case | None = None

    def __call__(self, name: str) -> Case:
        if self._last is None or self._last.name != name:
            for path in self._folder.iterdir():
                path.unlink()
            self._last = prepare(name, self._folder, self._scale)
        return self._last


@pytest.fixture(scope="session")
def cases(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    folder = tmp_path_factory.mktemp("models")
    yield Cases(folder, settings.scale)
    for path in folder.iterdir():
        path.unlink()


class Comparisons:
    """Comparisons of all engines by case name; each is made on first use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, Comparison] = {}

    def __call__(self, case: Case) -> Comparison:
        if case.name not in self._made:
            s = self._settings
            self._made[case.name] = compare(case, s.engines, s.threads, s.budget if s.enabled else 0.0)
        return self._made[case.name]


@pytest.fixture(scope="session")
def comparisons(settings: Settings) -> Comparisons:
    return Comparisons(settings)


class Processes:
    """Fresh processes by case and engine; each set is started on first use."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._empty: dict[str, Probe] = {}
        self._filled: dict[tuple[str, str], list[Probe]] = {}

    def with_empty_store(self, case: Case) -> Probe:
        """Return our process with an empty object store."""
        if case.name not in self._empty:
            self._empty[case.name] = self._probe(case, OURS)
        return self._empty[case.name]

    def with_filled_store(self, case: Case, engine: str) -> list[Probe]:
        """Return several processes of an engine; ours find every kernel of the model in the object store."""
        key = (case.name, engine)
        if key not in self._filled:
            if engine == OURS:
                self.with_empty_store(case)
            count = WARM_PROBES if self._settings.enabled else 1
            self._filled[key] = [self._probe(case, engine) for _ in range(count)]
        return self._filled[key]

    def _probe(self, case: Case, engine: str) -> Probe:
        cache = self._folder / case.name.replace("@", "_")
        return probe(engine, case.path, case.feeds_path, self._settings.threads, cache)


@pytest.fixture(scope="session")
def processes(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Processes:
    return Processes(settings, tmp_path_factory.mktemp("stores"))
