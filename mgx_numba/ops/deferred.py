"""Placeholders: a model node that is converted to operators once lengths or values of its inputs are known, an unknown
operator, and the results of a branch that the lengths of its inputs do not fit."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from ..errors import ShapeError, UnsupportedError
from .base import Operator, operator_class, register

NOTHING = Shape.tuple(())
LENGTH_SCALARS = frozenset({"GroupQueryAttention"})
"""Operators of models whose integer scalars are lengths of results."""


def is_length(shape: Shape) -> bool:
    """Return whether an input of one of `LENGTH_SCALARS` is a length."""
    return shape.without_axes and shape.type in (Type.int32_type, Type.int64_type)


@register
@dataclass(frozen=True)
class Deferred(Operator):
    """The model node ``operator``, serialised by its frontend in ``source`` (base64).

    Some nodes (Reshape to lengths that are an input, TopK with k as an input) map to operators that depend on their
    inputs. `graph.deferred` has the frontends that convert them later; until then the result's shape is ``result``, a
    tuple for several results, maybe unranked. ``needs`` lists the custom operators in the node, which must be
    registered wherever the program is loaded.
    """

    name: ClassVar[str] = "deferred"
    operator: str = ""
    reader: str = "onnx"
    source: str = ""
    result: Shape = NOTHING
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"deferred:{self.operator}[source={zlib.crc32(self.source.encode()):08x}]"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        for name in self.needs:
            operator_class(name)
        return self.result


@register
@dataclass(frozen=True)
class Unknown(Operator):
    """An unknown model operator named ``operator``, created by ``parse_onnx(skip_unknown_operators=True)``.

    Its shape is assumed to be its first input's. It prints, but has no value.
    """

    name: ClassVar[str] = "unknown"
    operator: str = ""

    def __str__(self) -> str:
        return f"unknown:{self.operator}"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0] if inputs else Shape(Type.float_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        raise UnsupportedError(f"operator {self.operator!r} is unknown and cannot be computed")


@register
@dataclass(frozen=True)
class Unfitting(Operator):
    """A value of shape ``result`` that cannot be computed, because of ``reason``; computing it raises.

    A program is specialised for lengths (`graph.specialize`) before it is known which branches run; this replaces
    instructions that are invalid for these lengths.
    """

    name: ClassVar[str] = "unfitting"
    reason: str = ""
    result: Shape = NOTHING

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        return self.result

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        raise ShapeError(self.reason)
