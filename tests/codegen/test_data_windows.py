"""Kernels for local response normalisation, one-hot encoding and scatters, against NumPy meanings."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.lrn import lrn_launch
from mgx_numba.codegen.cpu.data.onehot import onehot_launch
from mgx_numba.codegen.cpu.data.scatter import scatter_launch, scatternd_launch
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.ops.base import make_op
from tests.values import empty_in_order, in_order, normal

from .launching import run_launch, tensor_of

values = functools.partial(normal, scale=3, seed=7)


def shape_of(array: np.ndarray) -> Shape:
    return Shape(from_numpy(array.dtype), array.shape)


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 2, 3, 0)], ids=str)
def test_lrn_windows_and_memory_orders(size: int, order: tuple[int, ...]) -> None:
    check_lrn(values(2, 37, 5, 7), order, size=size, alpha=0.3, beta=0.75, bias=1.5)
    check_lrn(values(2, 3, 5, 7), order, gap=2, size=size, alpha=0.3, beta=0.75, bias=1.5)


@pytest.mark.parametrize("beta", [0.5, 0.6, 1.0])
def test_lrn_powers(beta: float) -> None:
    check_lrn(values(1, 20, 3, 3), (0, 2, 3, 1), size=3, alpha=0.3, beta=beta, bias=1)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_lrn_other_floats(dtype: str) -> None:
    check_lrn(values(1, 20, 3, 3, dtype=dtype), (0, 2, 3, 1), size=3)


def test_lrn_of_more_channels_than_scratch_memory_holds() -> None:
    check_lrn(values(1, 5000, 2), (0, 2, 1), size=5)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("bias", [0, 1])
def test_lrn_of_infinity_and_nan_and_of_zeros(bias: int, order: tuple[int, ...]) -> None:
    x = values(2, 40, 3, 3)
    x[0, 5, 1, 1], x[0, 9, 2, 0], x[1, 20, 0, 0], x[1, :, 2, 2] = np.inf, np.nan, -np.inf, 0
    placed, out = in_order(x, order), empty_in_order(x.shape, x.dtype, order)
    op = make_op("lrn", size=5, alpha=0.3, beta=0.75, bias=bias)
    run_launch(lrn_launch(op, tensor_of(placed), tensor_of(out)), {"x": placed, "out": out})
    wide = np.pad(x.astype(np.float64), ((0, 0), (2, 2), (0, 0), (0, 0)))
    squares = sum(wide[:, k : k + 40] ** 2 for k in range(5))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(out, x / (bias + 0.06 * squares) ** 0.75, rtol=1e-6)


def check_lrn(x: np.ndarray, order: Any, gap: int = 0, **attributes: Any) -> None:
    op = make_op("lrn", **attributes)
    placed, out = in_order(x, order, gap), empty_in_order(x.shape, x.dtype, order, gap)
    run_launch(lrn_launch(op, tensor_of(placed), tensor_of(out)), {"x": placed, "out": out})
    rough = 1e-3 if x.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(out, op.compute(shape_of(x), [x]), rtol=rough, atol=rough)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_onehot(axis: int, dtype: str) -> None:
    indices = np.random.default_rng(2).integers(-30, 30, (5, 33))
    indices[0, 0] = 2**40 + 3
    for depth in (1, 9, 30):
        op = make_op("onehot", axis=axis, depth=depth)
        levels = np.array([0, 1], dtype)
        shape = op.compute_shape([shape_of(indices), shape_of(levels)])
        out = empty_in_order(shape.lens, levels.dtype, gap=1)
        launch = onehot_launch(axis, tensor_of(indices), tensor_of(levels), tensor_of(out))
        run_launch(launch, {"indices": indices, "values": levels, "out": out})
        np.testing.assert_array_equal(out, op.compute(shape, [indices, levels]))


@pytest.mark.parametrize("combine", ["none", "add", "mul", "min", "max"])
def test_scatter_elements(combine: str) -> None:
    data = values(6, 7, 20).round()
    for axis in range(3):
        lens = [5, 6, 18]
        lens[axis] = 11
        n = data.shape[axis]
        indices = np.random.default_rng(axis).integers(-n - 2, n + 2, lens)
        updates = values(*lens).round()
        op = make_op(f"scatter_{combine}", axis=axis, skip_out_of_bounds=True)
        expected = op.compute(shape_of(data), [data, indices, updates])
        for checked in (False, True):
            out = in_order(data, (1, 2, 0), 1)
            launch = scatter_launch(
                combine, axis, tensor_of(indices), tensor_of(updates), tensor_of(out), checked=checked
            )
            fault = run_launch(launch, {"indices": indices, "updates": updates, "out": out})
            assert (
                fault in [(f"axis {axis} of length {n}", k) for k in (-n - 2, -n - 1, n, n + 1)]
                if checked
                else not fault
            )
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("combine", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatternd(combine: str, depth: int) -> None:
    data = values(4, 5, 40).round()
    rng = np.random.default_rng(depth)
    columns = [rng.integers(-n, n, (3, 4)) for n in data.shape[:depth]]
    indices = np.stack(columns, -1)
    updates = values(3, 4, *data.shape[depth:]).round()
    op = make_op(f"scatternd_{combine}")
    expected = op.compute(shape_of(data), [data, indices, updates])
    for order in ((0, 1, 2), (2, 0, 1)):
        out = in_order(data, order)
        launch = scatternd_launch(combine, tensor_of(indices), tensor_of(updates), tensor_of(out))
        assert run_launch(launch, {"indices": indices, "updates": updates, "out": out}) is None
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("checked", [(True, True), (False, False), (True, False)])
def test_scatternd_skips_positions_out_of_range_and_reports_those_checked(checked: tuple[bool, bool]) -> None:
    data, out = values(4, 5, 30), values(4, 5, 30)
    indices, updates = np.array([[1, 7], [-9, 2], [2, -5]]), values(3, 30) + 1
    launch = scatternd_launch("none", tensor_of(indices), tensor_of(updates), tensor_of(out), checked=checked)
    fault = run_launch(launch, {"indices": indices, "updates": updates, "out": out})
    possible = [("axis 0 of length 4", -9), ("axis 1 of length 5", 7)]
    assert fault in [p for p, wanted in zip(possible, checked, strict=True) if wanted] or not any(checked)
    assert (fault is not None) == any(checked)
    data[2, 0] = updates[2]
    np.testing.assert_array_equal(out, data)
