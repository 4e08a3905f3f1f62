"""Runs expressions of the kernel language over arrays, for the tests of the vector intrinsics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.core.types import numpy_dtype

from .launching import call_kernel

GUARD = 64


def call(text: str, *arguments: np.ndarray | int) -> None:
    """Compile kernel source and call it once with an argument block of addresses and integers."""
    words = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    call_kernel(cpu_kernel("test", text), words, (0, 1))


def run_body(body: str, *arguments: np.ndarray | int) -> None:
    """Call a kernel whose statements are `body`; array k is the pointer `p<k>`, integer k is `n<k>`."""
    lines = ["def kernel(args, begin, end):"]
    for k, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            lines.append(f"    p{k} = pointer_{argument.dtype.name}(args, {k})")
        else:
            lines.append(f"    n{k} = args[{k}]")
    lines += ["    " + line for line in body.strip("\n").split("\n")]
    call("\n".join(lines) + "\n", *arguments)


def evaluate(
    expressions: Sequence[tuple[str, str]], *inputs: np.ndarray, lanes: int = 16, fill: str = "1"
) -> list[np.ndarray]:
    """Values of (expression, dtype) pairs over the names a, b, c, ... of the inputs, through vectors and a
    tail.

    The memory after each result is checked to be untouched.
    """
    count = inputs[0].size
    results = [np.full(count + GUARD, 77).astype(numpy_dtype(dtype)) for _, dtype in expressions]
    names = "abcdef"
    lines = ["def kernel(args, begin, end):"]
    for k, array in enumerate([*inputs, *results]):
        lines.append(f"    p{k} = pointer_{array.dtype.name}(args, {k})")
    lines += [f"    n = args[{len(inputs) + len(results)}]", "    i = 0"]
    for tail in (False, True):
        lines.append("    if i < n:" if tail else f"    while i + {lanes} <= n:")
        for k in range(len(inputs)):
            text = f"load_tail(p{k}, i, n - i, {fill}, {lanes})" if tail else f"load(p{k}, i, {lanes})"
            lines.append(f"        {names[k]} = {text}")
        for k, (expression, _) in enumerate(expressions):
            pointer = f"p{len(inputs) + k}"
            # The two loops must not share a variable: its type could differ by mistake of an intrinsic.
            lines.append(f"        {'t' if tail else 'r'}{k} = {expression}")
            value = f"{'t' if tail else 'r'}{k}"
            lines.append(
                f"        store_tail({pointer}, i, {value}, n - i)" if tail else f"        store({pointer}, i, {value})"
            )
        if not tail:
            lines.append(f"        i += {lanes}")
    call("\n".join(lines) + "\n", *inputs, *results, count)
    for result in results:
        guard = np.full(GUARD, 77).astype(result.dtype)
        assert result[count:].tobytes() == guard.tobytes(), "memory after the result was written"
    return [result[:count] for result in results]


def same(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where two arrays agree, NaN agreeing with NaN."""
    if actual.dtype.kind in "biu":
        return actual == expected
    with np.errstate(invalid="ignore"):
        a, e = actual.astype(np.float64), expected.astype(np.float64)
    return (a == e) | (np.isnan(a) & np.isnan(e))


def ulp_error(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance of `actual` from the more precise `exact`, in units in the last place of `actual`'s type
    there.

    Infinite where one is NaN and the other is not, or one is infinite and the other is not within an ulp of
    overflow.
    """
    dtype = actual.dtype.type
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        magnitude = np.maximum(np.abs(exact), info.tiny).astype(exact.dtype)
        exponent = np.floor(np.log2(magnitude))
        ulp = np.exp2(np.minimum(exponent, info.maxexp - 1) - info.nmant).astype(exact.dtype)
        limit = exact.dtype.type(2.0) ** info.maxexp
        finite = np.where(np.isinf(actual), np.copysign(limit, actual), actual).astype(exact.dtype)
        reference = np.where(np.isinf(rounded), np.copysign(limit, exact), exact)
        error = np.abs(finite - reference) / ulp
    error = np.where(np.isnan(actual) & np.isnan(exact), 0.0, error)
    return np.where(np.isnan(error), np.inf, error)
