"""NVIDIA's libraries as solvers, and their calls in graphs.

Away from a device a stand-in has the place of the libraries, and the interpreter that of the device.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.gpu.contraction import library_solvers, solvers
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.driver.graphs import CallNode, GraphInMaking
from mgx_numba.codegen.gpu.libraries import calls
from mgx_numba.codegen.gpu.libraries.epilogues import Finish, finish_of
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.codegen.tuning.request import Candidate
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import DeviceError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.gpu.transfers import to_device, to_host
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .device_data import PLACES
from .nvidia_libraries import standing_in
from .programs import compiled, interpreter, labels

F64, F32, F16, BF16 = Type.double_type, Type.float_type, Type.half_type, Type.bf16_type
I8, F8 = Type.int8_type, Type.fp8e4m3fn_type
ALLOWED = {F64: 1e-12, F32: 2e-6, F16: 2e-3, BF16: 2e-2, I8: 0, F8: 5e-4}
"""Errors relative to the largest result: those of rounding the result; tensor cores add float8 with fewer bits."""


@pytest.fixture(params=PLACES)
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Return an engine with libraries."""
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
        own = next(s for s in library_solvers.LIBRARIES if s.name == name)

        def chosen(contraction: GpuContraction) -> Candidate:
            reason = own.refusal(contraction)
            assert not reason, reason
            found = own.tilings(contraction)
            return Candidate(own, found[number % len(found)])

        monkeypatch.setattr(solvers.SOLVER_SET, "choose", chosen)

    return choose


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
    """Return a program of a product and following operations, and its NumPy reference; ``turned`` operands are
    transposed."""
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
    copies = [label for label in found if label in ("gpu::pointwise_kernel", "gpu::transpose_kernel")]  # of odd rows
    assert len(found) - len(copies) == (2 if bytes_ and after else launches), found
    for _ in range(2):
        (got,) = made.run(inputs)
        close(got, meaning(inputs), type)
        inputs = {n: v[::-1].copy() for n, v in inputs.items()}


def test_results_in_8_bits_are_converted_by_a_launch_of_ours(on: Engine, called: Callable[..., None]) -> None:
    """Libraries saturate sums beyond the 8-bit range in their own way; our conversion to float8 gives NaN."""
    program = Program()
    m = program.main
    a, b = m.add_parameter("a", Shape(F8, (16, 32))), m.add_parameter("b", Shape(F8, (16, 32)))
    turned = m.add_instruction("transpose", [b], permutation=(1, 0))
    y = m.add_instruction("quant_dot", [a, turned])
    m.add_return([m.add_instruction("convert", [y], target_type=F8)])
    inputs = fed(program)
    inputs["a"][3], inputs["b"][5] = 8, 8
    called("cublaslt")
    made = compiled(program, on)
    first, second = labels(made)
    assert "cublaslt" in first and "add_parts" in second
    (got,) = made.run(inputs)
    assert np.isnan(got[3, 5].astype(np.float32))
    sums = inputs["a"].astype(np.float32) @ inputs["b"].astype(np.float32).T
    assert np.abs(got.astype(np.float32) - sums)[:3, :5].max() <= 2**-4 * np.abs(sums[:3, :5]).max()


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
        y = m.add_instruction("convert", [y], target_type=wide, elidable=True)  # as quantize_fp16 leaves it
    for step in after.split():
        if step == "add":
            other = image(program, step, type, out)
            other = m.add_instruction("convert", [other], target_type=wide, elidable=True) if wide else other
        elif step == "bias":
            other = m.add_parameter(step, Shape(within, (1, 64, *(1 for _ in kernel))))
            other = m.add_instruction("multibroadcast", [other], out_lens=out)
        else:
            y = m.add_instruction(step, [y])
            continue
        y = m.add_instruction("add", [y, other])
    m.add_return([m.add_instruction("convert", [y], target_type=type, elidable=True) if wide else y])
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


def test_one_image_for_all_of_a_batch_is_not_taken_for_several(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN was told of as many images as the batch has, and read beyond the one."""
    program, lens = Program(), (3, 8, 6, 5)
    m, ours = program.main, solvers.SOLVER_SET.choose
    own = next(s for s in library_solvers.LIBRARIES if s.name == "cudnn")
    x, added = image(program, "x", F32, lens), image(program, "add", F32, (1, *lens[1:]))
    weights = m.add_literal(values(np.random.default_rng(0), Shape(F32, (8, 8, 3, 3))))
    y = m.add_instruction("convolution", [x, weights], padding=[1, 1])
    m.add_return([m.add_instruction("add", [y, m.add_instruction("multibroadcast", [added], out_lens=lens)])])
    asked: list[tuple[GpuContraction, str]] = []

    def chosen(contraction: GpuContraction) -> Candidate:
        asked.append((contraction, own.refusal(contraction)))
        return ours(contraction) if asked[-1][1] else Candidate(own, own.tilings(contraction)[0])

    monkeypatch.setattr(solvers.SOLVER_SET, "choose", chosen)
    agrees(compiled(program, on), program, fed(program), 4e-6)
    (contraction, reason), *_ = asked
    assert "one for all" in reason
    alone = replace(contraction.request, epilogue=Epilogue(), strides=())
    assert not own.refusal(replace(contraction, request=alone))
    same = replace(contraction.problem, x_strides=(0, *contraction.problem.x_strides[1:]))
    assert "one for all" in own.refusal(replace(contraction, request=replace(alone, problem=same)))


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
    """Add a residual as `quantize_fp16` leaves it: in float32, rounded at the end."""
    total = s.add(s.add(s.cast_loosely(x, F32), b), s.cast_loosely(e, F32))
    return s.cast_loosely(s.max(total, s.const(0.0, F32)), F16)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (Epilogue(), Finish()),
        (epilogue(residual, F16, (F16, "full"), (F32, "per_n")), Finish(1, 0, "relu")),
        (epilogue(lambda s, x, b: s.gelu_tanh(s.add(b, x)), F16, (F16, "per_n")), Finish(0, -1, "gelu_tanh")),
        (epilogue(lambda s, x, b: s.cast_loosely(s.add(x, b), F32), F16, (F16, "per_n")), Finish(0, -1, "")),
        (epilogue(lambda s, x, b: s.cast(s.add(x, b), F32), F16, (F16, "per_n")), None),  # an author rounds the sum
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


def test_what_libraries_are_told_is_given_back(monkeypatch: pytest.MonkeyPatch, called: Callable[..., None]) -> None:
    """But for handles, which stay, all descriptions go with the calls that need them."""
    own = interpreter()
    with standing_in(own, monkeypatch) as libraries:
        _call_both(own, called)
        for cache in (calls.bound_call, library_solvers.cached_tilings):
            cache.cache_clear()
        gc.collect()
        assert [library.made.alive for library in libraries] == [1, 1]


def _call_both(own: Engine, called: Callable[..., None]) -> None:
    for name, after in (("cublaslt", "bias relu"), ("cudnn", "bias add relu")):
        called(name)
        kernel = ((1, 1), {"padding": [0, 0]}) if name == "cublaslt" else ((3, 3), PADDED)
        program = convolution(F16, (2, 6, 5), *kernel, after)
        compiled(program, own).run(fed(program))


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
