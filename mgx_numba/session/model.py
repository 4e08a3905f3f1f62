"""Description of a session's model: inputs, results and metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from ..core.types import Type
from ..dataclass import dataclass
from ..errors import UnsupportedError
from ..frontends.onnx.tensors import type_string

if TYPE_CHECKING:
    from ..core.shape import Shape
    from ..graph.origin import Origin

__all__ = ["ModelMetadata", "NodeArg"]


@dataclass(frozen=True)
class NodeArg:
    """An input or a result of a model.

    Attributes:
        name: name in the model.
        type: ``tensor(float)``, ``seq(tensor(float))``, ``map(int64,tensor(float))`` and so on.
        shape: lengths; a dynamic dimension is its symbol, or None without a symbol. Empty for sequences and maps.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """Metadata in a model's file."""

    producer_name: str = ""
    graph_name: str = ""
    graph_description: str = ""
    domain: str = ""
    description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


def node_args(
    names: Sequence[str], shapes: Sequence[Shape], declared: Sequence[Sequence[int | str]] = ()
) -> list[NodeArg]:
    """Return descriptions of inputs or results from their names and shapes.

    Args:
        declared: dimensions that the model declares for each value: lengths, symbols or "" (neither). Known lengths of
            ``shapes`` take precedence, then declared dimensions, then symbols of ``shapes``.

    Raises:
        UnsupportedError: a value is a tuple, or its element type does not exist in ONNX.
    """
    found = []
    for number, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        if shape.sub_shapes:
            raise UnsupportedError(f"{name!r} is a tuple, which ONNX has not")
        found.append(NodeArg(name, _type_string(shape), _dims(shape, declared[number : number + 1])))
    return found


def _type_string(shape: Shape) -> str:
    """Return the type in ONNX Runtime's notation, where the values of maps are tensors, without spaces."""
    return re.sub(r"map\((\w+), (\w+)\)", r"map(\1,tensor(\2))", type_string(shape))


def _dims(shape: Shape, declared: Sequence[Sequence[int | str]]) -> list[int | str | None]:
    if shape.element is not None:
        return _dims(shape.element, declared) if shape.type is Type.optional_type else []
    if shape.is_dynamic:
        known = next((given for given in declared if len(given) == shape.ndim), [""] * shape.ndim)
        pairs = zip(shape.dyn_dims, known, strict=True)
        return [d.min if d.is_fixed else given or d.symbol or None for d, given in pairs]
    return [] if shape.without_axes else list(shape.lens)


def metadata_of(origin: Origin) -> ModelMetadata:
    """Return the metadata of a program's origin."""
    return ModelMetadata(
        origin.producer_name,
        origin.graph_name,
        origin.graph_description,
        origin.domain,
        origin.description,
        origin.version,
        dict(origin.properties),
    )
