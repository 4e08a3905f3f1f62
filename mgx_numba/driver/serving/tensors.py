"""Encoding of shapes, tensors and attributes between a C++ program and the compiler process.

A shape is a map of ``type`` (MIGraphX's number), ``lens`` and ``strides``, or ``dyn_dims``. A tensor is a map of
``type``, ``lens``, ``strides`` (in answers) and ``data``, its elements in row-major order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...api.argument import argument
from ...api.shape import shape
from ...core.types import Type
from ...errors import OperatorError, ParameterError

_BARE = re.compile(r"""("(?:[^"\\]|\\.)*")|([A-Za-z_]\w*)(?=\s*:)""")
"""Pattern of a string, which stays as it is, or of an unquoted name before a colon."""


def described(s: shape) -> dict[str, Any]:
    """Return the encoding of a shape."""
    inner = s._value
    if inner.is_dynamic:
        dims = [{"min": d.min, "max": d.max, "optimals": sorted(d.optimals)} for d in inner.dyn_dims]
        return {"type": int(inner.type), "dyn_dims": dims}
    return {"type": int(inner.type), "lens": list(inner.lens), "strides": list(inner.strides)}


def shape_of(given: Mapping[str, Any]) -> shape:
    """Return the shape that a C++ program sent."""
    name = Type(given["type"]).name
    if "dyn_dims" in given:
        return shape(type=name, dyn_dims=given["dyn_dims"])
    return shape(type=name, lens=given["lens"], strides=given["strides"])


def packed(value: argument) -> dict[str, Any]:
    """Return the encoding of a result.

    Raises:
        ParameterError: C++ has no counterpart of the element type.
    """
    s = value.get_shape()
    if not isinstance(value, argument) or s._value.type.holds_objects or s._value.sub_shapes:
        raise ParameterError(f"a result of {s} has no form in C++")
    array = np.ascontiguousarray(np.asarray(value))
    standard = shape(type=s._value.type.name, lens=s.lens()) if not s._value.scalar else s
    return {**described(standard), "data": array.tobytes()}


def tensor_of(given: Mapping[str, Any]) -> np.ndarray:
    """Return the array that a C++ program sent, read-only."""
    return np.frombuffer(given["data"], Type(given["type"]).numpy).reshape(given["lens"])


def attributes_of(given: Any) -> dict[str, Any]:
    """Return an operator's attributes from a map, or from JSON text with names that need no quotes.

    Raises:
        OperatorError: the text is not JSON.
    """
    if isinstance(given, str):
        text = _BARE.sub(lambda found: found[1] or f'"{found[2]}"', given or "{}")
        try:
            given = json.loads(text)
        except ValueError as error:
            raise OperatorError(f"attributes {given!r} are no JSON: {error}") from None
    if not isinstance(given, dict):
        raise OperatorError(f"attributes must be an object, got {given!r}")
    return {key: _attribute(value) for key, value in given.items()}


def _attribute(value: Any) -> Any:
    if isinstance(value, list):
        return [_attribute(member) for member in value]
    if isinstance(value, dict) and list(value) == ["float"]:
        return float.fromhex(value["float"])
    return value
