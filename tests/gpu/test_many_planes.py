"""Products and attention of more planes than a grid's second and third axis can hold."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu import kernel
from mgx_numba.codegen.gpu.attention import attention_text
from mgx_numba.codegen.gpu.contraction import solvers
from mgx_numba.codegen.launch import MOST_PLANES, Grid
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.errors import DeviceError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .operators import hosted, operator_program
from .programs import compiled, interpreter

F32, F16 = np.float32, np.float16


def grids(made: GpuProgram) -> list[Grid]:
    assert made.executable is not None
    found = [getattr(step, "geometry", None) for step in made.executable.plan.steps]
    return [geometry for geometry in found if isinstance(geometry, Grid)]


def agree(program: Program, inputs: dict[str, np.ndarray], on: Engine) -> None:
    """The values of ref, by kernels of which each block finds its plane along the first axis."""
    made = compiled(program, on, fast_math=True)
    assert not hosted(made), made.fallback_reasons()
    assert all(grid.blocks[1] == 1 for grid in grids(made))
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.abs(got.astype(F32) - wanted.astype(F32)).max() <= 4e-3 * np.abs(wanted.astype(F32)).max()


@pytest.fixture
def few_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that small problems are beyond."""
    monkeypatch.setattr(kernel, "MOST_PLANES", 1)
    monkeypatch.setattr(attention_text, "MOST_PLANES", 1)


@pytest.mark.parametrize(
    ("solver", "name", "type", "rows", "depth"),
    [
        ("few_rows", "sm_75", F16, 3, 40),
        ("tiled", "sm_75", F32, 9, 7),
        ("fma", "sm_80", F32, 20, 24),
        ("tensor", "sm_80", F16, 20, 24),
        ("tensor", "sm_80", F16, 5, 520),
        ("tensor", "gfx942", F16, 20, 40),
        ("warpgroup_parts", "sm_90a", F32, 20, 40),
    ],
)
def test_products(
    solver: str, name: str, type: type, rows: int, depth: int, few_planes: None, on: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    on = interpreter() if name.startswith("gfx") else on
    own = solvers.SOLVER_SET.own_candidates
    monkeypatch.setattr(solvers.SOLVER_SET, "own_candidates", lambda p: [c for c in own(p) if c.solver.name == solver])
    rng, turned = np.random.default_rng(rows), solver == "few_rows"
    a, b = (rng.standard_normal(lens).astype(type) for lens in ((2, 2, rows, depth), (2, 2, depth, 24)))
    program, inputs = Program(), {"a": a, "b": np.ascontiguousarray(b.swapaxes(2, 3)) if turned else b}
    m = program.main
    left, right = (m.add_parameter(n, Shape(from_numpy(v.dtype), v.shape)) for n, v in inputs.items())
    if turned:
        right = m.add_instruction("transpose", [right], permutation=(0, 1, 3, 2))
    m.add_return([m.add_instruction("dot", [left, right])])
    agree(program, inputs, on)


@pytest.mark.parametrize("name", ["sm_80", "sm_90a", "gfx942"])
@pytest.mark.parametrize(("type", "causal", "keys"), [(F16, True, 70), (F16, False, 300), (F32, True, 20)])
def test_attention(
    type: type, causal: bool, keys: int, name: str, few_planes: None, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    on = interpreter() if name.startswith("gfx") else on
    rng, lens = np.random.default_rng(keys), ((2, 4, 5, 16), (2, 2, keys, 16), (2, 2, keys, 16))
    arrays = [rng.standard_normal(own).astype(type) for own in lens]
    program = operator_program("attention", arrays, scale=0.3, causal=causal)
    agree(program, {f"p{k}": a for k, a in enumerate(arrays)}, on)


@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_90a", "gfx942"])
@pytest.mark.parametrize("type", [Type.float_type, Type.half_type, Type.double_type])
def test_no_grid_is_beyond_what_devices_take(type: Type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, planes = Program(), MOST_PLANES + 2
    m = program.main
    for rows in (1, 40):
        a, b = (
            m.add_parameter(f"{n}{rows}", Shape(type, (planes, *own))) for n, own in zip("ab", ((rows, 8), (8, 16)))
        )
        m.add_instruction("dot", [a, b])
    heads = [m.add_parameter(n, Shape(type, (planes, 2, 9, 16))) for n in "qkv"]
    m.add_return([*(i for i in m if i.name == "dot"), m.add_instruction("attention", heads)])
    for grid in grids(compiled(program, interpreter())):
        grid.check()


def test_a_grid_that_no_device_takes_is_refused() -> None:
    Grid((MOST_PLANES + 1, MOST_PLANES, 1), (32, 1, 1)).check()
    with pytest.raises(DeviceError, match="axes 1 and 2 can have 65535"):
        Grid((1, 1, MOST_PLANES + 1), (32, 1, 1)).check()
