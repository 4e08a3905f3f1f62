"""Padding, resizing, reversing, pooling and local response normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.toolchain.compiler import compile_object
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.graph.program import Program
from mgx_numba.ops.pad import PadMode
from mgx_numba.ops.pooling import PoolingMode
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from ..cpu.test_col2im import CASES as WINDOWS
from ..cpu.test_col2im import operator, windows
from ..values import normal, small
from .operators import check_compiles, check_operator, hosted, operator_program
from .programs import compiled, interpreter

FLOATS = (np.float32, np.float16, np.float64)


def values(*lens: int, dtype: Any = np.float32, special: bool = False) -> np.ndarray:
    return small(dtype, lens, np.random.default_rng(len(lens)), special=special)


@pytest.mark.parametrize("mode", PadMode)
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.bool_])
def test_padding(mode: PadMode, dtype: Any, on: Engine) -> None:
    pads = (0, 1, 2, 0, -1, 3)
    check_operator(on, "pad", [values(3, 5, 6, dtype=dtype, special=True)], pads=pads, mode=mode, value=1)
    check_operator(on, "pad", [values(4, dtype=dtype)], pads=(0, 0), mode=mode)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.bool_])
def test_padding_of_whole_vectors(dtype: Any, on: Engine) -> None:
    for pads in ((1, 2, 0, 0, 1, 0), (-1, 0, 0, 2, -2, 0)):
        check_operator(on, "pad", [values(3, 5, 32, dtype=dtype, special=True)], pads=pads, value=1)


def test_padding_up_to_lengths_and_of_nothing(on: Engine) -> None:
    check_operator(on, "fixed_pad", [values(3, 5)], output_lens=(4, 7))
    check_operator(on, "pad", [values(0, 5)], pads=(1, 0, 2, 1), value=-2.5)
    check_operator(on, "pad", [values(3, 5)], pads=(-3, 0, 0, 1))


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.int64, 2**53 + 1), (np.int64, 2**63 - 1), (np.uint64, 2**64 - 1), (np.int32, 2**31 - 1)]
)
def test_padding_with_integers_that_no_float_holds(dtype: Any, value: int, on: Engine) -> None:
    check_operator(on, "pad", [np.arange(6, dtype=dtype).reshape(2, 3)], pads=(1, 0, 0, 2), value=value)


def test_reversing(on: Engine) -> None:
    check_operator(on, "reverse", [values(3, 5, 4)], axes=(0, 2))
    check_operator(on, "reverse", [values(0, 4)], axes=(1,))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_resizing(mode: str, dtype: Any, on: Engine) -> None:
    check_operator(on, "resize", [values(2, 3, 5, 4, dtype=dtype)], scales=(1, 1, 1.6, 0.7), mode=mode)
    check_operator(
        on, "resize", [values(1, 8, 5, 4, dtype=dtype)], sizes=(1, 8, 10, 9), mode=mode,
        coordinate_transformation_mode="align_corners",
    )  # fmt: skip
    check_operator(on, "resize", [values(1, 3, 5, dtype=dtype)], sizes=(1, 3, 5), mode=mode)


def sums_of_windows(x: np.ndarray, axis: int, positions: np.ndarray, weights: np.ndarray, turned: bool) -> Program:
    program = Program()
    p = program.main.add_parameter("x", Shape(from_numpy(x.dtype), x.shape[::-1] if turned else x.shape))
    tables = (program.main.add_literal(array) for array in (positions, weights))
    p = program.main.add_instruction("transpose", [p], permutation=range(x.ndim)[::-1]) if turned else p
    program.main.add_return([program.main.add_instruction("window_sum", [p, *tables], axis=axis)])
    return program


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", range(3))
def test_sums_of_windows(axis: int, dtype: Any, on: Engine) -> None:
    x, rng = values(3, 5, 8, dtype=dtype), np.random.default_rng(axis)
    positions, weights = rng.integers(0, x.shape[axis], (6, 4)), rng.standard_normal((6, 4)).astype(np.float32)
    taken = (np.moveaxis(x, axis, -1)[..., at] * w for at, w in zip(positions, weights))
    expected = np.stack([part.sum(-1) for part in taken], axis)
    for turned in (False, True):
        made = compiled(sums_of_windows(x, axis, positions, weights, turned), on)
        assert not hosted(made), made.fallback_reasons()
        (found,) = made.run({"x": np.ascontiguousarray(x.T) if turned else x})
        np.testing.assert_allclose(found, expected, rtol=0, atol=128 * np.finfo(x.dtype).eps)


def test_integers_are_interpolated_on_the_host_with_a_reason(on: Engine) -> None:
    made = compiled(operator_program("resize", [values(2, 4, dtype=np.int32)], sizes=(2, 7), mode="linear"), on)
    assert hosted(made) == ["ref::resize"]
    assert "kernels interpolate floats, not int32_type" in str(made.fallback_reasons())


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("mode", PoolingMode)
@pytest.mark.parametrize("padded", [False, True])
def test_pooling(mode: PoolingMode, dtype: Any, padded: bool, on: Engine) -> None:
    window = {"lengths": (3, 2), "stride": (2, 1), "padding": (1, 1), "count_include_pad": padded}
    special = mode is PoolingMode.max
    check_operator(on, "pooling", [values(2, 3, 7, 8, dtype=dtype, special=special)], mode=mode, **window)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16])
@pytest.mark.parametrize(
    "window",
    [
        {"lengths": (3, 3), "stride": (2, 2), "padding": (1, 1)},
        {"lengths": (2, 3), "stride": (1, 3), "padding": (0, 2), "dilations": (1, 2)},
        {"lengths": (5, 4), "stride": (2, 1), "padding": (2, 3), "ceil_mode": True},
        {"lengths": (2, 2), "stride": (3, 3), "padding": (0, 1), "ceil_mode": True},
    ],
)
def test_maxima_of_vectors_of_channels(dtype: Any, window: dict[str, Any], on: Engine) -> None:
    """8-bit words, compared in pairs; a tap outside the image is replaced by the nearest inside."""
    x = values(2, 7, 8, 32, dtype=dtype, special=True)
    if dtype is not np.float16:
        x = np.random.default_rng(0).integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, x.shape).astype(dtype)
    program = Program()
    m = program.main
    image = m.add_instruction(
        "transpose", [m.add_parameter("x", Shape(from_numpy(x.dtype), x.shape))], permutation=(0, 3, 1, 2)
    )
    found = m.add_instruction("pooling", [image], mode=PoolingMode.max, **window)
    m.add_return([m.add_instruction("transpose", [found], permutation=(0, 2, 3, 1))])
    made = compiled(program, on)
    assert not hosted(made)
    assert ("max_bytes" in made.kernels()[0].text) == (dtype is not np.float16)
    np.testing.assert_array_equal(made.run({"x": x})[0], reference(program, {"x": x}).results[0])


@pytest.mark.parametrize("mode", PoolingMode)
def test_windows_of_an_image_without_pixels_read_nothing(mode: PoolingMode, on: Engine) -> None:
    """The kernel read before the image: index 0 was kept inside of an axis of length 0."""
    program = operator_program(
        "pooling", [values(1, 2, 0, 4)], mode=mode, padding=(1, 1), stride=(1, 1), lengths=(2, 2), dilations=(1, 1)
    )
    inputs = {"p0": values(1, 2, 0, 4)}
    for got, wanted in zip(compiled(program, on).run(inputs), reference(program, inputs).results, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_norms_of_windows(order: int, on: Engine) -> None:
    window = {"lengths": (3,), "stride": (2,), "padding": (1,), "dilations": (1,)}
    check_operator(on, "pooling", [normal(2, 3, 9)], mode=PoolingMode.lpnorm, lp_order=order, **window)


@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (4, 0.5), (3, 0.6), (1, 1.0), (40, 0.75)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_local_response_normalisation(size: int, beta: float, dtype: Any, on: Engine) -> None:
    check_operator(on, "lrn", [values(2, 7, 3, 4, dtype=dtype)], size=size, alpha=0.3, beta=beta, bias=2.0)


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    positions, weights = np.zeros((6, 4), np.int64), np.ones((6, 4), np.float32)
    for kernel in compiled(sums_of_windows(values(3, 5), 1, positions, weights, False), interpreter()).kernels():
        assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES["sm_90a"])
    on = interpreter()
    check_compiles("pad", [values(3, 5, dtype=np.float16)], on, pads=(0, 1, 2, 0), mode=PadMode.reflect)
    check_compiles("resize", [values(1, 8, 5, dtype=np.float16)], on, scales=(1, 1, 1.5), mode="linear")
    check_compiles("lrn", [values(2, 7, 8, dtype=np.float16)], on, size=3, beta=0.6)
    window = {"lengths": (3,), "stride": (2,), "padding": (1,), "dilations": (1,)}
    check_compiles("pooling", [values(2, 3, 9)], on, mode=PoolingMode.lpnorm, lp_order=3, **window)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int64, np.int8])
@pytest.mark.parametrize("case", WINDOWS)
def test_windows_add_up(case: str, dtype: Any, on: Engine) -> None:
    op = operator(*WINDOWS[case])
    check_operator(on, op.name, [windows(op, 2, 3, dtype)], **op.attributes())
