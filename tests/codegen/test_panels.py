"""Packing of weights of any strides into panels of columns."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction import panels
from mgx_numba.codegen.cpu.contraction.panels import pack_panels, words_of


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 48, 70])
@pytest.mark.parametrize("outer", [(), (3,), (2, 2)])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_each_panel_has_its_columns(
    columns: int, outer: tuple[int, ...], threads: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "allowed_cpus", lambda: threads)
    monkeypatch.setattr(panels, "SHARED_BYTES", 0)
    random, depth, most = np.random.default_rng(0), 5, 16
    count = -(-columns // most)
    plain = random.integers(-99, 99, (*outer, depth, columns)).astype(dtype)
    wide = random.integers(-99, 99, (*outer, depth, 2 * columns)).astype(dtype)
    transposed = np.ascontiguousarray(plain.swapaxes(-1, -2)).swapaxes(-1, -2)
    repeated = np.broadcast_to(plain[..., :1, :], plain.shape)
    for weights in (plain, wide[..., columns:], wide[..., ::2], transposed, repeated, plain[..., :0, :]):
        rows = weights.shape[-2]
        out = np.zeros((*outer, count, rows + 2, most), dtype)
        pack_panels(weights, out[..., 1 : 1 + rows, :])
        expected = np.zeros((*outer, rows, count * most), dtype)
        expected[..., :columns] = weights
        expected = expected.reshape(*outer, rows, count, most).swapaxes(-2, -3)
        np.testing.assert_array_equal(out[..., 1 : 1 + rows, :], expected)
        assert not out[..., 0, :].any() and not out[..., 1 + rows :, :].any()


@pytest.mark.parametrize("columns", [5, 16, 40])
@pytest.mark.parametrize("turned", [False, True])
def test_rows_may_have_several_axes(columns: int, turned: bool) -> None:
    weights = np.random.default_rng(0).random((2, 3, 4, 5, columns), np.float32)
    if turned:
        weights = np.moveaxis(np.ascontiguousarray(np.moveaxis(weights, (1, 2), (-2, -1))), (-2, -1), (1, 2))
    out = np.zeros((2, -(-columns // 16), 3, 4, 6, 16), np.float32)
    pack_panels(weights, out[..., :5, :], axes=3)
    for group, taps in zip(out, weights):
        expected = np.zeros_like(group[:, :, :, :5])
        for tap in np.ndindex(3, 4):
            pack_panels(taps[tap], expected[(slice(None), *tap)])
        np.testing.assert_array_equal(group[:, :, :, :5], expected)
    assert not out[..., 5, :].any()


def test_weights_of_another_type_are_converted() -> None:
    weights = np.arange(64, dtype=np.float64).reshape(2, 32)
    out = np.zeros((2, 2, 16), np.float32)
    pack_panels(weights, out)
    np.testing.assert_array_equal(out, weights.reshape(2, 2, 16).swapaxes(0, 1))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("dtype", "together", "word"), [("int8", 4, "int32"), ("int16", 2, "int32"), ("int32", 1, "int32")]
)
@pytest.mark.parametrize("lens", [(3, 8, 5), (8, 1), (4, 7), (2, 0, 3), (8, 0), (2, 3, 4, 6)])
def test_words_hold_successive_rows(lens: tuple[int, ...], dtype: str, together: int, word: str, turned: bool) -> None:
    """Of rows in order, columns in order, and of parts of larger arrays."""
    whole = np.random.default_rng(0).integers(-128, 128, [2 * n for n in lens]).astype(dtype)
    for rows in (whole[tuple(slice(n) for n in lens)], whole[tuple(slice(0, 2 * n, 2) for n in lens)].copy()):
        given = np.ascontiguousarray(rows.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else rows
        found = words_of(given, together, word)
        *outer, k, n = lens
        assert found.shape == (*outer, k // together, n) and found.flags.c_contiguous
        bytes_of = found[..., None].view(dtype).reshape(*outer, k // together, n, together)
        for place in range(together):
            np.testing.assert_array_equal(bytes_of[..., place], given[..., place::together, :])
