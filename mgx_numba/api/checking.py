"""Validation of the arguments of ``run`` against the program's parameters; the error message of an input that does not
fit names the options that would fix it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


Lens = tuple[int, ...]

_IMAGES = 3
"""Rank above which axes are those of images: batch, channels, lengths."""


def mismatch(name: str, given: object, actual: Shape, wanted: Shape, fits: bool, open_dims: Mapping[int, str]) -> str:
    """Return the error message for an input of the wrong type or shape.

    Args:
        given, actual: the value, and its shape.
        wanted: declared shape of the parameter.
        fits: whether the lengths fit (then only the type differs).
        open_dims: description of the axes that the model leaves dynamic, as in `Program.open_dims`.
    """
    of_type = actual.type is wanted.type
    what = "shape" if of_type else "type" if fits else "type and shape"
    parts = [f"Incorrect {what} {{{actual}}} for parameter: {name} should be: {{{wanted}}}"]
    if not of_type and not (wanted.type.holds_objects or actual.type.holds_objects):
        parts.append(f"convert it, for instance by {_conversion(given, wanted.type)}")
    if not fits and wanted.ndim == len(actual.lens) + 1 and wanted.max_lens == (1, *actual.lens):
        parts.append(f"it lacks the leading axis: give {name}[None]")
    if not fits and len(actual.lens) == wanted.ndim:
        parts += _opened(name, actual.lens, wanted.dims, open_dims) or _fixed(name, actual.lens, wanted.dims)
    return "; ".join(parts)


def _conversion(given: object, wanted: Type) -> str:
    dtype = wanted.dtype_name
    return f".to(torch.{dtype})" if type(given).__module__.partition(".")[0] == "torch" else f".astype({dtype!r})"


def _opened(name: str, lens: Lens, wanted: Sequence[DynamicDimension], open_dims: Mapping[int, str]) -> list[str]:
    """Return hints for lengths out of range: their origin in the model, and the ``parse_onnx`` options to set."""
    wrong = [k for k in open_dims if k < len(lens) and not wanted[k].min <= lens[k] <= wanted[k].max]
    if not wrong:
        return []
    origins = ((f"{k} ({open_dims[k]!r})" if open_dims[k] else str(k), wanted[k]) for k in wrong)
    read = ", ".join(f"dimension {origin} was read as {length}" for origin, length in origins)
    symbols = ", ".join(f"{open_dims[k]!r}: {lens[k]}" for k in wrong if open_dims[k])
    by_symbol = f"dim_params={{{symbols}}}, " if symbols else ""
    fixed = ", ".join(str(lens[k] if k in wrong else wanted[k].max) for k in range(len(lens)))
    ranges = ", ".join(_range(lens[k] if k in wrong else wanted[k].max, wanted[k]) for k in range(len(lens)))
    return [
        f"the model leaves it open: {read}; give parse_onnx {by_symbol}map_input_dims={{{name!r}: [{fixed}]}}, "
        f"or map_dyn_input_dims={{{name!r}: [{ranges}]}} for all lengths in a range"
    ]


def _fixed(name: str, lens: Lens, wanted: Sequence[DynamicDimension]) -> list[str]:
    """Return hints for lengths that the model, or ``map_input_dims``, fixes.

    No other number of channels or features fits a model's weights: the second axis of images, else the last axis.
    """
    wrong = [k for k, dim in enumerate(wanted) if dim.is_fixed and lens[k] != dim.max]
    if not wrong or (len(lens) > 1 and (1 if len(lens) > _IMAGES else len(lens) - 1) in wrong):
        return []
    longest = ", ".join(str(max(n, dim.max) if dim.is_fixed else n) for n, dim in zip(lens, wanted))
    axes = ", ".join(f"dimension {k} is fixed at {wanted[k].max}" for k in wrong)
    return [
        f"{axes}: program.reshape({{{name!r}: {list(lens)}}}) changes that, up to the lengths given to parse_onnx, "
        f"here map_input_dims={{{name!r}: [{longest}]}}"
    ]


def _range(length: int, known: DynamicDimension) -> str:
    low, high = min(length, known.min), max(length, known.max)
    return str(low) if low == high else f"dynamic_dimension({low}, {high})"
