"""Recurrent layers: a launch for each step, of all cells, directions, lengths of sequences and floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu import recurrent
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.toolchain.compiler import compile_object
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.graph.program import Program
from mgx_numba.ops.base import make_op
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.ref.interpreter import evaluate

from ..cpu.agreement import assert_agrees, reference
from ..cpu.test_recurrent import layer, operands
from ..cpu.test_recurrent_int8 import steps
from .operators import hosted
from .programs import compiled, interpreter

FUNCTIONS = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}
EVERYTHING = "bias hidden state peephole"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two warps a block: the interpreter takes time for each thread, also for those without a unit."""
    monkeypatch.setattr(recurrent, "WARPS", 2)


def program_of(
    cell: str, *, direction: str = "forward", s: int = 2, b: int = 2, h: int = 3, given: str = "bias hidden state",
    lengths: Any = None, dtype: Any = np.float32, constants: bool = True, **attributes: Any,
) -> tuple[Program, dict[str, np.ndarray]]:  # fmt: skip
    attributes.setdefault("actv_func", tuple(make_op(f) for f in FUNCTIONS[cell]))
    arrays = operands(cell, 2 if direction == "bidirectional" else 1, s, b, h, 3, given, lengths, dtype)
    chosen, build = layer(cell, arrays, constants, hidden_size=h, direction=direction, **attributes)
    program = Program()
    main = program.main
    shapes = [Shape(from_numpy(a.dtype), a.shape) for a in chosen]
    main.add_return(build(main, [main.add_parameter(f"p{k}", shape) for k, shape in enumerate(shapes)]))
    return program, {f"p{k}": a for k, a in enumerate(chosen)}


def compare(on: Engine, cell: str, **options: Any) -> None:
    program, feed = program_of(cell, **options)
    made = compiled(program, on)
    assert not hosted(made), made.host_reasons()
    assert_agrees(made.run(feed), reference(program, feed))


@pytest.mark.parametrize("cell", FUNCTIONS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_cells_and_directions(cell: str, direction: str, on: Engine) -> None:
    compare(on, cell, direction=direction, given="", h=4)
    compare(on, cell, direction=direction, b=3, lengths=[2, 0, 1], given=EVERYTHING)


@pytest.mark.parametrize("cell", FUNCTIONS)
@pytest.mark.parametrize(("h", "b", "s"), [(1, 1, 1), (7, 3, 2), (4, 37, 1)])
def test_sizes_that_do_not_fill_vectors_or_tiles(cell: str, h: int, b: int, s: int, on: Engine) -> None:
    compare(on, cell, h=h, b=b, s=s)


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_weights_in_8_bits_are_multiplied_as_floats(cell: str, on: Engine) -> None:
    arrays, build = steps(cell, s=2, b=2, h=5, d=2, given="hidden")
    program = Program()
    shapes = [Shape(from_numpy(a.dtype), a.shape) for a in arrays]
    program.main.add_return(build(program.main, [program.main.add_parameter(f"p{k}", s) for k, s in enumerate(shapes)]))
    feed = {f"p{k}": a for k, a in enumerate(arrays)}
    made = compiled(program, on)
    assert not hosted(made), made.host_reasons()
    for found, meant in zip(made.run(feed), evaluate(program, feed)):  # which rounds states to 8 bits
        np.testing.assert_allclose(np.asarray(found), meant, rtol=0, atol=1e-2)


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_half_precision_and_weights_that_are_given_at_run_time(cell: str, on: Engine) -> None:
    compare(on, cell, dtype=np.float16, h=4)
    compare(on, cell, constants=False, h=3)


def test_variants_of_cells(on: Engine) -> None:
    compare(on, "lstm", given=EVERYTHING, input_forget=True, clip=0.3)
    compare(on, "gru", linear_before_reset=True, lengths=[1, 2])
    compare(on, "gru", linear_before_reset=False, direction="bidirectional", clip=0.5)


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_kernels_compile_and_do_not_grow_with_the_steps(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    made = compiled(program_of(cell, s=5, b=6, h=16)[0], interpreter())
    steps = [kernel for kernel in made.kernels() if "step" in kernel.name]
    assert len(steps) == (2 if cell == "gru" else 1)
    for kernel in steps:
        for name in ("sm_75", "sm_90a", "gfx942"):
            assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES[name])
