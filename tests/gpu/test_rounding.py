"""Float32 rounded to 8 bits as quantisation ends: the values of ref, saturated, with ties to even and NaN as 0."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numba import njit

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.kernel import NAME
from mgx_numba.codegen.gpu.lang import rounding
from mgx_numba.codegen.gpu.lang.bytes import max_bytes
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.lang.arith import eq, where
from mgx_numba.codegen.lang.target import with_features
from mgx_numba.codegen.lang.values import extract, iota_int8, splat
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .programs import compiled


def numbers() -> np.ndarray:
    """Ties, neighbours of ties, what saturates, infinities, NaN."""
    ties = np.arange(-300, 300, dtype=np.float32) / 2
    beside = [np.nextafter(ties, np.float32(way)) for way in (-np.inf, np.inf)]
    special = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e38, -0.0, 1e-40], np.float32)
    return np.concatenate([ties, *beside, special])


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize(
    ("type", "zero"), [(np.uint8, 0), (np.uint8, 255), (np.uint8, 77), (np.int8, -128), (np.int8, 0), (np.int8, 5)]
)
def test_quantised_values(type: Any, zero: int, more: int, on: Engine) -> None:
    """Also those ``more`` that are behind the last whole vector."""
    x, program = np.concatenate([numbers(), np.array([2.5, 77, -3.5], np.float32)[:more]]), Program()
    m = program.main
    p = m.add_parameter("x", Shape(Type.float_type, x.shape))
    value = m.add_instruction("tanh", [p]) if zero == 5 else p
    step = m.add_instruction("multibroadcast", [m.add_literal(np.array([1], np.float32))], out_lens=x.shape)
    point = m.add_instruction("multibroadcast", [m.add_literal(np.array([zero], type))], out_lens=x.shape)
    m.add_return([m.add_instruction("quantizelinear", [value, step, point], out_type=from_numpy(np.dtype(type)))])
    made = compiled(program, on)
    assert any("rounded_" in kernel.text for kernel in made.kernels())
    np.testing.assert_array_equal(made.run({"x": x})[0], reference(program, {"x": x}).results[0])


def test_what_the_language_makes_of_them_is_exact() -> None:
    """The LLVM IR, which is the same on every device, run by this machine's CPU."""
    signed, unsigned = rounding.rounded_int8, rounding.rounded_uint8

    @njit
    def every(x: Any, a: Any, b: Any) -> None:
        for k in range(x.size):
            a[k] = extract(signed(splat(x[k], 4), 7), 3)
            b[k] = extract(unsigned(splat(x[k], 4), 130), 1)

    @njit
    def each(x: Any, a: Any, b: Any) -> None:
        for k in range(x.size):
            a[k] = extract(signed(splat(x[k], 1), 7), 0)
            b[k] = extract(unsigned(splat(x[k], 1), 130), 0)

    x = numbers()
    found = [np.empty(x.shape, dtype) for dtype in (np.int8, np.uint8) * 2]
    with with_features(frozenset(("fma", "f16c"))):
        every(x, *found[:2])
        each(x, *found[2:])
    for got, zero in zip(found, (7, 130) * 2):
        ends = np.iinfo(got.dtype)
        wanted = np.clip(np.nan_to_num(np.rint(x).astype(np.float64) + zero), ends.min, ends.max)
        np.testing.assert_array_equal(got, np.where(np.isnan(x), 0, wanted).astype(got.dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_the_larger_bytes_of_words_are_exact(dtype: Any) -> None:
    @njit
    def each(x: Any, y: Any, out: Any) -> None:
        for k in range(x.size):
            for j in range(4):  # beside others, that decide nothing
                found = max_bytes(
                    splat(x[k], 4), where(eq(iota_int8(4), splat(np.int8(j), 4)), splat(y[k], 4), splat(y[-k], 4))
                )
                out[j, k] = extract(found, j)

    every = np.arange(256, dtype=np.uint8).view(dtype)
    x, y = (np.ascontiguousarray(v).reshape(-1) for v in np.broadcast_arrays(every[:, None], every))
    out = np.empty((4, x.size), dtype)
    with with_features(frozenset()):
        each(x, y, out)
    np.testing.assert_array_equal(out, np.broadcast_to(np.maximum(x, y), out.shape))


@pytest.mark.parametrize("name", ["rounded_uint8", "rounded_int8"])
def test_single_numbers_are_not_stored_from_the_register_of_a_float(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas converts what PTX stores as a byte from such a register, although it says nothing of a number's kind."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    text = f"""THREADS = 32
SLOTS = 2


def kernel(args):
    x = pointer_float32(args, 0)
    out = pointer_{name.removeprefix("rounded_")}(args, 1)
    store(out, thread_index(0), {name}(load(x, thread_index(0), 1), 0))
"""
    made = assembly(KernelSource(NAME, "rounding", text), ARCHITECTURES["sm_90a"])
    (stored,) = re.findall(r"st\.global\.b8\s+\[[^]]*\], (%\w+);", made)
    (source,) = re.findall(rf"(\S+)\s+{stored}, ", made)[-1:]
    assert ".s32." in source or not source.endswith(".f32"), source
