"""Results that take the place of an operand which nothing reads after them, as the sum with a residual does.

Half the memory is touched then, and what a kernel writes is in the cache already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...codegen.launch import Launch
from ...runtime.plan import Region
from .buffers import Buffer, View

__all__ = ["replaced", "replaced_operand"]


def replaced(steps: Sequence[tuple[Launch | None, Mapping[str, View]]]) -> dict[Buffer, Buffer]:
    """For each buffer that lies where another one was: the first one there, which then lives as long as it.

    Args:
        steps: launch and operands of each step, in order; all their arena buffers know where they are used.
    """
    first: dict[Buffer, Buffer] = {}
    for number, (launch, operands) in enumerate(steps):
        if launch is None or "out" not in operands:
            continue
        name = replaced_operand(launch.replaceable, operands, number, number, first)
        if name:
            out, operand = operands["out"].buffer, operands[name].buffer
            before = first[out] = first.get(operand, operand)
            before.last = out.last
    return first


def replaced_operand(
    names: Sequence[str], operands: Mapping[str, View], start: int, last: int, first: Mapping[Buffer, Buffer]
) -> str:
    """The first of some operands that ``out`` may take the place of, or an empty string.

    Args:
        names: operands of which each element is read before the result's there is written.
        operands: all that the steps from ``start`` to ``last`` read and write.
        first: where the buffers lie that took the place of others in earlier steps.
    """
    out = operands["out"]
    for name in names:
        before = first.get(operands[name].buffer, operands[name].buffer)
        others = (view.buffer for other, view in operands.items() if other not in (name, "out"))
        if (
            _alike(operands[name], out)
            and (before.last, out.buffer.first) == (last, start)
            and all(first.get(other, other) is not before for other in others)
        ):
            return name
    return ""


def _alike(a: View, b: View) -> bool:
    """Whether two buffers of the arena are of one size and the views lie in them in one way."""
    regions = {a.buffer.region, b.buffer.region}
    sizes = {(v.buffer.bytes, v.offset, v.type, v.lens, v.strides) for v in (a, b)}
    return regions == {Region.ARENA} and len(sizes) == 1
