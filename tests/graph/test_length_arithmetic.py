"""Arithmetic on symbolic lengths, evaluated at lengths, gives the operators' results for numbers."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.dim import Dim, Scope, evaluate
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.length_arithmetic import Ratio, array_of_lengths, fold_lengths, has_symbolic_elements
from mgx_numba.ops.base import make_op

OF_INTEGERS = "add sub mul div mod fmod min max equal less greater less_or_equal greater_or_equal".split()
OF_FLOATS = "add sub mul min max equal less greater".split()
SETS = ((1, 1), (2, 5), (7, 3), (16, 16), (41, 37), (300, 2))


def scope_of_two() -> tuple[Scope, Dim, Dim]:
    scope = Scope()
    return scope, scope.symbol("a", 0, 1 << 20, 37), scope.symbol("b", 1, 1 << 20, 41)


def numbers(value: np.ndarray, type: Type, values: dict[Dim, int]) -> np.ndarray:
    """Return a value with numbers in the place of symbols."""
    found = [
        evaluate(v.numerator, values) / v.denominator if isinstance(v, Ratio) else evaluate(v, values)
        for v in value.ravel().tolist()
    ]
    return np.array(found, type.numpy).reshape(value.shape)


def random_values(rng: np.random.Generator, a: Dim, b: Dim, type: Type) -> np.ndarray:
    some = [a, b, a + b, 2 * a + 3, a * 4, a - b, a // 2, 0, 1, 5, -3, 8]
    chosen = [some[k] for k in rng.integers(0, len(some), 4)]
    if type is Type.float_type:
        chosen = [v if isinstance(v, Dim) else v * float(rng.choice([1, 0.5, 0.25])) for v in chosen]
        chosen = [Ratio(v, 2) if isinstance(v, Dim) and rng.random() < 0.3 and v.divisor % 2 else v for v in chosen]
    return array_of_lengths(chosen, (4,)) if any(isinstance(v, (Dim, Ratio)) for v in chosen) else np.array(chosen)


@pytest.mark.parametrize("type", [Type.int64_type, Type.int32_type, Type.float_type])
def test_pointwise_operators(type: Type) -> None:
    rng = np.random.default_rng(0)
    followed = 0
    shape = Shape(type, (4,))
    for trial in range(120):
        scope, a, b = scope_of_two()
        names = OF_FLOATS if type is Type.float_type else OF_INTEGERS
        op = make_op(names[trial % len(names)])
        output = op.compute_shape([shape, shape])
        x, y = (random_values(rng, a, b, type) for _ in range(2))
        if not has_symbolic_elements(x) and not has_symbolic_elements(y):
            continue
        found = fold_lengths(op, output, [shape, shape], [x, y])
        if found is None:  # a quotient by what may be negative, say
            continue
        followed += 1
        for p, q in SETS:
            values = {a: p, b: q}
            if not evaluate(scope.holds(), values):
                continue
            expected = op.compute(output, [numbers(v, type, values) for v in (x, y)])
            np.testing.assert_array_equal(numbers(found, output.type, values), expected, err_msg=f"{op}({x}, {y})")
    assert followed > 60


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"])
@pytest.mark.parametrize("axes", [(0,), (1,), ()])
def test_reductions(name: str, axes: tuple[int, ...]) -> None:
    _, a, b = scope_of_two()
    x = array_of_lengths([a, b, 2, a + b, 3, b], (2, 3))
    op, shape = make_op(name, axes=axes), Shape(Type.int64_type, (2, 3))
    output = op.compute_shape([shape])
    found = fold_lengths(op, output, [shape], [x])
    assert found is not None
    for p, q in SETS:
        values = {a: p, b: q}
        expected = op.compute(output, [numbers(x, Type.int64_type, values)])
        np.testing.assert_array_equal(numbers(found, Type.int64_type, values), expected)


def test_choices_and_moves() -> None:
    _, a, b = scope_of_two()
    x, vector = array_of_lengths([a, b, 7], (3,)), Shape(Type.int64_type, (3,))
    condition = fold_lengths(make_op("less"), Shape(Type.bool_type, (3,)), [vector] * 2, [x, np.array([9, 9, 9])])
    assert condition is not None
    types = [Shape(Type.bool_type, (3,)), vector, vector]
    chosen = fold_lengths(make_op("where"), vector, types, [condition, x, np.array([1, 2, 3])])
    picked = make_op("gather", axis=0)
    index = np.array([2, -3])
    moved = fold_lengths(picked, Shape(Type.int64_type, (2,)), [vector, Shape(Type.int64_type, (2,))], [x, index])
    assert chosen is not None and moved is not None and moved.tolist()[0] == 7
    for p, q in SETS:
        values = {a: p, b: q}
        plain = numbers(x, Type.int64_type, values)
        np.testing.assert_array_equal(numbers(chosen, Type.int64_type, values), np.where(plain < 9, plain, [1, 2, 3]))
        np.testing.assert_array_equal(numbers(moved, Type.int64_type, values), plain[[2, 0]])
    assert fold_lengths(picked, vector, [vector, vector], [np.arange(3), x]) is None


def test_conversions_ask_whether_a_type_holds_a_length() -> None:
    scope = Scope()
    a = scope.symbol("a", 0, None, 37)
    x = array_of_lengths([a], (1,))
    wide, shape = Shape(Type.float_type, (1,)), Shape(Type.int64_type, (1,))
    assert fold_lengths(make_op("convert", target_type=Type.float_type), wide, [shape], [x]) is not None
    ((guard),) = scope.guards.values()
    assert evaluate(guard.condition, {a: 1 << 24}) == guard.answer != evaluate(guard.condition, {a: (1 << 24) + 1})
    half = make_op("mul")
    product = fold_lengths(half, wide, [wide, wide], [x, np.float32([0.5])])
    assert product is not None and product[0] == Ratio(a, 2)
    assert fold_lengths(half, wide, [wide, wide], [x, np.float32([1 / 3])]) is None
    assert fold_lengths(half, wide, [wide, wide], [x, np.float32([np.nan])]) is None
    down = fold_lengths(make_op("floor"), wide, [wide], [product])
    assert down is not None and down[0] is a // 2


def test_lengths_and_iota() -> None:
    scope, a, b = scope_of_two()
    op = make_op("lengths", values=(a, 3, b), lens=(3,))
    assert op.symbolic and op.compute_shape(()) == Shape(Type.int64_type, (3,))
    assert make_op("lengths", values=(a,)).compute_shape(()).without_axes
    with pytest.raises(Exception, match=r"lens \[2\] do not fit 3 values"):
        make_op("lengths", values=(a, 3, b), lens=(2,)).compute_shape(())
    plain = make_op("lengths", values=(4, 3, 2, 1), lens=(2, 2))
    np.testing.assert_array_equal(plain.compute(plain.compute_shape(()), []), [[4, 3], [2, 1]])
    assert make_op("iota", length=a).compute_shape(()).lens[0] is a
    counted = make_op("iota", length=4)
    np.testing.assert_array_equal(counted.compute(counted.compute_shape(()), []), np.arange(4))
    assert not scope.guards
