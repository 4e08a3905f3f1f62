"""Copies of programs for given lengths that are had by substitution: those that settling gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.folding import Followed, integers
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.settling import Settled
from mgx_numba.graph.validate import validate
from mgx_numba.ops.base import make_op
from mgx_numba.targets.passes import SETTLED_PASSES, SOURCE_PASSES
from mgx_numba.targets.ref.interpreter import evaluate

from ..dynamic.models import Graph

FLOAT = TensorProto.FLOAT


def rewrite(program: Program) -> None:
    run_passes(program, SETTLED_PASSES)


def program_of(g: Graph, inputs: dict[str, list[object]], outputs: list[str]) -> Program:
    model = g.model({name: (FLOAT, dims) for name, dims in inputs.items()}, outputs)
    program = parse_onnx(model, default_dyn_dim_value=DynamicDimension(0, 4096))
    run_passes(program, SOURCE_PASSES)
    return program


def shape_arithmetic() -> Program:
    """A reshape to products, quotients and the smaller one of lengths."""
    g = Graph()
    h, w = g.dim("x", 0), g.dim("x", 1)
    whole = g.op("Div", g.op("Mul", g.op("Mul", h, w), g.ints(6)), g.ints(2))
    flat = g.op("Reshape", "x", g.vector(whole))
    rows = g.op("Slice", flat, g.ints(0), g.op("Min", h, g.ints(5)), g.ints(0))
    wide = g.op("Expand", g.op("Unsqueeze", rows, g.ints(0)), g.vector(g.op("Max", w, g.ints(4)), 1))
    return program_of(g, {"x": ["H", "W", 3]}, [flat, wide])


def positions() -> Program:
    """A grid of positions, computed in integers and in floats, that is added to the input."""
    g = Graph()
    ranges = []
    for axis in (0, 1):
        length = g.op("Squeeze", g.dim("x", axis), g.ints(0))
        ranges.append(g.op("Range", g.const(np.int64(0)), length, g.const(np.int64(1))))
    rows = g.op("Mul", g.op("Unsqueeze", ranges[0], g.ints(1)), g.const(np.int64(7)))
    grid = g.op("Cast", g.op("Add", rows, g.op("Unsqueeze", ranges[1], g.ints(0))), to=FLOAT)
    return program_of(g, {"x": ["H", "W"]}, [g.op("Add", "x", g.op("Sqrt", grid))])


def looked_up() -> Program:
    """Rows of a table of 40 for as many positions as there are, which fails where there are more."""
    g = Graph()
    length = g.op("Squeeze", g.dim("x", 0), g.ints(0))
    positions = g.op("Range", g.const(np.int64(0)), length, g.const(np.int64(1)))
    return program_of(g, {"x": ["N", 4]}, [g.op("Add", "x", g.op("Gather", g.weights(40, 4), positions))])


def best() -> Program:
    """The largest elements, as many as there are or 10: a number that goes through NumPy."""
    g = Graph()
    k = g.op("Min", g.dim("x", 0), g.ints(10))
    return program_of(g, {"x": ["N"]}, list(g.op("TopK", "x", k, outputs=2)))


def counted() -> Program:
    """The number of elements as a value of a result, and a filled tensor."""
    g = Graph()
    size = g.op("Cast", g.op("Size", "x"), to=FLOAT)
    filled = g.op("ConstantOfShape", g.op("Shape", "x"))
    return program_of(g, {"x": ["H", "W"]}, [g.op("Div", "x", size), g.op("Add", filled, "x")])


CASES: dict[str, tuple[Callable[[], Program], int, int]] = {
    "shape arithmetic": (shape_arithmetic, 2, 3),
    "positions": (positions, 2, 2),
    "looked up": (looked_up, 1, 2),
    "best": (best, 1, 1),
    "counted": (counted, 2, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_copies_are_those_that_settling_gives(name: str) -> None:
    make, moving, axes = CASES[name]
    source = make()
    before = str(source)
    copies = Settled(source, rewrite)
    rng = np.random.default_rng(3)
    fixed = source.parameter_shapes()["x"].dims[moving:axes]
    for count in range(60):
        most = 3 if count % 3 == 0 else 45
        lens = (*(int(n) for n in rng.integers(0, most, moving)), *(d.min for d in fixed))
        try:
            wanted = copies.made({"x": lens})
        except MgxError as error:
            with pytest.raises(type(error)):
                copies.of({"x": lens})
            continue
        found = copies.of({"x": lens}).program
        validate(found)
        assert found == wanted, lens
        if count % 4 == 0 and 0 not in lens and "looked" not in name:
            x = rng.standard_normal(lens).astype(np.float32)
            for a, b in zip(evaluate(found, {"x": x}), evaluate(wanted, {"x": x}), strict=True):
                np.testing.assert_array_equal(a, b)
    assert str(source) == before
    assert copies.replayed >= (0 if name == "best" else 20)


@pytest.mark.parametrize("traced", [True, False])
def test_bounds_of_slices_follow_from_lengths(traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For lengths of which some are as they were traced, also where what slices compute notes nothing."""
    if not traced:
        monkeypatch.setattr("mgx_numba.ops.slice.slice_bounds", lambda a, b, length: slice(a, b).indices(length)[:2])
    g = Graph()
    half = g.op("Add", g.op("Div", g.dim("x", 2), g.ints(2)), g.ints(1))
    source = program_of(g, {"x": ["N", "H", "W"]}, [g.op("Slice", "x", g.ints(0), half, g.ints(2))])
    copies = Settled(source, rewrite)
    for n, h, w in itertools.product((37, 67, 1, 4), (41, 71, 1), (43, 73, 1, 2, 0)):
        lens = {"x": (n, h, w)}
        assert copies.of(lens).program == copies.made(lens), lens
    assert copies.replayed or not traced


