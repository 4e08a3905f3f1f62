"""A node of an ATen graph as builder functions see it: its operator, and the types of its results."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.types import Type
from ...dataclass import dataclass
from ...errors import MgxError


@dataclass(frozen=True)
class AtenNode:
    """An operator call of an ATen graph.

    Attributes:
        name: the node's name in the graph.
        operator: namespace, name and overload, such as ``aten::add.Tensor``.
        types: element type of each result; None for a result that is no tensor.
        ranks: number of axes of each result.
        place: line of the model's source from which the node was traced; empty if unknown.
        used: whether each result has readers; empty if unknown.
    """

    name: str
    operator: str
    types: Sequence[Type | None]
    ranks: Sequence[int]
    place: str = ""
    used: Sequence[bool] = ()

    @property
    def base(self) -> str:
        """The operator's name without namespace and overload."""
        return self.operator.partition("::")[2].partition(".")[0]

    @property
    def type(self) -> Type:
        """Element type of the first result."""
        found = self.types[0]
        assert found is not None
        return found

    def widened(self) -> AtenNode:
        """Return this node with float32 in the place of 16-bit floats."""
        types = [Type.float_type if t in (Type.half_type, Type.bf16_type) else t for t in self.types]
        return AtenNode(self.name, self.operator, types, self.ranks, self.place, self.used)

    def unused(self, result: int) -> bool:
        """Return whether result number ``result`` is known to have no reader."""
        return result < len(self.used) and not self.used[result]

    def read(self) -> list[int]:
        """Return the positions of the results that are tensors and may have readers."""
        return [k for k, t in enumerate(self.types) if t is not None and not self.unused(k)]

    @property
    def where(self) -> str:
        """Return a description of the node for messages."""
        return f"node {self.name!r} ({self.operator}{', from ' + self.place if self.place else ''})"


def located(error: MgxError, node: AtenNode, culprit: str = "") -> MgxError:
    """Return a copy of ``error`` whose text begins with the node, and whose attribute `node` is ``culprit``, by default
    the node's name."""
    found = type(error)(f"{node.where}: {error}")
    found.node = culprit or node.name
    return found
