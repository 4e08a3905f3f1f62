"""16-bit weights are rounded so that sums along the reduced axis equal those of the exact weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.core.types import Type
from mgx_numba.graph.passes.rounded_weights import narrow_weights, round_keeping_sums

TYPES = [Type.bf16_type, Type.half_type]


def neighbours(values: np.ndarray, type: Type) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest numbers of a type below and above each value."""
    near = values.astype(type.numpy)
    wide = near.astype(np.float32)
    towards = np.where(wide < values, np.inf, -np.inf).astype(type.numpy)
    other = np.where(wide == values, near, np.nextafter(near, towards)).astype(np.float32)
    return np.minimum(wide, other), np.maximum(wide, other)


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("lens", [(5, 1), (3, 2), (7, 9), (6, 130), (2, 1025), (0, 4), (4, 0)])
def test_sums_of_rows_are_kept(type: Type, lens: tuple[int, int]) -> None:
    values = np.random.default_rng(1).standard_normal(lens).astype(np.float32)
    found = round_keeping_sums(values, type)
    assert found.dtype == type.numpy and found.shape == lens
    wide = found.astype(np.float32)
    low, high = neighbours(values, type)
    assert ((wide == low) | (wide == high)).all()
    nearest = values.astype(type.numpy).astype(np.float32)
    sums, before = (np.abs((v - values).sum(1, dtype=np.float64)) for v in (wide, nearest))
    assert (sums <= before).all()
    if lens[1] > 100:
        assert sums.max() < before.max() / 5
        assert np.linalg.norm(wide - values) < 1.02 * np.linalg.norm(nearest - values)


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("columns", [1, 9, 130, 1025])
def test_sums_of_products_with_means_are_kept(type: Type, rows: int, columns: int) -> None:
    rng = np.random.default_rng(9)
    values = rng.standard_normal((6, columns)).astype(np.float32)
    means = rng.standard_normal((rows, columns)).astype(np.float32)
    means[:, ::7] = 0
    wide = round_keeping_sums(values, type, means).astype(np.float32)
    low, high = neighbours(values, type)
    assert ((wide == low) | (wide == high)).all()
    nearest = values.astype(type.numpy).astype(np.float32)
    assert np.array_equal(wide[:, ::7], nearest[:, ::7])
    sums, before = (np.abs(((v - values) * means).sum(1, dtype=np.float64)) for v in (wide, nearest))
    assert (sums <= before).all()
    if columns > 100:
        assert np.linalg.norm(sums) < np.linalg.norm(before) / 5
        assert np.linalg.norm(wide - values) < 1.03 * np.linalg.norm(nearest - values)


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_what_needs_no_rounding_stays(type: Type) -> None:
    values = np.random.default_rng(2).standard_normal((4, 33)).astype(np.float32)
    once = round_keeping_sums(values, type).astype(np.float32)
    assert np.array_equal(round_keeping_sums(once, type).astype(np.float32), once)
    assert not round_keeping_sums(np.zeros((3, 5), np.float32), type).any()


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_rows_with_strange_values_are_rounded_to_the_nearest(type: Type) -> None:
    values = np.random.default_rng(3).standard_normal((5, 64)).astype(np.float32)
    values[0, 3], values[1, 4], values[2, 5], values[3] = np.nan, np.inf, -3.4e38, 1e-42
    found = round_keeping_sums(values, type)
    with np.errstate(over="ignore"):
        nearest = values.astype(type.numpy)
    assert np.array_equal(found[:3].astype(np.float32), nearest[:3].astype(np.float32), equal_nan=True)
    assert np.isfinite(found[3:].astype(np.float32)).all()
    turned = np.asfortranarray(values)
    assert np.array_equal(round_keeping_sums(turned, type).view(np.uint16), found.view(np.uint16))


def product(build: Any) -> Any:
    """The instruction that ``build`` makes of a main module, in the portable form."""
    p = mgx_numba.program()
    main = p.get_main_module()
    main.add_return([build(main)])
    return p.portable.main.results()[0]


def dot(main: Any, weights: Any, lens: tuple[int, ...] = (3, 20)) -> Any:
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=lens))
    return main.add_instruction(mgx_numba.op("dot"), [x, weights])


