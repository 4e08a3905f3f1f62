"""Top-k by ranks: an element's output index is the number of elements before it in sorted order.

Each thread compares one element with all others of its row, which pass through shared memory; if elements are few,
several threads share an element's comparisons. Long rows are cut into parts; the k best of each part go to the next
launch.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ....core.dim import (
    SharedLength,
    ceil_div,
    is_symbolic,
    less_equal,
    maximum,
    minimum,
    select,
)
from ....core.types import Type
from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ...space import Space, collapse
from ..architecture import WARP
from ..cluster.flat_index import Axes
from ..kernel import gpu_launch
from ..printer import dtype_name
from .elements import threads_of_element

FEWEST_THREADS, MOST_THREADS = 32, 256
"""Least and most threads per block: one per element of a row, at least a warp."""
PART = 1024
"""Least elements per part: four per thread of a block."""
KEPT_OF_PART = 4
"""Least elements of a part per selected element; each launch keeps at most a quarter of its input."""


def is_short(k: SharedLength, length: SharedLength) -> SharedLength:
    """Return the condition that a row is one part."""
    return less_equal(length, 2 * maximum(PART, KEPT_OF_PART * k))


def topk_share(k: SharedLength, length: SharedLength) -> SharedLength:
    """Return the elements per part."""
    return select(is_short(k, length), length, maximum(PART, KEPT_OF_PART * k))


def kept_elements(k: SharedLength, length: SharedLength) -> SharedLength:
    """Return the elements of a row that one launch keeps."""
    share = topk_share(k, length)
    parts = ceil_div(length, share)
    return (parts - 1) * k + minimum(k, length - (parts - 1) * share)


def topk_comparisons(k: int, rows: int, length: int) -> int:
    """Return the comparisons of all launches together."""
    total = 0
    while True:
        total += rows * length * topk_share(k, length)
        if topk_share(k, length) == length:
            return total
        length = kept_elements(k, length)


def topk_launch(
    k: SharedLength, axis: int, largest: bool, x: Tensor, values: Tensor, positions: Tensor, share: SharedLength,
    origin: str = "", places: Tensor | None = None,
) -> Launch:  # fmt: skip
    """Return the launch that selects the first ``k`` elements along ``axis``, or of each part of ``share`` elements of
    a row, with their positions.

    Ties go to the lower position; NaN counts as the greatest. Operands: ``x``, ``values``, int64 ``positions``, and, if
    given, int64 ``places`` (lengths of ``x``): the elements' positions before preceding launches.
    """
    length = x.lens[axis]
    parts = ceil_div(length, share)
    threads = FEWEST_THREADS
    while threads < MOST_THREADS and (is_symbolic(share) or threads < share):
        threads *= 2
    tensors = {"x": x, "values": values, "positions": positions} | ({"places": places} if places else {})
    kept = [a for a in range(len(x.lens)) if a != axis]
    space = collapse(x.lens, [t.strides for t in tensors.values()], order_by=0, axes=kept)
    if not space.rank:
        space = Space((1,), ((0,),) * len(tensors))
    order = Order(x.type, largest, nan_first=largest)
    rows = prod(space.lens)
    group = threads_of_element(rows * length, share)
    threads = max(threads, group)
    chunks = ceil_div(share, threads // group)
    arguments, buffer = Arguments(), CodeBuffer()
    for name, tensor in tensors.items():
        arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        arguments.integer(f"step_{name}", tensor.strides[axis])
    arguments.integers(length=length, share=share, parts=parts, chunks=chunks, wanted=k)
    axes = Axes(arguments, "", space.lens, space.strides)
    buffer.line(*arguments.bind())
    buffer.line(
        "number = idiv(block_index(0), chunks)",
        "row = idiv(number, parts)",
        "part = number - row * parts",
        "begin = part * share",
        "end = imin(begin + share, length)",
        f"own = begin + idiv((block_index(0) - number * chunks) * {threads} + thread_index(0), {group})",
        "mine = imin(own, end - 1)",
    )
    at = axes.split(buffer, "row")
    for k_th, name in enumerate(tensors):
        buffer.line(f"r_{name} = offset(p_{name}, {axes.offset(k_th, at)})")
    element = "load_scalar(r_x, mine * step_x)"
    key = order.emit(buffer, element)
    buffer.line("place = load_scalar(r_places, mine * step_places)" if places else "place = mine")
    buffer.line(f"keys = shared_{order.dtype}({threads})")
    if places:
        buffer.line(f"known = shared_int64({threads})")
    buffer.line("rank = 0")
    with buffer.block(f"for start in range(begin, end, {threads}):"):
        buffer.line("barrier()")
        buffer.line("j = start + thread_index(0)")
        with buffer.block("if j < end:"):
            buffer.line(f"store_scalar(keys, thread_index(0), {order.emit(buffer, 'load_scalar(r_x, j * step_x)')})")
            if places:
                buffer.line("store_scalar(known, thread_index(0), load_scalar(r_places, j * step_places))")
        buffer.line("barrier()")
        first = f"imod(thread_index(0), {group})"
        with buffer.block(f"for q in range({first}, imin(end - start, {threads}), {group}):"):
            buffer.line("other = load_scalar(keys, q)")
            before = f"{'load_scalar(known, q)' if places else 'start + q'} < place"
            with buffer.block(f"if gt(other, {key}) or (eq(other, {key}) and {before}):"):
                buffer.line("rank = rank + 1")
    for mask in (1 << n for n in range(group.bit_length() - 1)):
        buffer.line(f"rank = rank + shuffle_xor(rank, {mask})")
    leads = f" & ({first} == 0)" if group > 1 else ""
    with buffer.block(f"if (own < end) & (rank < wanted){leads}:"):
        buffer.line("slot = part * wanted + rank")
        buffer.line("store(r_values, slot * step_values, load(r_x, mine * step_x, 1))")
        buffer.line("store_scalar(r_positions, slot * step_positions, place)")
    moved, flops = x.footprint + values.footprint + positions.footprint, rows * length * share
    return gpu_launch("topk_kernel", buffer.lines, arguments, rows * parts * chunks, threads, moved, flops, origin)


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
