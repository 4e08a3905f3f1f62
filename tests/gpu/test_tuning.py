"""Tuning on a device: candidate solvers, measurements, and sources and destinations of records.

The interpreter's times say nothing, so a time is given for each kernel of a candidate's plan.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen import files
from mgx_numba.codegen.gpu.backend import BACKEND
from mgx_numba.codegen.gpu.contraction import library_solvers
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.contraction.solvers import SOLVER_SET, SOLVERS
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import BlockFormat, GemmProblem
from mgx_numba.codegen.tuning.database import Database, default_path
from mgx_numba.codegen.tuning.files import read_records
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.driver.main import main
from mgx_numba.errors import UnsupportedError
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.runtime.plan import ParameterSpec
from mgx_numba.targets.gpu.measuring import DeviceBench, _drawn
from mgx_numba.targets.gpu.target import GpuTarget

from ..caches import with_kernels
from ..interpreter.engine import InterpreterQueue, interpreted
from .device_data import place

Times = Callable[[DeviceBench, Candidate], float]


def types(dtype: str) -> ElementTypes:
    return ElementTypes(dtype, dtype, dtype, dtype)


def contraction(m: int, n: int, k: int, dtype: str = "float16", **more: Any) -> GpuContraction:
    """A product whose right operand has its columns side by side."""
    problem = GemmProblem(m, n, k, types=types(dtype), b_strides=(1, k))
    return GpuContraction(Request(problem, Epilogue(), (), 1, False), **more)


def convolution(channels: int, side: int = 9, kernel: int = 3) -> GpuContraction:
    problem = ConvProblem(1, channels, 64, (side, side), (kernel, kernel), types=types("float16"))
    return GpuContraction(Request(problem, Epilogue(), (), 1, False))


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of each test's own: what another has measured is not measured again."""
    monkeypatch.setenv(files.ENVIRONMENT, str(with_kernels(tmp_path / "cache")))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")


@pytest.fixture
def measured(hopper: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[DeviceBench, Candidate]]]:
    """The interpreter as a device with a name; the smallest tile is the fastest. What is measured is noted."""
    noted: list[tuple[DeviceBench, Candidate]] = []

    def sample(self: DeviceBench, candidate: Candidate) -> float:
        noted.append((self, candidate))
        c = candidate.configuration
        return 1e-6 * (c.get("rows", 500) * c.get("columns", 500) * c.get("splits", 1) + c.get("stages", 0))

    monkeypatch.setattr(DeviceBench, "sample", sample)
    monkeypatch.setattr(library_solvers, "LIBRARIES", ())
    with interpreted():
        engine().name = "a device for tests"
        yield noted


def network(k: int = 64) -> Any:
    """A product with constant weights and a bias, and a convolution."""
    net, rng = mgx.program(), np.random.default_rng(k)
    m = net.get_main_module()
    x = m.add_parameter("x", mgx.shape(type="half_type", lens=[20, k]))
    w = m.add_literal(rng.standard_normal((k, 24)).astype(np.float16))
    y = m.add_instruction(mgx.op("dot"), [x, w])
    image = m.add_parameter("image", mgx.shape(type="half_type", lens=[1, 64, 3, 3]))
    kernel = m.add_literal(rng.standard_normal((8, 64, 3, 3)).astype(np.float16))
    z = m.add_instruction(mgx.op("convolution", padding=[1, 1]), [image, kernel])
    m.add_return([m.add_instruction(mgx.op("relu"), [y]), z])
    return net


def feeds(k: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "x": rng.standard_normal((20, k)).astype(np.float16),
        "image": rng.standard_normal((1, 64, 3, 3)).astype(np.float16),
    }


def agrees(net: Any) -> None:
    reference = network()
    reference.compile(mgx.get_target("ref"))
    for got, wanted in zip(net.run(feeds()), reference.run(feeds())):
        a, b = (np.asarray(v, np.float64) for v in (got, wanted))
        assert np.abs(a - b).max() <= 4e-3 * np.abs(b).max()


def chosen(net: Any) -> list[tuple[str, dict[str, int]]]:
    return [(c.solver, dict(c.configuration)) for c in net.tuning_choices()]


