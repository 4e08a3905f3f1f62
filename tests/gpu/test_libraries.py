"""NVIDIA's libraries as solvers: what they compute, when they are taken, and what happens where they are not there.

Away from a device a stand-in has the place of the libraries, and the interpreter that of the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.gpu.backend import BACKEND
from mgx_numba.codegen.gpu.contraction import library_solver, solvers
from mgx_numba.codegen.gpu.contraction.placed import PlacedRequest
from mgx_numba.codegen.gpu.driver.graphs import CallNode, GraphInMaking
from mgx_numba.codegen.gpu.libraries import calls, cublaslt, cudnn, finding
from mgx_numba.codegen.gpu.libraries.epilogues import Finish, finish_of
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.database import default_path
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import DeviceError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.choice import engine, interpreted
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.gpu.executor import DeviceExecutable
from mgx_numba.runtime.gpu.transfers import to_device, to_host
from mgx_numba.targets.gpu.measuring import DeviceBench
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .nvidia_libraries import CublasLtLibrary, CudnnLibrary, standing_in
from .programs import compiled, interpreter

F64, F32, F16, BF16 = Type.double_type, Type.float_type, Type.half_type, Type.bf16_type
I8, F8 = Type.int8_type, Type.fp8e4m3fn_type
ALLOWED = {F64: 1e-12, F32: 2e-6, F16: 2e-3, BF16: 2e-2, I8: 0, F8: 5e-4}
"""Errors relative to the largest result: those of rounding the result; tensor cores add float8 with fewer bits."""


@pytest.fixture(params=["interpreter", pytest.param("device", marks=pytest.mark.gpu)])
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """What programs run on, with libraries."""
    if request.param == "device":
        yield cuda_engine()
        return
    own = interpreter()
    with standing_in(own, monkeypatch):
        yield own


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the cost model's place be taken by a library, and by the one of its algorithms that has this number."""

    def choose(name: str, number: int = 0) -> None:
        own = next(s for s in solvers.LIBRARIES if s.name == name)

        def chosen(placed: PlacedRequest) -> Candidate:
            reason = own.refusal(placed)
            assert not reason, reason
            found = own.tilings(placed)
            return Candidate(own, found[number % len(found)])

        monkeypatch.setattr(solvers, "choose", chosen)

    return choose


def labels(made: GpuProgram) -> list[str]:
    assert made.executable is not None
    return [step.label for step in made.executable.plan.steps]


def alone(made: GpuProgram, name: str) -> None:
    """A library computes all; at most a copy brings results into the order of the operators."""
    first, *rest = labels(made)
    assert name in first and {*rest} <= {"gpu::transpose_kernel", "gpu::pointwise_kernel"}, labels(made)


def values(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    if shape.type is I8:
        return rng.integers(-128, 128, shape.lens).astype(np.int8)
    return rng.standard_normal(shape.lens).astype(shape.type.numpy)


def close(got: np.ndarray, wanted: np.ndarray, type: Type) -> None:
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), np.isnan(wanted))
    np.testing.assert_array_equal(got.astype(np.float64)[np.isinf(wanted)], wanted[np.isinf(wanted)])
    error = np.abs(got.astype(np.float64)[finite] - wanted[finite]).max() / np.abs(wanted[finite]).max()
    assert error <= ALLOWED[type], error


def product(type: Type, a: tuple[int, ...], b: tuple[int, ...], turned: str, after: str) -> tuple[Program, Any]:
    """A product of two inputs and what follows, and what NumPy says of it; ``turned`` operands lie by columns."""
    program = Program()
    m, batch = program.main, np.broadcast_shapes(a[:-2], b[:-2])
    out, sides = (*batch, a[-2], b[-1]), []
    for name, lens in (("a", a), ("b", b)):
        swapped = (*lens[:-2], lens[-1], lens[-2]) if name in turned else lens
        value = m.add_parameter(name, Shape(type, swapped))
        if name in turned:
            order = (*range(len(lens) - 2), len(lens) - 1, len(lens) - 2)
            value = m.add_instruction("transpose", [value], permutation=order)
        if lens[:-2] != batch:
            value = m.add_instruction("multibroadcast", [value], out_lens=(*batch, *lens[-2:]))
        sides.append(value)
    y = m.add_instruction("quant_dot" if type in (I8, F8) else "dot", sides)
    for step in after.split():
        lens = {"bias": out[-1:], "rows": (out[-2], 1), "add": out}.get(step)
        if lens is None:
            y = m.add_instruction(step, [y])
            continue
        other = m.add_parameter(step, Shape(y.shape.type, lens))
        if lens != out:
            other = m.add_instruction("multibroadcast", [other], out_lens=out)
        y = m.add_instruction("add", [y, other])
    m.add_return([y])

    def meaning(inputs: dict[str, np.ndarray]) -> np.ndarray:
        wide = {n: v.astype(np.float64) for n, v in inputs.items()}
        left, right = (wide[n].swapaxes(-1, -2) if n in turned else wide[n] for n in "ab")
        found = left @ right
        for step in after.split():
            if step == "relu":
                found = np.maximum(found, 0)
            elif step == "abs":
                found = np.abs(found)
            else:
                found = found + wide[step]
        return found

    return program, meaning


