"""A model node that is converted to operators once lengths or values of its inputs are known."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import ClassVar

from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator, operator_class, register

NOTHING = Shape.tuple(())


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
