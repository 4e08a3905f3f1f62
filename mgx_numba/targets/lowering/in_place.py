"""In-place results: place a result in the memory of an operand that no later step reads, such as the sum with a
residual.

This halves the memory traffic, and the written cache lines are in the cache already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...codegen.launch import Launch
from ...runtime.plan import Region
from .buffers import Buffer, View


def replaced(steps: Sequence[tuple[Launch | None, Mapping[str, View]]]) -> dict[Buffer, Buffer]:
    """Return, for each buffer that replaces an operand in place, the first buffer at that place, whose life is
    extended.

    Args:
        steps: launch and operands of each step, in order; all arena buffers have their first and last steps.
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
    """Return the name of the first operand that ``out`` may overwrite, or an empty string.

    Args:
        names: operands of which each element is read before the same element of the result is written.
        operands: all views that the steps from ``start`` to ``last`` read and write.
        start: first step.
        last: last step.
        first: the first buffer at the place of each buffer that earlier steps placed in place of another.
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
    """Return whether two views have the same layout in arena buffers of the same size."""
    regions = {a.buffer.region, b.buffer.region}
    sizes = {(v.buffer.bytes, v.offset, v.type, v.lens, v.strides) for v in (a, b)}
    return regions == {Region.ARENA} and len(sizes) == 1
