"""Shapes as keys."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from mgx_numba.core import shape as shape_module
from mgx_numba.core.covering import covering
from mgx_numba.core.dim import Scope
from mgx_numba.core.shape import DynamicDimension, Shape, other_rank
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError

from ..running import said


def shapes() -> list[Shape]:
    """Return one shape of each kind."""
    static = Shape(Type.float_type, (2, 3), (1, 2))
    named = Shape.dynamic(Type.half_type, [DynamicDimension(1, 8, symbol="batch"), 4])
    return [static, Shape(Type.int64_type), named, Shape.tuple([static, named])]


def test_equal_shapes_have_one_hash_in_all_processes() -> None:
    """Cached hashes travel with shapes to processes with another hash seed for strings."""
    here = [hash(shape) for shape in shapes()]
    assert here == [hash(shape) for shape in shapes()] and len(set(here)) == len(here)
    code = "from tests.graph.test_shapes import shapes; print([hash(shape) for shape in shapes()])"
    for seed in ("1", "2"):
        assert said(code, PYTHONHASHSEED=seed) == str(here)


def test_shapes_of_equal_arguments_are_one_object() -> None:
    """Passes make each shape of a model many times; properties were computed as often."""
    made = [Shape(Type.float_type, lens, (1, 2)) for lens in ((2, 3), [2, 3], np.array([2, 3]), iter((2, 3)))]
    assert all(one is made[0] for one in made) and Shape(Type.float_type, (2, 3)) is not made[0]
    for lens in (np.array([7, 9]), (True, 9), (7.0, 9.0)):
        assert all(type(n) is int for n in Shape(Type.float_type, lens).lens)  # type: ignore[arg-type]
    for shape in [*shapes(), Shape.unranked(Type.int8_type), Shape.sequence(made[0])]:
        assert {copy.copy(shape), copy.deepcopy(shape), pickle.loads(pickle.dumps(shape))} == {shape}
    with Scope() as scope:
        length = scope.symbol("n", 1, None)
        assert Shape(Type.float_type, (length, 2)) is Shape(Type.float_type, [length, 2]) in scope.space.shapes.values()


def test_few_shapes_are_kept() -> None:
    for n in range(3 * shape_module.MOST_KNOWN):
        assert Shape(Type.float_type, (1, n)).elements == n
    assert len(shape_module._known) <= shape_module.MOST_KNOWN


def test_tuples_have_no_size_that_limits_their_lengths() -> None:
    """Such shapes, whose elements take no bytes, failed by a division."""
    shape = Shape(Type.tuple_type, (2, 3))
    assert (shape.lens, shape.elements, shape.bytes) == ((2, 3), 6, 0)


@pytest.mark.parametrize(("lens", "strides"), [((1 << 61, 3), None), ((0, 1 << 61), None), ((2, 3), (1 << 61, 1))])
def test_shapes_beyond_all_memory_are_refused(lens: tuple[int, int], strides: tuple[int, int] | None) -> None:
    """Refused by number of elements, by the other lengths of an empty tensor, and by the last element's address."""
    with pytest.raises(ShapeError, match=r"of float_type exceeds 2\*\*62 bytes"):
        Shape(Type.float_type, lens, strides)


def test_a_scalar_had_two_forms_and_a_vector_could_have_one_of_them() -> None:
    float_type = Type.float_type
    scalar, vector = Shape(float_type), Shape(float_type, (1,))
    assert scalar == Shape(float_type, ()) == Shape.dynamic(float_type, ()) == Shape(float_type, (1,), (0,))
    assert Shape.view(float_type, (1,), (0,)) == vector != scalar
    assert Shape.view(float_type, (3,), (0,)).strides == Shape.view(float_type, (1, 1), (0, 0)).strides[:1] == (0,)
    assert str(Shape.absent(float_type)) == "float_type, {}, {}" and Shape.absent(float_type) != scalar
    unranked, open_length = Shape.unranked(float_type), Shape.dynamic(float_type, [DynamicDimension(0, 4)])
    assert [s.rank for s in (scalar, vector, unranked, open_length)] == [0, 1, None, 1]
    assert other_rank(scalar, vector) and other_rank(vector, scalar)
    assert not any(other_rank(scalar, s) for s in (scalar, Shape(float_type, (3,)), unranked, open_length))
    assert covering(scalar, vector) == covering(vector, open_length.with_type(float_type)).opened() == unranked
