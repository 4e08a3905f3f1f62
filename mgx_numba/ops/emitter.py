"""What all that write instructions share: macros, rewrites and the frontends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.types import Type
from ..errors import ShapeError

if TYPE_CHECKING:
    from ..graph.instruction import Instruction

__all__ = ["Emitter"]


class Emitter:
    """Writes instructions by `op`, which says where they go; what changes nothing is the value itself."""

    def op(self, op: Any, *inputs: Instruction, **attributes: Any) -> Instruction:
        """Write one operation, of an operator or its name and attributes."""
        raise NotImplementedError

    def fail(self, message: str) -> ShapeError:
        """The error for values that do not fit."""
        return ShapeError(message)

    def lens(self, x: Instruction) -> tuple[int, ...]:
        """Lengths of ``x``.

        Raises:
            ShapeError: they are not fixed.
        """
        if x.shape.is_dynamic:
            raise self.fail(f"needs fixed lengths, got {x.shape}")
        return x.shape.lens

    def convert(self, x: Instruction, type: Type) -> Instruction:
        """``x`` in another element type."""
        return x if x.shape.type is type else self.op("convert", x, target_type=type)

    def transpose(self, x: Instruction, permutation: Sequence[int]) -> Instruction:
        """``x`` with permuted axes."""
        if list(permutation) == list(range(len(permutation))):
            return x
        return self.op("transpose", x, permutation=tuple(permutation))

    def broadcast(self, x: Instruction, lens: Sequence[int]) -> Instruction:
        """``x`` seen with other lengths, by NumPy's rule."""
        if not x.shape.is_dynamic and self.lens(x) == tuple(lens):
            return x
        return self.op("multibroadcast", x, out_lens=tuple(lens))

    def broadcast_axis(self, x: Instruction, axis: int, like: Instruction) -> Instruction:
        """``x`` with its axes laid along those of ``like`` from ``axis`` on."""
        if like.shape.is_dynamic:
            return self.op("broadcast", x, like, axis=axis)
        return self.op("broadcast", x, axis=axis, out_lens=like.shape.lens)

    def same_lens(self, *values: Instruction) -> list[Instruction]:
        """The values broadcast to common lengths.

        Raises:
            ShapeError: they do not broadcast.
        """
        if any(v.shape.is_dynamic for v in values):
            if all(v.shape.dims == values[0].shape.dims for v in values):
                return list(values)
            others = [[w for other, w in enumerate(values) if other != k] for k in range(len(values))]
            return [self.op("multibroadcast", v, *rest) for v, rest in zip(values, others)]
        lens = [v.shape.lens for v in values]
        if len(set(lens)) == 1:
            return list(values)
        out = self.outer_lens(*lens)
        return [self.broadcast(v, out) for v in values]

    def outer_lens(self, *lens: Sequence[int]) -> tuple[int, ...]:
        """Common lengths by NumPy's rule.

        Raises:
            ShapeError: there are none.
        """
        rank = max(map(len, lens), default=0)
        aligned = [(1,) * (rank - len(n)) + tuple(n) for n in lens]
        out = []
        for column in zip(*aligned, strict=True):
            wide = {n for n in column if n != 1}
            if len(wide) > 1:
                raise self.fail(f"lengths do not broadcast: {', '.join(str(list(n)) for n in lens)}")
            out.append(wide.pop() if wide else 1)
        return tuple(out)
