"""Local response normalisation across channels (``lrn``).

In NHWC memory lanes run along the channels, whose squares pass through scratch memory with zeros at both ends. In
other memory lanes run along a spatial dimension and the squares are summed over rows.
"""

from __future__ import annotations

from math import prod

from ...ops.lrn import Lrn
from ..cluster.collapse import collapse
from ..cluster.text import Slots, Tensor, dtype_name, footprint, indent, load_text, store_text
from ..cpu import host
from ..launch import Launch
from .rows import RowLoop, cast_text, const_text, vector_loop

__all__ = ["lrn_launch"]

CHANNELS = 4096
UNROLLED = 16


def lrn_launch(op: Lrn, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """One launch of ``x / (bias + alpha / size * s) ** beta`` over floats; operands ``x`` and ``out``."""
    return _LrnKernel(op, x, out).launch(origin)


class _LrnKernel:
    def __init__(self, op: Lrn, x: Tensor, out: Tensor) -> None:
        self.op, self.x, self.out = op, x, out
        self.storage, self.compute = dtype_name(x.type), dtype_name(x.type.compute)
        self.lanes = host.lanes(self.compute)
        kept = [a for a in range(len(x.lens)) if a != 1]
        self.space = collapse(out.lens, [x.strides, out.strides], order_by=1, axes=kept)
        self.channels = x.lens[1]
        self.behind, self.ahead = (op.size - 1) // 2, op.size // 2
        self.slots = Slots()
        self.slots.pointer("p_x", "x", self.storage)
        self.slots.pointer("p_out", "out", self.storage)

    def launch(self, origin: str) -> Launch:
        within = not self.space.rank or x_inner(self.x) <= self.space.strides[0][-1]
        loop, inside, prologue = self._along_channels() if within and self._fits() else self._along_rows()
        return Launch(
            kernel=loop.kernel("lrn_kernel", inside, origin, prologue),
            args=tuple(self.slots.values),
            tasks=loop.tasks if 0 not in self.out.lens else 0,
            flops=prod(self.out.lens) * (self.op.size + 3),
            bytes=footprint(self.x) + footprint(self.out),
        )

    def _fits(self) -> bool:
        return self.channels + self.op.size <= CHANNELS

    def _load(self, pointer: str, stride: int, step: str, left: str) -> str:
        return cast_text(load_text(pointer, "c", stride, step, self.lanes, left), self.storage, self.compute)

    def _quotient(self, value: str) -> str:
        """Stored value for an element ``value`` and the sum of squares ``s``."""
        op, lanes, compute = self.op, self.lanes, self.compute
        scale, bias = const_text(compute, op.alpha / op.size, lanes), const_text(compute, op.bias, lanes)
        base = f"fma(s, {scale}, {bias})"
        if op.beta == 0.75:
            # Three quarters are a root times its root: cheaper and closer than a general power.
            return cast_text(f"div({value}, power_three_quarters)", compute, self.storage)
        power = f"sqrt({base})" if op.beta == 0.5 else base if op.beta == 1 else f"pow({base}, {op.beta!r})"
        return cast_text(f"div({value}, {power})", compute, self.storage)

    def _power_lines(self) -> list[str]:
        if self.op.beta != 0.75:
            return []
        scale = const_text(self.compute, self.op.alpha / self.op.size, self.lanes)
        bias = const_text(self.compute, self.op.bias, self.lanes)
        return [
            f"root = sqrt(fma(s, {scale}, {bias}))",
            "power_three_quarters = mul(root, sqrt(root))",
        ]