def test_columns_of_matrices_and_filters_keep_their_sums() -> None:
    rng = np.random.default_rng(4)
    matrix = rng.standard_normal((20, 6)).astype(np.float32)

    def turned(main: Any) -> Any:
        literal = main.add_literal(np.ascontiguousarray(matrix.T))
        return dot(main, main.add_instruction(mgx_numba.op("transpose", permutation=[1, 0]), [literal]))

    def repeated(main: Any) -> Any:
        literal = main.add_literal(matrix)
        spread = main.add_instruction(mgx_numba.op("multibroadcast", out_lens=[2, 20, 6]), [literal])
        return dot(main, spread, (2, 3, 20))

    for build in (lambda main: dot(main, main.add_literal(matrix)), turned, repeated):
        found = narrow_weights(product(build), Type.bf16_type)
        assert found is not None and found.size == matrix.size
        expected = round_keeping_sums(np.ascontiguousarray(matrix.T), Type.bf16_type).T
        assert np.array_equal(found.reshape(20, 6).view(np.uint16), np.ascontiguousarray(expected).view(np.uint16))
    filters = rng.standard_normal((8, 2, 3, 3)).astype(np.float32)

    def grouped(main: Any) -> Any:
        x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[1, 4, 5, 5]))
        return main.add_instruction(mgx_numba.op("convolution", group=2), [x, main.add_literal(filters)])

    found = narrow_weights(product(grouped), Type.half_type)
    assert found is not None and found.shape == filters.shape
    expected = round_keeping_sums(filters.reshape(8, -1), Type.half_type)
    assert np.array_equal(found.reshape(8, -1).view(np.uint16), expected.view(np.uint16))


def test_means_of_channels_are_those_of_all_taps_and_columns() -> None:
    rng = np.random.default_rng(10)
    filters, means = rng.standard_normal((6, 2, 3, 3)).astype(np.float32), rng.random(4, np.float32)

    def grouped(main: Any) -> Any:
        x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[1, 4, 5, 5]))
        return main.add_instruction(mgx_numba.op("convolution", group=2), [x, main.add_literal(filters)])

    found = narrow_weights(product(grouped), Type.bf16_type, means)
    each = np.repeat(np.repeat(means.reshape(2, 2), 3, 0), 9, 1)
    expected = round_keeping_sums(filters.reshape(6, -1), Type.bf16_type, each)
    assert found is not None and np.array_equal(found.reshape(6, -1).view(np.uint16), expected.view(np.uint16))
    matrix = rng.standard_normal((2, 4, 5)).astype(np.float32)
    for given in (means, means[:1]):
        found = narrow_weights(product(lambda m: dot(m, m.add_literal(matrix), (2, 3, 4))), Type.bf16_type, given)
        columns = np.ascontiguousarray(matrix.swapaxes(1, 2)).reshape(10, 4)
        expected = round_keeping_sums(columns, Type.bf16_type, np.broadcast_to(given, (1, 4)))
        assert found is not None
        assert np.array_equal(
            np.ascontiguousarray(found.swapaxes(1, 2)).view(np.uint16).reshape(10, 4), expected.view(np.uint16)
        )


def test_constants_with_other_readers_are_left() -> None:
    matrix = np.random.default_rng(5).standard_normal((20, 20)).astype(np.float32)

    def shared(main: Any) -> Any:
        literal = main.add_literal(matrix)
        return main.add_instruction(mgx_numba.op("add"), [dot(main, literal, (20, 20)), literal])

    assert narrow_weights(product(shared).inputs[0], Type.bf16_type) is None

    def uniform(main: Any) -> Any:
        one = main.add_literal(np.float32(0.3))
        return dot(main, main.add_instruction(mgx_numba.op("multibroadcast", out_lens=[20, 4]), [one]))

    assert narrow_weights(product(uniform), Type.bf16_type) is None


def test_computed_weights_are_left() -> None:
    def computed(main: Any) -> Any:
        y = main.add_parameter("y", mgx_numba.shape(type="float", lens=[20, 4]))
        return dot(main, y)

    assert narrow_weights(product(computed), Type.bf16_type) is None


def test_two_products_share_their_weights() -> None:
    matrix = np.random.default_rng(6).standard_normal((20, 20)).astype(np.float32)
    p = mgx_numba.program()
    main = p.get_main_module()
    literal = main.add_literal(matrix)
    first = main.add_instruction(mgx_numba.op("relu"), [dot(main, literal)])
    main.add_return([main.add_instruction(mgx_numba.op("dot"), [first, literal])])
    mgx_numba.quantize_bf16(p)
    assert str(p).count("@literal") == 1