@pytest.mark.parametrize("type", [F64, F32, F16, BF16, I8, F8])
@pytest.mark.parametrize(
    ("a", "b", "turned", "after", "launches"),
    [
        ((48, 64), (64, 32), "b", "bias relu", 1),
        ((48, 64), (64, 32), "b", "", 1),
        ((3, 16, 32), (3, 32, 16), "b", "add bias relu", 1),
        ((2, 3, 16, 32), (32, 48), "b", "bias", 1),
        ((33, 40), (40, 24), "ab", "relu", 1),
        ((33, 40), (40, 24), "", "rows relu", 2),
        ((2, 7, 16), (2, 16, 9), "", "add abs", 2),
        ((1, 17), (17, 1), "", "", 1),
    ],
)
def test_products(
    type: Type, a: Any, b: Any, turned: str, after: str, launches: int, on: Engine, called: Callable[..., None]
) -> None:
    bytes_ = type in (I8, F8)
    if bytes_ and turned != "b":
        pytest.skip("the library has bytes side by side along sums alone")
    program, meaning = product(type, a, b, turned, after)
    rng = np.random.default_rng(len(a))
    inputs = {n: values(rng, s) for n, s in program.parameter_shapes().items()}
    if type is I8:
        inputs |= {n: rng.integers(-99, 99, v.shape).astype(np.int32) for n, v in inputs.items() if n not in "ab"}
    called("cublaslt")
    made = compiled(program, on)
    found = labels(made)
    assert sum("cublaslt" in label for label in found) == 1
    assert len(found) == (2 if bytes_ and after else launches), found
    for _ in range(2):
        (got,) = made.run(inputs)
        close(got, meaning(inputs), type)
        inputs = {n: v[::-1].copy() for n, v in inputs.items()}


@pytest.mark.parametrize("type", [F32, F16])
def test_every_algorithm_computes_the_same_and_nan_and_infinity_stay(
    type: Type, on: Engine, called: Callable[..., None]
) -> None:
    program, meaning = product(type, (64, 256), (256, 64), "b", "bias relu")
    rng = np.random.default_rng(3)
    inputs = {n: values(rng, s) for n, s in program.parameter_shapes().items()}
    inputs["a"][5], inputs["a"][6, 0] = np.nan, np.inf
    inputs["b"][:, 0] = np.abs(inputs["b"][:, 0]) + 1
    for number in range(12):
        called("cublaslt", number)
        (got,) = compiled(program, on).run(inputs)
        close(got, meaning(inputs), type)


def image(program: Program, name: str, type: Type, lens: tuple[int, ...]) -> Any:
    """A parameter of images with channels last, as the operators want it."""
    value = program.main.add_parameter(name, Shape(type, (lens[0], *lens[2:], lens[1])))
    return program.main.add_instruction("transpose", [value], permutation=(0, len(lens) - 1, *range(1, len(lens) - 1)))


