"""Casts between all element types agree with NumPy and ml_dtypes; fused rounding to bytes equals its two steps."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import from_numpy, numpy_dtype
from mgx_numba.ops.scalar import cast_array
from tests.codegen.vector_kernels import evaluate, same

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float32", "float64"]
STORAGE = ["float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, 127.4, 127.6, -128.9, 255.5, 65535.5, 464.0,
    465.0, 480.0, 240.0, 248.0, 57344.0, 61440.0, 61441.0, 65519.0, 65520.0, 1e-8, -1e-8, 6e-8, 2.0**-24,
    2.0**-25, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e30, 3.4e38,
]  # fmt: skip


def samples(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return np.tile([True, False, True], 13)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, info.max // 2]
        values = np.concatenate([np.array(edges, dtype), rng.integers(info.min, info.max, 200, dtype, endpoint=True)])
        small = rng.integers(max(info.min, -1000), min(info.max, 1000), 200, dtype)
        return np.concatenate([values, small])
    if dtype in FLOATS:
        spread = rng.standard_normal(4000) * np.exp2(rng.uniform(-30, 20, 4000))
        large = rng.standard_normal(4000) * np.exp2(rng.uniform(20, 66, 4000))
        limits = np.array([s * 2.0**k for k in (7, 8, 15, 16, 31, 32, 52, 53, 63, 64) for s in (-1, 1)], dtype)
        near = np.concatenate(
            [np.nextafter(limits, 0 * limits), np.nextafter(limits, limits * 2), limits + 1, limits - 1]
        )
        return np.concatenate([SPECIAL, spread, large, near]).astype(dtype)
    bits = {1: np.uint8, 2: np.uint16}[numpy_dtype(dtype).itemsize]
    every = np.arange(2 ** (8 * np.dtype(bits).itemsize)).astype(bits)
    return every.view(numpy_dtype(dtype))


def expected_cast(x: np.ndarray, target: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return cast_array(x, from_numpy(numpy_dtype(target)))


@pytest.mark.parametrize("limit", ["", "x86-64-v3", "sse"], ids=["native", "avx2", "sse"])
@pytest.mark.parametrize("source", ["bool", *INTEGERS, *FLOATS, *STORAGE])
def test_casts_agree_with_numpy(source: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    x = samples(source)
    targets = [t for t in ["bool", *INTEGERS, *FLOATS, *STORAGE] if t != source]
    if source in ("bfloat16", "float16"):
        targets = ["bool", "int8", "uint8", "int32", "int64", "float32", "float64", *STORAGE]
        targets.remove(source)
    results = evaluate([(f"cast_{t}(a)", t) for t in targets], x, lanes=16)
    for target, got in zip(targets, results, strict=True):
        want = expected_cast(x, target)
        if source == "float64" and target == "bfloat16":
            want = expected_cast(x.astype(np.float32), target)
        wrong = ~same(got, want)
        assert not wrong.any(), (target, x[wrong][:5], got[wrong][:5], want[wrong][:5])
        if target in STORAGE and source in FLOATS:
            zero = want.astype(np.float32) == 0
            assert (np.signbit(got[zero].astype(float)) == np.signbit(want[zero].astype(float))).all(), target


def test_float32_rounds_to_storage_everywhere() -> None:
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32)
    near_ties = (np.arange(0, 2**16, dtype=np.uint32) << 16) + 0x8000
    x = np.concatenate([bits, near_ties, near_ties - 1, near_ties + 1]).view(np.float32)
    results = evaluate([(f"cast_{t}(a)", t) for t in STORAGE], x)
    for target, got in zip(STORAGE, results, strict=True):
        want = expected_cast(x, target)
        wrong = ~same(got, want)
        assert not wrong.any(), (target, x[wrong][:5], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("limit", ["", "x86-64-v3", "sse"], ids=["native", "avx2", "sse"])
@pytest.mark.parametrize("dtype", STORAGE[2:])
def test_nearest_is_a_cast_there_and_back(dtype: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All codes, the ties between them, neighbours of ties, all exponents, infinities and NaN."""
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    codes = np.unique(samples(dtype).astype(np.float32))
    codes = codes[np.isfinite(codes)]
    ties = (codes[1:] + codes[:-1]) / 2
    beside = [np.nextafter(ties, np.float32(s)) for s in (np.inf, -np.inf)]
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([codes, ties, *beside, bits.view(np.float32), np.array(SPECIAL, np.float32)])
    inside = x[~(np.abs(x) > codes.max())]
    for limited, values in ((0, x), (1, inside)):
        one = "const_float32(1.0, 16)"
        calls = [(f"nearest_{dtype}{end}(a, {one}, {limited})", "float32") for end in ("", "_fast")]
        want = expected_cast(expected_cast(values, dtype), "float32")
        for (text, _), got in zip(calls, evaluate(calls, values, lanes=16), strict=True):
            wrong = ~same(got, want)
            if "fast" not in text:
                wrong |= (np.signbit(got) != np.signbit(want)) & (want == 0)
            assert not wrong.any(), (text, values[wrong][:5], got[wrong][:5], want[wrong][:5])


