"""Arguments: tensors in host memory, seen through a ``Shape``; views share memory and keep its owner alive."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ShapeError
from .copying import row_major
from .shape import Shape
from .strings import as_strings, is_text
from .types import Type, from_numpy

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class Argument:
    """A tensor (or a tuple of tensors) and its shape.

    Attributes:
        shape: type, lengths and strides; the strides are the array's own.
        array: NumPy view of the data with the logical lengths (``None`` for tuples).
        sub: the members of a tuple.
    """

    __slots__ = ("array", "shape", "sub")

    def __init__(self, shape: Shape, array: np.ndarray | None, sub: Sequence[Argument] = ()) -> None:
        self.shape = shape
        self.array = array
        self.sub = tuple(sub)

    @classmethod
    def from_array(cls, array: object) -> Argument:
        """Borrow a NumPy array, a DLPack exporter or any buffer; the owner is kept.

        Nothing is copied, except data of foreign byte order or with negative strides, which no shape can describe.

        Raises:
            ShapeError: the element type has no counterpart, strides are not whole elements, or an object is no string.
        """
        array = _as_array(array)
        if is_text(array.dtype):
            array = as_strings(array)
        try:
            type = from_numpy(array.dtype)
        except ValueError as error:
            raise ShapeError(str(error)) from None
        if any(stride % array.itemsize for stride in array.strides):
            raise ShapeError(f"strides {array.strides} are not whole elements of {array.dtype}")
        if array.ndim == 0:
            return cls(Shape(type), strided(array.reshape(1), (1,), (0,)))
        strides = [stride // array.itemsize for stride in array.strides]
        if array.flags.c_contiguous:
            return cls(Shape(type, array.shape), array)
        if min(strides, default=0) < 0:
            return cls.from_array(row_major(array))
        return cls(Shape(type, array.shape, strides), array)

    @classmethod
    def from_shape(cls, shape: Shape) -> Argument:
        """Allocate uninitialised memory for ``shape`` (its element space, so strides are honoured)."""
        if shape.sub_shapes:
            return cls.from_tuple([cls.from_shape(s) for s in shape.sub_shapes])
        if shape.is_dynamic:
            raise ShapeError(f"cannot allocate a dynamic shape: {shape}")
        return cls.from_flat(shape, np.empty(shape.element_space, shape.type.numpy))

    @classmethod
    def from_flat(cls, shape: Shape, flat: np.ndarray) -> Argument:
        """View one-dimensional storage (at least ``shape.element_space`` elements) through ``shape``."""
        if flat.size < shape.element_space:
            raise ShapeError(f"{flat.size} elements are too few for shape {shape}")
        return cls(shape, strided(flat, shape.lens, shape.strides))

    @classmethod
    def from_pointer(cls, shape: Shape, address: int, owner: object = None) -> Argument:
        """View memory at ``address`` (host) without copying; ``owner`` is kept alive with it."""
        if shape.is_dynamic:
            raise ShapeError(f"memory of a dynamic shape has no lengths: {shape}")
        if shape.type.holds_objects:
            raise ShapeError(f"elements of {shape} are Python objects, which no address gives")
        try:
            address = operator.index(address)
        except TypeError:
            raise ShapeError(f"address of {shape} is {address!r}, expected an integer") from None
        if address < 0 or (address == 0 and shape.bytes):
            raise ShapeError(f"address of {shape} is {address!r}, expected a positive integer")
        buffer = (ctypes.c_char * shape.bytes).from_address(address)
        setattr(buffer, "owner", owner)  # noqa: B010  (ctypes arrays take attributes, their stubs do not say so)
        return cls.from_flat(shape, np.frombuffer(memoryview(buffer), shape.type.numpy))

    @classmethod
    def from_tuple(cls, members: Iterable[Argument]) -> Argument:
        """Return a tuple of values, as multi-output operators give it."""
        members = list(members)
        return cls(Shape.tuple(m.shape for m in members), None, members)

    def copy(self) -> Argument:
        """Return a copy with the same shape and values in new memory."""
        if self.array is None:
            return Argument(self.shape, None, [member.copy() for member in self.sub])
        result = Argument.from_shape(self.shape)
        result.numpy()[...] = self.array
        return result

    def reshape(self, lens: Sequence[int]) -> Argument:
        """Return a view with other lengths; copy only where strides do not allow a view."""
        return Argument.from_array(self.numpy().reshape(lens))

    def numpy(self) -> np.ndarray:
        """Return the data as an array (a view).

        Raises:
            ShapeError: this is a tuple.
        """
        if self.array is None:
            raise ShapeError(f"a tuple of {len(self.sub)} values is not one array")
        return self.array

    @property
    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self.numpy().__array_interface__["data"][0])

    def tolist(self) -> list:
        """Return the elements as a flat list in logical order."""
        return self.numpy().ravel().tolist()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if copy:
            return np.array(self.numpy(), dtype=dtype)
        return np.asarray(self.numpy(), dtype=dtype)

    def __dlpack__(self, **options: object) -> object:
        from .dlpack import export_dlpack  # late: few values are exchanged with other libraries

        return export_dlpack(self.numpy(), self.shape.type, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Argument) or self.shape != other.shape:
            return False
        if self.array is None:
            return self.sub == other.sub
        mine, theirs = self.numpy(), other.numpy()
        if not self.shape.type.is_floating:
            return bool(np.array_equal(mine, theirs))
        wide = np.float32 if self.shape.type.compute is Type.float_type else np.float64
        a, b = mine.astype(wide), theirs.astype(wide)
        near = (np.nextafter(a, wide(-np.inf)) <= b) & (b <= np.nextafter(a, wide(np.inf)))
        return bool((near & np.isfinite(a) & np.isfinite(b)).all())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if self.array is None:
            return f"({', '.join(map(repr, self.sub))})"
        return ", ".join(map(str, self.tolist()))


def strided(flat: np.ndarray, lens: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Return a view of one-dimensional contiguous storage with other lengths; strides count elements.

    Unlike NumPy's ``as_strided``, it accepts every element type (float8 too), and stays inside the storage.

    Raises:
        ValueError: the view would reach outside.
    """
    steps = [s * flat.itemsize for s in strides]
    if flat.dtype.hasobject:
        if any(n == 0 for n in lens):
            return np.empty(tuple(lens), flat.dtype)
        if flat.size <= sum((n - 1) * s for n, s in zip(lens, strides)):
            raise ValueError(
                f"a view of lengths {list(lens)} and strides {list(strides)} reaches outside of {flat.size}"
            )
        return np.lib.stride_tricks.as_strided(flat, tuple(lens), steps)
    return np.ndarray(tuple(lens), flat.dtype, flat.view(np.uint8), 0, steps)  # type: ignore[arg-type]


def _as_array(value: object) -> np.ndarray:
    if isinstance(value, Argument):
        return value.numpy()
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, bytes):
        array = np.frombuffer(value, np.uint8)
    elif hasattr(value, "__dlpack__") and not hasattr(value, "__array_interface__"):
        from .dlpack import import_dlpack

        array = import_dlpack(value)
    else:
        array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
