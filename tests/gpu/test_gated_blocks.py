"""Gated linear units of block-quantised weights become one product, for few rows one kernel."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.plan import Step

from ..cpu.agreement import reference
from .programs import compiled, inputs_of, labels
from .symbolic import SymbolicPlan, open_shape

F16, BF16 = Type.half_type, Type.bf16_type
ALLOWED = {F16: 1e-3, BF16: 8e-3}
"""Errors relative to the largest result: those of rounding it."""


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")


def unit(shape: Shape, columns: int, bias: bool = False, residual: bool = False, points: bool = False) -> Program:
    """silu(x v) * x w, with biases and a residual."""
    program, rng = Program(), np.random.default_rng(columns)
    m, blocks = program.main, (columns, shape.dims[-1].max // 32)
    x = m.add_parameter("x", shape)

    def half() -> Instruction:
        literals = [
            rng.integers(0, 256, (*blocks, 16)).astype(np.uint8),
            rng.uniform(0.001, 0.02, blocks).astype(np.float16).astype(np.float32),
        ]
        if points:
            literals.append(rng.integers(0, 16, blocks).astype(np.uint8))
        y = m.add_instruction("matmul_nbits", [x, *map(m.add_literal, literals)], bits=4, block_size=32)
        if not bias:
            return y
        added = m.add_literal(rng.standard_normal(columns).astype(shape.type.numpy))
        return m.add_instruction("add", [y, m.add_instruction("multibroadcast", [added], out_lens=y.shape.lens)])

    gate, other = half(), half()
    y = m.add_instruction("mul", [m.add_instruction("mul", [gate, m.add_instruction("sigmoid", [gate])]), other])
    if residual:
        y = m.add_instruction("add", [y, m.add_parameter("r", y.shape)])
    m.add_return([y])
    return program


@pytest.mark.parametrize(
    ("type", "lens", "depth", "columns", "bias", "residual", "points", "joined"),
    [
        (F16, (1,), 256, 48, False, False, False, True),
        (F16, (1,), 2304, 64, True, True, True, True),
        (BF16, (3,), 256, 48, False, False, True, True),
        (F16, (8,), 384, 32, False, True, False, True),
        (F16, (2, 7), 256, 64, True, True, False, True),
        (F16, (9,), 256, 48, False, False, False, True),
        (F16, (2, 20), 256, 64, True, True, True, True),
        (F16, (33,), 256, 48, False, True, False, True),
        (F16, (1,), 256, 40, False, False, False, False),
    ],
)
def test_gated_products_become_one(
    type: Type, lens: tuple[int, ...], depth: int, columns: int, bias: bool, residual: bool, points: bool,
    joined: bool, on: Engine,
) -> None:  # fmt: skip
    """Both halves in one kernel for up to 32 rows; for more rows a product for each half."""
    program = unit(Shape(type, (*lens, depth)), columns, bias, residual, points)
    made, given = compiled(program, on, fast_math=True), inputs_of(program)
    (got,), (wanted,) = made.run(given), reference(program, given).results
    size = np.abs(wanted.astype(np.float64)).max()
    assert np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max() <= ALLOWED[type] * size
    few = [label for label in labels(made) if "cores" in label]
    assert len(few) == (0 if lens[-1] > 32 else 1 if joined else 2)


def test_open_numbers_of_rows_choose_among_kernels() -> None:
    """One row, few rows and many rows are computed by kernels of their own, in one plan."""
    plan = SymbolicPlan(unit(open_shape(F16, "b", 256, most=64), 48, residual=True, points=True))
    plan.check((1,), (2,), (5,), (8,), (9,), (16,), (17,), (32,), (33,))


def normed(shape: Shape, columns: int, read: bool) -> Program:
    """The product of RMS norms of rows with weights; ``read``: the norms are results, too."""
    program, rng = Program(), np.random.default_rng(columns)
    m, depth = program.main, shape.dims[-1].max
    x = m.add_parameter("x", shape)
    wide = m.add_instruction("convert", [x], target_type=Type.float_type)
    mean = m.add_instruction("reduce_mean", [m.add_instruction("mul", [wide, wide])], axes=[1])
    inverse = m.add_instruction("rsqrt", [mean])
    factor = m.add_instruction("multibroadcast", [inverse, wide], out_lens=())
    scales = m.add_literal(rng.uniform(0.5, 2, depth).astype(np.float32))
    scales = m.add_instruction("multibroadcast", [scales, wide], out_lens=())
    y = m.add_instruction("mul", [m.add_instruction("mul", [wide, factor]), scales])
    y = m.add_instruction("convert", [y], target_type=shape.type)
    literals = [
        rng.integers(0, 256, (columns, depth // 32, 16)).astype(np.uint8),
        rng.uniform(0.001, 0.02, (columns, depth // 32)).astype(np.float32),
    ]
    z = m.add_instruction("matmul_nbits", [y, *map(m.add_literal, literals)], bits=4, block_size=32)
    m.add_return([z, y] if read else [z])
    return program


@pytest.mark.parametrize("depth", [256, 1280])
@pytest.mark.parametrize("read", [False, True])
def test_blocks_compute_the_norm_of_one_row(depth: int, read: bool) -> None:
    """The launch of the norms runs for several rows alone, unless something else reads them."""
    plan = SymbolicPlan(normed(open_shape(F16, "b", depth, most=64), 40, read))
    assert any("row_args" in step.kernel.text for step in plan.plan.steps if isinstance(step, Step)) != read
    plan.check((1,), (2,), (9,))