@pytest.mark.parametrize(
    ("request_", "first", "refused"),
    [
        (contraction(1, 64, 64), "few_rows", []),
        (contraction(512, 512, 512), "warpgroup", ["few_rows"]),
        (contraction(512, 512, 510), "tensor_narrow", ["few_rows", "warpgroup", "tensor", "fma"]),
        (contraction(512, 512, 512, "float32"), "fma", ["few_rows", "warpgroup", "tensor"]),
        (contraction(512, 512, 512, "float32", precision="medium"), "warpgroup", ["few_rows"]),
        (contraction(512, 512, 512, "float32", precision="high"), "warpgroup_parts", ["few_rows", "warpgroup"]),
        (
            contraction(512, 512, 512, "float32", precision="high", constant=True, any_order=True),
            "warpgroup_parts",
            ["few_rows", "warpgroup"],
        ),
        (contraction(512, 512, 512, "float64"), "tiled", ["few_rows", "warpgroup", "tensor", "fma"]),
        (convolution(64), "warpgroup", ["few_rows", "fma"]),
    ],
)
def test_the_cost_model_says_of_every_solver_what_it_takes_or_why_it_does_not_apply(
    hopper: None, request_: GpuContraction, first: str, refused: list[str]
) -> None:
    found = BACKEND.solvers.estimates(request_)
    assert {e.solver for e in found} == {s.name for s in (*SOLVERS, *library_solvers.LIBRARIES)}
    assert BACKEND.solvers.choose(request_).solver.name == found[0].solver == first
    able = [e.seconds for e in found if e.seconds is not None]
    assert able == sorted(able) and 1e-6 < able[0] < 1e-2
    told = {e.solver: e.refusal for e in found if e.seconds is None}
    assert set(refused) <= told.keys() and all(told.values())


@pytest.mark.parametrize("request_", [contraction(70, 40, 512), contraction(70, 40, 512, "float32"), convolution(64)])
def test_every_tiling_is_planned_and_found_again_by_its_record(hopper: None, request_: GpuContraction) -> None:
    fingerprint = BACKEND.fingerprint()
    for own in SOLVER_SET.candidates(request_):
        for candidate in (own, *SOLVER_SET.refinements(request_, own)):
            solution = candidate.solver.plan(request_, candidate.blocking)
            splits = candidate.configuration.get("splits")
            if own.solver in SOLVERS:  # a library's call is one, whatever it does
                assert splits is None or (len(solution.launches) == 2) == (splits > 1)
            assert candidate.solver.estimate(request_, candidate.blocking) > 0
            record = TuningRecord(request_.key(), fingerprint, own.solver.name, candidate.configuration, 1e-3)
            assert SOLVER_SET.candidate_of(request_, record) == candidate


def test_memory_for_weights_has_room_for_whole_slices(hopper: None) -> None:
    """Halves of float32 are kept for 32 positions of the sum at a time."""
    with interpreted():
        for constant, size in ((True, 8 * 64), (False, 8 * 40)):
            bench = DeviceBench(engine(), contraction(40, 8, 40, "float32", precision="high", constant=constant))
            assert [p.lens for p in bench._parameters if p.name == "w0"] == [(size,)]


def test_weights_in_blocks_have_one_solver_which_is_not_measured(hopper: None) -> None:
    form = BlockFormat(4, 32, False)
    problem = GemmProblem(1, 64, 128, types=types("float16"), blocks=form)
    own = GpuContraction(Request(problem, Epilogue(), (), 1, False))
    assert [c.solver.name for c in SOLVER_SET.candidates(own)] == [BACKEND.solvers.choose(own).solver.name]
    with interpreted(), pytest.raises(UnsupportedError, match="have one kernel"):
        DeviceBench(engine(), own)
    rows = dataclasses.replace(own.request, problem=dataclasses.replace(problem, m=33))
    many = dataclasses.replace(own, request=rows)
    with pytest.raises(UnsupportedError, match="no solver for .*tiled: its weights are in blocks"):
        BACKEND.solvers.choose(many)


