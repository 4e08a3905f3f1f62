"""`OrtValue`, a tensor in host or GPU memory, `OrtValueVector`, a list of `OrtValue`, the inputs of a run, in which
lists become arrays, and the copies between host and device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..api.device import allocate_gpu, borrowed, device_argument, from_gpu, to_gpu
from ..api.shape import shape as PublicShape
from ..core.copying import row_major
from ..core.device_array import device_of
from ..core.shape import Shape
from ..core.types import Type, from_numpy
from ..errors import MgxError, ParameterError, ShapeError, UnsupportedError
from ..frontends.onnx.tensors import ir_type, onnx_number, onnx_type_string
from .devices import OrtMemoryInfo
from .exceptions import error_of
from .sparse import SparseTensor

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["OrtValue", "OrtValueVector", "copy_tensors"]

GPU = "cuda"
"""ONNX Runtime's name for the memory of NVIDIA's devices."""


class OrtValue:
    """A tensor in host or device memory, made by the ``ortvalue_...`` functions or by a run.

    Args:
        value: the tensor, or the values of a sparse tensor.
        sparse: the sparse tensor, if any.
    """

    def __init__(self, value: np.ndarray | device_argument, sparse: SparseTensor | None = None) -> None:
        self._value = value
        self._sparse = sparse

    @staticmethod
    def ortvalue_from_numpy(
        array: object, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return a tensor that shares an array's memory.

        Arrays that are not contiguous are copied, and so are arrays for a device. ``vendor_id`` has no effect: a
        machine's GPUs are of one vendor.

        Raises:
            UnsupportedError: the kind of device is not supported.
            DeviceError: there is no such device, or not enough memory.
            ShapeError: the element type does not exist in ONNX.
        """
        array = np.asarray(array)
        _element_type(array.dtype)
        if is_gpu(device_type):
            return OrtValue(_placed(to_gpu(array, device_id=device_id)))
        return OrtValue(array if array.flags.c_contiguous else array.copy())

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, /, onnx_element_type: int) -> OrtValue:
        """Return a tensor of the element type with ONNX's number, in an array's memory (for instance uint16 for
        bfloat16).

        Raises:
            ShapeError: the array's elements have another size.
        """
        kind, array = ir_type(onnx_element_type), np.ascontiguousarray(data)
        if array.itemsize != np.dtype(kind.numpy).itemsize:
            raise ShapeError(
                f"{array.dtype} cannot be taken for {onnx_type_string(kind)}, whose elements differ in size"
            )
        return OrtValue(array.view(kind.numpy))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: object,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """Return a tensor in new memory with undefined content; ``element_type`` is NumPy's type or ONNX's number.

        ``memory_info`` overrides ``device_type`` and ``device_id``; ``vendor_id`` has no effect.

        Raises:
            UnsupportedError, DeviceError, ShapeError: as in `ortvalue_from_numpy`.
        """
        wanted = shape_of(element_type, shape)
        if memory_info is not None:
            device_type, device_id = memory_info.name, memory_info.device_id
        if is_gpu(device_type):
            return OrtValue(_placed(allocate_gpu(PublicShape.wrap(wanted), device_id=device_id)))
        return OrtValue(np.empty(tuple(shape), wanted.type.numpy))

    @staticmethod
    def from_dlpack(data: Any, /) -> OrtValue:
        """Return a tensor that shares memory through DLPack with another library's tensor, or a capsule in host memory.

        Raises:
            ShapeError: the element type does not exist in ONNX.
        """
        if type(data).__name__ == "PyCapsule":
            data = _Capsule(data)
        elif device_of(data) is not None:
            return OrtValue(device_argument.wrap(borrowed(data, None)))
        array = np.from_dlpack(data)
        _element_type(array.dtype)
        return OrtValue(array if array.flags.c_contiguous else array.copy())

    def numpy(self) -> np.ndarray:
        """Return the tensor as an array, which shares host memory; a device tensor is copied.

        Raises:
            ParameterError: the tensor is sparse.
        """
        if self._sparse is not None:
            text = "a sparse tensor is no array; as_sparse_tensor() has its values"
            raise error_of(RuntimeError, ParameterError, text)
        value = self._value
        return value if isinstance(value, np.ndarray) else np.asarray(from_gpu(value)).reshape(self._described.lens)

    def update_inplace(self, array: np.ndarray) -> None:
        """Copy an array of the same element type and lengths into the tensor.

        Raises:
            ParameterError: element type or lengths differ.
        """
        own = self._described
        if (array.dtype, array.shape) != own:
            raise ParameterError(
                f"update_inplace was given {array.dtype} {list(array.shape)}, expected {own.dtype} {list(own.lens)}"
            )
        copy_into(self._value, array)

    @property
    def _ortvalue(self) -> OrtValue:
        """Return the value itself in place of ONNX Runtime's inner value, which has the same methods."""
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    @property
    def _described(self) -> Described:
        return described(self._value)

    def shape(self) -> list[int]:
        """Return the lengths, outermost axis first."""
        return list(self._described.lens) if self._sparse is None else self._sparse.dense_shape()

    def data_type(self) -> str:
        """Return the type in ONNX's notation, such as ``tensor(float)``."""
        if self._sparse is not None:
            return self._sparse.data_type()
        return onnx_type_string(_element_type(self._described.dtype))

    def element_type(self) -> int:
        """Return ONNX's number of the element type."""
        return onnx_number(_element_type(self._described.dtype))

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        value = self._value
        return int(value.ctypes.data) if isinstance(value, np.ndarray) else value.data_ptr()

    def tensor_size_in_bytes(self) -> int:
        """Return the size of all elements in bytes."""
        return prod(self._described.lens) * self._described.dtype.itemsize

    def device_name(self) -> str:
        """Return ``cpu`` or ``cuda``."""
        return "cpu" if isinstance(self._value, np.ndarray) else GPU

    def has_value(self) -> bool:
        """Return True: empty optionals are never instances of this class."""
        return True

    def is_tensor(self) -> bool:
        """Return whether the tensor is dense; sequences and maps are never instances of this class."""
        return self._sparse is None

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: SparseTensor) -> OrtValue:
        """Return a value that holds a sparse tensor; sessions do not accept sparse inputs."""
        return OrtValue(sparse_tensor.values(), sparse_tensor)

    def as_sparse_tensor(self) -> SparseTensor:
        """Return the sparse tensor.

        Raises:
            ParameterError: the tensor is dense.
        """
        if self._sparse is None:
            raise error_of(RuntimeError, ParameterError, "the OrtValue holds a dense tensor, no sparse one")
        return self._sparse

    def is_sparse_tensor(self) -> bool:
        """Return whether the tensor is sparse."""
        return self._sparse is not None

    def is_tensor_sequence(self) -> bool:
        """Return False: sequences are never instances of this class."""
        return False

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._value.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._value.__dlpack_device__()


