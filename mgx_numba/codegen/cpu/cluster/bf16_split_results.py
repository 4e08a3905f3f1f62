"""Results of clusters that are stored in parts (`part_form`)."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.types import Type
from ....errors import UnsupportedError
from ....graph.module import Module
from ...problems.cluster import Tensor


def parts_of_outputs(module: Module, outputs: Sequence[Tensor], again: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the outputs for the high and the low parts of a result, or an empty tuple; arguments are
    those of the problem."""
    results = module.results()
    types = [ins.shape.type for ins in (*results, *(results[k] for k in again))]
    narrow = (tensor.type is Type.bf16_type for tensor in outputs)
    return tuple(k for k, (type, other) in enumerate(zip(types, narrow)) if other and type is Type.float_type)


def check_parts(name: str, along: Sequence[bool]) -> None:
    """Refuse results in parts unless the elements of each are contiguous along the vectors.

    Raises:
        UnsupportedError: an entry of ``along`` is false.
    """
    if not all(along):
        raise UnsupportedError(f"{name}: vectors of a result in parts do not follow its rows")


def store_parts_text(pointers: str, parts: Sequence[int], value: str, left: str) -> str:
    """Return the statement that stores a vector at ``c`` of two outputs, or its ``left`` first elements."""
    places = ", ".join(f"{pointers}{k}" for k in parts)
    return f"store_parts_tail({places}, c, {value}, {left})" if left else f"store_parts({places}, c, {value})"
