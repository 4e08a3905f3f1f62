"""Selection and placement of elements by index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...core.dim import Length, known_equal
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import NARROW, AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Lens, Results, limits

REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add", "multiply": "mul"}
"""IR suffix of each reduction of a scatter."""


@register("embedding")
def embedding(g: AtenBuilder, node: AtenNode, weight: Instruction, indices: Instruction, *_: object) -> Instruction:
    """Emit rows of a table."""
    return g.op("gather", weight, g.from_start(indices), axis=0)


@register("index_select")
def index_select(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, index: Instruction) -> Instruction:
    """Emit slices of an axis."""
    if rank(x) == 0:
        return x
    places = g.from_start(g.reshape(index, (1,)) if rank(index) == 0 else index)
    return g.op("gather", x, places, axis=g.axis(dim, rank(x)))


@register("gather")
def gather(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, index: Instruction, **_: object) -> Instruction:
    """Emit the element at each index along an axis; other axes of the index may be shorter."""
    if rank(x) == 0:
        return g.broadcast(x, g.lens(index)) if rank(index) else x
    if rank(index) == 0:
        return g.reshape(gather(g, node, x, dim, g.reshape(index, (1,))), ())
    if rank(x) != rank(index):  # PyTorch allows that of an index without elements
        return g.zeros(g.lens(index), x.shape.type)
    axis = g.axis(dim, rank(x))
    for k, (n, m) in enumerate(zip(g.lens(x), g.lens(index))):
        if k != axis and n is not m and n != m:
            x = g.slice(x, k, 0, m)
    return g.op("gather_elements", x, g.from_start(g.cast(index, Type.int64_type)), axis=axis)


def _places(
    g: AtenBuilder, x: Instruction, indices: Sequence[Instruction | None]
) -> tuple[list[int], list[Instruction]]:
    """Return the indexed axes and their indices, of equal lengths; masks become positions."""
    axes: list[int] = []
    found: list[Instruction] = []
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
        elif index.shape.type in (Type.bool_type, Type.uint8_type):
            rows = g.op("nonzero", index, use_dyn_output=True)
            for k in range(rank(index)):
                axes.append(axis)
                found.append(g.squeeze(g.slice(rows, 0, k, k + 1), [0]))
                axis += 1
        else:
            axes.append(axis)
            found.append(g.cast(index, Type.int64_type))
            axis += 1
    return axes, (g.same_lens(*found) if len(found) > 1 else found)


@register("index.Tensor", "_unsafe_index.Tensor")
def index(g: AtenBuilder, node: AtenNode, x: Instruction, indices: Sequence[Instruction | None]) -> Instruction:
    """Emit the elements at tuples of indices, as NumPy's indexing by arrays."""
    axes, places = _places(g, x, indices)
    if not axes:
        return x
    if len(axes) == 1:
        return g.op("gather", x, places[0], axis=axes[0])
    count = rank(places[0])
    others = [k for k in range(rank(x)) if k not in axes]
    front = g.transpose(x, [*axes, *others])
    tuples = g.op("concat", *(g.unsqueeze(p, [count]) for p in places), axis=count)
    y = g.op("gathernd", front, tuples, batch_dims=0)
    first = axes[0]
    if axes != list(range(first, first + len(axes))) or first == 0:
        return y
    order = [*range(count, count + first), *range(count), *range(count + first, rank(y))]
    return g.transpose(y, order)


@register("index_put", "_unsafe_index_put")
def index_put(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    indices: Sequence[Instruction | None],
    values: Instruction,
    accumulate: bool = False,
) -> Instruction:
    """Emit ``x`` with the elements at tuples of indices replaced or added to."""
    values = g.cast(values, x.shape.type)
    masked = _where_mask(g, x, indices, values, accumulate)
    if masked is not None:
        return masked
    axes, places = _places(g, x, indices)
    if not axes:
        return g.pointwise("add", x, values) if accumulate else g.broadcast(values, g.lens(x))
    count = rank(places[0])
    others = [k for k in range(rank(x)) if k not in axes]
    order = [*axes, *others]
    front = g.transpose(x, order)
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    lens = [g.lens(x)[k] for k in others]
    before = axes[0] if adjacent else 0
    shape = [*lens[:before], *g.lens(places[0]), *lens[before:]]
    spread = g.broadcast(values, shape)
    if before:
        spread = g.transpose(
            spread, [*range(before, before + count), *range(before), *range(before + count, len(shape))]
        )
    if count == 0:
        places = [g.reshape(p, (1,)) for p in places]
        spread = g.reshape(spread, (1, *lens))
        count = 1
    tuples = g.op("concat", *(g.unsqueeze(p, [count]) for p in places), axis=count)
    y = g.op("scatternd_add" if accumulate else "scatternd_none", front, tuples, spread)
    back = [order.index(k) for k in range(rank(x))]
    return g.transpose(y, back)


