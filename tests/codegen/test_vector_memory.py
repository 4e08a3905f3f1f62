"""Loads and stores of the kernel language: contiguous, strided, indexed, and their tails."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from mgx_numba.core.types import numpy_dtype
from mgx_numba.errors import CompileError
from tests.codegen.vector_kernels import run_body
from tests.values import digits

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
    "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
]  # fmt: skip
LIMITS = ["", "avx2", "sse"]
LIMITED_DTYPES = ["bool", "int8", "float16", "int32", "float32", "float64"]


@pytest.fixture(params=LIMITS, ids=lambda limit: limit or "native")
def limited(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MGX_CPU_FEATURES", request.param)
    return request.param


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(d, "") for d in DTYPES] + [(d, limit) for d in LIMITED_DTYPES for limit in LIMITS[1:]],
)
def test_copies_keep_bits_and_bounds(dtype: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    x = digits(200, dtype=numpy_dtype(dtype))
    outputs = [np.full(40, 1).astype(x.dtype) for _ in range(6)]
    body = """
store(p1, 3, load(p0, 5, 16))
store_tail(p2, 3, load_tail(p0, 5, n7, 0, 16), n7)
store_strided(p3, 2, 3, load_strided(p0, 7, 4, 8))
store_strided_tail(p4, 2, 3, load_strided_tail(p0, 7, 4, n7 - 4, 1, 8), n7 - 4)
store(p5, 0, load_tail(p0, 5, n7, 0, 16))
store(p6, 0, load_strided_tail(p0, 7, 4, n7 - 4, 0, 8))
"""
    run_body(body, x, *outputs, 9)
    expected = [np.full(40, 1).astype(x.dtype) for _ in range(6)]
    expected[0][3:19] = x[5:21]
    expected[1][3:12] = x[5:14]
    expected[2][2:26:3] = x[7:39:4]
    expected[3][2:17:3] = x[7:27:4]
    expected[4][:16] = np.concatenate([x[5:14], np.zeros(7).astype(x.dtype)])
    expected[5][:8] = np.concatenate([x[7:27:4], np.zeros(3).astype(x.dtype)])
    for k, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        assert got.tobytes() == want.tobytes(), f"output {k}"


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dtype", ["bool", "float32", "float64"])
def test_loads_of_near_elements(dtype: str, lanes: int, limited: str) -> None:
    x, index = (
        digits(100, dtype=numpy_dtype(dtype)),
        np.random.default_rng(1).integers(0, 2 * lanes, lanes).astype(np.int32),
    )
    out = np.ones(lanes).astype(x.dtype)
    run_body(f"store(p2, 0, load_near(p0, 7, load(p1, 0, {lanes})))", x, index, out)
    assert out.tobytes() == x[7:][index].tobytes()


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float32", "float64"])
def test_gather_and_scatter(dtype: str, index_dtype: str, limited: str) -> None:
    x = digits(100, dtype=numpy_dtype(dtype))
    index = np.random.default_rng(1).permutation(100)[:16].astype(index_dtype)
    outputs = [np.ones(100).astype(x.dtype) for _ in range(4)]
    body = """
