"""Means of the heads of rows (`ops.reduce_parts.HeadMean`): of their first vectors, before any other data is read."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import Length, ceil_div, maximum, minimum
from ....ops.reduce_parts import largest_head
from ...statements import indent

LEAST_VECTORS = 4
"""Least vectors of the head: fewer give a mean that may be far from the row's mean."""


def head_vectors(lanes: int, cols: Length, count: Length, share: int) -> Length:
    """Return the vectors of the head of a row: one in ``share`` of ``count`` elements, of which ``cols`` are
    contiguous."""
    return minimum(cols // lanes, maximum(LEAST_VECTORS, ceil_div(count, share * lanes)))


def head_lines(name: str, dtype: str, lanes: int, element: Sequence[str], value: str) -> list[str]:
    """Return lines that set ``name`` to the mean of ``heads`` vectors, where ``element`` computes each ``value`` at
    ``c``."""
    return [
        f"{name} = const_{dtype}(0, {lanes})",
        "for head in range(heads):",
        *indent([f"c = head * {lanes}", *element, f"{name} = add({name}, {value})"]),
        f"{name}_0 = div(reduce_add({name}), cast_{dtype}(heads * {lanes}))",
        f"{name}_1 = where(lt(abs({name}_0), {largest_head(dtype)!r}), {name}_0, const_{dtype}(0, 0))",
    ]
