"""Shapes as keys."""

from __future__ import annotations

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type

from ..running import said


def shapes() -> list[Shape]:
    """Of each kind one."""
    static = Shape(Type.float_type, (2, 3), (1, 2))
    named = Shape.dynamic(Type.half_type, [DynamicDimension(1, 8, symbol="batch"), 4])
    return [static, Shape(Type.int64_type), named, Shape.tuple([static, named])]


def test_equal_shapes_have_one_hash_in_all_processes() -> None:
    """It is cached, and what is cached goes with a shape to processes that hash strings otherwise."""
    here = [hash(shape) for shape in shapes()]
    assert here == [hash(shape) for shape in shapes()] and len(set(here)) == len(here)
    code = "from tests.graph.test_shapes import shapes; print([hash(shape) for shape in shapes()])"
    for seed in ("1", "2"):
        assert said(code, PYTHONHASHSEED=seed) == str(here)
