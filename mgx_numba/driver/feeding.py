"""Parameter values from the flags of `add_inputs`."""

from __future__ import annotations

import argparse
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..api.argument import argument
from ..api.program import program
from ..core.shape import Shape
from ..core.types import Type
from ..errors import FormatError, OptionError
from .dims import split_names


def make_inputs(model: program, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return a value for every parameter, by name.

    By default values are random and depend only on name and shape: floats from -1 to 1; integers and bools 0 or 1,
    which are valid as indices, tokens and masks; strings "0" or "1". Dynamic lengths are ``--batch``, clipped to their
    range. A sequence has two tensors, of rank 1 if the rank is unknown; an optional has a value, a map is empty.

    Raises:
        OptionError: a flag names an unknown parameter, or two flags the same parameter.
        FormatError: a file cannot be read.
        ParameterError: a file's array has another type or shape.
    """
    shapes = {name: shape._value for name, shape in model.get_parameter_shapes().items()}
    files = {name: _one_file(name, words) for name, words in split_names("--load-arg", args.load_arg).items()}
    for option, names in (("--fill0", args.fill0), ("--fill1", args.fill1), ("--load-arg", files)):
        for name in names:
            if name not in shapes:
                listed = ", ".join(shapes) or "none"
                raise OptionError(f"{option}: no parameter is called {name!r}; the parameters are: {listed}")
    given = [*dict.fromkeys(args.fill0), *dict.fromkeys(args.fill1), *files]
    for name in given:
        if given.count(name) > 1:
            raise OptionError(f"{name!r} is given to more than one of --fill0, --fill1 and --load-arg")
    result: dict[str, object] = {}
    for name, shape in shapes.items():
        if name in files:
            result[name] = _load(files[name], name)
        elif name in args.fill0 or name in args.fill1:
            lens = _lens(shape, args.batch or 0)
            result[name] = np.full(lens, name in args.fill1).astype(shape.type.numpy)
        else:
            result[name] = _random(name, shape, args.batch or 0)
    return model._checked(with_types(model, result))


def with_types(model: program, values: Mapping[str, Any]) -> dict[str, object]:
    """Return inputs with the element types of their parameters.

    NumPy's files cannot name types of ``ml_dtypes`` (bfloat16, int4, ...): their elements are read as bytes.
    """
    types = {name: shape._value.type for name, shape in model.get_parameter_shapes().items()}
    result = dict(values)
    for name, value in values.items():
        kind = types.get(name)
        unnamed = (
            isinstance(value, np.ndarray) and value.dtype.kind == "V" and value.dtype == f"V{value.dtype.itemsize}"
        )
        if kind is not None and unnamed and kind.numpy.kind == "V" and kind.size == value.dtype.itemsize:
            result[name] = value.view(kind.numpy)
    return result


def _one_file(name: str, words: list[str]) -> str:
    if len(words) != 1:
        raise OptionError(f"--load-arg: @{name} needs one file, got {len(words)}")
    return words[0]


def _load(path: str, name: str) -> np.ndarray:
    """Return the array in a file; in an ``.npz`` file, the array with the parameter's name, or the only array."""
    if not path.endswith((".npy", ".npz")):
        return argument.load(path)
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            key = name if name in found or len(found.files) != 1 else found.files[0]
            if key in found:
                return found[key]
            raise FormatError(f"--load-arg: {path} has no array {name!r}; it has: {', '.join(found.files) or 'none'}")
    except FormatError:
        raise
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise FormatError(f"{path}: not a NumPy file of numbers (.npy or .npz)") from None


def _lens(shape: Shape, batch: int) -> tuple[int, ...]:
    return tuple(d.clamp(batch) for d in shape.dims) if shape.is_dynamic else shape.array_lens


def _random(name: str, shape: Shape, batch: int) -> object:
    if shape.type is Type.sequence_type and shape.element is not None:
        return [_random(f"{name}[{k}]", shape.element, batch) for k in range(2)]
    if shape.type is Type.map_type:
        return {}
    if shape.element is not None:
        return _random(name, shape.element, batch)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    lens = _lens(shape, batch) if shape.ranked else (batch,)
    if shape.type is Type.string_type:
        return np.asarray(rng.integers(0, 2, lens)).astype(str)
    if shape.type.is_floating:
        return np.asarray(rng.uniform(-1, 1, lens)).astype(np.float32).astype(shape.type.numpy)
    if shape.type is Type.fp4x2_type:
        return np.asarray(rng.integers(0, 256, lens)).astype(np.uint8)
    return np.asarray(rng.integers(0, 2, lens)).astype(shape.type.numpy)