class _Capsule:
    """An exporter of a DLPack capsule of host memory."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU, number 0


class OrtValueVector(list[OrtValue]):
    """A list of tensors, with the method names of ONNX Runtime's vector."""

    def push_back(self, value: object) -> None:
        """Append an `OrtValue`, or another library's tensor through DLPack."""
        self.append(value if isinstance(value, OrtValue) else OrtValue.from_dlpack(value))

    def element_type_at(self, idx: int) -> int:
        """Return ONNX's number of the element type of the tensor at ``idx``."""
        return self[idx].element_type()

    def dlpack_at(self, idx: int) -> Any:
        """Return a DLPack capsule of the tensor at ``idx``."""
        return self[idx].__dlpack__()

    def to_dlpacks(self, to_tensor: Callable[[Any], object] | None) -> list[Any]:
        """Return a DLPack capsule for each tensor, or the result of ``to_tensor`` for each capsule."""
        capsules = [value.__dlpack__() for value in self]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]

    def reserve(self, count: int) -> None:
        """Do nothing: lists grow by themselves."""

    def shrink_to_fit(self) -> None:
        """Do nothing."""


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: object = None) -> None:
    """Copy tensors to tensors of the same element types and lengths, on any device; wait for all copies.

    Raises:
        ParameterError: numbers, element types or lengths differ.
    """
    if len(src) != len(dst):
        raise ParameterError(f"copy_tensors was given {len(src)} sources and {len(dst)} destinations")
    for source, target in zip(src, dst, strict=True):
        if source._described != target._described:
            raise ParameterError(
                f"copy_tensors cannot copy {source.data_type()}{source.shape()} into"
                f" {target.data_type()}{target.shape()}"
            )
        copy_into(target._value, source._value)


def ort_value(name: str, result: Any) -> OrtValue:
    """Return a result as an `OrtValue`.

    Raises:
        UnsupportedError: the result is not a tensor.
    """
    if result is None or isinstance(result, (list, dict)):
        raise UnsupportedError(
            f"result {name!r} is no tensor: `run` gives it, bindings and OrtValue have tensors alone"
        )
    return OrtValue(result)


def shape_of(element_type: object, lens: Sequence[int]) -> Shape:
    kind = _element_type(element_type)
    return Shape(kind, tuple(lens)) if len(lens) else Shape(kind)


def _element_type(given: Any) -> Type:
    """Return the element type of a NumPy dtype or of ONNX's number."""
    if isinstance(given, int):
        return ir_type(given)
    try:
        return from_numpy(np.dtype(given))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"element type {given!r} is none of a tensor here: {error}") from None


