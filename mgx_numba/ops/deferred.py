"""A node of a model that becomes operators only when lengths, or values, of its inputs are known."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator, operator_class, register

if TYPE_CHECKING:
    from ..graph.module import Module

NOTHING = Shape.tuple(())


@register
@dataclass(frozen=True)
class Deferred(Operator):
    """The node ``operator`` of a model, as its reader has written it down in ``source`` (base64).

    Reshaping to lengths that are an input, taking as many of the largest elements as an input says: which operators
    do that depends on what the inputs are. `graph.deferred` has the readers that write them once it is known; until
    then the result's shape is ``result``, a tuple if the node has several results, and may be unranked. ``needs``
    has the names of the custom operators in the node, which must be registered wherever the program is loaded.
    """

    name: ClassVar[str] = "deferred"
    operator: str = ""
    reader: str = "onnx"
    source: str = ""
    result: Shape = NOTHING
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"deferred:{self.operator}[source={zlib.crc32(self.source.encode()):08x}]"

    def compute_shape(self, inputs: Sequence[Shape], modules: Sequence[Module] = ()) -> Shape:
        for name in self.needs:
            operator_class(name)
        return self.result
