"""``argument``: MIGraphX's tensor in host memory, which is also a NumPy array."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.argument import Argument
from ..core.shape import Shape
from ..errors import OptionError, ShapeError
from ..interrupts import whole_module
from .shape import shape, unwrap_shape


class argument(np.ndarray):
    """A tensor that borrows the memory of any buffer, NumPy array or DLPack exporter, and keeps its owner alive.

    It exports the buffer protocol, ``__array_interface__`` and DLPack. NumPy functions accept it as an array and return
    plain arrays. ``tolist`` is flat, and ``==`` compares within one unit in the last place, as in MIGraphX.

    A scalar (lengths {1}, strides {0}) is an array of shape (), and a buffer without axes becomes a scalar.

    ``argument(shape)`` allocates zeros (or empty strings). ``argument(shape, data)`` borrows a buffer of the shape's
    element type: either the flat element space, or an array with the shape's lengths and strides. Sequences of numbers,
    and arrays with other strides, are copied.

    Raises:
        ShapeError: the element type has no counterpart, or the data does not fit the shape.
    """

    _shape: Shape | None = None

    def __new__(cls, buffer: object, data: object = None) -> argument:
        if isinstance(buffer, shape):
            return cls.wrap(_of_shape(buffer._value, data))
        if data is not None:
            raise ShapeError(f"argument: data needs a shape before it, got {type(buffer).__name__}")
        return cls.wrap(Argument.from_array(buffer))

    @classmethod
    def wrap(cls, value: Argument) -> argument:
        """Return the public form of an IR argument."""
        array = value.numpy()
        self = (array.reshape(()) if value.shape.without_axes else array).view(cls)
        self._shape = value.shape
        return self

    def unwrap(self) -> Argument:
        """Return the IR's form of this argument."""
        array = self.view(np.ndarray)
        known = self._shape
        return Argument.from_array(array) if known is None else Argument(known, array.reshape(known.lens))

    def get_shape(self) -> shape:
        """Return the element type, lengths and strides."""
        return shape.wrap(self.unwrap().shape)

    def shaped(self, known: Shape) -> argument:
        """Set the shape to ``known``, for shapes that the array does not determine, and return this argument."""
        self._shape = known
        return self

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self.unwrap().data_ptr

    def tolist(self) -> list[Any]:
        """Return the elements in logical order as a flat list."""
        return self.unwrap().tolist()

    @staticmethod
    def save(arg: argument, filename: str | os.PathLike[str]) -> None:
        """Write an argument to a file (msgpack)."""
        whole_module("mgx_numba.graph.mxr")
        from ..graph.mxr import save_argument

        save_argument(argument(arg).unwrap(), filename)

    @staticmethod
    def load(filename: str | os.PathLike[str]) -> argument:
        """Read an argument from a file that ``save`` wrote."""
        whole_module("mgx_numba.graph.mxr")
        from ..graph.mxr import load_argument

        return argument.wrap(load_argument(filename))

    def __dlpack__(self, **options: object) -> Any:
        from ..core.dlpack import export_dlpack  # late: few values are exchanged with other libraries

        return export_dlpack(self.view(np.ndarray), self.unwrap().shape.type, **options)

    def __array_ufunc__(self, ufunc: object, method: str, *inputs: object, **kwargs: Any) -> Any:
        plain = [x.view(np.ndarray) if isinstance(x, argument) else x for x in inputs]
        if "out" in kwargs:
            kwargs["out"] = tuple(x.view(np.ndarray) if isinstance(x, argument) else x for x in kwargs["out"])
        return getattr(ufunc, method)(*plain, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self.view(np.ndarray)[key]

    def __eq__(self, other: object) -> Any:
        if isinstance(other, argument):
            return self.unwrap() == other.unwrap()
        return self.view(np.ndarray) == other

    def __ne__(self, other: object) -> Any:
        if isinstance(other, argument):
            return not self.unwrap() == other.unwrap()
        return self.view(np.ndarray) != other

    __hash__ = None

    def __repr__(self) -> str:
        """Return NumPy's summary of the elements, with the shape."""
        elements = np.array2string(self.view(np.ndarray), separator=", ", prefix="argument(")
        return f"argument({elements}, {self.get_shape()})"

    def __str__(self) -> str:
        return str(self.view(np.ndarray))


def _of_shape(wanted: Shape, data: object) -> Argument:
    """Return an IR argument of a shape that holds ``data``, or zeros if ``data`` is None."""
    if data is None:
        result = Argument.from_shape(wanted)
        for part in _leaves(result):
            part.numpy()[...] = "" if part.shape.type.holds_objects else 0
        return result
    if isinstance(data, (list, tuple, range)):
        return create_argument(shape.wrap(wanted), data).unwrap()
    if isinstance(data, (int, float)):
        return create_argument(shape.wrap(wanted), [data]).unwrap()
    given = data.unwrap() if isinstance(data, argument) else Argument.from_array(data)
    if wanted.is_dynamic or wanted.sub_shapes or given.shape.type is not wanted.type:
        raise ShapeError(f"argument: data is {given.shape}, expected elements of {wanted}")
    array = given.numpy()
    if given.shape == wanted:
        return Argument(wanted, array)
    if array.ndim == 1 and array.size == wanted.element_space and given.shape.standard:
        return Argument.from_flat(wanted, array)
    if given.shape.lens != wanted.lens:
        raise ShapeError(
            f"argument: data is {given.shape}, expected lengths {list(wanted.lens)} or {wanted.element_space} elements"
            f" in a row for {wanted}"
        )
    result = Argument.from_shape(wanted)
    result.numpy()[...] = array
    return result


def _leaves(value: Argument) -> list[Argument]:
    return [leaf for part in value.sub for leaf in _leaves(part)] if value.sub else [value]


def literal(value: object, data: object = None) -> argument:
    """Return a constant for ``add_literal`` that owns its memory.

    The forms are ``literal(shape, values)`` and ``literal(value)`` with a number or an array. Numbers become scalars of
    NumPy's types (int64, float64, bool).

    Raises:
        ShapeError: as in ``argument``.
    """
    if isinstance(value, shape) and data is None:
        raise ShapeError(f"literal: values of {value} are missing")
    return argument.wrap(argument(value, data).unwrap().copy())


def create_argument(shape: shape, values: Sequence[float]) -> argument:
    """Return an argument with the given elements in logical order.

    Raises:
        ShapeError: the number of values differs from the number of elements, or the values are not numbers.
    """
    wanted = unwrap_shape(shape)
    if len(values) != wanted.elements:
        raise ShapeError(
            f"Values and shape elements do not match: {len(values)} values, {wanted.elements} elements in {wanted}"
        )
    result = Argument.from_shape(wanted)
    try:
        result.numpy()[...] = np.asarray(values).astype(wanted.type.numpy).reshape(wanted.lens)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"values of {wanted} must be numbers: {error}") from None
    return argument.wrap(result)


def generate_argument(s: shape, seed: int = 0) -> argument:
    """Return the deterministic pseudo-random values that MIGraphX generates for the same shape and seed.

    Raises:
        OptionError: the seed is not an integer.
        ShapeError: the shape is dynamic.
    """
    if not isinstance(seed, (int, np.integer)):
        raise OptionError(f"generate_argument: seed must be an integer, got {seed!r}")
    from ..core.generate import generate

    return argument.wrap(generate(unwrap_shape(s), int(seed)))


def fill_argument(s: shape, value: float) -> argument:
    """Return an argument whose every element is ``value``.

    Raises:
        ShapeError: the shape's element type cannot hold the value, or the shape is dynamic.
    """
    result = Argument.from_shape(unwrap_shape(s))
    for leaf in _leaves(result):
        try:
            leaf.numpy()[...] = value
        except (OverflowError, TypeError, ValueError) as error:
            raise ShapeError(f"{value!r} cannot be an element of {leaf.shape}: {error}") from None
    return argument.wrap(result)
