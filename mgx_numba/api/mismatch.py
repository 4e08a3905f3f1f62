"""Error message for an input that does not fit the program's parameter, with the options that would fix it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type

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
