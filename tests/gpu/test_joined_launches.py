"""Small independent launches are one launch, with the results and the errors of the single ones."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.gpu.kernel import gpu_kernel
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.joined_launches import read_slots
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .programs import compiled
from .symbolic import SymbolicPlan, open_shape

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


def test_different_kernels_of_open_lengths_are_one_launch() -> None:
    program = Program()
    m: Module = program.main
    x = m.add_parameter("x", open_shape(F32, "b", 24))
    halves = [m.add_instruction("slice", [x], axes=(1,), starts=(k,), ends=(k + 12,)) for k in (0, 12)]
    made = [m.add_instruction(name, [half]) for name, half in zip(("exp", "tanh"), halves)]
    at = m.add_parameter("at", open_shape(I64, "s"))
    m.add_return([m.add_instruction("concat", made, axis=1), m.add_instruction("abs", [at])])
    plan = SymbolicPlan(program)
    assert plan.labels == ["gpu::exp_kernel+gpu::tanh_kernel+gpu::abs_kernel"]
    plan.check((1, 1), (3, 700), (400, 2))


def test_a_cache_is_read_before_its_update(on: Engine) -> None:
    program = Program()
    m: Module = program.main
    cache, rows = (m.add_parameter(name, Shape(F32, (1, 1, n, 4))) for name, n in (("cache", 8), ("rows", 1)))
    place = m.add_parameter("place", Shape(I64, (1, 1)))
    read_cache = m.add_instruction("exp", [cache])
    updated = m.add_instruction("update_cache", [cache, m.add_instruction("tanh", [rows]), place])
    m.add_return([read_cache, updated])
    plan = compiled(program, on).executable.plan
    assert plan.updates
    names = [step.label for step in plan.steps]
    copy, write, read = (next(k for k, n in enumerate(names) if word in n) for word in ("copy", "cache_rows", "exp"))
    assert read < copy < write


def test_pointers_that_a_kernel_only_reads() -> None:
    lines = [
        "p_x = pointer_float32(args, 0)",
        "p_out = pointer_float32(args, 1)",
        "p_y = pointer_float32(args, 2)",
        "row = offset(p_out, 4)",
        "words = words_of(offset(p_x, 2))",
        "store(row, 0, load(p_x, 1, 4))",
        "exchange(p_y, load(words, 0, 1))",
    ]
    assert read_slots(gpu_kernel("kernel", lines, 32, 3)) == {0}