def _where_mask(
    g: AtenBuilder, x: Instruction, indices: Sequence[Instruction | None], values: Instruction, accumulate: bool
) -> Instruction | None:
    """Emit the replacement of the elements where a mask holds; None if the indices are others.

    ``values`` are broadcast to [before, count, after], where ``count`` is the number of elements for which the mask
    holds, and ``before`` and ``after`` are the axes of ``x`` around those of the mask. More elements than values are
    an index error.
    """
    given = [k for k, v in enumerate(indices) if v is not None]
    mask = indices[given[0]] if len(given) == 1 else None
    if mask is None or mask.shape.type is not Type.bool_type:
        return None
    before, axes = given[0], rank(mask)
    after = rank(x) - axes - before
    aligned = g.reshape(mask, (*g.lens(mask), *(1,) * after))
    if rank(values) <= after:
        value = values
    elif known_equal(values.shape.elements, 1):
        value = g.reshape(values, ())
    else:
        numbered = rank(values) - after - 1  # the axis of ``values`` that counts elements
        if numbered == 0:
            rows = values
        else:
            values = g.op("unsqueeze", values, axes=tuple(range(before - numbered))) if numbered < before else values
            rows = g.transpose(values, [before, *range(before), *range(before + 1, rank(values))])
        value = _numbered(g, mask, rows)
        if numbered:
            value = g.transpose(value, [*range(axes, axes + before), *range(axes), *range(axes + before, rank(value))])
    return g.pointwise("where", aligned, g.pointwise("add", x, value) if accumulate else value, x)


def _numbered(g: AtenBuilder, mask: Instruction, rows: Instruction) -> Instruction:
    """Emit for each element for which a mask holds the row of its number, or the only row; any row for others."""
    length = rows.shape.dims[0]
    if length.max == 1 == length.min:
        return g.op("gather", rows, g.zeros(g.lens(mask), Type.int64_type), axis=0)
    if length.min == 0:  # so that there is a row for the others
        inner = [n.max for n in rows.shape.dims[1:]]
        rows = g.op("concat", rows, g.zeros([1, *inner], rows.shape.type), axis=0)
    flags = g.flat(mask)
    number = g.op("prefix_scan_sum", g.cast(flags, Type.int64_type), axis=0, exclusive=True, reverse=False)
    places = g.pointwise("where", flags, number, g.literal(0, Type.int64_type))
    return g.op("gather", rows, g.reshape(places, g.lens(mask)), axis=0)


def _scattered(
    g: AtenBuilder, kind: str, x: Instruction, dim: int, index: Instruction, source: Instruction, wraps: bool = False
) -> Instruction:
    """Emit a scatter along an axis; only as much of the source counts as the index covers.

    Args:
        kind: the reduction: none, add, mul, max or min.
        x: the elements before.
        dim: the axis.
        index: positions along it.
        source: elements that are written.
        wraps: whether negative positions count from the end; they are out of range otherwise.
    """
    if rank(x) == 0:
        whole = (g.reshape(v, (1,)) for v in (x, index, source))
        return g.reshape(_scattered(g, kind, next(whole), 0, next(whole), next(whole), wraps), ())
    for k, (n, m) in enumerate(zip(g.lens(source), g.lens(index))):
        if n is not m and n != m:
            source = g.slice(source, k, 0, m)
    source = g.cast(source, x.shape.type)
    places = g.cast(index, Type.int64_type)
    return g.op(f"scatter_{kind}", x, places if wraps else g.from_start(places), source, axis=g.axis(dim, rank(x)))


@register("scatter.src", "scatter.reduce")
def scatter(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    dim: int,
    index: Instruction,
    src: Instruction,
    reduce: str | None = None,
) -> Instruction:
    """Emit ``x`` with elements written at the indices along an axis."""
    return _scattered(g, "none" if reduce is None else REDUCTIONS[reduce], x, dim, index, src)