def convolution(type: Type, lens: Any, kernel: Any, attributes: Any, after: str, wide: Type | None = None) -> Program:
    """A convolution of 32 channels to 64 with what follows, in a ``wide`` type if there is one: images that are added
    come from the narrow one, to which the result goes."""
    program, rng = Program(), np.random.default_rng(len(lens))
    m = program.main
    x = image(program, "x", type, (lens[0], 32, *lens[1:]))
    weights = m.add_literal(values(rng, Shape(type, (64, 32 // attributes.get("group", 1), *kernel))))
    y = m.add_instruction("quant_convolution" if type is I8 else "convolution", [x, weights], **attributes)
    out, within = y.shape.lens, wide or y.shape.type
    if wide:
        y = m.add_instruction("convert", [y], target_type=wide)
    for step in after.split():
        if step == "add":
            other = image(program, step, type, out)
            other = m.add_instruction("convert", [other], target_type=wide) if wide else other
        elif step == "bias":
            other = m.add_parameter(step, Shape(within, (1, 64, *(1 for _ in kernel))))
            other = m.add_instruction("multibroadcast", [other], out_lens=out)
        else:
            y = m.add_instruction(step, [y])
            continue
        y = m.add_instruction("add", [y, other])
    m.add_return([m.add_instruction("convert", [y], target_type=type) if wide else y])
    return program


def fed(program: Program, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: values(rng, s) for n, s in program.parameter_shapes().items()}


def agrees(made: GpuProgram, program: Program, inputs: dict[str, np.ndarray], allowed: float) -> None:
    (wanted,) = (np.asarray(r, np.float64) for r in reference(program, inputs, runs=2).results)
    (got,) = (np.asarray(r, np.float64) for r in made.run(inputs))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    known = np.isfinite(wanted)
    assert np.abs(got[known] - wanted[known]).max() <= allowed * np.abs(wanted[known]).max()


PADDED = {"padding": [1, 1]}
CONVOLUTIONS = [
    ((2, 9, 8), (3, 3), PADDED, "bias relu"),
    ((1, 9, 8), (3, 3), {**PADDED, "stride": [2, 2]}, "bias add relu"),
    ((1, 12, 7), (1, 1), {"padding": [0, 0], "stride": [2, 2]}, ""),
    ((2, 8, 8), (3, 3), {"padding": [2, 2], "dilation": [2, 2]}, "add"),
    ((1, 8, 8), (3, 3), {**PADDED, "group": 2}, "relu"),
    ((1, 8, 8), (3, 3), {"padding": [0, 1, 1, 0]}, "bias"),
    ((2, 15), (5,), {"padding": [2], "stride": [1], "dilation": [1]}, "bias"),
]


@pytest.mark.parametrize(
    ("type", "precision", "allowed"), [(F32, "highest", 4e-6), (F32, "medium", 2e-3), (F16, "", 4e-3), (BF16, "", 4e-2)]
)
@pytest.mark.parametrize(("lens", "kernel", "attributes", "after"), CONVOLUTIONS)
def test_convolutions(
    type: Type,
    precision: str,
    allowed: float,
    lens: Any,
    kernel: Any,
    attributes: Any,
    after: str,
    on: Engine,
    called: Callable[..., None],
) -> None:
    program = convolution(type, lens, kernel, attributes, after)
    called("cudnn")
    made = compiled(program, on, **({"float32_matmul_precision": precision} if precision else {}))
    alone(made, "cudnn")
    for seed in (1, 2):
        agrees(made, program, fed(program, seed), allowed)


@pytest.mark.parametrize("type", [F16, BF16])
def test_what_follows_in_float32_is_part_of_a_call(type: Type, on: Engine, called: Callable[..., None]) -> None:
    program = convolution(type, (2, 6, 5), (3, 3), PADDED, "bias add relu", wide=F32)
    called("cudnn")
    made = compiled(program, on)
    assert any("cudnn" in label and "_bias_add_relu_" in label for label in labels(made)), labels(made)
    agrees(made, program, fed(program), ALLOWED[type])


def epilogue(steps: Callable[..., Any], out: Type, *operands: tuple[Type, str]) -> Epilogue:
    body = scalar_body(steps, [out, *(type for type, _ in operands)])
    return Epilogue(tuple(EpilogueOperand(t.dtype_name, access) for t, access in operands), body)


def residual(s: Any, x: Any, e: Any, b: Any) -> Any:
    """As `quantize_fp16` leaves a residual: in float32, and rounded at the end."""
    total = s.add(s.add(s.cast(x, F32), b), s.cast(e, F32))
    return s.cast(s.max(total, s.const(0.0, F32)), F16)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (Epilogue(), Finish()),
        (epilogue(residual, F16, (F16, "full"), (F32, "per_n")), Finish(1, 0, "relu")),
        (epilogue(lambda s, x, b: s.gelu_tanh(s.add(b, x)), F16, (F16, "per_n")), Finish(0, -1, "gelu_tanh")),
        (epilogue(lambda s, x, b: s.cast(s.add(x, b), F32), F16, (F16, "per_n")), Finish(0, -1, "")),
        (epilogue(lambda s, x, b: s.add(s.cast(x, F16), b), F32, (F16, "per_n")), None),  # rounds in between
        (epilogue(lambda s, x, b: s.add(s.cast(x, F16), b), BF16, (F16, "per_n")), None),
        (epilogue(lambda s, x, b: s.sub(x, b), F16, (F16, "per_n")), None),
        (epilogue(lambda s, x, b: s.add(x, b), F16, (F16, "per_m")), None),
        (epilogue(lambda s, x, b, c: s.add(s.add(x, b), c), F16, (F16, "per_n"), (F16, "per_n")), None),
        (epilogue(lambda s, x, b: s.add(s.max(x, s.const(0.0, F16)), b), F16, (F16, "full")), None),
        (epilogue(lambda s, x: s.max(x, s.const(1.0, F16)), F16), None),
        (epilogue(lambda s, x: s.add(x, x), F16), None),
        (epilogue(lambda s, x, b: b, F16, (F16, "full")), None),
    ],
)  # fmt: skip
def test_epilogues_that_libraries_have_words_for(given: Epilogue, wanted: Finish | None) -> None:
    assert finish_of(given) == wanted


@pytest.mark.parametrize("after", ["bias relu", "gelu_tanh", ""])
def test_convolutions_of_single_pixels_are_products(after: str, on: Engine, called: Callable[..., None]) -> None:
    program = convolution(F16, (2, 6, 5), (1, 1), {"padding": [0, 0]}, after)
    called("cublaslt")
    made = compiled(program, on, fast_math=True)
    alone(made, "cublaslt")
    agrees(made, program, fed(program), ALLOWED[F16])


def test_nan_stays_nan_in_convolutions(on: Engine, called: Callable[..., None]) -> None:
    program = convolution(F16, (2, 6, 5), (3, 3), PADDED, "bias relu")
    inputs = fed(program)
    inputs["x"][0, 2, 2], inputs["bias"][0, 5] = np.nan, np.nan
    for number in range(10):
        called("cudnn", number)
        agrees(compiled(program, on), program, inputs, 4e-3)


def test_results_in_other_memory_than_before(on: Engine, called: Callable[..., None]) -> None:
    """A recorded call is given the addresses that come with a run; between two kernels, which are recorded too."""
    program = Program()
    m = program.main
    a, b = (m.add_parameter(n, Shape(F32, (32, 32))) for n in "ab")
    y = m.add_instruction("dot", [m.add_instruction("exp", [a]), b])
    m.add_return([m.add_instruction("reduce_max", [y], axes=[1]), y])
    called("cublaslt")
    made = compiled(program, on, offload_copy=False)
    assert ["cublaslt" in label for label in labels(made)] == [False, True, False]
    kept = []
    for seed in range(4):
        inputs = fed(program, seed)
        given = {n: to_device(on, v, n) for n, v in inputs.items()}
        kept.append((given, made.run(given), np.exp(inputs["a"].astype(np.float64)) @ inputs["b"]))
    for _, (largest, y), wanted in kept:
        close(to_host(on, y).reshape(32, 32), wanted, F32)
        close(to_host(on, largest), wanted.max(1), F32)


def placed(m: int = 16, n: int = 24, k: int = 32, type: str = "float16", **more: Any) -> PlacedRequest:
    problem = GemmProblem(m, n, k, types=element_types(type), b_strides=(1, k))
    return PlacedRequest(Request(problem, Epilogue(), (), 1, False), **more)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CublasLtLibrary, CudnnLibrary]]:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    with standing_in(interpreter(), monkeypatch) as both:
        yield both