index = load(p1, 0, 16)
store(p2, 0, gather(p0, index))
store(p3, 0, gather_tail(p0, index, n6, 0))
v = load(p0, 0, 16)
scatter(p4, index, v)
scatter_tail(p5, index, v, n6)
"""
    run_body(body, x, index, *outputs, 5)
    expected = [np.ones(100).astype(x.dtype) for _ in range(4)]
    expected[0][:16] = x[index]
    expected[1][:16] = np.concatenate([x[index[:5]], np.zeros(11).astype(x.dtype)])
    expected[2][index] = x[:16]
    expected[3][index[:5]] = x[:5]
    for k, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        assert got.tobytes() == want.tobytes(), f"output {k}"


@pytest.mark.parametrize("lanes", [8, 32, 64, 256])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16", "float32"])
def test_lookup_of_bytes(dtype: str, lanes: int, limited: str) -> None:
    x = np.random.default_rng(2).permutation(np.concatenate([digits(100, dtype=numpy_dtype(dtype))] * 3)[:256])
    places = np.random.default_rng(1).permutation(256).astype(np.uint8)[:lanes]
    out = np.ones(lanes).astype(x.dtype)
    run_body(f"store(p2, 0, lookup(p0, load(p1, 0, {lanes})))", x, places, out)
    assert out.tobytes() == x[places].tobytes()


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 32, 64])
def test_every_lane_count(lanes: int) -> None:
    x, out = digits(64, dtype=numpy_dtype("float32")), np.zeros(64, np.float32)
    run_body(f"store(p1, 0, add(load(p0, 0, {lanes}), 1))", x, out)
    np.testing.assert_array_equal(out[:lanes], x[:lanes] + 1)
    assert not out[lanes:].any()


def test_tail_counts_from_zero_to_all_lanes(limited: str) -> None:
    for dtype in ("int8", "float32"):
        x = digits(16, dtype=numpy_dtype(dtype))
        for count in range(17):
            filled, stored = np.zeros(16, x.dtype), np.full(16, 3, x.dtype)
            body = "v = load_tail(p0, 0, n3, 7, 16)\nstore(p1, 0, v)\nstore_tail(p2, 0, v, n3)"
            run_body(body, x, filled, stored, count)
            np.testing.assert_array_equal(filled, np.where(np.arange(16) < count, x, 7))
            np.testing.assert_array_equal(stored, np.where(np.arange(16) < count, x, 3))


@pytest.mark.parametrize("fill", ["-INF", "INF", "NAN", "0.5"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_fill_values_of_floats(dtype: str, fill: str) -> None:
    x, out = digits(8, dtype=numpy_dtype(dtype)), np.zeros(8).astype(numpy_dtype(dtype))
    run_body(f"store(p1, 0, load_tail(p0, 0, 3, {fill}, 8))", x, out)
    expected = np.array([*x[:3].astype(float), *[float(fill.lower())] * 5])
    np.testing.assert_array_equal(out.astype(float), expected)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_tails_do_not_touch_the_next_page(dtype: str, limited: str) -> None:
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(base + page), page, 0):
        pytest.skip("mprotect is not available")
    try:
        whole = np.frombuffer(area, numpy_dtype(dtype), page // numpy_dtype(dtype).itemsize)
        whole[-6:] = [1, 2, 3, 4, 5, 6]
        inside, out = whole[-6:], np.zeros(16).astype(whole.dtype)
        body = """
v = load_tail(p0, 0, n2, 0, 16)
store(p1, 0, v)
store_tail(p0, 0, v, n2)
w = load_strided_tail(p0, 0, 2, 3, 0, 16)
store_strided_tail(p0, 0, 2, w, 3)
store(p1, 0, load_every_tail(p0, 1, 4, 2, 0, 16))
"""
        run_body(body, inside, out, 6)
        np.testing.assert_array_equal(out.astype(float), [2, 6] + [0] * 14)
        run_body("store(p1, 0, load_tail(p0, 0, n2, 0, 16))", inside, out, 6)
        np.testing.assert_array_equal(out.astype(float), [1, 2, 3, 4, 5, 6] + [0] * 10)
        del whole, inside
    finally:
        libc.mprotect(ctypes.c_void_p(base + page), page, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64"])
def test_every_second_third_or_fourth_element_and_back(dtype: str, step: int, limited: str) -> None:
    x = digits(16 * step, dtype=numpy_dtype(dtype))
    taken, back = np.zeros(16).astype(x.dtype), np.zeros(16).astype(x.dtype)
    run_body(f"store(p1, 0, load_every(p0, 0, {step}, 16))\nstore(p2, 0, load_back(p0, 17, 16))", x, taken, back)
    np.testing.assert_array_equal(taken.astype(float), x[::step].astype(float))
    np.testing.assert_array_equal(back.astype(float), x[17:1:-1].astype(float))
    for count in (0, 1, 5, 15, 16):
        given = x[: count * step - step + 1].copy() if count else x[:0]
        run_body(f"store(p1, 0, load_every_tail(p0, 0, {step}, n2, 1, 16))", given, taken, count)
        expected = np.ones(16).astype(x.dtype)
        expected[:count] = x[: count * step : step]
        np.testing.assert_array_equal(taken.astype(float), expected.astype(float))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_and_broadcasts(dtype: str) -> None:
    x = digits(10, dtype=numpy_dtype(dtype))
    one, splat, loaded = np.zeros(2).astype(x.dtype), np.zeros(8).astype(x.dtype), np.zeros(8).astype(x.dtype)
    body = """
