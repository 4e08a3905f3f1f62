"""Sort keys: integers whose order is the order of elements."""

from __future__ import annotations

import numpy as np

from ....core.types import Type
from ....dataclass import dataclass
from ...printer import CodeBuffer
from ..architecture import WARP
from ..printer import dtype_name

_BITS = {Type.float_type: Type.int32_type, Type.double_type: Type.int64_type}


@dataclass(frozen=True)
class Order:
    """Order of elements of a type.

    Attributes:
        type: element type.
        greatest: whether greater elements come first.
        nan_first: whether NaN comes first; otherwise it comes last.
    """

    type: Type
    greatest: bool
    nan_first: bool

    @property
    def key(self) -> Type:
        """Return the element type of the keys."""
        if self.type.is_floating:
            return _BITS[self.type.compute]
        return Type.uint8_type if self.type is Type.bool_type else self.type

    @property
    def dtype(self) -> str:
        """Return the kernel language's name of the key type."""
        return dtype_name(self.key)

    @property
    def least(self) -> int:
        """Return the least key."""
        return int(np.iinfo(self.key.numpy).min)

    def emit(self, buffer: CodeBuffer, element: str) -> str:
        """Emit the key of a scalar element in its memory representation; return its name. The element that comes first
        has the greatest key."""
        key = self.dtype
        if not self.type.is_floating:
            own = buffer.emit(f"cast_{key}({element})")
            return own if self.greatest else buffer.emit(f"bitwise_not({own})")
        # Zeros of either sign are equal; bits of negative numbers count downwards.
        wide = buffer.emit(f"cast_{dtype_name(self.type.compute)}({element})")
        bits = buffer.emit(f"bits_{key}(add({wide}, 0.0))")
        greatest = int(np.iinfo(self.key.numpy).max)
        transposed = buffer.emit(f"where(lt({bits}, 0), bitwise_xor({bits}, {greatest}), {bits})")
        ordered = transposed if self.greatest else buffer.emit(f"bitwise_not({transposed})")
        nan = greatest if self.nan_first else self.least
        return buffer.emit(f"where(isnan({wide}), const_{key}({nan}, 0), {ordered})")


def join_first(buffer: CodeBuffer, order: Order, size: int, threads: int, last: bool = False) -> None:
    """Emit the reduction of ``best`` (key) and ``place`` (int64) over ``size`` neighbouring threads, a power of two, to
    the greatest key. Ties go to the lowest place, or to the ``last``.

    All ``threads`` of the block take part; the call may be in a loop.
    """
    _join(buffer, last, min(size, WARP))
    warps = size // WARP
    if warps > 1:
        buffer.line(f"keys = shared_{order.dtype}({threads // WARP})")
        buffer.line(f"places = shared_int64({threads // WARP})")
        buffer.line("barrier()")
        with buffer.block(f"if imod(thread_index(0), {WARP}) == 0:"):
            buffer.line(f"store_scalar(keys, idiv(thread_index(0), {WARP}), best)")
            buffer.line(f"store_scalar(places, idiv(thread_index(0), {WARP}), place)")
        buffer.line("barrier()")
        buffer.line(f"slot = idiv(thread_index(0), {size}) * {warps} + imod(thread_index(0), {warps})")
        buffer.line("best = load_scalar(keys, slot)")
        buffer.line("place = load_scalar(places, slot)")
        _join(buffer, last, warps)


def _join(buffer: CodeBuffer, last: bool, lanes: int) -> None:
    """Emit the same within ``lanes`` threads of a warp."""
    while lanes > 1:
        lanes //= 2
        buffer.line(f"other = shuffle_xor(best, {lanes})")
        buffer.line(f"other_place = shuffle_xor(place, {lanes})")
        nearer = f"other_place {'>' if last else '<'} place"
        with buffer.block(f"if gt(other, best) or (eq(other, best) and {nearer}):"):
            buffer.line("best = other")
            buffer.line("place = other_place")
