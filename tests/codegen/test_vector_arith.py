"""Arithmetic, comparisons, logic and reductions of the kernel language agree with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.errors import CompileError
from mgx_numba.ops.scalar import NumpyScalar
from tests.codegen.vector_kernels import evaluate, run_body, same

SIGNED = ["int8", "int16", "int32", "int64"]
INTEGERS = [*SIGNED, "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
LOGICAL = ["logical_and", "logical_or", "logical_xor"]
REFERENCE = NumpyScalar()


def samples(dtype: str, count: int = 507, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype in FLOATS:
        info = np.finfo(dtype)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -2.5, info.max, info.min, info.tiny]
        special += [float(info.smallest_subnormal), -float(info.smallest_subnormal), 3.0, 7.0]
        spread = rng.standard_normal(count) * np.exp2(rng.uniform(-20, 20, count))
        grid = np.array(special)
        first = np.repeat(grid, len(grid)) if seed % 2 else np.tile(grid, len(grid))
        return np.concatenate([first, spread]).astype(dtype)
    info = np.iinfo(dtype)
    edges = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7], dtype)
    if info.min < 0:
        edges = np.concatenate([edges, np.array([-1, -2, -7], dtype)])
    first = np.repeat(edges, len(edges)) if seed % 2 else np.tile(edges, len(edges))
    spread = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    return np.concatenate([first, spread >> rng.integers(0, info.bits, count).astype(dtype)])


def check(names: list[str], results: list[np.ndarray], expected: list[np.ndarray], *operands: np.ndarray) -> None:
    for name, got, want in zip(names, results, expected, strict=True):
        wrong = ~same(got, want)
        assert not wrong.any(), (name, [x[wrong][:4] for x in operands], got[wrong][:4], want[wrong][:4])


@pytest.mark.parametrize("limit", ["", "avx2", "sse"], ids=["native", "avx2", "sse"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_remainders_are_exact(dtype: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividends of any magnitude, multiples of the divisor, and floats next to multiples: their quotients round up."""
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    rng, count = np.random.default_rng(2), 5000
    bits = np.iinfo(f"uint{8 * np.dtype(dtype).itemsize}")
    x, y = (rng.integers(0, bits.max, count, bits.dtype, endpoint=True).view(dtype) for _ in range(2))
    divisor = (rng.standard_normal(count) * np.exp2(rng.integers(-9, 9, count))).astype(dtype)
    times = np.exp2(rng.integers(0, 30, count)).astype(dtype) - rng.integers(0, 3, count).astype(dtype)
    with np.errstate(all="ignore"):
        multiple = (divisor * times).astype(dtype)
        a = np.concatenate([x, multiple, np.nextafter(multiple, np.zeros(1, dtype))])
        b = np.concatenate([y, divisor, divisor])
        expected = [REFERENCE.fmod(a, b), REFERENCE.mod(a, b)]
    names = ["fmod", "mod"]
    check(names, evaluate([(f"{n}(a, b)", dtype) for n in names], a, b), expected, a, b)


