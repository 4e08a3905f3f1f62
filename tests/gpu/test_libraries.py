"""NVIDIA's libraries as solvers: what they compute, when they are taken, and what happens where they are not there.

Away from a device a stand-in has the place of the libraries, and the interpreter that of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.contraction import solvers
from mgx_numba.codegen.gpu.contraction.placed import PlacedRequest
from mgx_numba.codegen.tuning.request import Candidate
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .nvidia_libraries import standing_in
from .programs import compiled, interpreter

F64, F32, F16, BF16 = Type.double_type, Type.float_type, Type.half_type, Type.bf16_type
I8, F8 = Type.int8_type, Type.fp8e4m3fn_type
ALLOWED = {F64: 1e-12, F32: 2e-6, F16: 2e-3, BF16: 2e-2, I8: 0, F8: 1e-5}
"""Errors relative to the largest result: those of rounding the result."""


@pytest.fixture(params=["interpreter", pytest.param("device", marks=pytest.mark.gpu)])
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """What programs run on, with libraries."""
    if request.param == "device":
        yield cuda_engine()
        return
    engine = interpreter()
    with standing_in(engine, monkeypatch):
        yield engine


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
    assert len(found) == (2 if type is I8 and after else launches), found
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


@pytest.mark.parametrize(("type", "allowed"), [(F32, 2e-6), (F16, 2e-3), (BF16, 2e-2), (I8, 0)])
@pytest.mark.parametrize(
    ("lens", "kernel", "attributes", "after"),
    [
        ((2, 9, 8), (3, 3), {"padding": [1, 1]}, "bias relu"),
        ((1, 9, 8), (3, 3), {"padding": [1, 1], "stride": [2, 2]}, "bias add relu"),
        ((1, 12, 7), (1, 1), {"padding": [0, 0], "stride": [2, 2]}, ""),
        ((2, 8, 8), (3, 3), {"padding": [2, 2], "dilation": [2, 2]}, "abs"),
        ((1, 8, 8), (3, 3), {"padding": [0, 1, 1, 0], "group": 2}, "relu"),
        ((2, 15), (5,), {"padding": [2], "stride": [1], "dilation": [1]}, "bias"),
    ],
)
def test_convolutions(
    type: Type, allowed: float, lens: Any, kernel: Any, attributes: Any, after: str, on: Engine, called: Any
) -> None:
    if type is I8 and after:
        pytest.skip("sums of integers are finished elsewhere")
    program, rng, channels, outputs = Program(), np.random.default_rng(len(lens)), 32, 64
    m, rank = program.main, len(kernel)
    groups = attributes.get("group", 1)
    x = m.add_parameter("x", Shape(type, (lens[0], *lens[1:], channels)))
    image = m.add_instruction("transpose", [x], permutation=(0, rank + 1, *range(1, rank + 1)))
    weights = values(rng, Shape(type, (outputs, channels // groups, *kernel)))
    name = "quant_convolution" if type is I8 else "convolution"
    y = m.add_instruction(name, [image, m.add_literal(weights)], **attributes)
    out = y.shape.lens
    for step in after.split():
        if step in ("relu", "abs"):
            y = m.add_instruction(step, [y])
            continue
        own = (1, outputs, *(1 for _ in kernel)) if step == "bias" else (out[0], *out[2:], out[1])
        other = m.add_parameter(step, Shape(y.shape.type, own))
        if step == "add":
            other = m.add_instruction("transpose", [other], permutation=(0, rank + 1, *range(1, rank + 1)))
        else:
            other = m.add_instruction("multibroadcast", [other], out_lens=out)
        y = m.add_instruction("add", [y, other])
    m.add_return([y])
    inputs = {n: values(rng, s) for n, s in program.parameter_shapes().items()}
    (wanted,) = reference(program, inputs, runs=2).results
    called("cudnn")
    made = compiled(program, on)
    assert sum("cudnn" in label for label in labels(made)) == 1
    (got,) = made.run(inputs)
    error = np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max() / np.abs(wanted.astype(np.float64)).max()
    assert error <= 2 * allowed, error
