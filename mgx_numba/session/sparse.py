"""`SparseTensor`: values and indices in host memory; sessions accept only dense tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.strings import is_text
from ..core.types import Type, from_numpy
from ..errors import ParameterError, UnsupportedError
from ..frontends.onnx.tensors import onnx_type_string
from .devices import OrtDevice
from .enums import OrtSparseFormat
from .exceptions import error_of

__all__ = ["SparseTensor"]

Array = np.ndarray


class _CoordinateIndices(NamedTuple):
    """Indices of a tensor in coordinate format (COO)."""

    places: Array

    def indices(self) -> Array:
        """Return flat indices, or a (row, column) pair for each value."""
        return self.places


class _RowIndices(NamedTuple):
    """Indices of a tensor in compressed sparse row format (CSR)."""

    columns: Array
    starts: Array

    def inner(self) -> Array:
        """Return the column index of each value."""
        return self.columns

    def outer(self) -> Array:
        """Return the row pointers: the index of each row's first value, then the number of values."""
        return self.starts


class SparseTensor:
    """A sparse tensor, made by `sparse_coo_from_numpy` or `sparse_csr_from_numpy`."""

    def __init__(self, dense_shape: Any, values: Array, indices: _CoordinateIndices | _RowIndices) -> None:
        self._lens = [int(n) for n in dense_shape]
        self._values = _read_only(values)
        self._indices = indices

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: object, values: Array, coo_indices: Array, ort_device: OrtDevice
    ) -> SparseTensor:
        """Return a tensor in coordinate format (COO).

        Args:
            dense_shape: lengths of the dense tensor.
            values: the values, in one dimension.
            coo_indices: flat indices, one for each value, or (row, column) pairs.
            ort_device: the CPU.

        Raises:
            UnsupportedError: the device is not the CPU.
            ParameterError: the arrays are inconsistent.
        """
        _check_host(ort_device)
        values, places = np.asarray(values), np.asarray(coo_indices, np.int64)
        if values.ndim != 1 or places.shape not in ((values.size,), (values.size, 2), (2 * values.size,)):
            raise ParameterError(f"indices {list(places.shape)} do not fit values {list(values.shape)}")
        return cls(dense_shape, values, _CoordinateIndices(_read_only(places)))

    @classmethod
    def sparse_csr_from_numpy(
        cls, dense_shape: Any, values: Array, inner_indices: Array, outer_indices: Array, ort_device: OrtDevice
    ) -> SparseTensor:
        """Return a tensor in compressed sparse row format (CSR).

        Args:
            dense_shape: rows and columns of the dense tensor.
            values: the values, in one dimension.
            inner_indices: column index of each value.
            outer_indices: row pointers: the index of each row's first value, then the number of values.
            ort_device: the CPU.

        Raises:
            UnsupportedError: the device is not the CPU.
            ParameterError: the arrays are inconsistent.
        """
        _check_host(ort_device)
        values, columns = np.asarray(values), np.asarray(inner_indices, np.int64)
        starts = np.asarray(outer_indices, np.int64)
        if values.ndim != 1 or columns.shape != values.shape or starts.shape != (int(dense_shape[0]) + 1,):
            raise ParameterError(
                f"inner indices {list(columns.shape)} and outer indices {list(starts.shape)} do not fit values"
                f" {list(values.shape)} of {[int(n) for n in dense_shape]}"
            )
        return cls(dense_shape, values, _RowIndices(_read_only(columns), _read_only(starts)))

    def values(self) -> Array:
        """Return the values, in one dimension."""
        return self._values

    def as_coo_view(self) -> _CoordinateIndices:
        """Return an object whose ``indices()`` returns the indices.

        Raises:
            ParameterError: the tensor is not in coordinate format.
        """
        if not isinstance(self._indices, _CoordinateIndices):
            raise error_of(RuntimeError, ParameterError, "the sparse tensor is in compressed rows")
        return self._indices

    def as_csrc_view(self) -> _RowIndices:
        """Return an object whose ``inner()`` and ``outer()`` return the indices.

        Raises:
            ParameterError: the tensor is not in compressed sparse row format.
        """
        if not isinstance(self._indices, _RowIndices):
            raise error_of(RuntimeError, ParameterError, "the sparse tensor is in coordinate form")
        return self._indices

    def as_blocksparse_view(self) -> Any:
        """Raise: block-sparse tensors are not supported.

        Raises:
            ParameterError: always.
        """
        raise error_of(RuntimeError, ParameterError, "the sparse tensor has no blocks")

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Raise: sparse tensors are supported only in host memory.

        Raises:
            UnsupportedError: always.
        """
        raise error_of(RuntimeError, UnsupportedError, "sparse tensors lie in memory of the host alone")

    def format(self) -> OrtSparseFormat:
        """Return the index format."""
        coordinates = isinstance(self._indices, _CoordinateIndices)
        return OrtSparseFormat.ORT_SPARSE_COO if coordinates else OrtSparseFormat.ORT_SPARSE_CSRC

    def dense_shape(self) -> list[int]:
        """Return the lengths of the dense tensor."""
        return list(self._lens)

    def data_type(self) -> str:
        """Return the type in ONNX's notation, such as ``sparse_tensor(float)``."""
        kind = Type.string_type if is_text(self._values.dtype) else from_numpy(self._values.dtype)
        return f"sparse_{onnx_type_string(kind)}"

    def device_name(self) -> str:
        """Return ``cpu``."""
        return "cpu"


def _read_only(array: Array) -> Array:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _check_host(device: OrtDevice) -> None:
    if device.device_type() != 0:
        raise UnsupportedError(f"{device}: sparse tensors lie in memory of the host alone")