def test_lengths_that_do_not_fit_are_refused_after_others_were_traced() -> None:
    g = Graph()
    source = program_of(g, {"x": ["N", 3], "y": ["M", 3]}, [g.op("Relu", g.op("Sub", "x", "y"))])
    copies = Settled(source, rewrite)
    for n in range(2, 12):
        copies.of({"x": (n, 3), "y": (n, 3)})
    assert copies.replayed
    with pytest.raises(MgxError, match="do not broadcast|differ"):
        copies.of({"x": (4, 3), "y": (5, 3)})
    assert copies.of({"x": (4, 3), "y": (1, 3)}).program.output_shapes()[0].lens == (4, 3)


def test_lengths_beyond_the_end_of_a_table_are_refused() -> None:
    """Before a plan is made of them, and with the node that takes what is not there."""
    g = Graph()
    length = g.op("Squeeze", g.dim("x", 0), g.ints(0))
    places = g.op("Range", g.const(np.int64(0)), length, g.const(np.int64(1)))
    table = g.op("Gather", g.weights(8, 3), places)
    copies = Settled(program_of(g, {"x": ["N", 3]}, [g.op("Add", "x", table)]), rewrite)
    for n in (7, 9, 5, 8, 12, 6):
        if n <= 8:
            assert copies.of({"x": (n, 3)}).program.output_shapes()[0].lens == (n, 3)
            continue
        with pytest.raises(ShapeError, match="gather: index 8 is out of range for .* of length 8"):
            copies.of({"x": (n, 3)})
    assert copies.replayed


def test_large_constants_are_left_to_settling() -> None:
    """A replayed copy computes none, however many elements it would have."""
    source = positions()
    copies = Settled(source, rewrite)
    for n in range(2, 9):
        copies.of({"x": (n, n + 1)})
    before = copies.replayed
    assert before
    lens = {"x": (400, 300)}
    assert copies.of(lens).program == copies.made(lens)
    assert copies.replayed == before


def test_programs_with_bodies_are_settled_by_themselves() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape.dynamic(Type.float_type, [DynamicDimension(1, 64), 2]))
    copies = Settled(program, rewrite)
    body = program.create_module("body")
    body.add_return([body.add_instruction("relu", [body.add_parameter("y", x.shape)])])
    program.main.add_return([program.main.add_instruction("identity", [x])])
    assert copies.of({"x": (5, 2)}).program.output_shapes()[0].lens == (5, 2)


def test_an_element_that_follows_from_lengths_is_moved_and_not_read() -> None:
    array = np.empty(3, object)
    array[:] = [Followed(4), 5, Followed(6)]
    moved = make_op("reverse", axes=(0,)).compute(Shape(Type.int64_type, [3]), [array])
    assert integers(moved) == [6, 5, 4]
    assert integers(np.array([1.5])) is None and integers(np.array(["a"], object)) is None
    assert integers(np.array([[1, 2]], np.int8)) == [1, 2]
    for read in (
        int,
        bool,
        hash,
        lambda v: v == 4,
        lambda v: v < 4,
        lambda v: v + 1,
        lambda v: np.array([v]).astype(int),
    ):
        with pytest.raises(TypeError):
            read(array[0])
