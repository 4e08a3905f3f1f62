"""DLPack both ways for every element type, those that NumPy itself refuses included."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core.argument import Argument
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