Both = tuple[CublasLtLibrary, CudnnLibrary]


def test_only_measuring_takes_a_library(libraries: Both) -> None:
    asked = placed()
    assert [c.solver.name for c in solvers.candidates(asked)][-1] == "cublaslt"
    assert "cublaslt" not in [c.solver.name for c in solvers.own_candidates(asked)]
    assert BACKEND.choose(asked).solver in solvers.SOLVERS
    told = {e.solver: e for e in BACKEND.estimates(asked)}
    assert told["cublaslt"].seconds is None and "only where measuring" in str(told["cublaslt"])
    assert str(told["cudnn"]) == "cudnn: it is no convolution"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (placed(type="int32"), "no products of int32"),
        (placed(type="uint8 int8 int32 int32"), "no products of uint8"),
        (PlacedRequest(Request(GemmProblem(4, 4, 4, a_strides=(9, 2)), Epilogue(), (), 1, False)),
         "a matrix of 4 by 4 with strides 9 and 2"),
        (PlacedRequest(Request(GemmProblem(4, 4, 4, batch=(2, 2), a_strides=(99, 16, 4, 1)), Epilogue(), (), 1, False)),
         "at no one distance"),
        (PlacedRequest(Request(ConvProblem(1, 8, 8, (5, 5), (3, 3)), Epilogue(), (), 1, False)),
         "more than single pixels"),
        (placed(type="int8 int8 int32 int32", m=4), ""),
        (dataclasses.replace(placed(type="int8 int8 int32 int32"), request=Request(
            GemmProblem(4, 4, 4, types=element_types("int8 int8 int32 int32")), Epilogue(), (), 1, False)),
         "has nothing for int8"),
    ],
)  # fmt: skip
def test_what_cublaslt_refuses(asked: PlacedRequest, reason: str, libraries: Both) -> None:
    found = solvers.LIBRARIES[0].refusal(asked)
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
    found = solvers.LIBRARIES[1].refusal(PlacedRequest(Request(problem, Epilogue(), (), 1, False)))
    assert reason in found and bool(reason) == bool(found), found


