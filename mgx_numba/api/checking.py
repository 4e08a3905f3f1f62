"""Validation of the arguments of ``run`` against the program's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.argument import Argument
from ..core.device_array import DeviceArray, device_of, is_in_a_row
from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..errors import MgxError, ParameterError
from ..interrupts import whole_module
from ..targets.registry import REFERENCE
from .argument import argument

if TYPE_CHECKING:
    from .compiled_form import CompiledForm


def check(
    name: str,
    value: Any,
    wanted: Shape,
    form: CompiledForm | None,
    open_dims: Callable[[str], Mapping[int, str]],
    stream: int | None = None,
) -> Any:
    """Return a parameter's value as an array of the declared shape (rank 0 for a scalar), or as its tensor on a device.

    Args:
        name: name of the parameter.
        value: value that the caller passed.
        wanted: declared shape of the parameter.
        form: the compiled form; None if the program is not compiled.
        open_dims: returns the symbols of a parameter's axes whose lengths are known only by default.
        stream: stream on which the tensor will be read; None for the default stream.

    Raises:
        ParameterError: the value does not fit the shape, or lies on another device than the program's.
    """
    plain = type(value) is np.ndarray and not wanted.type.holds_objects
    if plain and (form is None or form.home is None) and value.dtype == wanted.type.numpy and value.ndim:
        array: np.ndarray = value
        if array.shape == wanted.lens or (wanted.dyn_dims and _within(array.shape, wanted.dyn_dims)):
            return array
    if wanted.element is not None:
        from .holders import held_value

        return held_value(name, value, wanted, lambda of, member, shape: check(of, member, shape, form, open_dims))
    if value is None:
        raise ParameterError(f"parameter {name}: None is given; expected an array of {wanted}")
    if not plain and device_of(value) is not None:
        there = _on_device(name, value, wanted, form, stream)
        fits = _fits(there.shape, wanted)
        if there.shape.type is not wanted.type or not fits:
            raise _mismatched(name, value, there.shape, wanted, fits, open_dims)
        return there
    if form is not None and form.home is not None and not wanted.type.holds_objects:
        raise ParameterError(
            f"parameter {name}: it lies in host memory, expected that of device {form.home.device}, as the program"
            " was compiled with offload_copy=False; to_gpu(...) copies it"
        )
    try:
        if type(value) in _NUMBERS:
            value = _converted(value, wanted.type)
        given = value.unwrap() if isinstance(value, argument) else Argument.from_array(value)
    except (MgxError, TypeError, ValueError) as error:
        raise ParameterError(f"parameter {name}: {error}; expected {wanted}") from None
    array, actual = given.numpy(), given.shape
    fits = _fits(actual, wanted)
    if actual.type is not wanted.type or not fits:
        raise _mismatched(name, value, actual, wanted, fits, open_dims)
    if not wanted.is_dynamic and array.shape != wanted.lens:
        array = array.reshape(wanted.lens)
    return array.reshape(()) if not wanted.ranked and actual.without_axes else array


def buffer_of(
    name: str, value: object, wanted: Shape, form: CompiledForm | None, open_dims: Callable[[str], Mapping[int, str]]
) -> Any:
    """Return the memory for a result as an array over it, or as its tensor on a device.

    Raises:
        ParameterError: the memory is no array, cannot be written, or lies on another device than the program's.
    """
    if isinstance(value, np.ndarray):
        found: np.ndarray = value.view(np.ndarray)
    elif device_of(value) is not None:
        try:
            return check(name, value, wanted, form, open_dims)
        except ParameterError as error:
            raise ParameterError(f"memory for result {name}: {error}") from None
    else:
        try:
            found = Argument.from_array(value).numpy()
        except (MgxError, TypeError, ValueError) as error:
            raise ParameterError(f"memory for result {name}: {error}") from None
    if not found.flags.writeable:
        raise ParameterError(f"memory for result {name}: the array is read-only")
    return found


def _fits(actual: Shape, wanted: Shape) -> bool:
    """Return whether a parameter of shape ``wanted`` accepts the lengths of ``actual``."""
    if not wanted.is_dynamic:
        return actual.lens == wanted.lens or (wanted.elements == 1 and actual.elements == 1 and actual.scalar)
    return not wanted.ranked or _within(actual.array_lens, wanted.dyn_dims)


def _within(lens: tuple[int, ...], ranges: tuple[DynamicDimension, ...]) -> bool:
    """Return whether ``lens`` has the rank of ``ranges`` and each length lies within its range."""
    return len(lens) == len(ranges) and all(dim.min <= n <= dim.max for n, dim in zip(lens, ranges))


def _mismatched(
    name: str, value: object, actual: Shape, wanted: Shape, fits: bool, open_dims: Callable[[str], Mapping[int, str]]
) -> ParameterError:
    from .mismatch import mismatch

    return ParameterError(mismatch(name, value, actual, wanted, fits, open_dims(name)))


_NUMBERS = {bool: 0, int: 1, float: 2}
"""Kinds of Python numbers. A number takes the other operand's element type if the type's kind is the same or later, as
in NumPy 2 (NEP 50)."""


def _converted(value: Any, type_: Type) -> np.ndarray:
    """Convert a Python number to an element type.

    Raises:
        ParameterError: the number's kind is later than the type's, or the type cannot hold the integer.
    """
    kind = 2 if type_.is_floating else 0 if type_ is Type.bool_type else 1
    if _NUMBERS[type(value)] > kind or not (type_.is_floating or type_.is_integral):
        raise ParameterError(f"the Python {type(value).__name__} {value} is not converted to {type_.name}")
    try:
        return np.asarray(value).astype(type_.numpy) if kind == 2 else np.asarray(value, type_.numpy)
    except OverflowError:
        raise ParameterError(f"a Python int of {value.bit_length()} bits is out of the range of {type_.name}") from None


def _on_device(name: str, value: object, wanted: Shape, form: CompiledForm | None, stream: int | None) -> DeviceArray:
    """Return a tensor that lies on a device as an argument of a program that runs on the same device."""
    compiled = None if form is None else form.on
    if compiled is None:
        at = REFERENCE if form is None else form.target.name()
        raise ParameterError(
            f"parameter {name}: it lies on a device, and the program runs on the target {at}; from_gpu(...) copies it"
        )
    whole_module("mgx_numba.api.device")
    from .device import borrowed

    try:
        found = borrowed(value, stream)
    except MgxError as error:
        raise ParameterError(f"parameter {name}: {error}; expected {wanted}") from None
    if found.device != compiled.device:
        raise ParameterError(
            f"parameter {name}: it lies on device {found.device}, expected device {compiled.device}, for which the"
            " program was compiled (device_id)"
        )
    if not is_in_a_row(found.shape):
        raise ParameterError(
            f"parameter {name}: {found.shape} on a device, expected elements in a row, as tensor.contiguous() gives"
        )
    return found