@pytest.mark.parametrize("limit", ["", "avx2", "sse"], ids=["native", "avx2", "sse"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_operations(dtype: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    a, b = samples(dtype, seed=0), samples(dtype, seed=1)
    binary = ["add", "sub", "mul", "div", "max", "min", "fmod", "mod"]
    unary = ["neg", "abs", "sqrt", "recip", "floor", "ceil", "nearbyint", "sign"]
    predicates = [*COMPARISONS, *LOGICAL]
    expressions = [(f"{n}(a, b)", dtype) for n in binary] + [(f"{n}(a)", dtype) for n in unary]
    expressions += [(f"{n}(a, b)", "bool") for n in predicates]
    expressions += [(f"{n}(a)", "bool") for n in ("isnan", "isinf", "logical_not")]
    expressions += [("where(lt(a, b), a, b)", dtype), ("where(isnan(a), 0.5, a)", dtype)]
    with np.errstate(all="ignore"):
        expected = [getattr(REFERENCE, n)(a, b) for n in binary] + [getattr(REFERENCE, n)(a) for n in unary]
        expected += [getattr(REFERENCE, n)(a, b) for n in predicates]
        expected += [
            np.isnan(a),
            np.isinf(a),
            np.logical_not(a),
            np.where(a < b, a, b),
            np.where(np.isnan(a), 0.5, a),
        ]
    check([e for e, _ in expressions], evaluate(expressions, a, b), expected, a, b)


def test_signs_of_zero_are_kept() -> None:
    a = np.array([0.0, -0.0, -0.0, -0.3], np.float32)
    names = ["neg(a)", "abs(a)", "floor(a)", "ceil(a)", "nearbyint(a)"]
    results = evaluate([(n, "float32") for n in names], a, lanes=4)
    expected = [-a, abs(a), np.floor(a), np.ceil(a), np.rint(a)]
    for name, got, want in zip(names, results, expected, strict=True):
        assert got.tobytes() == want.tobytes(), name


@pytest.mark.parametrize("limit", ["", "avx2"], ids=["native", "avx2"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_operations(dtype: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    a, b = samples(dtype, 203, seed=0), samples(dtype, 203, seed=1)
    binary = [
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "fmod",
        "mod",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
    ]
    unary = ["neg", "abs", "floor", "sign", "bitwise_not"]
    expressions = [(f"{n}(a, b)", dtype) for n in binary] + [(f"{n}(a)", dtype) for n in unary]
    expressions += [(f"{n}(a, b)", "bool") for n in [*COMPARISONS, *LOGICAL]]
    expressions += [("shift_left(a, b)", dtype), ("shift_right(a, b)", dtype), ("fma(a, b, a)", dtype)]
    with np.errstate(all="ignore"):
        expected = [getattr(REFERENCE, n)(a, b) for n in binary] + [getattr(REFERENCE, n)(a) for n in unary]
        expected += [getattr(REFERENCE, n)(a, b) for n in [*COMPARISONS, *LOGICAL]]
        bits = np.iinfo(dtype).bits
        inside = (b >= 0) & (b < bits)
        amount = np.where(inside, b, 0).astype(dtype)
        far = np.where(a < 0, -1, 0).astype(dtype) if dtype in SIGNED else np.zeros_like(a)
        expected += [
            np.where(inside, a << amount, 0),
            np.where(inside, a >> amount, far),
            (a * b + a).astype(dtype),
        ]
    check([e for e, _ in expressions], evaluate(expressions, a, b), expected, a, b)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integer_powers(dtype: str) -> None:
    base = np.array([0, 1, 2, 3, 5, 7, 10, 11] * 16, dtype)
    exponent = np.repeat(np.arange(16), 8).astype(dtype)
    if dtype in SIGNED:
        base = np.concatenate([base, -base])
        exponent = np.concatenate([exponent, exponent])
    (got,) = evaluate([("pow(a, b)", dtype)], base, exponent)
    np.testing.assert_array_equal(got, np.power(base, exponent))
    if dtype in SIGNED:
        base, exponent = np.array([1, -1, -1, 2, 0, -3], dtype), np.array([-5, -5, -4, -1, -1, -2], dtype)
        (got,) = evaluate([("pow(a, b)", dtype)], base, exponent)
        np.testing.assert_array_equal(got, [1, -1, 1, 0, 0, 0])


def test_bool_operations() -> None:
    a, b = samples("bool", 101, 0), samples("bool", 101, 1)
    names = [
        "add",
        "sub",
        "mul",
        "max",
        "min",
        "eq",
        "ne",
        *LOGICAL,
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
    ]
    expected = [
        a | b,
        a ^ b,
        a & b,
        a | b,
        a & b,
        a == b,
        a != b,
        a & b,
        a | b,
        a ^ b,
        a & b,
        a | b,
        a ^ b,
        ~a,
        ~a,
    ]
    expressions = [(f"{n}(a, b)", "bool") for n in names] + [
        ("logical_not(a)", "bool"),
        ("bitwise_not(a)", "bool"),
    ]
    check([e for e, _ in expressions], evaluate(expressions, a, b), expected, a, b)


def test_fma_rounds_once_and_plain_arithmetic_twice() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(5000).astype(np.float32) for _ in range(2))
    c = -(a * b)
    fused, plain = evaluate([("fma(a, b, c)", "float32"), ("add(mul(a, b), c)", "float32")], a, b, c)
    exact = a.astype(np.float64) * b + c
    np.testing.assert_array_equal(fused, exact.astype(np.float32))
    assert not plain.any()


@pytest.mark.parametrize("limit", ["", "avx2", "sse"], ids=["native", "avx2", "sse"])
def test_fast_arithmetic_honours_infinity_and_nan(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    a = np.array([np.inf, -np.inf, np.nan, 0.0, 1.0, -3.0, 5.0, 2.0], np.float32)
    b = np.array([2.0, np.inf, 1.0, 0.0, 0.0, np.inf, np.nan, 3.0], np.float32)
    names = ["add", "sub", "mul"]
    expressions = [(f"{n}_fast(a, b)", "float32") for n in names]
    expressions += [("rsqrt(b)", "float32")]
    with np.errstate(all="ignore"):
        expected = [a + b, a - b, a * b, 1 / np.sqrt(b)]
    for name, got, want in zip(expressions, evaluate(expressions, a, b, lanes=8), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=name[0])


def test_scalars_meet_vectors_in_the_vectors_dtype() -> None:
    a = samples("float32", 64, seed=3)
    scale = np.array([1.5], np.float32)
    out = np.zeros((5, 16), np.float32)
    body = """
s = load_scalar(p1, 0)
v = load(p0, 0, 16)
store(p2, 0, mul(v, s))
store(p2, 16, add(2, v))
store(p2, 32, max(0.1, v))
store(p2, 48, splat(max(mul(s, 2), s), 16))
store_scalar(p2, 64, exp(s))
store_scalar(p2, 65, extract(v, 3))
store_scalar(p2, 66, where(gt(s, 1), s, 0))
"""
    run_body(body, a, scale, out)
    v = a[:16]
    np.testing.assert_array_equal(out[0], v * scale)
    np.testing.assert_array_equal(out[1], v + 2)
    np.testing.assert_array_equal(out[2], np.maximum(np.float32(0.1), v))
    assert (out[3] == 3).all()
    np.testing.assert_allclose(out[4, :3], [np.exp(1.5), v[3], 1.5], rtol=1e-7)


def test_index_helpers_on_scalars() -> None:
    out = np.zeros(6, np.int64)
    body = """
store_scalar(p0, 0, imin(n1, n2))
store_scalar(p0, 1, imax(n1, n2))
store_scalar(p0, 2, idiv(n2, n1))
store_scalar(p0, 3, imod(n2, n1))
store_scalar(p0, 4, min(n1, n2))
store_scalar(p0, 5, max(n1, 3))
"""
    run_body(body, out, 7, 100)
    np.testing.assert_array_equal(out, [7, 100, 14, 2, 7, 7])


def test_iota_masks_and_constants() -> None:
    ints, mask, wide = np.zeros(16, np.int32), np.zeros(16, bool), np.zeros(4, np.uint64)
    body = """
store(p0, 0, iota_int32(16))
store(p1, 0, lane_mask(n3, 16))
store(p2, 0, const_uint64(18446744073709551615, 4))
"""
    run_body(body, ints, mask, wide, 5)
    np.testing.assert_array_equal(ints, np.arange(16))
    np.testing.assert_array_equal(mask, np.arange(16) < 5)
    assert (wide == 2**64 - 1).all()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64", "float32", "float64"])
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_reductions_over_lanes(dtype: str, lanes: int) -> None:
    x = np.random.default_rng(2).integers(1, 6, lanes).astype(dtype)
    out, flags = np.zeros(4, dtype), np.zeros(2, bool)
    body = f"""
v = load(p0, 0, {lanes})
store_scalar(p1, 0, reduce_add(v))
store_scalar(p1, 1, reduce_mul(v))
store_scalar(p1, 2, reduce_max(v))
store_scalar(p1, 3, reduce_min(v))
store_scalar(p2, 0, reduce_and(gt(v, 1)))
store_scalar(p2, 1, reduce_or(gt(v, 4)))
"""
    run_body(body, x, out, flags)
    np.testing.assert_array_equal(out, [x.sum(dtype=dtype), x.prod(dtype=dtype), x.max(), x.min()])
    np.testing.assert_array_equal(flags, [(x > 1).all(), (x > 4).any()])


def test_reductions_pass_nan_on() -> None:
    for place in range(8):
        x = np.arange(8, dtype=np.float32)
        x[place] = np.nan
        out = np.zeros(2, np.float32)
        run_body(
            "v = load(p0, 0, 8)\nstore_scalar(p1, 0, reduce_max(v))\nstore_scalar(p1, 1, reduce_min(v))",
            x,
            out,
        )
        assert np.isnan(out).all(), place


@pytest.mark.parametrize(
    "values",
    [
        [3, 1, 4, 1, 5, 9, 2, 9],
        [7, 7, 7, 7, 7, 7, 7, 7],
        [0, -1, np.nan, 5, np.nan, 1, 2, 3],
        [-np.inf, np.inf, 0, np.inf, -np.inf, 0, 0, 0],
    ],
)
def test_arg_reductions_match_numpy(values: list[float]) -> None:
    x = np.array(values, np.float32)
    out = np.zeros(4, np.int64)
    names = ["reduce_argmax", "reduce_argmin", "reduce_argmax_last", "reduce_argmin_last"]
    body = "\n".join(f"store_scalar(p1, {k}, {n}(load(p0, 0, 8), iota_int64(8)))" for k, n in enumerate(names))
    run_body(body, x, out)
    last = [7 - np.argmax(x[::-1]), 7 - np.argmin(x[::-1])]
    np.testing.assert_array_equal(out, [np.argmax(x), np.argmin(x), *last])


def test_arg_comparisons_put_nan_beyond_every_number() -> None:
    a = np.array([1, 2, np.nan, np.nan, np.inf, 1, 0, 0], np.float32)
    b = np.array([2, 1, 1, np.nan, np.nan, 1, 0, 0], np.float32)
    names = ["arg_gt", "arg_ge", "arg_lt", "arg_le"]
    results = evaluate([(f"{n}(a, b)", "bool") for n in names], a, b, lanes=8)
    expected = [
        [False, True, True, False, False, False, False, False],
        [False, True, True, True, False, True, True, True],
        [True, False, True, False, False, False, False, False],
        [True, False, True, True, False, True, True, True],
    ]
    for name, got, want in zip(names, results, expected, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("add(a, cast_float64(a))", "add: operands must have one dtype and lane count"),
        (
            "cast_float32(add(cast_bfloat16(a), cast_bfloat16(a)))",
            "not defined for bfloat16; cast it to float32 first",
        ),
        ("exp(cast_int32(a))", "exp: not defined for int32"),
        ("where(a, a, a)", "where: the condition must be bool"),
        ("add(a, load(p0, 0, 8))", "operands must have one dtype and lane count"),
    ],
)
def test_wrong_operands_are_refused_with_a_reason(expression: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        evaluate([(expression, "float32")], np.zeros(16, np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize("lanes", [1, 4, 32])
def test_sums_of_lanes_before_and_behind(dtype: str, lanes: int) -> None:
    x = np.random.default_rng(3).integers(0, 6, lanes).astype(dtype)
    if dtype == "float64":
        x[lanes // 2] = np.inf
    out = np.zeros((2, lanes), dtype)
    body = "\n".join(
        f"store(p1, {k * lanes}, {name}(load(p0, 0, {lanes})))" for k, name in enumerate(("scan_add", "scan_add_back"))
    )
    run_body(body, x, out)
    np.testing.assert_array_equal(out, [np.cumsum(x, dtype=dtype), np.cumsum(x[::-1], dtype=dtype)[::-1]])
