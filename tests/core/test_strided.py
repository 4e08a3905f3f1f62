"""Strided views: equal to NumPy's for integers, and for symbols equal at all their values."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from mgx_numba.codegen.gpu.contraction.gpu_contraction import CHANNELS, COLUMNS, ROWS, WeightOrder, pack_weights
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.core.dim import Dim, Scope, evaluate, known_equal
from mgx_numba.core.shape import Shape
from mgx_numba.core.strided import Strided, reshaped
from mgx_numba.core.types import Type
from mgx_numba.ops.base import Operator, make_op


def _array(lens: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(np.empty(1, "u1"), lens, strides)


def _as_numpy(found: np.ndarray, base: np.ndarray) -> Strided:
    distance = found.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return Strided(found.shape, found.strides, distance)


def _random_view(rng: random.Random) -> np.ndarray:
    lens = [rng.choice((0, 1, 1, 2, 2, 3, 4, 6)) for _ in range(rng.randint(1, 5))]
    view = _array(tuple(lens), Shape(Type.int8_type, lens).strides)
    for _ in range(rng.randint(0, 3)):
        axis = rng.randrange(view.ndim)
        match rng.randrange(4):
            case 0:
                view = view.transpose(rng.sample(range(view.ndim), view.ndim))
            case 1:
                view = view[(slice(None),) * axis + (slice(rng.randint(0, 2), None, rng.choice((1, 1, 2))),)]
            case 2:
                view = np.broadcast_to(view, (rng.randint(1, 3), *view.shape))
            case _:
                view = np.expand_dims(view, axis)
    return view


def _other_lens(rng: random.Random, lens: tuple[int, ...]) -> tuple[int, ...]:
    left, found = prod(lens), []
    while left > 1 and rng.random() < 0.9:
        divisor = rng.choice([d for d in range(1, left + 1) if left % d == 0])
        found.append(divisor)
        left //= divisor
    found.append(left)
    return tuple(found)


def test_reshape_is_a_view_exactly_where_numpys_is() -> None:
    rng, views = random.Random(5), 0
    for _ in range(3000):
        view = _random_view(rng)
        lens = _other_lens(rng, view.shape)
        try:
            wanted = np.reshape(view, lens, copy=False).strides
            views += 1
        except ValueError:
            wanted = None
        assert reshaped(view.shape, view.strides, lens) == wanted, (view.shape, view.strides, lens)
    assert 500 < views < 2900


def test_lengths_of_another_number_of_elements_are_no_view() -> None:
    assert reshaped((2, 3), (3, 1), (7,)) is None
    assert reshaped((2, 0), (1, 1), (1,)) is None


OPERATORS = [
    ((3, 4, 5), make_op("transpose", permutation=[2, 0, 1])),
    ((3, 4, 5), make_op("slice", axes=[0, 2], starts=[1, -3], ends=[2**63 - 1, -1])),
    ((3, 4), make_op("slice", axes=[1], starts=[9], ends=[2])),
    ((3, 4), make_op("slice", axes=[-1], starts=[1], ends=[3])),
    ((7, 4, 1), make_op("step", axes=[0, 2], steps=[3, 2])),
    ((7, 4, 1), make_op("reverse", axes=[0, -1])),
    ((0, 4), make_op("reverse", axes=[0])),
    ((4, 1), make_op("multibroadcast", out_lens=[2, 1, 4, 5])),
    ((1, 3, 1), make_op("multibroadcast", out_lens=[1, 3, 1])),
    ((4,), make_op("broadcast", axis=1, out_lens=[3, 4, 2, 1])),
    ((1,), make_op("scalar", scalar_bcst_dims=[3, 2])),
]


@pytest.mark.parametrize(("lens", "op"), OPERATORS, ids=[str(op) for _, op in OPERATORS])
def test_views_of_operators_are_what_numpy_makes_of_them(lens: tuple[int, ...], op: Operator) -> None:
    shape = Shape(Type.int8_type, lens)
    output = op.compute_shape([shape])
    for strides in (shape.strides, tuple(7 * s + 1 for s in shape.strides)):
        base = _array(lens, strides)
        found = op.viewed(output, Strided(lens, strides), [shape])
        wanted = _as_numpy(op.compute(output, [base]), base)
        assert found is not None and found.lens == wanted.lens == output.lens
        assert 0 in lens or 0 in output.lens or (found.strides, found.offset) == (wanted.strides, wanted.offset)


def test_a_slice_whose_bounds_are_inputs_is_no_view() -> None:
    shapes = [Shape(Type.int8_type, (3, 4)), Shape(Type.int64_type, (1,)), Shape(Type.int64_type, (1,))]
    assert make_op("slice", axes=[0]).viewed(shapes[0], Strided((3, 4), (4, 1)), shapes) is None


def test_broadcasts_refuse_other_lengths() -> None:
    with pytest.raises(ValueError, match="do not broadcast"):
        Strided((3,), (1,)).broadcast((2, 4))
    with pytest.raises(ValueError, match="2 axes"):
        Strided((3, 1), (1, 1)).broadcast((3,))


def _symbols() -> tuple[Scope, Dim, Dim, Dim]:
    scope = Scope()
    return scope, scope.symbol("b", 1, None, 37), scope.symbol("s", 1, None, 41), scope.symbol("h", 1, 512, 43)


def _standard(*lens: object) -> Strided:
    return Strided(lens, Shape(Type.float_type, lens).strides)  # type: ignore[arg-type]


def test_reshapes_of_symbols_are_views_for_all_lengths() -> None:
    scope, b, s, h = _symbols()
    qkv = _standard(b, s, 3 * h).slice(2, h, 2 * h)
    cases = [
        (_standard(b, s, 768), (b, s, 12, 64)),
        (_standard(b, s, 768), (b * s, 768)),
        (_standard(b * s, 768), (b, s, 768)),
        (_standard(b, s), (s, b)),
        (_standard(b, 1, s), (1, b, s, 1)),
        (qkv, (b, s, 1, h)),
        (qkv, (b * s, h)),
        (_standard(b, s, 12, 64).transpose(0, 2, 1, 3), (b, 1, 12, s, 64)),
        (_standard(b, s, 12, 64).transpose(0, 2, 1, 3), (b, 4, 3, s, 64)),
        (_standard(b, 16 * h).slice(1, 0, 8 * h), (b, 4, 2 * h)),
        (_standard(2 * b, s, 64).slice(2, 0, 32), (2, b, s, 32)),
        (_standard(2 * b, s, 64).slice(2, 0, 32), (2 * b * s, 32)),
        (_standard(b, s + 1, 8).transpose(1, 0, 2), (s + 1, b, 2, 4)),
    ]
    for source, lens in cases:
        found = reshaped(source.lens, source.strides, lens)
        assert found is not None, (source, lens)
        for values in ({b: 37, s: 41, h: 43}, {b: 1, s: 5, h: 3}, {b: 2, s: 1, h: 1}, {b: 1, s: 1, h: 1}):
            at = [tuple(evaluate(n, values) for n in own) for own in (*source[:2], lens, found)]
            wanted = np.reshape(_array(at[0], at[1]), at[2], copy=False).strides
            assert all(n == 1 or x == y for n, x, y in zip(at[2], at[3], wanted)), (source, lens, values)
    assert not scope.guards


def test_reshapes_of_symbols_that_need_copies_for_some_lengths_are_none() -> None:
    scope, b, s, h = _symbols()
    assert reshaped((b, 12, s, 64), (768 * s, 64, 768, 1), (b, 12 * s, 64)) is None  # a view where s is 1
    assert reshaped((b, s), (1, b), (b * s,)) is None
    short = (s + 3) // 32  # 1 for the example length, as the product that it is a part of
    assert reshaped((b, 8, short, short), (8, 1, 8 * b * short, 8 * b), (b, 8, short * short)) == (8, 1, 8 * b)
    assert reshaped((b, s), (2 * s + 1, 2), (s, b)) is None
    assert reshaped((b, s), (s, 1), (b, h)) is None
    assert not scope.guards


def test_slices_of_symbols_ask_nothing() -> None:
    scope, b, s, h = _symbols()
    x = Shape(Type.float_type, (b, s, h))
    for op in (
        make_op("slice", axes=[1], starts=[-1], ends=[2**63 - 1]),
        make_op("slice", axes=[1, 2], starts=[s - 1, 0], ends=[s, h]),
        make_op("slice", axes=[1], starts=[-(2**63)], ends=[-1]),
        make_op("slice", axes=[1], starts=[3], ends=[9]),
        make_op("step", axes=[1], steps=[2]),
        make_op("reverse", axes=[1]),
    ):
        output = op.compute_shape([x])
        found = op.viewed(output, Strided(x.lens, x.strides), [x])
        assert found is not None and all(map(known_equal, found.lens, output.lens))
        for values in ({b: 37, s: 41, h: 43}, {b: 1, s: 5, h: 3}, {b: 2, s: 1, h: 1}, {b: 2, s: 4, h: 1}):
            lens, at = [tuple(evaluate(n, values) for n in own) for own in (x.lens, output.lens)]
            base = _array(lens, Shape(Type.int8_type, lens).strides)
            fixed = type(op)(
                **{
                    k: v if isinstance(v, int) else tuple(evaluate(n, values) for n in v)
                    for k, v in op.attributes().items()
                }
            )
            wanted = _as_numpy(fixed.compute(Shape(Type.int8_type, at), [base]), base)
            own = [tuple(evaluate(n, values) for n in one) for one in found[:2]]
            assert own[0] == wanted.lens == at
            assert 0 in at or (own[1], evaluate(found.offset, values)) == (wanted.strides, wanted.offset)
    assert not scope.guards


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("order", [ROWS, COLUMNS, CHANNELS])
def test_weights_of_convolutions_are_seen_in_the_order_in_which_arrays_are_packed(
    order: WeightOrder, transposed: bool
) -> None:
    problem = ConvProblem(1, 4, 6, (5, 5), (3, 2), groups=2, transposed=transposed)
    lens = problem.weight_lens
    base = _array(lens, Shape(Type.int8_type, lens).strides)
    found = pack_weights(problem, order, Strided(lens, base.strides))
    assert found == _as_numpy(pack_weights(problem, order, base), base)
    with pytest.raises(ValueError, match="without a copy"):  # which NumPy would make, of places that are not there
        pack_weights(problem, order, Strided(lens, (1, *[0] * (len(lens) - 2), 7)))
