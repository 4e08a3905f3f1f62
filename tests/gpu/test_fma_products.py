"""Products of float32 in ordinary arithmetic are those of float32, with the work after them in the same kernel."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import fma, solvers
from mgx_numba.codegen.gpu.contraction.fma import RingTile
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import assert_agrees, reference
from .programs import compiled, interpreter

F32, F16 = Type.float_type, Type.half_type


def agree(program: Program, inputs: dict[str, np.ndarray], on: Engine) -> GpuProgram:
    made = compiled(program, on, float32_matmul_precision="highest")
    assert made.executable is not None
    assert any("_fma_" in step.label for step in made.executable.plan.steps)
    assert_agrees(made.run(inputs), reference(program, inputs))
    return made


def product(rows: int, columns: int, depth: int, turned: bool, result: Type) -> tuple[Program, dict[str, np.ndarray]]:
    """relu(a b + bias), perhaps converted."""
    program, rng = Program(), np.random.default_rng(rows)
    m: Module = program.main
    lens = {"a": (rows, depth), "b": (depth, columns) if turned else (columns, depth), "bias": (columns,)}
    p = {name: m.add_parameter(name, Shape(F32, n)) for name, n in lens.items()}
    right = p["b"] if turned else m.add_instruction("transpose", [p["b"]], permutation=(1, 0))
    sums = m.add_instruction("dot", [p["a"], right])
    sums = m.add_instruction("add", [sums, m.add_instruction("multibroadcast", [p["bias"]], out_lens=(rows, columns))])
    sums = m.add_instruction("relu", [sums])
    m.add_return([sums if result is F32 else m.add_instruction("convert", [sums], target_type=result)])
    return program, {name: rng.standard_normal(n).astype(np.float32) for name, n in lens.items()}


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "turned", "result"),
    [(5, 24, 36, False, F32), (70, 72, 40, True, F16), (66, 7, 8, False, F32), (3, 20, 264, True, F32)],
)
def test_products(rows: int, columns: int, depth: int, turned: bool, result: Type, on: Engine) -> None:
    agree(*product(rows, columns, depth, turned, result), on)


def test_a_large_tile(monkeypatch: pytest.MonkeyPatch, on: Engine) -> None:
    large = RingTile(128, 128, 2, 4)
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.MultiplyAdds(),))
    monkeypatch.setattr(fma.FmaText, "tiles", (large,))
    monkeypatch.setattr(fma.FmaText, "split_tile", large)
    agree(*product(20, 40, 36, False, F32), on)


@pytest.mark.parametrize(("kernel", "stride", "group"), [(3, 1, 1), (2, 2, 2)])
def test_convolutions(kernel: int, stride: int, group: int, on: Engine) -> None:
    program, rng = Program(), np.random.default_rng(kernel)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F32, (2, 6, 5, 8)))
    image = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
    weights = rng.standard_normal((12, 8 // group, kernel, kernel)).astype(np.float32)
    y = m.add_instruction(
        "convolution", [image, m.add_literal(weights)], padding=(1, 1), stride=(stride,) * 2, group=group
    )
    m.add_return([m.add_instruction("relu", [y])])
    agree(program, {"x": rng.standard_normal((2, 6, 5, 8)).astype(np.float32)}, on)


def test_infinities_and_nan_stay_in_their_rows(on: Engine) -> None:
    program, inputs = product(20, 24, 36, False, F32)
    inputs["a"][3, 5], inputs["a"][7, 0] = np.nan, np.inf
    agree(program, inputs, on)


def test_the_instructions_are_multiply_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program, _ = product(256, 256, 64, True, F32)
    kernels = compiled(program, interpreter(), float32_matmul_precision="highest").kernels()
    text = assembly(kernels[0], ARCHITECTURES["sm_90a"])
    assert "fma.rn.f32" in text and "cp.async.cg" in text and "mma." not in text and ".local" not in text
