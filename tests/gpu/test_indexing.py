"""Gathers, scatters and one-hot encoding, for every element type, with repeated and negative indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.data import scatter
from mgx_numba.codegen.gpu.toolchain.compiler import assembly, compile_object
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import assert_agrees, reference
from ..values import small
from .operators import check_compiles, check_operator, hosted, operator_program
from .programs import compiled, interpreter, labels

TYPES = (np.float32, np.float16, np.int64, np.uint8, np.bool_)
COMBINE = ("none", "add", "mul", "min", "max")


def values(*lens: int, dtype: Any = np.float32, special: bool = False) -> np.ndarray:
    return small(dtype, lens, np.random.default_rng(len(lens)), quarters=True, special=special)


def indices(length: int, *lens: int, dtype: Any = np.int64) -> np.ndarray:
    return np.random.default_rng(length).integers(-length, length, lens).astype(dtype)


def tuples(lens: tuple[int, ...], *outer: int) -> np.ndarray:
    return np.concatenate([indices(n, *outer, 1) for n in lens], -1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("name", "attributes", "lens", "at"),
    [
        ("gather", {"axis": 1}, (5, 7, 8), indices(7, 3, 2)),
        ("gather", {"axis": 0}, (6,), np.array([3], np.int32)),
        ("gather", {"axis": 0}, (4, 5), np.zeros((0,), np.int64)),
        ("gather_elements", {"axis": 1}, (4, 5, 6), indices(5, 4, 3, 6, dtype=np.int32)),
        ("gathernd", {}, (4, 5, 8), tuples((4, 5), 3, 2)),
        ("gathernd", {"batch_dims": 1}, (4, 5, 8), indices(5, 4, 2, 1)),
    ],
)
def test_gathers(name: str, attributes: dict, lens: tuple[int, ...], at: np.ndarray, dtype: Any, on: Engine) -> None:
    check_operator(on, name, [values(*lens, dtype=dtype, special=True), at], **attributes)


def test_gathers_of_rows_that_begin_between_vectors(on: Engine) -> None:
    """Vectors were loaded where the step along the axis is no multiple of them."""
    x = operator_program("slice", [values(5, 7)], axes=(1,), starts=(0,), ends=(4,))
    sliced = x.main.results()[0]
    at = x.main.add_literal(np.array([4, 1, -2], np.int64))
    x.main.replace_return([x.main.add_instruction("gather", [sliced, at], axis=0)])
    feed = values(5, 7)
    (found,) = compiled(x, on).run({"p0": feed})
    np.testing.assert_array_equal(found, feed[[4, 1, 3], :4])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("combine", COMBINE)
def test_scatters_in_the_order_of_their_indices(combine: str, dtype: Any, on: Engine) -> None:
    data, updates = values(4, 6, 3, dtype=dtype, special=True), values(3, 9, 2, dtype=dtype, special=True)
    check_operator(on, f"scatter_{combine}", [data, indices(6, 3, 9, 2), updates], axis=1)
    data, updates = values(4, 6, 8, dtype=dtype), values(3, 4, 8, dtype=dtype)
    check_operator(on, f"scatternd_{combine}", [data, tuples((4, 6), 3, 4), updates])


@pytest.mark.parametrize("combine", COMBINE)
def test_scatters_of_too_many_updates_to_compare(combine: str, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "MOST_COMPARED", 10)
    check_operator(on, f"scatter_{combine}", [values(5, 3), indices(5, 40, 3), values(40, 3)], axis=0)
    check_operator(on, f"scatternd_{combine}", [values(5, 4), tuples((5, 4), 7, 5), values(7, 5)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32, np.int64, np.uint64, np.int8])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("combine", [c for c in COMBINE if c != "none"])
def test_updates_in_any_order(
    combine: str, turned: bool, dtype: Any, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter, "MOST_SEARCHED", 0)
    for name, at, lens, how in (
        ("scatter", indices(6, 3, 9, 2), (3, 9, 2), {"axis": 1}),
        ("scatternd", tuples((4, 6), 7, 2), (7, 2, 3), {}),
        ("scatternd", tuples((4, 6, 3), 40), (40,), {}),
    ):
        arrays = [values(4, 6, 3, dtype=dtype, special=True), at, values(*lens, dtype=dtype)]
        program = operator_program(f"{name}_{combine}", arrays, turned, **how)
        made = compiled(program, on, fast_math=True)
        atomic = np.dtype(dtype) != np.int8
        assert any("atomic" in label for label in labels(made)) == atomic and not hosted(made)
        feed = {f"p{k}": np.ascontiguousarray(a.T if turned else a) for k, a in enumerate(arrays)}
        assert_agrees(made.run(feed), reference(program, feed))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("lens", [(5, 9, 8), (5, 9, 6), (5, 9, 3), (1, 1, 4), (2, 30, 1)])
def test_updates_whose_rows_have_an_index_each(
    lens: tuple[int, ...], arch: str, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter, "MOST_SEARCHED", 0)
    monkeypatch.setenv("MGX_GPU_ARCH", arch)
    batch, rows, width = lens
    program = Program()
    module = program.main
    data = module.add_parameter("data", Shape(Type.float_type, (batch, 7, width)))
    updates = module.add_parameter("updates", Shape(Type.float_type, lens))
    at = module.add_parameter("at", Shape(Type.int64_type, (rows, 1)))
    wide = module.add_instruction("multibroadcast", [at], out_lens=lens)
    module.add_return(
        [module.add_instruction(f"scatter_{c}", [data, wide, updates], axis=1) for c in ("add", "max", "mul")]
    )
    made = compiled(program, on, fast_math=True)
    feed = {"data": values(batch, 7, width), "updates": values(*lens), "at": indices(7, rows, 1)}
    assert_agrees(made.run(feed), reference(program, feed))
    text = "".join(assembly(kernel, ARCHITECTURES[arch]) for kernel in made.kernels())
    lanes = next(n for n in (4, 2, 1) if width % n == 0)
    assert (f"red.relaxed.gpu.global.add.v{lanes}.f32" in text) == (arch == "sm_90a" and lanes > 1)
    assert "atom" in text and "cas" in text
    assert made.executable is not None
    assert not any("positions" in label for label in labels(made))


def test_additions_stay_in_order_without_fast_math(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "MOST_SEARCHED", 0)
    program = operator_program("scatter_add", [values(5, 3), indices(5, 40, 3), values(40, 3)], axis=0)
    assert not any("atomic" in label for label in labels(compiled(program, on)))


def test_scatters_of_nothing_and_of_what_is_out_of_range(on: Engine) -> None:
    check_operator(on, "scatternd_none", [values(5, 5), np.zeros((0, 2), np.int64), values(0)])
    check_operator(on, "scatter_add", [values(5, 5), np.zeros((5, 0), np.int64), values(5, 0)], axis=1)
    far = indices(9, 4, 5)
    check_operator(on, "scatter_add", [values(5, 5), far, values(4, 5)], axis=0, skip_out_of_bounds=True)
    program = operator_program("scatter_none", [values(5, 5), far, values(4, 5)], axis=0)
    with pytest.raises(ShapeError, match="is out of range for axis 0 of length 5"):
        compiled(program, on).run({"p0": values(5, 5), "p1": far, "p2": values(4, 5)})
    pairs = np.array([[0, 0], [1, 7]])
    program = operator_program("scatternd_max", [values(5, 5), pairs, values(2)])
    with pytest.raises(ShapeError, match="index 7 is out of range for axis 1 of length 5"):
        compiled(program, on).run({"p0": values(5, 5), "p1": pairs, "p2": values(2)})


@pytest.mark.parametrize(("axis", "dtype"), [(0, np.int64), (1, np.int32), (-1, np.uint8)])
def test_onehot(axis: int, dtype: Any, on: Engine) -> None:
    at = np.arange(12).reshape(3, 4).astype(dtype) - (4 if np.dtype(dtype).kind == "i" else 0)
    check_operator(on, "onehot", [at, np.array([0.5, -2], np.float32)], axis=axis, depth=6)
    check_operator(on, "onehot", [at, np.array([0, 1], np.int64)], axis=axis, depth=0)


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    on = interpreter()
    check_compiles("gathernd", [values(4, 5, 8, dtype=np.float16), tuples((4, 5), 3, 2)], on)
    check_compiles(
        "scatter_max", [values(5, 3, dtype=np.float16), indices(5, 4, 3), values(4, 3, dtype=np.float16)], on
    )
    monkeypatch.setattr(scatter, "MOST_COMPARED", 1)
    check_compiles("scatternd_add", [values(5, 4), tuples((5, 4), 7, 5), values(7, 5)], on)
    check_compiles("onehot", [indices(4, 3, dtype=np.int8), values(2)], on, depth=4)
    monkeypatch.setattr(scatter, "MOST_SEARCHED", 0)
    for dtype in (np.int32, np.uint64):
        check_compiles("scatternd_add", [values(5, 4, dtype=dtype), tuples((5, 4), 7), values(7, dtype=dtype)], on)
    program = operator_program("scatternd_add", [values(5, 4), tuples((5, 4), 7), values(7)])
    for kernel in compiled(program, on, fast_math=True).kernels():
        for architecture in ("sm_75", "sm_90a", "gfx942", "gfx1201"):
            assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES[architecture])
