"""Iteration spaces: dropping, ordering and merging dimensions until only those that matter to a kernel are left."""

from __future__ import annotations

from collections.abc import Sequence

from ..dataclass import dataclass

__all__ = ["Space", "collapse"]


@dataclass(frozen=True)
class Space:
    """Lengths of the merged dimensions (outermost first) and, for each operand, its element strides along them.

    ``axes`` are the original dimensions that each was merged from, outermost first, if it was.
    """

    lens: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[int, ...], ...] = ()

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.lens)

    @property
    def elements(self) -> int:
        """Points of the space."""
        total = 1
        for n in self.lens:
            total *= n
        return total


def collapse(
    lens: Sequence[int], strides: Sequence[Sequence[int]], order_by: int = -1, axes: Sequence[int] | None = None
) -> Space:
    """The smallest equivalent iteration space.

    Dimensions of length 1 go, the others are ordered by descending stride of operand ``order_by``, and neighbours merge
    where every operand walks them as one (``stride[i] == stride[i + 1] * lens[i + 1]``).

    Args:
        lens: lengths of the original dimensions.
        strides: element strides of each operand along them.
        order_by: index of the operand whose memory order is followed.
        axes: only these dimensions (all when ``None``).
    """
    chosen = [a for a in (range(len(lens)) if axes is None else axes) if lens[a] != 1]
    lead = strides[order_by]
    chosen.sort(key=lambda a: (-lead[a], -max((s[a] for s in strides), default=0), a))
    merged_lens: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    merged_axes: list[tuple[int, ...]] = []
    for axis in chosen:
        n = lens[axis]
        if merged_lens and all(m[-1] == s[axis] * n for m, s in zip(merged, strides)):
            merged_lens[-1] *= n
            merged_axes[-1] += (axis,)
            for m, s in zip(merged, strides):
                m[-1] = s[axis]
        else:
            merged_lens.append(n)
            merged_axes.append((axis,))
            for m, s in zip(merged, strides):
                m.append(s[axis])
    return Space(tuple(merged_lens), tuple(tuple(m) for m in merged), tuple(merged_axes))
