"""Pointwise operations behind a concatenation of two values are computed for each value."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.dim import Dim, Scope
from mgx_numba.core.shape import UNBOUNDED, DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import run_passes
from mgx_numba.graph.passes.distribute_concat import DistributeConcat
from mgx_numba.graph.program import Program
from mgx_numba.graph.substitution import settled
from mgx_numba.graph.symbolic import symbolic_program
from mgx_numba.targets.ref.interpreter import evaluate

from .support import Graph, check, find, names, random_inputs


def rotated(lens: tuple[int, ...], axis: int, *, shared: bool = False, computed: bool = True) -> Program:
    """Rotary positions: halves along an axis are exchanged, and one is negated."""
    g = Graph()
    x = g.param("x", lens)
    half = lens[axis] // 2
    a = g.op("slice", x, axes=(axis,), starts=(0,), ends=(half,))
    b = g.op("slice", x, axes=(axis,), starts=(half,), ends=(lens[axis],))
    turned = g.op("concat", g.op("neg", b) if computed else b, a, axis=axis)
    cosine = g.spread(g.random(*lens[-2:]), *lens)
    sine = g.spread(g.random(*lens[-2:], seed=3), *lens)
    y = g.op("add", g.op("mul", x, cosine), g.op("mul", turned, sine))
    y = g.op("convert", g.op("mul", y, g.scalar(0.5, y)), target_type=Type.half_type)
    results: list[Instruction] = [g.op("exp", y), g.op("tanh", y)]
    return g.ret(*results, *([g.op("sqrt", turned)] if shared else []))


@pytest.mark.parametrize(("lens", "axis"), [((2, 3, 5, 32), 3), ((2, 3, 6, 16), 2), ((4, 3, 5, 8), 0)])
@pytest.mark.parametrize("special", [False, True])
def test_halves_are_rotated_apart(lens: tuple[int, ...], axis: int, special: bool) -> None:
    program = rotated(lens, axis)
    after = check(program, DistributeConcat(), special=special, rtol=1e-3, atol=1e-3)
    found = names(after, views=False)
    assert found.count("add") == 2 and found.index("concat") > max(k for k, n in enumerate(found) if n == "add")
    assert str(check(after, DistributeConcat(), rtol=1e-3, atol=1e-3)) == str(after)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (rotated((2, 3, 5, 32), 3, computed=False), "no operation computes a value for the concatenation alone"),
        (rotated((2, 3, 5, 6), 3), "parts of rows are no whole vectors"),
    ],
)
def test_a_concatenation_that_gains_nothing_stays(program: Program, reason: str) -> None:
    after = check(program, DistributeConcat(), rtol=1e-3, atol=1e-3)
    assert names(after) == names(program)
    assert [r.reason for r in after.log.refusals("distribute_concat")] == [reason]


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_halves_are_rotated_apart_behind_a_transpose(axis: int, shared: bool) -> None:
    g = Graph()
    lens = (2, 6, 4, 32)
    x, half = g.param("x", lens), lens[axis] // 2
    a, b = (g.op("slice", x, axes=(axis,), starts=(k,), ends=(k + half,)) for k in (0, half))
    joined = g.op("concat", g.op("neg", b), a, axis=axis)
    turned = g.op("transpose", joined, permutation=(0, 2, 1, 3))
    y = g.op("mul", turned, g.spread(g.random(6, 32), *turned.shape.lens))
    after = check(g.ret(g.op("exp", y), *([g.op("sqrt", joined)] if shared else [])), DistributeConcat())
    found = names(after)
    assert found.count("exp") == (1 if shared else 2)
    if not shared:  # the negation is fused with what follows
        assert find(after, "neg").inputs[0].name == "transpose"


def interleaved(lens: tuple[int, ...], shared: bool = False, half: bool = False) -> Program:
    """Rotary positions: the even and the odd elements of rows are exchanged, and the odd ones negated; ``half`` ones
    are converted between concatenation and reshape."""
    g = Graph()
    x = g.param("x", lens, "half" if half else "float")
    n = len(lens)
    pairs = g.op("reshape", x, dims=(*lens[:-1], lens[-1] // 2, 2))
    even, odd = (
        g.op("squeeze", g.op("slice", pairs, axes=(n,), starts=(k,), ends=(k + 1,)), axes=(n,)) for k in (0, 1)
    )
    turned = g.op("concat", *(g.op("unsqueeze", v, axes=(n,)) for v in (g.op("neg", odd), even)), axis=n)
    if half:
        x, turned = (g.op("convert", v, target_type=Type.float_type) for v in (x, turned))
    turned = g.op("reshape", turned, dims=lens)
    cosine = g.spread(g.random(*lens[-2:]), *lens)
    sine = g.op("mul", turned, g.spread(g.random(lens[-2], 1, seed=3), *lens))
    y = g.op("add", g.op("mul", x, cosine), g.op("mul", sine, g.spread(g.random(*lens[-2:], seed=4), *lens)))
    return g.ret(g.op("exp", y), *([g.op("sqrt", turned)] if shared else []))


@pytest.mark.parametrize("lens", [(2, 3, 5, 32), (4, 6), (1, 3, 2)])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_even_and_odd_elements_are_rotated_apart(lens: tuple[int, ...], half: bool, special: bool) -> None:
    after = check(interleaved(lens, half=half), DistributeConcat(), special=special)
    found = names(after)
    assert found.index("concat") > max(k for k, name in enumerate(found) if name == "add")
    assert found.count("neg") == 1 and found.count("exp") == 2


def test_elements_that_are_only_interleaved_stay() -> None:
    g = Graph()
    x = g.param("x", (3, 8))
    pieces = [g.op("unsqueeze", v, axes=(2,)) for v in (g.op("neg", x), x)]
    program = g.ret(g.op("reshape", g.op("concat", *pieces, axis=2), dims=(3, 16)))
    assert str(check(program, DistributeConcat())) == str(program)


def test_even_and_odd_elements_with_other_readers_stay() -> None:
    after = check(interleaved((3, 4, 8), shared=True), DistributeConcat())
    assert names(after).count("exp") == 1


def test_a_concatenation_with_other_readers_stays() -> None:
    program = rotated((2, 3, 5, 32), 3, shared=True)
    assert names(check(program, DistributeConcat(), rtol=1e-3, atol=1e-3)) == names(program)


def test_other_axes_may_have_open_lengths() -> None:
    g = Graph()
    x = g.module.add_parameter("x", Shape.dynamic(Type.float_type, (DynamicDimension(0, UNBOUNDED), 16)))
    a, b = (g.op("slice", x, axes=(1,), starts=(k,), ends=(k + 8,)) for k in (0, 8))
    turned = g.op("concat", g.op("neg", b), a, axis=1)
    program = g.ret(g.op("convert", g.op("exp", turned), target_type=Type.half_type))
    scope = Scope()
    symbolic = symbolic_program(program, scope, None)
    run_passes(symbolic, [DistributeConcat.name])
    assert names(symbolic, views=False).count("exp") == 2 and not scope.guards
    (symbol,) = {d for d in symbolic.main.parameters()[0].shape.lens if isinstance(d, Dim)}
    for length in (0, 1, 5):
        feeds = random_inputs(settled(symbolic, {symbol: length}), length)
        found = evaluate(settled(symbolic, {symbol: length}), feeds)
        half = np.split(feeds["x"], 2, axis=1)
        np.testing.assert_allclose(found[0], np.exp(np.concatenate([-half[1], half[0]], 1)).astype(np.float16), 1e-3)
