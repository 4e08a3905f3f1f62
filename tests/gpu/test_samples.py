"""Sample lengths, for which the GPU target lowers a program with dynamic inputs when it is compiled."""

from __future__ import annotations

import itertools

from mgx_numba.core.shape import UNBOUNDED, DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.targets.samples import sample_lengths


def test_samples_lie_in_the_ranges_and_keep_symbols_equal() -> None:
    program = Program()
    n = DynamicDimension(2, 9, frozenset({4}), "n")
    t = DynamicDimension(1, 1_000_000)
    program.main.add_parameter("x", Shape.dynamic(Type.float_type, [n, t]))
    program.main.add_parameter("y", Shape.dynamic(Type.float_type, [3, n]))
    found = list(sample_lengths(program))
    assert found[0]["x"][0] == 4
    assert {2, 9} <= {lens["x"][0] for lens in found}
    assert {1, 1_000_000} <= {lens["x"][1] for lens in found}
    assert all(lens["y"] == (3, lens["x"][0]) for lens in found)
    assert len({tuple(lens.items()) for lens in found}) == len(found) < 64


def test_lengths_that_passes_treat_as_no_others_are_among_those_that_tell() -> None:
    program = Program()
    n, t, past, most = (DynamicDimension(0, 64, symbol=name) for name in "ntpm")
    program.main.add_parameter("x", Shape.dynamic(Type.float_type, [n, t, past]))
    program.main.add_parameter("y", Shape.dynamic(Type.float_type, [DynamicDimension(0, UNBOUNDED), most]))
    found = [(*lens["x"], *lens["y"]) for lens in sample_lengths(program, telling=True)]
    short = {tuple(k for k, length in enumerate(lens) if length < 2) for lens in found}
    assert {(), (0,), (1,), (2,), (3,), (0, 1), (0, 2), (0, 3)} <= short
    assert {lens.index(0) for lens in found if 0 in lens} == {1, 2, 4}


def test_small_lengths_are_tried_early_whatever_the_range() -> None:
    """Products of a few rows have kernels of their own."""
    tried = []
    for most in (8, 5_000_000):
        program = Program()
        x = program.main.add_parameter("x", Shape.dynamic(Type.float_type, [DynamicDimension(1, most), 3]))
        program.main.add_return([x])
        tried.append({lens["x"][0] for lens in itertools.islice(sample_lengths(program), 12)})
    assert {1, 2, 3, 4} <= tried[0] & tried[1]
