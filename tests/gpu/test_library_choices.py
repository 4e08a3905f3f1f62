"""Selection of NVIDIA's libraries for contractions, and behaviour without the libraries.

Stand-ins have their place, and times are given: the interpreter's say nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.gpu.backend import BACKEND
from mgx_numba.codegen.gpu.contraction import library_solvers, solvers
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.contraction.library_solvers import CudnnConvolutions
from mgx_numba.codegen.gpu.libraries import calls, cublaslt, cudnn, finding
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.database import default_path
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.errors import DeviceError
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.runtime.gpu.executor import DeviceExecutable
from mgx_numba.targets.gpu.measuring import DeviceBench

from ..interpreter.engine import interpreted
from .nvidia_libraries import CublasLtLibrary, CudnnLibrary, standing_in
from .programs import interpreter


def contraction(m: int = 16, n: int = 24, k: int = 32, type: str = "float16", **more: Any) -> GpuContraction:
    problem = GemmProblem(m, n, k, types=element_types(type), b_strides=(1, k))
    return GpuContraction(Request(problem, Epilogue(), (), 1, False), **more)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CublasLtLibrary, CudnnLibrary]]:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    with standing_in(interpreter(), monkeypatch) as both:
        yield both


Both = tuple[CublasLtLibrary, CudnnLibrary]


def test_only_measuring_takes_a_library(libraries: Both) -> None:
    asked = contraction()
    assert [c.solver.name for c in solvers.SOLVER_SET.candidates(asked)][-1] == "cublaslt"
    assert "cublaslt" not in [c.solver.name for c in solvers.SOLVER_SET.own_candidates(asked)]
    assert BACKEND.solvers.choose(asked).solver in solvers.SOLVERS
    told = {e.solver: e for e in BACKEND.solvers.estimates(asked)}
    assert told["cublaslt"].seconds is None and "only where measuring" in str(told["cublaslt"])
    assert str(told["cudnn"]) == "cudnn: it is no convolution"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (contraction(type="int32"), "no products of int32"),
        (contraction(type="uint8 int8 int32 int32"), "no products of uint8"),
        (GpuContraction(Request(GemmProblem(4, 4, 4, a_strides=(9, 2)), Epilogue(), (), 1, False)),
         "a matrix of 4 by 4 with strides 9 and 2"),
        (GpuContraction(Request(
            GemmProblem(4, 4, 4, batch=(2, 2), a_strides=(99, 16, 4, 1)), Epilogue(), (), 1, False)),
         "at no one distance"),
        (GpuContraction(Request(ConvProblem(1, 8, 8, (5, 5), (3, 3)), Epilogue(), (), 1, False)),
         "more than single pixels"),
        (contraction(type="int8 int8 int32 int32", m=4), ""),
        (dataclasses.replace(contraction(type="int8 int8 int32 int32"), request=Request(
            GemmProblem(4, 4, 4, types=element_types("int8 int8 int32 int32")), Epilogue(), (), 1, False)),
         "has nothing for int8"),
    ],
)  # fmt: skip
def test_what_cublaslt_refuses(asked: GpuContraction, reason: str, libraries: Both) -> None:
    found = library_solvers.LIBRARIES[0].refusal(asked)
    assert reason in found and bool(reason) == bool(found), found


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"transposed": True}, "transposed"),
        ({"pads_begin": (-1, 0)}, "crops"),
        ({"types": element_types("float64")}, "not asked for convolutions of float64"),
        ({"types": element_types("int8 int8 int32 int32")}, "not asked for convolutions of int8"),
        ({"x_strides": (200, 40, 4)}, "pixels overlap"),
        ({}, ""),
    ],
)
def test_what_cudnn_refuses(changed: dict[str, Any], reason: str, libraries: Both) -> None:
    problem = dataclasses.replace(ConvProblem(1, 8, 8, (5, 5), (3, 3)), **changed)
    found = library_solvers.LIBRARIES[1].refusal(GpuContraction(Request(problem, Epilogue(), (), 1, False)))
    assert reason in found and bool(reason) == bool(found), found


def test_engines_that_round_otherwise_are_not_taken(libraries: Both) -> None:
    plain = ConvProblem(1, 8, 8, (5, 5), (3, 3))
    rounding = dataclasses.replace(plain, fast_math=True)
    asked = [GpuContraction(Request(p, Epilogue(), (), 1, False)) for p in (plain, rounding)]
    tf32 = dataclasses.replace(asked[0], precision="medium")
    for note, taken in ((0, [1, 1, 2]), (2, [1, 1, 1]), (4, [1, 1, 1]), (5, [1, 2, 1])):
        libraries[1].notes[4] = [note]
        library_solvers.cached_tilings.cache_clear()
        assert [len(library_solvers.LIBRARIES[1].tilings(p)) for p in (*asked, tf32)] == taken
    libraries[1].notes = {3: [2]}
    library_solvers.cached_tilings.cache_clear()
    assert "nothing for float32" in library_solvers.LIBRARIES[1].refusal(asked[0])


def test_records_name_algorithms_of_a_version(libraries: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    image_ = GpuContraction(Request(ConvProblem(1, 8, 8, (5, 5), (3, 3)), Epilogue(), (), 1, False))
    for solver, asked in zip(library_solvers.LIBRARIES, (contraction(), image_)):
        for tiling in solver.tilings(asked):
            own = Candidate(solver, tiling)
            record = TuningRecord(asked.key(), BACKEND.fingerprint(), solver.name, own.configuration, 1e-6)
            read = TuningRecord.from_json(json.loads(json.dumps(record.to_json())))
            assert solvers.SOLVER_SET.candidate_of(asked, read) == own
            for changed in ({}, {**own.configuration, "version": 1}, {**own.configuration, "number": 99}):
                assert (
                    solvers.SOLVER_SET.candidate_of(asked, dataclasses.replace(record, configuration=changed)) is None
                )
        assert len(solver.tilings(asked)) == 2
    newer = CublasLtLibrary(interpreter(), 140000)
    kept = Candidate(library_solvers.LIBRARIES[0], library_solvers.LIBRARIES[0].tilings(contraction())[0])
    call = kept.solver.plan(contraction(), kept.blocking).launches[0].kernel
    with (
        standing_in(interpreter(), monkeypatch, newer),
        pytest.raises(DeviceError, match="version 140000, what"),
    ):
        calls.bound_call(call, 0)


@pytest.mark.parametrize("number", [0, 1])
def test_libraries_that_are_not_there_or_too_old(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    conv = GpuContraction(Request(ConvProblem(1, 8, 8, (5, 5), (3, 3)), Epilogue(), (), 1, False))
    asked, solver = (contraction(), conv)[number], library_solvers.LIBRARIES[number]
    old = CublasLtLibrary(interpreter(), 110000), CudnnLibrary(interpreter(), 8900)
    with standing_in(interpreter(), monkeypatch, *old):
        assert "is needed" in solver.refusal(asked)
    with standing_in(interpreter(), monkeypatch), monkeypatch.context() as meanwhile:
        for module in (cublaslt, cudnn):
            meanwhile.setattr(module, "loaded_library", finding.loaded_library)
        meanwhile.setattr(finding, "_opened", lambda name, mode: None)
        assert "is not installed; the extra cuda brings it" in solver.refusal(asked)


def test_libraries_are_looked_for_in_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libsome.so.1").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(folder / "libsome.so.1") in list(finding.in_wheels("libsome.so.1"))
    with pytest.raises(DeviceError, match="libsome.so.1 is not installed"):
        finding.loaded_library(["libsome.so.1"])


def network() -> Any:
    """A product with constant weights and ReLU, and a convolution."""
    net, rng = mgx.program(), np.random.default_rng(0)
    m = net.get_main_module()
    x = m.add_parameter("x", mgx.shape(type="half_type", lens=[20, 64]))
    w = m.add_literal(rng.standard_normal((64, 24)).astype(np.float16))
    pixels = m.add_parameter("pixels", mgx.shape(type="half_type", lens=[1, 16, 3, 3]))
    kernel = m.add_literal(rng.standard_normal((8, 16, 3, 3)).astype(np.float16))
    y = m.add_instruction(mgx.op("relu"), [m.add_instruction(mgx.op("dot"), [x, w])])
    m.add_return([y, m.add_instruction(mgx.op("convolution", padding=[1, 1]), [pixels, kernel])])
    return net


def check(net: Any) -> None:
    other, rng = network().compile(mgx.get_target("ref")), np.random.default_rng(1)
    feeds = {n: rng.standard_normal(s.lens()).astype(np.float16) for n, s in net.get_parameter_shapes().items()}
    for got, wanted in zip(net.run(feeds), other.run(feeds)):
        a, b = (np.asarray(v, np.float64) for v in (got, wanted))
        assert np.abs(a - b).max() <= 2e-3 * np.abs(b).max()


@pytest.fixture
def tuned(libraries: Both, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    """The interpreter as a device with a name, on which libraries are the fastest, most so their second ways."""

    def timed(self: DeviceExecutable, inputs: Any) -> float:
        name = self.plan.kernels()[0].name
        return 1e-6 if "algorithm61" in name or "engine4" in name else 1e-4 if "cu" in name else 1e-2

    monkeypatch.setattr(DeviceExecutable, "seconds", timed)
    default_path().unlink(missing_ok=True)
    with interpreted():
        monkeypatch.setattr(engine(), "name", "a device for tests")
        with standing_in(engine(), monkeypatch) as both:
            yield both
    default_path().unlink(missing_ok=True)


def test_measured_choices_are_kept_and_fall_back_where_there_is_no_library(
    tuned: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network()
    net.compile(mgx.get_target("gpu"), exhaustive_tune=True)
    chosen = [(c.solver, c.configuration["number"], c.configuration["version"]) for c in net.tuning_choices()]
    assert chosen == [("cublaslt", 61, 130100), ("cudnn", 4, 91900)]
    assert ["cublaslt_float16_relu_algorithm61" in k.name for k in net.kernels()] == [True, False, False]
    check(net)
    path = tmp_path / "net.mxr"
    mgx.save(net, path, embed_objects=True)
    for loaded in (mgx.load(str(path)), mgx.load(str(path), trust_objects=True)):
        assert [c.solver for c in loaded.tuning_choices()] == ["cublaslt", "cudnn"]
        check(loaded)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(library_solvers, "missing", lambda: "no device for libraries")
        with pytest.warns(RuntimeWarning, match="do not apply here are ignored: cublaslt, cudnn") as told:
            elsewhere = mgx.load(str(path))
        assert len(told) == 1
        assert not {c.solver for c in elsewhere.tuning_choices()} & {"cublaslt", "cudnn"}
        check(elsewhere)


def test_a_library_that_computes_something_else_is_not_taken(tuned: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for library, name in zip(tuned, ("cublasLtMatmul", "cudnnBackendExecute")):
        monkeypatch.setattr(library, name, lambda *rest: 0)
    net = network()
    net.compile(mgx.get_target("gpu"), exhaustive_tune=True)
    assert not {c.solver for c in net.tuning_choices()} & {"cublaslt", "cudnn"}
    check(net)


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(64, 64, 64, types=element_types("float16"), b_strides=(1, 64)),
        GemmProblem(64, 64, 64, types=element_types("int8 int8 int32 int32"), b_strides=(1, 64)),
        GemmProblem(16, 64, 64, types=element_types("float8_e4m3fn float8_e4m3fn float32 float32"), b_strides=(1, 64)),
        GemmProblem(2, 9, 8, (3,), types=element_types("float64"), b_strides=(0, 1, 8)),
        ConvProblem(1, 16, 32, (5, 5), (3, 3), types=element_types("float16")),
        ConvProblem(2, 16, 32, (5, 5), (3, 3), groups=2, types=element_types("float32"), out_strides=(9 * 48, 48)),
    ],
)
def test_libraries_are_held_to_kernels_whatever_their_order_of_weights(problem: Any, tuned: Both) -> None:
    """The quickest kernels may have columns in turns, others read a convolution's weights by rows."""
    asked = GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True, any_order=True)
    *_, last = solvers.SOLVER_SET.candidates(asked)
    assert last.solver in library_solvers.LIBRARIES
    assert DeviceBench(engine(), asked).sample(last) > 0