def test_branches_have_weights_of_their_own_where_both_read_one_constant() -> None:
    rng = np.random.default_rng(8)
    matrix = rng.standard_normal((20, 20)).astype(np.float32)

    def program() -> mgx_numba.program:
        p = mgx_numba.program()
        main = p.get_main_module()
        x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[3, 20]))
        which = main.add_parameter("which", mgx_numba.shape(type="bool", lens=[1]))
        literal = main.add_literal(matrix)
        branches = [p.create_module(name) for name in ("then", "else")]
        for branch, name in zip(branches, ("relu", "tanh")):
            product = branch.add_instruction(mgx_numba.op("dot"), [x, literal])
            branch.add_return([branch.add_instruction(mgx_numba.op(name), [product])])
        taken = main.add_instruction(mgx_numba.op("if"), [which], branches)
        taken = main.add_instruction(mgx_numba.op("get_tuple_elem", index=0), [taken])
        main.add_return([main.add_instruction(mgx_numba.op("dot"), [taken, literal])])
        return p

    quantized, exact = mgx_numba.quantize_bf16(program()).compile("ref"), program().compile("ref")
    for which in (True, False):
        given = {"x": rng.standard_normal((3, 20)).astype(np.float32), "which": np.array([which])}
        found, right = (np.asarray(p.run(given)[0]) for p in (quantized, exact))
        assert 0 < np.abs(found - right).max() < 0.02 * np.abs(right).max()


@pytest.mark.parametrize("quantize", [mgx_numba.quantize_bf16, mgx_numba.quantize_fp16])
def test_products_of_positive_values_lose_less(quantize: Any) -> None:
    """Most of the error is the mean of the inputs times the sum of the weights' errors."""
    rng = np.random.default_rng(7)
    matrix = rng.standard_normal((400, 24)).astype(np.float32)
    given = {"x": (1 + rng.random((16, 400)) / 4).astype(np.float32)}
    kind = Type.bf16_type if quantize is mgx_numba.quantize_bf16 else Type.half_type
    given["x"] = given["x"].astype(kind.numpy).astype(np.float32)  # exact, so that weights alone lose
    exact = given["x"].astype(np.float64) @ matrix
    nearest = given["x"].astype(np.float64) @ matrix.astype(kind.numpy).astype(np.float64)
    p = mgx_numba.program()
    main = p.get_main_module()
    value = dot(main, main.add_literal(matrix), (16, 400))
    main.add_return([main.add_instruction(mgx_numba.op("sub"), [value, main.add_literal(exact.astype(np.float32))])])
    apart = np.asarray(quantize(p, ["dot"]).compile("cpu").run(given)[0])
    assert np.linalg.norm(apart) < 0.75 * np.linalg.norm(nearest - exact)


@pytest.mark.parametrize("quantize", [mgx_numba.quantize_bf16, mgx_numba.quantize_fp16])
def test_channels_with_means_of_their_own_lose_less(quantize: Any) -> None:
    """Weights are rounded by the means that biases and ReLU give the channels."""
    rng = np.random.default_rng(11)
    kind = Type.bf16_type if quantize is mgx_numba.quantize_bf16 else Type.half_type
    first = (rng.standard_normal((5, 300)) / 8).astype(kind.numpy).astype(np.float32)
    bias, matrix = (rng.standard_normal(n).astype(np.float32) for n in (300, (300, 24)))
    p = mgx_numba.program()
    main = p.get_main_module()
    add = lambda name, *inputs, **given: main.add_instruction(mgx_numba.op(name, **given), list(inputs))  # noqa: E731
    spread = add("multibroadcast", main.add_literal(bias), out_lens=[64, 300])
    value = add("relu", add("add", dot(main, main.add_literal(first), (64, 5)), spread))
    main.add_return([add("dot", value, main.add_literal(matrix))])
    given = rng.standard_normal((64, 5)).astype(kind.numpy).astype(np.float32)
    taken = np.maximum(given.astype(np.float64) @ first + bias, 0)
    nearest = taken @ (matrix.astype(kind.numpy).astype(np.float64) - matrix)
    found = np.asarray(quantize(p, ["dot"]).compile("ref").run({"x": given})[0])
    apart = (found - taken @ matrix.astype(np.float64)).mean(0)
    assert np.linalg.norm(apart) < 0.3 * np.linalg.norm(nearest.mean(0))