def test_records_that_do_not_fit_are_none(hopper: None) -> None:
    request_ = contraction(70, 40, 512)
    record = TuningRecord(request_.key(), BACKEND.fingerprint(), "warpgroup", {}, 1e-3)
    for changed in (
        {"solver": "no such"},
        {"solver": "few_rows"},
        {"configuration": {"rows": 7, "columns": 9, "splits": 1}},
        {"configuration": {"side": 64}},
    ):
        assert SOLVER_SET.candidate_of(request_, dataclasses.replace(record, **changed)) is None


def test_problems_differ_from_those_of_the_cpu_and_by_all_that_kernels_depend_on() -> None:
    own = contraction(8, 8, 8, "float32")
    others = [
        dataclasses.replace(own, alignment=4),
        dataclasses.replace(own, constant=True),
        dataclasses.replace(own, precision="medium"),
    ]
    assert len({p.key().key for p in (own, own.request, *others)}) == 5  # type: ignore[attr-defined]
    half = contraction(8, 8, 8)
    assert half.key() == dataclasses.replace(half, precision="medium").key()


def test_what_is_measured_decides_is_kept_and_is_not_measured_again(
    measured: list[tuple[DeviceBench, Candidate]], tmp_path: Path
) -> None:
    net = network()
    net.compile(mgx.get_target("gpu"), exhaustive_tune=True)
    assert chosen(net) == [("warpgroup", c) for c in (dict(net.tuning_records[0].configuration),) * 2]
    assert net.tuning_records[0].configuration["rows"] * net.tuning_records[0].configuration["columns"] == 64 * 32
    solvers = {candidate.solver.name for _, candidate in measured}
    assert solvers == {"warpgroup", "tensor", "patch", "tiled"}
    agrees(net)
    assert sorted(Database(default_path()).records(), key=repr) == sorted(net.tuning_records, key=repr)
    assert all(r.fingerprint.features == ("sm_90a",) for r in net.tuning_records)
    measured.clear()
    for options in ({"exhaustive_tune": True}, {}):
        again = network()
        again.compile(mgx.get_target("gpu"), **options)
        assert chosen(again) == chosen(net) and not measured
    path = tmp_path / "net.mxr"
    mgx.save(net, path)
    default_path().unlink()
    loaded = mgx.load(str(path))
    assert chosen(loaded) == chosen(net) and loaded.tuning_records == net.tuning_records
    agrees(loaded)


def test_a_record_of_another_device_is_a_hint(measured: list[tuple[DeviceBench, Candidate]], tmp_path: Path) -> None:
    net = network()
    net.compile(mgx.get_target("gpu"), exhaustive_tune=True, problem_cache=tmp_path / "records.json")
    there = [
        dataclasses.replace(r, fingerprint=dataclasses.replace(r.fingerprint, cpu="another"))
        for r in read_records(tmp_path / "records.json")
    ]
    again = network()
    again.tuning_records[:] = there
    with pytest.warns(RuntimeWarning, match="hints"):
        again.compile(mgx.get_target("gpu"))
    assert chosen(again) == chosen(net)


def test_weights_that_are_drawn_are_numbers_to_solvers_that_read_halves() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        drawn = _drawn(ParameterSpec("w0", dtype, (1000,)))
        assert drawn.shape == (1000,) and np.isfinite(drawn.astype(np.float64)).all() and np.unique(drawn).size > 100
        if dtype == "float32":
            halves = drawn.view(ml_dtypes.bfloat16).astype(np.float32)
            assert np.abs(halves).max() < 10 and np.abs(drawn).max() < 10


def test_a_budget_of_nothing_measures_nothing(measured: list[tuple[DeviceBench, Candidate]]) -> None:
    net = network()
    with pytest.warns(RuntimeWarning, match="budget is spent: 2 of 2 problems are not measured"):
        net.compile(mgx.get_target("gpu"), exhaustive_tune=True, tune_budget=0)
    assert not measured and net.tuning_records == []