@register("scatter.value", "scatter.value_reduce")
def scatter_value(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    dim: int,
    index: Instruction,
    value: float,
    reduce: str | None = None,
) -> Instruction:
    """Emit ``x`` with one value written at the indices along an axis."""
    source = g.broadcast(g.value(value, x.shape.type), g.lens(index))
    return _scattered(g, "none" if reduce is None else REDUCTIONS[reduce], x, dim, index, source)


@register("scatter_add")
def scatter_add(
    g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, index: Instruction, src: Instruction
) -> Instruction:
    """Emit ``x`` with elements added at the indices along an axis."""
    return _scattered(g, "add", x, dim, index, src)


@register("scatter_reduce.two")
def scatter_reduce(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    dim: int,
    index: Instruction,
    src: Instruction,
    reduce: str,
    include_self: bool = True,
) -> Instruction:
    """Emit ``x`` with elements combined at the indices along an axis."""
    if reduce == "mean":
        ones = g.broadcast(g.like(1, src), g.lens(src))
        if include_self:
            base, counts = x, g.broadcast(g.like(1, x), g.lens(x))
        else:
            base, counts = _emptied(g, x, dim, index, 0.0), g.broadcast(g.like(0, x), g.lens(x))
        total = _scattered(g, "add", base, dim, index, src)
        number = g.pointwise("max", _scattered(g, "add", counts, dim, index, ones), g.like(1, x))
        if x.shape.type.is_floating:
            return g.pointwise("div", total, number)
        return g.divided_down(total, number)
    if not include_self:
        neutral = {"sum": 0, "prod": 1, "amax": limits(x.shape.type)[0], "amin": limits(x.shape.type)[1]}[reduce]
        x = _emptied(g, x, dim, index, neutral)
    return _scattered(g, REDUCTIONS[reduce], x, dim, index, src)


def _emptied(g: AtenBuilder, x: Instruction, dim: int, index: Instruction, value: float) -> Instruction:
    """Emit ``x`` with a value at the indices along an axis."""
    return _scattered(g, "none", x, dim, index, g.broadcast(g.like(value, x), g.lens(index)))


def _slices(
    g: AtenBuilder, x: Instruction, dim: int, index: Instruction, source: Instruction
) -> tuple[Instruction, int, Instruction, Instruction]:
    """Return ``x``, the axis, and the places and elements of a scatter of whole slices; of a vector if ``x`` has no
    axes."""
    if rank(x) == 0:
        x, source = g.reshape(x, (1,)), g.reshape(source, (1,))
    axis = g.axis(dim, rank(x))
    aligned = g.reshape(index, [prod(g.lens(index)) if k == axis else 1 for k in range(rank(x))])
    return x, axis, g.broadcast(aligned, g.lens(source)), source


@register("index_add", "index_copy")
def index_add(
    g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, index: Instruction, source: Instruction, alpha: float = 1
) -> Instruction:
    """Emit ``x`` with slices of an axis added to or replaced."""
    if alpha != 1:
        source = g.combined("mul", x.shape.type, source, alpha)
    own, axis, places, rows = _slices(g, x, dim, index, source)
    kind, wraps = "add" if node.base == "index_add" else "none", node.base == "index_fill"
    made = _scattered(g, kind, own, axis, places, rows, wraps)
    return g.reshape(made, g.lens(x))


@register("index_fill.int_Scalar")
def index_fill(
    g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, index: Instruction, value: float
) -> Instruction:
    """Emit ``x`` with slices of an axis filled."""
    lens = list(g.lens(x))
    if lens:
        lens[g.axis(dim, rank(x))] = prod(g.lens(index))
    return index_add(g, node, x, dim, index, g.broadcast(g.like(value, x), lens))


@register("index_reduce")
def index_reduce(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    dim: int,
    index: Instruction,
    source: Instruction,
    reduce: str,
    include_self: bool = True,
) -> Instruction:
    """Emit ``x`` with slices of ``source`` reduced into slices of an axis."""
    own, axis, places, rows = _slices(g, x, dim, index, source)
    return g.reshape(scatter_reduce(g, node, own, axis, places, rows, reduce, include_self), g.lens(x))