def test_engines_that_round_otherwise_are_not_taken(libraries: Both) -> None:
    plain = ConvProblem(1, 8, 8, (5, 5), (3, 3))
    rounding = dataclasses.replace(plain, fast_math=True)
    asked = [PlacedRequest(Request(p, Epilogue(), (), 1, False)) for p in (plain, rounding)]
    tf32 = dataclasses.replace(asked[0], precision="medium")
    for note, taken in ((0, [1, 1, 2]), (2, [1, 1, 1]), (4, [1, 1, 1]), (5, [1, 2, 1])):
        libraries[1].notes[4] = [note]
        library_solver._tilings.cache_clear()
        assert [len(solvers.LIBRARIES[1].tilings(p)) for p in (*asked, tf32)] == taken
    libraries[1].notes = {3: [2]}
    library_solver._tilings.cache_clear()
    assert "nothing for float32" in solvers.LIBRARIES[1].refusal(asked[0])


def test_records_name_algorithms_of_a_version(libraries: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    image_ = PlacedRequest(Request(ConvProblem(1, 8, 8, (5, 5), (3, 3)), Epilogue(), (), 1, False))
    for solver, asked in zip(solvers.LIBRARIES, (placed(), image_)):
        for tiling in solver.tilings(asked):
            own = Candidate(solver, tiling)
            record = TuningRecord(asked.key(), BACKEND.fingerprint(), solver.name, own.configuration, 1e-6)
            read = TuningRecord.from_json(json.loads(json.dumps(record.to_json())))
            assert solvers.candidate_of(asked, read) == own
            for changed in ({}, {**own.configuration, "version": 1}, {**own.configuration, "number": 99}):
                assert solvers.candidate_of(asked, dataclasses.replace(record, configuration=changed)) is None
        assert len(solver.tilings(asked)) == 2
    newer = CublasLtLibrary(interpreter(), 140000)
    kept = Candidate(solvers.LIBRARIES[0], solvers.LIBRARIES[0].tilings(placed())[0])
    call = kept.solver.plan(placed(), kept.blocking).launches[0].kernel
    with (
        standing_in(interpreter(), monkeypatch, newer),
        pytest.raises(DeviceError, match="version 140000, the"),
    ):
        calls.bound_call(call, 0)


@pytest.mark.parametrize("number", [0, 1])
def test_libraries_that_are_not_there_or_too_old(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    conv = PlacedRequest(Request(ConvProblem(1, 8, 8, (5, 5), (3, 3)), Epilogue(), (), 1, False))
    asked, solver = (placed(), conv)[number], solvers.LIBRARIES[number]
    assert solver.refusal(asked)  # no device, or none of these libraries
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
    assert str(folder / "libsome.so.1") in list(finding._in_wheels("libsome.so.1"))
    with pytest.raises(DeviceError, match="libsome.so.1 is not installed"):
        finding.loaded_library(["libsome.so.1"])


def network() -> Any:
    """A product with constant weights and ReLU, and a convolution."""
    net, rng = mgx.program(), np.random.default_rng(0)
    m = net.get_main_module()
    x = m.add_parameter("x", mgx.shape(type="half_type", lens=[20, 64]))
    w = m.add_literal(rng.standard_normal((64, 24)).astype(np.float16))
    pixels = m.add_parameter("pixels", mgx.shape(type="half_type", lens=[1, 64, 3, 3]))
    kernel = m.add_literal(rng.standard_normal((8, 64, 3, 3)).astype(np.float16))
    y = m.add_instruction(mgx.op("relu"), [m.add_instruction(mgx.op("dot"), [x, w])])
    m.add_return([y, m.add_instruction(mgx.op("convolution", padding=[1, 1]), [pixels, kernel])])
    return net


def check(net: Any) -> None:
    other, rng = network().compile(mgx.get_target("ref")), np.random.default_rng(1)
    feeds = {n: rng.standard_normal(s.lens()).astype(np.float16) for n, s in net.get_parameter_shapes().items()}
    for got, wanted in zip(net.run(feeds), other.run(feeds)):
        close(np.asarray(got), np.asarray(wanted, np.float64), F16)


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
        meanwhile.setattr(library_solver, "missing", lambda: "no device for libraries")
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
        ConvProblem(1, 16, 32, (5, 5), (3, 3), types=element_types("float16")),
        ConvProblem(2, 16, 32, (5, 5), (3, 3), groups=2, types=element_types("float32"), out_strides=(9 * 48, 48)),
    ],
)
def test_libraries_are_held_to_kernels_whatever_their_order_of_weights(problem: Any, tuned: Both) -> None:
    """The quickest kernels may have columns in turns, others read a convolution's weights by rows."""
    asked = PlacedRequest(Request(problem, Epilogue(), (), 1, False), constant=True, any_order=True)
    *_, last = solvers.candidates(asked)
    assert last.solver in solvers.LIBRARIES
    assert DeviceBench(engine(), asked).sample(last) > 0