s = load_scalar(p0, 4)
store_scalar(p1, 1, s)
store(p2, 0, splat(s, 8))
store(p3, 0, load_splat(p0, 4, 8))
"""
    run_body(body, x, one, splat, loaded)
    assert one[1] == x[4] and one[0] == 0
    assert (splat == x[4]).all() and (loaded == x[4]).all()


def test_offset_local_and_unaligned_addresses() -> None:
    x, out = digits(64, dtype=numpy_dtype("float32")), np.zeros(16, np.float32)
    body = """
scratch = local_float32(32)
q = offset(p0, 3)
store(scratch, 1, load(q, 2, 16))
store_scalar(scratch, 0, 9)
store(p1, 0, load(scratch, 0, 16))
"""
    run_body(body, x, out)
    np.testing.assert_array_equal(out, np.concatenate([[9], x[5:20]]))


def test_negative_and_zero_strides() -> None:
    x, out = digits(32, dtype=numpy_dtype("float32")), np.zeros(16, np.float32)
    run_body("store(p1, 0, load_strided(p0, 20, -1, 8))\nstore(p1, 8, load_strided(p0, 20, n2, 8))", x, out, 0)
    np.testing.assert_array_equal(out, np.concatenate([x[20:12:-1], np.full(8, x[20])]))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("store(p1, 0, load(p0, 0, n2))", "load: LANES must be an integer literal"),
        ("store(p1, 0, load(p0, 0, 12))", "load: LANES must be a power of two, got 12"),
        ("store(p1, 0, cast_int32(load(p0, 0, 8)))", "store: expected a float32 vector"),
        ("store(p1, 0, gather(p0, load(p0, 0, 8)))", "gather: expected an int32 or int64 vector of indices"),
        ("store(p1, 0, lookup(p0, load(p0, 0, 8)))", "lookup: expected a uint8 vector"),
        ("store(n2, 0, load(p0, 0, 8))", "store: expected a pointer, got int64"),
        ("store_scalar(p1, 0, load(p0, 0, 8))", "store_scalar: expected a scalar"),
    ],
)
def test_wrong_calls_are_refused_with_a_reason(body: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        run_body(body, np.zeros(16, np.float32), np.zeros(16, np.float32), 8)


@pytest.mark.parametrize("dtype", ["int8", "float16", "int32", "float32", "float64"])
def test_chosen_lanes_side_by_side(dtype: str, limited: str) -> None:
    x = digits(64, dtype=numpy_dtype(dtype))
    chosen = digits(64, dtype=numpy_dtype("bool"), seed=1)
    for mask in (chosen, np.zeros(64, bool), np.ones(64, bool)):
        out, count = np.full(80, 7).astype(x.dtype), np.zeros(1, np.int64)
        body = """
found = 0
for i in range(0, 64, 16):
    found += store_where(p2, found, load(p0, i, 16), load(p1, i, 16))
store_scalar(p3, 0, found)
"""
        run_body(body, x, mask, out, count)
        assert count[0] == mask.sum()
        assert out[: count[0]].tobytes() == x[mask].tobytes()
        assert np.all(out[64:] == np.array(7).astype(x.dtype))