def _placed(value: object) -> device_argument:
    assert isinstance(value, device_argument)
    return value


def is_gpu(device_type: str) -> bool:
    """Return whether a device type is a GPU (True) or the host (False).

    Raises:
        UnsupportedError: it is neither.
    """
    if device_type.lower() not in ("cpu", GPU, "gpu"):
        raise UnsupportedError(f"device {device_type!r}, expected 'cpu' or '{GPU}'")
    return device_type.lower() != "cpu"


class Described(NamedTuple):
    """Element type and lengths of a tensor."""

    dtype: np.dtype
    lens: tuple[int, ...]


def described(value: np.ndarray | device_argument) -> Described:
    """Return element type and lengths of a host or device tensor."""
    if isinstance(value, np.ndarray):
        return Described(value.dtype, value.shape)
    shape = value._value.shape
    return Described(np.dtype(shape.type.numpy), tuple(shape.array_lens))


def copy_into(target: np.ndarray | device_argument, source: np.ndarray | device_argument) -> None:
    """Copy a tensor into another of equal element type and lengths; the copy is complete on return."""
    if isinstance(target, np.ndarray):
        target[...] = source if isinstance(source, np.ndarray) else np.asarray(from_gpu(source)).reshape(target.shape)
        return
    from ..runtime.gpu.engines import engine  # late: rarely needed
    from ..runtime.gpu.transfers import copy_within, fill, to_host

    on, place = engine(target._value.device), target._value
    if isinstance(source, np.ndarray):
        fill(on, place, row_major(source))
    elif source._value.device == place.device:
        copy_within(on, place, source._value)
    else:
        fill(on, place, to_host(engine(source._value.device), source._value))


def fed(feed: Mapping[str, object], shapes: Mapping[str, Shape]) -> dict[str, object]:
    """Return the values of a run's inputs, with lists converted to arrays.

    Args:
        feed: the caller's values, by input name.
        shapes: declared shapes of the inputs, by input name.

    Raises:
        ParameterError: a list cannot be converted to the input's element type, or a value is a sparse tensor.
    """
    found = dict(feed)
    for name, value in feed.items():
        if type(value) is not np.ndarray:
            found[name] = _value(name, value, shapes.get(name))
    return found


def _value(name: str, value: object, wanted: Shape | None) -> Any:
    if isinstance(value, OrtValue) and not value.is_sparse_tensor():
        return value._value
    if isinstance(value, (OrtValue, SparseTensor)):
        raise ParameterError(f"input {name!r} is given as a sparse tensor; inputs are dense")
    if wanted is None or not isinstance(value, (list, tuple)) or wanted.type is Type.map_type:
        return value
    if wanted.type is Type.sequence_type:
        return [_value(f"{name}[{k}]", member, wanted.element) for k, member in enumerate(value)]
    if wanted.element is not None:
        return _value(name, value, wanted.element)
    return value if wanted.type is Type.string_type else _array(name, value, wanted.type)


def _array(name: str, value: object, type_: Type) -> np.ndarray:
    """Return a list of numbers as an array; integer types truncate fractions, as in ONNX Runtime.

    Raises:
        ParameterError: lengths differ, a member is not a number, or the element type cannot hold a member.
    """
    try:
        found = np.array(value)
    except (TypeError, ValueError) as error:
        raise _refused(f"input {name!r}: the list is not an array: {error}") from None
    dtype = np.dtype(type_.numpy)
    if found.size == 0:
        return np.zeros(found.shape, dtype)
    if found.dtype.kind not in "biufc" and found.dtype.kind != "V":
        kind = "text" if found.dtype.kind in "SU" else "no numbers, or integers beyond 64 bits"
        raise _refused(f"input {name!r}: the list holds {kind}, expected {dtype}")
    if not type_.is_integral or type_ is Type.bool_type:
        return found.astype(dtype)
    import ml_dtypes  # late: importing it takes milliseconds

    limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]  # covers int4, too
    whole = found.dtype.kind in "biu"
    try:
        if whole and found.min() >= limits.min and found.max() <= limits.max:
            return found.astype(dtype)
        # NumPy chooses float64 if neither int64 nor uint64 can hold all members: convert them one by one.
        members = (found if whole else np.array(value, object)).flat
        return np.array([_within(int(member), limits) for member in members], dtype).reshape(found.shape)
    except (OverflowError, ValueError) as error:
        raise _refused(f"input {name!r}: {error}, expected {dtype}") from None


def _refused(message: str) -> MgxError:
    return error_of(RuntimeError, ParameterError, message)


def _within(member: int, limits: Any) -> int:
    if not limits.min <= member <= limits.max:
        raise OverflowError(f"{member} is out of range")
    return member
