"""Equal small launches in a row are one launch, with the results and the errors of the single ones."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .programs import compiled

F32, I64 = Type.float_type, Type.int64_type
ROWS = (5, 7, 5, 9)


def tables(on: Engine) -> tuple[GpuProgram, Program, dict[str, np.ndarray]]:
    """Rows of several tables side by side, of lengths that differ, as in a recommendation network."""
    program, rng = Program(), np.random.default_rng(0)
    m: Module = program.main
    kinds = m.add_parameter("kinds", Shape(I64, (6, len(ROWS))))
    found = []
    for k, rows in enumerate(ROWS):
        table = m.add_literal(rng.standard_normal((rows, 8)).astype(np.float32))
        own = m.add_instruction("slice", [kinds], axes=(1,), starts=(k,), ends=(k + 1,))
        found.append(m.add_instruction("gather", [table, m.add_instruction("squeeze", [own], axes=(1,))], axis=0))
    m.add_return([m.add_instruction("concat", found, axis=1)])
    return compiled(program, on), program, {"kinds": rng.integers(-5, 5, (6, len(ROWS)))}


def blocks(made: GpuProgram) -> list[tuple[int, ...]]:
    assert made.executable is not None
    return [step.geometry.blocks for step in made.executable.plan.steps]


def test_gathers_of_several_tables_are_one_launch(on: Engine) -> None:
    made, program, inputs = tables(on)
    assert blocks(made) == [(1, 1, len(ROWS))]
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.array_equal(got, wanted)


def test_an_index_out_of_range_names_the_range_of_its_own_table(on: Engine) -> None:
    made, _, inputs = tables(on)
    inputs["kinds"][3] = [4, -8, 4, 8]
    with pytest.raises(ShapeError, match=r"gather: index -8 .*length 7"):
        made.run(inputs)


def test_launches_that_read_each_others_results_stay_apart(on: Engine) -> None:
    program, rng = Program(), np.random.default_rng(1)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F32, (6, 8)))
    at = [m.add_parameter(f"at{k}", Shape(I64, (6,))) for k in range(3)]
    once = m.add_instruction("gather", [x, at[0]], axis=0)
    m.add_return([m.add_instruction("gather", [once, at[k]], axis=0) for k in (1, 2)])
    inputs = {"x": rng.standard_normal((6, 8)).astype(np.float32)}
    inputs |= {f"at{k}": rng.integers(-6, 6, 6) for k in range(3)}
    made = compiled(program, on)
    assert blocks(made) == [(1, 1, 1), (1, 1, 2)]
    for got, wanted in zip(made.run(inputs), reference(program, inputs).results):
        assert np.array_equal(got, wanted)