@register("unfold_backward")
def unfold_backward(
    g: AtenBuilder, node: AtenNode, x: Instruction, input_sizes: Lens, dim: int, size: int, step: int
) -> Instruction:
    """Emit the sum of overlapping windows, the last axis of ``x``, at their places along an axis."""
    axis = g.axis(dim, len(input_sizes))
    frames = g.lens(x)[axis]
    g.limit(frames * size, "positions of windows")
    places = np.arange(frames)[:, None] * step + np.arange(size)
    order = [*range(axis + 1), rank(x) - 1, *range(axis + 1, rank(x) - 1)]
    lens = [frames * size if k == axis else n for k, n in enumerate(input_sizes)]
    windows = g.broadcast(x, [*(frames if k == axis else n for k, n in enumerate(input_sizes)), size])
    rows = g.reshape(g.transpose(windows, order), lens)
    aligned = g.reshape(g.literal(places.reshape(-1)), [frames * size if k == axis else 1 for k in range(len(lens))])
    return _scattered(g, "add", g.zeros(input_sizes, node.type), axis, g.broadcast(aligned, lens), rows)


@register("put")
def put(
    g: AtenBuilder, node: AtenNode, x: Instruction, index: Instruction, source: Instruction, accumulate: bool = False
) -> Instruction:
    """Emit ``x`` with elements at flat positions replaced or added to."""
    made = _scattered(g, "add" if accumulate else "none", g.flat(x), 0, g.flat(index), g.flat(source), wraps=True)
    return g.reshape(made, g.lens(x))


@register("repeat_interleave.Tensor")
def repeated_positions(
    g: AtenBuilder, node: AtenNode, repeats: Instruction, output_size: Length | None = None
) -> Instruction:
    """Emit each position as often as ``repeats`` says; there are ``output_size`` positions in all."""
    if output_size is None:
        raise UnsupportedError("repeat_interleave needs output_size: the length would follow from data")
    ends = g.op("prefix_scan_sum", g.cast(repeats, Type.int64_type), axis=0, exclusive=False, reverse=False)
    passed = g.pointwise("less_or_equal", g.unsqueeze(ends, [0]), g.iota(output_size, 0, 2))
    return g.cast(g.reduce("reduce_sum", g.cast(passed, Type.int64_type), [1], keep=False), node.type)


