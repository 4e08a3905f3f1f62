"""Concatenations of several operands take one launch, and are correct for pieces of any length and layout."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.data.copies import MOST_COPIES
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import assert_agrees, reference
from .programs import compiled


def launches(program: Program, on: Engine) -> list[str]:
    """Check that results equal ref's; return the program's kernels."""
    rng = np.random.default_rng(0)
    inputs = {}
    for name, shape in program.parameter_shapes().items():
        values = rng.integers(0, 2, shape.lens) if shape.type is Type.bool_type else rng.normal(0, 9, shape.lens)
        inputs[name] = values.astype(shape.type.numpy)
        if shape.type.is_floating and inputs[name].size:
            inputs[name].reshape(-1)[0] = np.nan
    made = compiled(program, on)
    assert_agrees(made.run(inputs), reference(program, inputs))
    assert made.executable is not None
    return [step.label for step in made.executable.plan.steps]


@pytest.mark.parametrize("type", [Type.float_type, Type.half_type, Type.int64_type, Type.bool_type])
@pytest.mark.parametrize(
    ("axis", "lengths"), [(0, (1, 3)), (1, (16, 1)), (2, (8, 16, 0, 5)), (2, (8, 24)), (1, (1,) * (MOST_COPIES + 3))]
)
def test_pieces_of_any_length(type: Type, axis: int, lengths: tuple[int, ...], on: Engine) -> None:
    program, lens = Program(), [2, 3, 8]
    pieces = [
        program.main.add_parameter(f"x{k}", Shape(type, [*lens[:axis], n, *lens[axis + 1 :]]))
        for k, n in enumerate(lengths)
    ]
    program.main.add_return([program.main.add_instruction("concat", pieces, axis=axis)])
    assert launches(program, on) == ["gpu::copies_kernel"]


def test_pieces_that_lie_otherwise_and_one_that_is_computed_in_place(on: Engine) -> None:
    program = Program()
    m = program.main
    x, row = (
        m.add_parameter("x", Shape(Type.float_type, (8, 2, 5))),
        m.add_parameter("row", Shape(Type.float_type, (8,))),
    )
    turned = m.add_instruction("transpose", [x], permutation=(2, 1, 0))
    repeated = m.add_instruction("multibroadcast", [row], out_lens=(4, 2, 8))
    computed = m.add_instruction("relu", [turned])
    m.add_return([m.add_instruction("concat", [turned, repeated, computed, turned], axis=0)])
    found = launches(program, on)
    assert found.count("gpu::copies_kernel") == 1 and len(found) == 2


@pytest.mark.parametrize("type", [Type.float_type, Type.half_type])
def test_keys_and_values_of_a_cache_grow_in_one_launch(type: Type, on: Engine) -> None:
    program = Program()
    m = program.main
    grown = []
    for k, n in enumerate((5, 4)):
        past = m.add_parameter(f"past{k}", Shape(type, (2, 3, n, 8)))
        new = m.add_parameter(f"new{k}", Shape(type, (2, 3, 1, 8)))
        grown.append(m.add_instruction("concat", [past, new], axis=2))
    m.add_return(grown)
    assert launches(program, on) == ["gpu::copies_kernel"]


@pytest.mark.parametrize("lens", [(3, 8), (2, 3, 5), (1, 1)])
def test_interleaved_values_are_computed_in_place(lens: tuple[int, ...], on: Engine) -> None:
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(Type.float_type, lens))
    pieces = [m.add_instruction("unsqueeze", [m.add_instruction(f, [x])], axes=(len(lens),)) for f in ("exp", "neg")]
    joined = m.add_instruction("concat", pieces, axis=len(lens))
    m.add_return([m.add_instruction("reshape", [joined], dims=(*lens[:-1], 2 * lens[-1]))])
    assert not any("cop" in label for label in launches(program, on))


def test_what_reads_the_concatenation_before_is_a_launch_of_its_own(on: Engine) -> None:
    program = Program()
    m = program.main
    x, y, z = (m.add_parameter(n, Shape(Type.float_type, (3, 4))) for n in "xyz")
    first = m.add_instruction("concat", [x, y], axis=0)
    part = m.add_instruction("slice", [first], axes=(0,), starts=(1,), ends=(5,))
    m.add_return([first, m.add_instruction("concat", [part, z], axis=0), m.add_instruction("concat", [z, y], axis=1)])
    assert launches(program, on) == ["gpu::copies_kernel"] * 2


def test_launches_have_room_for_so_many_copies(on: Engine) -> None:
    program = Program()
    m = program.main
    pieces = [m.add_parameter(f"x{k}", Shape(Type.float_type, (2, k + 1))) for k in range(MOST_COPIES - 2)]
    m.add_return([m.add_instruction("concat", pieces[k:], axis=1) for k in range(3)])
    assert launches(program, on) == ["gpu::copies_kernel"]