def test_groups_with_unequal_padding_are_refused(tuned: Both) -> None:
    problem = ConvProblem(
        1, 16, 32, (5, 5), (3, 3), pads_begin=(0, 1), pads_end=(1, 0), groups=2, types=element_types("float16")
    )
    reason = CudnnConvolutions().refusal(GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True))
    assert "groups and unequal padding" in reason


def test_explain_names_library_and_algorithm(tuned: Both) -> None:
    net = network()
    net.compile(mgx.get_target("gpu"), exhaustive_tune=True)
    told = str(net.explain("dot")[0])
    assert "a library's call" in told
    assert "cublaslt[version=130100,number=61" in told and "cublaslt_float16_relu_algorithm61" in told, told


def test_programs_with_dynamic_inputs_call_no_library(tuned: Both) -> None:
    """No library is called even with records of products of matching lengths."""
    fixed = network()
    fixed.compile(mgx.get_target("gpu"), exhaustive_tune=True)
    net = mgx.program()
    m = net.get_main_module()
    dims = [mgx.shape.dynamic_dimension(16, 20), mgx.shape.dynamic_dimension(64, 64)]
    x = m.add_parameter("x", mgx.shape(type="half_type", dyn_dims=dims))
    w = m.add_literal(np.ones((64, 24), np.float16))
    m.add_return([m.add_instruction(mgx.op("relu"), [m.add_instruction(mgx.op("dot"), [x, w])])])
    net.compile(mgx.get_target("gpu"))
    for rows in (20, 17):
        (got,) = net.run({"x": np.ones((rows, 64), np.float16)})
        assert np.asarray(got).tolist() == [[64.0] * 24] * rows
    assert not any("cublaslt" in k.name for k in net.kernels())