def test_the_interpreter_is_not_measured(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with interpreted():
        net = network()
        with pytest.warns(RuntimeWarning, match="measures no times"):
            net.compile(mgx.get_target("gpu"), exhaustive_tune=True)
        agrees(net)


@pytest.mark.parametrize(
    ("where", "request_"),
    [
        ("interpreter", contraction(3, 8, 8, constant=True)),
        *(
            pytest.param("device", own, marks=pytest.mark.gpu)
            for own in (contraction(3, 8, 72, constant=True), contraction(300, 400, 500), convolution(64, 28))
        ),
    ],
)
def test_a_bench_runs_every_solver(
    hopper: None, monkeypatch: pytest.MonkeyPatch, request_: GpuContraction, where: str
) -> None:
    waited: list[float] = []

    def timed(self: InterpreterQueue, ask: Callable[[], None]) -> float:
        ask()
        self.wait()
        waited.append(1.0)
        return 1.0

    if where == "interpreter":
        monkeypatch.setattr(InterpreterQueue, "timed", timed)
        monkeypatch.setattr("mgx_numba.targets.gpu.measuring.FEWEST_RUNS", 1)
        monkeypatch.setattr("mgx_numba.targets.gpu.measuring.MOST_RUNS", 1)
    with place(where):
        bench = DeviceBench(engine(), request_)
        for candidate in SOLVER_SET.candidates(request_):
            if where == "interpreter" and candidate.solver in library_solvers.LIBRARIES:
                continue
            seconds = bench.sample(candidate)
            assert seconds == 1.0 if where == "interpreter" else 1e-7 < seconds < 1e-2


def test_the_driver_tunes_and_explains(
    measured: list[tuple[DeviceBench, Candidate]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GpuTarget, "limits", lambda *_: None)  # they would be measured
    path = tmp_path / "net.mxr"
    mgx.save(network(), path)
    given = [str(path), "--gpu", "--disable-fast-math"]
    assert main(["tune", *given, "--output", str(tmp_path / "tuned.mxr"), "--binary"]) == 0
    assert "warpgroup" in capsys.readouterr().out and measured
    assert main(["tune", "--list", str(tmp_path / "tuned.mxr")]) == 0
    assert "a device for tests" not in capsys.readouterr().err
    measured.clear()
    assert main(["explain", str(tmp_path / "tuned.mxr"), "dot", "--gpu"]) == 0
    told = capsys.readouterr().out
    assert "by model" in told and "warpgroup: " in told and "tensor: " in told and "more than 4 rows" in told
    assert main(["perf", *given, "--exhaustive-tune", "--iterations", "1"]) == 0
    assert not measured


def test_dynamic_programs_are_not_measured(measured: list[tuple[DeviceBench, Candidate]]) -> None:
    net = mgx.program()
    m = net.get_main_module()
    dims = [mgx.shape.dynamic_dimension(1, 4), mgx.shape.dynamic_dimension(8, 8)]
    x = m.add_parameter("x", mgx.shape(type="half_type", dyn_dims=dims))
    w = m.add_literal(np.ones((8, 8), np.float16))
    m.add_return([m.add_instruction(mgx.op("dot"), [x, w])])
    with pytest.warns(RuntimeWarning, match="dynamic inputs"):
        net.compile(mgx.get_target("gpu"), exhaustive_tune=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.asarray(net.run({"x": np.ones((3, 8), np.float16)})[0]).tolist() == [[8.0] * 8] * 3
    assert not measured


def test_records_of_all_tilings_can_be_read(hopper: None) -> None:
    """And those with a number that is 0, which a file may have."""
    for request in (
        contraction(512, 512, 512),
        contraction(300, 200, 100, "float32"),
        contraction(4, 512, 256),
        convolution(64, 14),
    ):
        own = SOLVER_SET.candidates(request)
        for candidate in (*own, *SOLVER_SET.refinements(request, own[0])):
            made = TuningRecord(
                request.key(), BACKEND.fingerprint(), candidate.solver.name, candidate.configuration, 1e-6, date=""
            )
            read = TuningRecord.from_json(json.loads(json.dumps(made.to_json())))
            assert read == made and SOLVER_SET.candidate_of(request, read) == candidate
            none = dataclasses.replace(made, configuration={"splits": 0})
            assert TuningRecord.from_json(json.loads(json.dumps(none.to_json()))) == none