def test_explain_names_library_and_algorithm(tuned: Both) -> None:
    net = network()
    net.compile(mgx.get_target("gpu"), exhaustive_tune=True)
    told = str(net.explain("dot")[0])
    assert "cublaslt[version=130100,number=61" in told and "cublaslt_float16_relu_algorithm61" in told, told


def test_what_libraries_are_told_is_given_back(libraries: Both, called: Callable[..., None]) -> None:
    """But for handles, which stay, all descriptions go with the calls that need them."""
    for name, after in (("cublaslt", "bias relu"), ("cudnn", "bias add relu")):
        called(name)
        kernel = ((1, 1), {"padding": [0, 0]}) if name == "cublaslt" else ((3, 3), PADDED)
        program = convolution(F16, (2, 6, 5), *kernel, after)
        compiled(program, libraries[0].memory.engine).run(fed(program))
    for cache in (calls.bound_call, library_solver._tilings):
        cache.cache_clear()
    gc.collect()
    assert [library.made.alive for library in libraries] == [1, 1]


class RecordingDriver:
    """Notes the driver's functions that are called; a capture gives a graph, unless it shall fail."""

    library: Any = object()

    def __init__(self, fails: bool = False) -> None:
        self.names: list[str] = []
        self.fails = fails

    def call(self, name: str, *rest: Any) -> None:
        self.names.append(name)

    def succeeds(self, name: str, stream: Any, place: Any) -> bool:
        self.names.append(name)
        place._obj.value = 5
        return not self.fails

    def bound(self, name: str) -> Any:
        return lambda *rest: self.names.append(name)


class CallOfNothing:
    def __init__(self, fails: bool = False) -> None:
        self.asked: list[int] = []
        self.fails = fails

    def enqueue(self, words: np.ndarray, stream: int) -> None:
        if self.fails:
            raise DeviceError("refused")
        self.asked.append(int(words[0]))


def test_calls_are_graphs_within_a_graph() -> None:
    words, call, driver = np.array([7]), CallOfNothing(), RecordingDriver()
    device = SimpleNamespace(driver=driver, context=None, use=contextlib.nullcontext)
    making = GraphInMaking(device, overlaps=True)
    making.call(CallNode(call, words))
    captured = ["cuStreamCreate", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuStreamDestroy_v2"]
    assert driver.names[1:] == [*captured, "cuGraphAddChildGraphNode", "cuGraphDestroy"] and call.asked == [7]
    graph = making.finish()
    driver.names.clear()
    words[0] = 8
    graph.change(0)
    assert driver.names == [*captured, "cuGraphExecChildGraphNodeSetParams", "cuGraphDestroy"] and call.asked == [7, 8]


@pytest.mark.parametrize("where", ["library", "driver"])
def test_a_capture_that_fails_ends(where: str) -> None:
    driver = RecordingDriver(where == "driver")
    with pytest.raises(DeviceError, match=r"refused|cannot be captured"):
        CallNode(CallOfNothing(where == "library"), np.array([7])).captured(driver)
    assert driver.names[-2:] == ["cuStreamEndCapture", "cuStreamDestroy_v2"]