def test_float64_rounds_once() -> None:
    base = np.arange(1, 2000).astype(np.float16).astype(np.float64) * 1.0009765625
    ties = np.concatenate([base * (1 + 2.0**-11), base * (1 + 2.0**-11 + 2.0**-40), base * (1 + 2.0**-11 - 2.0**-40)])
    targets = ["float16", "float8_e5m2", "float8_e4m3fn"]
    results = evaluate([(f"cast_{t}(a)", t) for t in targets], ties)
    for target, got in zip(targets, results, strict=True):
        assert same(got, expected_cast(ties, target)).all(), target


def test_bits_reinterpret() -> None:
    x = samples("float32")
    (bits,) = evaluate([("bits_int32(a)", "int32")], x)
    np.testing.assert_array_equal(bits, x.view(np.int32))
    (back,) = evaluate([("bits_float32(a)", "float32")], bits.copy())
    assert back.tobytes() == x.tobytes()


@pytest.mark.parametrize("limit", ["", "avx2", "x86-64-v3", "sse"], ids=["native", "avx2", "v3", "sse"])
def test_rounding_to_bytes_is_a_rounding_and_a_cast(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    rng = np.random.default_rng(1)
    halves = np.arange(-300, 300, 0.5)
    x = np.concatenate([samples("float32"), halves, rng.uniform(-300, 300, 999)]).astype(np.float32)
    wanted = [(dtype, zero) for dtype in ("int8", "uint8") for zero in (0, 3, 127, -128, 255)]
    wanted = [(dtype, zero) for dtype, zero in wanted if np.iinfo(dtype).min <= zero <= np.iinfo(dtype).max]
    for lanes in (8, 32, 64):
        calls = []
        for dtype, zero in wanted:
            ends = (np.iinfo(dtype).min - zero, np.iinfo(dtype).max - zero)
            numbers = [f"const_float32({end}, {lanes})" for end in ends]
            numbers += [f"const_{kind}({zero}, {lanes})" for kind in (dtype, "int16")]
            calls.append((f"round_{dtype}(a, {', '.join(numbers)})", dtype))
        results = evaluate(calls, x, lanes=lanes)
        for (dtype, zero), got in zip(wanted, results, strict=True):
            with np.errstate(all="ignore"):
                want = expected_cast(np.rint(x).astype(np.float64) + zero, dtype)
            assert same(got, want).all(), (dtype, zero, x[got != want][:5], got[got != want][:5])


@pytest.mark.parametrize("features, lanes", [("", 16), ("", 8), ("x86-64-v3", 8), ("sse", 8)])
@pytest.mark.parametrize("dtype", [t for t in STORAGE if t.startswith("float8")])
def test_float32_rounds_in_place_to_float8(
    dtype: str, features: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times powers of two: every code, every middle of two and the numbers beside it, subnormals, NaN and what is
    beyond the ends."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    codes = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype)).astype(np.float32)
    codes = np.unique(codes[np.isfinite(codes)])
    middles = (codes[1:] + codes[:-1]) / 2
    spread = np.arange(0, 2**32, 3000017, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([codes, middles, spread, np.float32(SPECIAL)])
    # Some units in the last place around each, those around powers of two above all.
    near = x.view(np.uint32)[:, None] + np.arange(-17, 18).astype(np.uint32)
    x = near.reshape(-1).view(np.float32)
    inside = np.clip(x, codes[0], codes[-1])
    for limits, given in enumerate((x, inside, np.abs(inside))):
        for exponent in (0, -13, 12):
            scale = np.float32(2.0**exponent)
            with np.errstate(all="ignore"):
                scaled = given * scale
            scaled = scaled[scaled / scale == given] if limits else scaled
            step = f"const_float32({float(scale)!r}, {lanes})"
            calls = [(f"nearest_{dtype}{end}(a, {step}, {limits})", "float32") for end in ("", "_fast")]
            plain, fast = evaluate(calls, scaled, lanes=lanes)
            with np.errstate(all="ignore"):
                want = expected_cast(scaled / scale, dtype).astype(np.float32) * scale
            for got in (plain, fast):
                wrong = ~same(got, want)
                assert not wrong.any(), (limits, exponent, scaled[wrong][:5], got[wrong][:5], want[wrong][:5])
            zero = want == 0
            assert (np.signbit(plain[zero]) == np.signbit(want[zero])).all(), limits


@pytest.mark.parametrize("features", ["", "x86-64-v3", "sse"])
def test_silu_before_float8_is_within_its_bound(features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By registers of one size and of another, in parts of one and in lanes that fill none, up to where exponentials
    overflow and beyond."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    spread = np.arange(0, 2**32, 300007, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([np.linspace(-90, 90, 20011, dtype=np.float32), spread, np.float32(SPECIAL)])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        want = 3 * wide / (1 + np.exp(-wide))
    # What is smaller is 0 in any float8.
    known = np.isfinite(wide) & (np.abs(want) < 2.0**100) & (np.abs(want) > 2.0**-100)
    for lanes in (4, 8, 16, 32, 2):
        (got,) = evaluate([(f"scaled_silu_coarse(a, const_float32(3.0, {lanes}))", "float32")], x, lanes=lanes)
        error = np.abs(got[known] / want[known] - 1)
        assert error.max() < 2.0**-11, (lanes, x[known][error.argmax()])
        small = (np.abs(want) <= 2.0**-100) & (np.abs(wide) < 2.0**126)  # beyond that 3 x is infinite
        assert (np.abs(got[small]) < 2.0**-90).all(), lanes
        assert np.isnan(got[np.isnan(x)]).all() and (got[x == np.inf] == np.inf).all(), lanes
