"""DLPack import and export for every element type, including types that NumPy itself refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core import dlpack
from mgx_numba.core.argument import Argument
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.errors import ShapeError


class Exporter:
    """A tensor of another library: it speaks DLPack and nothing else."""

    def __init__(self, tensor: Any, device: tuple[int, int] = (1, 0), modern: bool = True) -> None:
        self.tensor, self.device, self.modern = tensor, device, modern

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.modern:
            raise TypeError("unexpected keyword arguments")
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


DTYPES = [
    np.bool_,
    np.int8,
    np.uint16,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
]


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_cross_without_a_copy(dtype: Any, modern: bool) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    sent = Argument.from_array(array)
    got = Argument.from_array(Exporter(sent, modern=modern))
    assert got.shape == sent.shape
    assert got.data_ptr == sent.data_ptr
    assert got.tolist() == sent.tolist()


BELOW_A_BYTE = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.float4_e2m1fn]


def values_below_a_byte(dtype: Any) -> np.ndarray:
    bits = 2 if np.dtype(dtype).name in ("int2", "uint2") else 4
    return (np.arange(15, dtype=np.uint8).reshape(3, 5) % (1 << bits)).view(dtype)


class Modern(Exporter):
    """The producer uses the newest version of DLPack, whichever version the consumer asks for."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options | {"max_version": (1, 1)})


@pytest.mark.parametrize("dtype", BELOW_A_BYTE)
def test_elements_below_a_byte_cross_as_a_byte_each(dtype: Any) -> None:
    sent = Argument.from_array(values_below_a_byte(dtype))
    for exporter in (Exporter(sent), Modern(sent)):
        got = Argument.from_array(exporter)
        assert (got.shape, got.data_ptr, got.tolist()) == (sent.shape, sent.data_ptr, sent.tolist())
    with pytest.raises(BufferError, match="a byte each, for which DLPack has a form from version 1.1 on"):
        sent.__dlpack__()
    with pytest.raises(BufferError, match=r"the consumer asks for \(1, 0\)"):
        sent.__dlpack__(max_version=(1, 0))


class Packed:
    """Elements below a byte as other libraries have them: packed from the low bits of each byte upwards."""

    def __init__(self, array: np.ndarray, type: Type) -> None:
        codes = array.view(np.uint8).ravel()
        per_byte = 8 // type.bits
        padded = np.resize(
            np.append(codes, np.zeros(-codes.size % per_byte, np.uint8)), (-(-codes.size // per_byte), per_byte)
        )
        self.bytes = np.bitwise_or.reduce(padded << (np.arange(per_byte, dtype=np.uint8) * type.bits), axis=1)
        self.lens, self.type = array.shape, type

    def __dlpack__(self, **options: Any) -> Any:
        shaped = np.lib.stride_tricks.as_strided(self.bytes, self.lens, (self.lens[1], 1))
        capsule = shaped.__dlpack__(**options)
        data_type = dlpack.data_type_of(capsule)
        data_type.code, data_type.bits = dlpack.NARROW_CODES[self.type]
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("dtype", BELOW_A_BYTE)
def test_packed_elements_get_a_byte_each(dtype: Any) -> None:
    array = values_below_a_byte(dtype)
    got = Argument.from_array(Packed(array, from_numpy(array.dtype)))
    assert got.shape == Argument.from_array(array).shape
    np.testing.assert_array_equal(got.numpy().view(np.uint8), array.view(np.uint8))


def test_strides_cross() -> None:
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    got = Argument.from_array(Exporter(Argument.from_array(array.T)))
    assert got.shape.lens == (3, 2) and got.shape.strides == (1, 3)
    assert got.tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


def test_memory_outlives_its_exporter() -> None:
    got = Argument.from_array(Exporter(Argument.from_array(np.arange(1 << 16).astype(ml_dtypes.bfloat16))))
    assert got.numpy()[256] == 256


def test_tensor_on_a_device_is_refused() -> None:
    with pytest.raises(ShapeError, match="on a device"):
        Argument.from_array(Exporter(np.ones(2), device=(2, 0)))


def test_a_tensor_that_requires_grad_is_to_be_detached() -> None:
    exporter = Exporter(np.zeros(3, np.float32))
    exporter.requires_grad = True  # type: ignore[attr-defined]
    with pytest.raises(ShapeError, match=r"requires grad.*tensor\.detach\(\)"):
        Argument.from_array(exporter)