@register("_unique2")
def unique(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> list[Instruction]:
    """Emit the distinct elements, or slices of an axis, in order; if asked for, the number of each element's and the
    counts, else empty vectors."""
    result = g.op("unique", x, axis=axis, sorted=True, equal_nan=False)
    values, _, places, counts = (g.op("get_tuple_elem", result, index=k) for k in range(4))
    none = g.literal(np.zeros(0, np.int64))
    places = g.reshape(places, g.lens(x)) if axis is None and return_inverse else places
    return [values, places if return_inverse else none, counts if return_counts else none]


@register("unique_dim")
def unique_slices(
    g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, sorted: bool = True, *asked: bool
) -> list[Instruction]:
    """Emit the distinct slices of an axis; see `unique`."""
    asked = (*asked, False, False)
    return unique(g, node, x, sorted, asked[0], asked[1], g.axis(dim, rank(x)))


@register("unique_consecutive")
def unique_consecutive(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> list[Instruction]:
    """Emit the elements, or slices of an axis, that differ from the one before; else as `unique`."""
    axis = 0 if dim is None else g.axis(dim, rank(x))
    own = g.flat(x) if dim is None else x
    count, none = g.lens(own)[axis], g.literal(np.zeros(0, np.int64))
    if known_equal(count, 0):
        return [own, g.reshape(none, g.lens(x)) if dim is None and return_inverse else none, none]
    differs = g.op("not", g.pointwise("equal", g.slice(own, axis, 1, count), g.slice(own, axis, 0, count - 1)))
    others = [k for k in range(rank(own)) if k != axis]
    changes = g.cast(g.reduce("reduce_max", g.cast(differs, Type.int32_type), others, keep=False), Type.int64_type)
    passed = g.op("prefix_scan_sum", changes, axis=0, exclusive=False, reverse=False)
    runs = g.op("unique", g.op("concat", g.literal(np.zeros(1, np.int64)), passed, axis=0), axis=None, sorted=True)
    _, starts, places, counts = (g.op("get_tuple_elem", runs, index=k) for k in range(4))
    places = g.reshape(places, g.lens(x)) if dim is None else places
    found = g.op("gather", own, starts, axis=axis)
    return [found, places if return_inverse else none, counts if return_counts else none]


@register("nonzero")
def nonzero(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the positions of nonzero elements, a row for each; a tensor without axes has rows of length 0."""
    found = g.op("transpose", g.op("nonzero", x, use_dyn_output=True), permutation=(1, 0))
    return g.slice(found, 1, 0, 0) if rank(x) == 0 else found


@register("masked_select")
def masked_select(g: AtenBuilder, node: AtenNode, x: Instruction, mask: Instruction) -> Instruction:
    """Emit the elements where a mask holds."""
    x, mask = g.same_lens(x, mask)
    rows = g.op("nonzero", g.flat(mask), use_dyn_output=True)
    return g.op("gather", g.flat(x), g.squeeze(rows, [0]), axis=0)


@register("masked_scatter")
def masked_scatter(g: AtenBuilder, node: AtenNode, x: Instruction, mask: Instruction, source: Instruction) -> Results:
    """Emit ``x`` with the elements where a mask holds replaced by the source's, in order."""
    x, mask = g.same_lens(x, mask)
    chosen = _numbered(g, mask, g.flat(g.cast(source, x.shape.type)))
    return g.pointwise("where", mask, chosen, x)


@register("one_hot")
def one_hot(g: AtenBuilder, node: AtenNode, x: Instruction, num_classes: int = -1) -> Instruction:
    """Emit 1 at the position along a new last axis that each element names."""
    if num_classes == -1:
        raise UnsupportedError("one_hot needs num_classes: the number of classes would follow from data")
    places = g.iota(num_classes, rank(x), rank(x) + 1)
    return g.cast(g.pointwise("equal", g.unsqueeze(x, [rank(x)]), places), Type.int64_type)


_MAX = 2
"""Mode of `embedding_bag` that takes the greatest elements."""


@register("embedding_bag", "_embedding_bag_forward_only", "_embedding_bag")
def embedding_bag(
    g: AtenBuilder,
    node: AtenNode,
    weight: Instruction,
    indices: Instruction,
    offsets: Instruction,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample: Instruction | None = None,
    include_last: bool = False,
    padding_idx: int = -1,
) -> list[Instruction | None]:
    """Emit the sum, mean or greatest elements of the rows of each bag, without rows of the padding index.

    Bag k has the indices from ``offsets[k]`` up to the next offset.
    """
    (count,), int64 = g.lens(indices), Type.int64_type
    starts = g.cast(g.slice(offsets, 0, 0, g.lens(offsets)[0] - 1) if include_last else offsets, int64)
    bags = g.lens(starts)[0]
    begun = _scattered(g, "add", g.zeros([count + 1], int64), 0, starts, g.broadcast(g.like(1, starts), [bags]))
    bag = g.op("prefix_scan_sum", g.slice(begun, 0, 0, count), axis=0, exclusive=False, reverse=False)
    bag = g.pointwise("sub", bag, g.like(1, bag))
    if padding_idx is not None and padding_idx >= 0:  # its rows go to a bag behind the others
        padding = g.pointwise("equal", indices, g.like(padding_idx, indices))
        bag = g.pointwise("where", padding, g.broadcast(g.value(bags, int64), [count]), bag)
    wide = Type.float_type if node.type in NARROW else node.type
    rows = g.cast(g.op("gather", weight, g.from_start(indices), axis=0), wide)
    if per_sample is not None:
        rows = g.pointwise("mul", rows, g.cast(g.unsqueeze(per_sample, [1]), wide))
    width = g.lens(rows)[1]
    kind, start = ("max", limits(node.type)[0]) if mode == _MAX else ("add", 0)
    places = g.broadcast(g.unsqueeze(bag, [1]), [count, width])
    total = _scattered(g, kind, g.zeros([bags + 1, width], wide, start), 0, places, rows)
    ones = g.broadcast(g.literal(1, int64), [count])
    size = g.cast(g.unsqueeze(_scattered(g, "add", g.zeros([bags + 1], int64), 0, bag, ones), [1]), wide)
    if mode == _MAX:
        total = g.pointwise("where", g.pointwise("equal", size, g.like(0, size)), g.like(0, total), total)
    elif mode == 1:
        total = g.pointwise("div", total, g.pointwise("max", size, g.like(1, size)))
    total = g.slice(total, 0, 0, bags)
    return [total, *[None] * (len(node.types) - 1)]
