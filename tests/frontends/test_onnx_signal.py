"""Fourier transforms as one and as two products with constant matrices, against NumPy's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import mgx_numba as migraphx
from mgx_numba.api.program import program as public_program
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .onnx_cases import run_compiled

POINTS = (1, 2, 7, 60, 127, 128, 200, 257, 400, 512, 514)
"""Lengths of both forms, with factors that are equal, prime and far from each other."""
BOUND = {np.float16: 4e-3, np.float32: 2e-6, np.float64: 1e-14}


def model(
    x: np.ndarray, lens: list[int | str] | None = None, length: int | None = None, **attributes: int
) -> onnx.ModelProto:
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    names, constants = ["x"], []
    if length is not None:
        names.append("n")
        constants.append(onnx.numpy_helper.from_array(np.array(length, np.int64), "n"))
    node = helper.make_node("DFT", names, ["y"], **attributes)
    given = helper.make_tensor_value_info("x", element, lens or list(x.shape))
    graph = helper.make_graph([node], "g", [given], [helper.make_value_info("y", onnx.TypeProto())], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def close(found: np.ndarray, wanted: np.ndarray, dtype: type) -> None:
    """Compare a result whose last axis has real and imaginary parts with complex numbers."""
    assert found.dtype == dtype and found.shape[:-1] == wanted.shape
    both = found[..., 0] + 1j * (found[..., 1].astype(np.float64) if found.shape[-1] == 2 else 0)
    largest = np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(both, wanted, rtol=0, atol=BOUND[dtype] * max(largest, 1e-30))


def compiled(x: np.ndarray, **attributes: int) -> np.ndarray:
    program = parse_onnx(model(x, **attributes))
    return np.asarray(public_program.wrap(program).compile("cpu", fast_math=False, num_threads=1).run({"x": x})[0])


def complex_of(x: np.ndarray) -> np.ndarray:
    return x[..., 0].astype(np.float64) + 1j * (x[..., 1].astype(np.float64) if x.shape[-1] == 2 else 0)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("points", POINTS)
def test_transforms(points: int, parts: int, dtype: type) -> None:
    x = normal(3, points, 2, parts).astype(dtype)
    given = complex_of(x)
    close(compiled(x, axis=1), np.fft.fft(given, axis=1), dtype)
    close(compiled(x, axis=1, inverse=1), np.fft.ifft(given, axis=1), dtype)
    close(compiled(x, axis=1, onesided=1), np.fft.fft(given, axis=1)[:, : points // 2 + 1], dtype)


@pytest.mark.parametrize("length", [90, 100, 256, 400, 513])
@pytest.mark.parametrize("n", [100, 256, 401])
def test_lengths_that_cut_and_pad(n: int, length: int) -> None:
    x = normal(2, n, 2)
    close(compiled(x, axis=1, length=length), np.fft.fft(complex_of(x), length, axis=1), np.float32)
    close(compiled(x, axis=1, length=length, inverse=1), np.fft.ifft(complex_of(x), length, axis=1), np.float32)


@pytest.mark.parametrize("points", [2, 9, 128, 400, 511, 1024])
def test_one_sided_inverse_takes_half_of_a_spectrum(points: int) -> None:
    signal = normal(4, points)
    half = np.fft.rfft(signal.astype(np.float64), axis=1)
    x = np.stack([half.real, half.imag], -1).astype(np.float32)
    close(compiled(x, axis=1, length=points, inverse=1, onesided=1), signal, np.float32)


def test_long_transforms_are_supported() -> None:
    """A transform of 8192 points needed a matrix of 8192 rows and was refused."""
    x = normal(1, 8192, 1)
    close(compiled(x, axis=1), np.fft.fft(complex_of(x), axis=1), np.float32)


@pytest.mark.parametrize("points", [4093, 8191, 2 * 4099])
@pytest.mark.parametrize("parts", [1, 2])
def test_long_transforms_without_similar_factors(points: int, parts: int) -> None:
    """A transform of 8191 points was refused; one of 4093 took a matrix of 64 MiB."""
    x = normal(2, points, parts)
    wanted = np.fft.fft(complex_of(x), axis=1)
    close(compiled(x, axis=1), wanted, np.float32)
    half = np.stack([wanted.real, wanted.imag], -1).astype(np.float32)
    close(compiled(half, axis=1, inverse=1), complex_of(x), np.float32)
    if parts == 1:
        close(compiled(x, axis=1, onesided=1), wanted[:, : points // 2 + 1], np.float32)
        back = compiled(half[:, : points // 2 + 1], axis=1, length=points, inverse=1, onesided=1)
        close(back, x[..., 0], np.float32)


def test_a_length_that_has_no_factors_in_any_time_is_refused() -> None:
    """The factors of 2**63 - 1 were searched for hours."""
    for length in (2**63 - 1, 2**24 - 3):
        with pytest.raises(
            migraphx.MgxError, match=f"DFT.*a transform of {length} points is too long, expected at most"
        ):
            compiled(normal(1, 5, 1), axis=1, length=length)


def test_numbers_of_rows_may_be_open() -> None:
    made = public_program.wrap(parse_onnx(model(normal(1, 256, 2), ["n", 256, 2], axis=1))).compile("cpu")
    for rows in (3, 1, 0, 8):
        x = normal(rows, 256, 2, seed=rows)
        close(np.asarray(made.run({"x": x})[0]), np.fft.fft(complex_of(x), axis=1), np.float32)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("size", [30, 400])
def test_frames(size: int, onesided: int) -> None:
    x, window = normal(2, 1500, 1), np.hanning(size).astype(np.float32)
    numbers = [onnx.numpy_helper.from_array(np.array(v, np.int64), name) for v, name in ((100, "s"), (size, "n"))]
    node = helper.make_node("STFT", ["x", "s", "w", "n"], ["y"], onesided=onesided)
    inputs = [helper.make_tensor_value_info(k, 1, v.shape) for k, v in (("x", x), ("w", window))]
    graph = helper.make_graph([node], "g", inputs, [helper.make_value_info("y", onnx.TypeProto())], numbers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (found,) = run_compiled(parse_onnx(made), {"x": x, "w": window})
    frames = np.stack([x[:, k : k + size, 0] * window for k in range(0, 1500 - size + 1, 100)], 1)
    transformed = np.fft.fft(frames.astype(np.float64), axis=2)
    close(found, transformed[..., : size // 2 + 1] if onesided else transformed, np.float32)
