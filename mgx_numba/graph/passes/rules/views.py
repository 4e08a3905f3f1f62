"""Reshapes, transposes and broadcasts: cancelled, merged, and brought to one form.

Canonical forms: a reshape that only removes or inserts axes of length 1 is ``squeeze`` or ``unsqueeze``, any other is
``reshape``; every broadcast is ``multibroadcast``, outermost of a chain of views.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import exact_quotient, known_equal, known_same
from ...constants import uniform_value
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..match import Match, op, rule, some

RESHAPES = "reshape flatten squeeze unsqueeze reshape_lazy"


def squeezed_axes(lens: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """Axes of length 1 whose removal from ``lens`` gives ``target``; ``None`` if that is not possible."""
    if len(lens) <= len(target):
        return None
    axes: list[int] = []
    position = 0
    for axis, n in enumerate(lens):
        if position < len(target) and known_equal(target[position], n):
            position += 1
        elif known_equal(n, 1):
            axes.append(axis)
        else:
            return None
    return tuple(axes) if position == len(target) and axes else None


def reshaped(b: RewriteBuilder, x: Instruction, lens: Sequence[int]) -> Instruction:
    """``x`` with other lengths in canonical form."""
    old, new = x.shape.lens, tuple(lens)
    if known_same(old, new):
        return x
    if not known_same(old, (1,)) and not known_same(new, (1,)):
        axes = squeezed_axes(old, new)
        if axes is not None:
            return b.op("squeeze", x, axes=axes)
        axes = squeezed_axes(new, old)
        if axes is not None:
            return b.op("unsqueeze", x, axes=axes)
    return b.reshape(x, new)


@rule(
    "nop_reshapes",
    op("reshape flatten squeeze unsqueeze reshape_lazy transpose multibroadcast broadcast slice step pad", some("x")),
    exact=True,
)
def same_lengths(m: Match, b: RewriteBuilder) -> object:
    if m.x.shape.ndim != m.ins.shape.ndim:  # first: lengths that are compared with others tell traced programs apart
        return None
    if m.ins.name == "transpose" and m.ins.op.attributes()["permutation"] != tuple(range(m.ins.shape.ndim)):
        return None  # `transpose_of_ones` has those whose axes of length 1 move
    if not known_same(m.x.shape.lens, m.ins.shape.lens):
        return None
    if m.ins.name == "pad" and any(m.ins.op.attributes()["pads"]):
        return "content moves"
    return m.x  # reshape(x) -> x


@rule(
    "reshape_cont", op("reshape flatten squeeze unsqueeze contiguous", op("contiguous layout", some("x"))), exact=True
)
def reshape_of_copy(m: Match, b: RewriteBuilder) -> object:
    if m.x.shape.without_axes != m.ins.inputs[0].shape.without_axes:
        return "a tensor without axes has become a vector of one element"
    return b.op(m.ins.op, m.x)  # reshape(contiguous(x)) -> reshape(x)


@rule("nop_contiguous", op("contiguous", some("x")), exact=True)
def contiguous_of_standard(m: Match, b: RewriteBuilder) -> object:
    return m.x if m.x.shape == m.ins.shape else "the layout changes"  # contiguous(standard x) -> x


@rule("nop_layout", op("layout", some("x")), exact=True)
def layout_of_same(m: Match, b: RewriteBuilder) -> object:
    if m.x.name in ("layout", "contiguous"):
        return b.op(m.ins.op, m.x.inputs[0])  # layout(layout(x)) -> layout(x)
    return m.x if m.x.shape == m.ins.shape else "the layout changes"  # layout[p](x in p) -> x


@rule("nested_reshapes", op(RESHAPES, op(RESHAPES, some("x"))), exact=True)
def nested_reshapes(m: Match, b: RewriteBuilder) -> object:
    if m.ins.inputs[0].name == "reshape_lazy" or m.ins.name == "reshape_lazy":
        return "a lazy reshape stays a view"
    return reshaped(b, m.x, m.ins.shape.lens)  # reshape(reshape(x)) -> reshape(x)


@rule("canonical_reshape", op("reshape flatten unsqueeze", some("x")), exact=True)
def canonical_reshape(m: Match, b: RewriteBuilder) -> object:
    ins, lens = m.ins, m.ins.shape.lens
    if known_equal(ins.shape.elements, 1):
        return "one element"
    if ins.name == "unsqueeze" and all(s == 1 for s in ins.op.attributes()["steps"]):
        return None
    only_ones = squeezed_axes(m.x.shape.lens, lens) is not None or squeezed_axes(lens, m.x.shape.lens) is not None
    if ins.name == "reshape" and known_same(ins.op.attributes()["dims"], lens) and not only_ones:
        return None
    return reshaped(b, m.x, lens)  # flatten(x) -> reshape(x); reshape that drops ones -> squeeze


@rule("nested_transposes", op("transpose", op("transpose", some("x"), bind="inner")), exact=True)
def nested_transposes(m: Match, b: RewriteBuilder) -> object:
    first, second = m.inner.op.attributes()["permutation"], m.ins.op.attributes()["permutation"]
    return b.transpose(m.x, [first[axis] for axis in second])  # transpose(transpose(x)) -> transpose(x)


@rule("transpose_ones", op("transpose", some("x")), exact=True)
def transpose_of_ones(m: Match, b: RewriteBuilder) -> object:
    moved = [axis for axis in m.ins.op.attributes()["permutation"] if not known_equal(m.x.shape.lens[axis], 1)]
    if moved != sorted(moved):
        return None
    if not m.x.shape.standard:
        return "a reshape of this layout would copy"
    return reshaped(b, m.x, m.ins.shape.lens)  # transpose of axes of length 1 -> reshape


@rule("broadcast_form", op("broadcast scalar", some("x")), exact=True)
def broadcast_form(m: Match, b: RewriteBuilder) -> object:
    if m.ins.name == "scalar":
        one = m.x if m.x.shape.ndim <= m.ins.shape.ndim else b.op("squeeze", m.x)
        return b.op("multibroadcast", one, out_lens=m.ins.shape.lens)
    trailing = m.ins.shape.ndim - m.x.shape.ndim - m.ins.op.attributes()["axis"]
    if known_equal(m.x.shape.elements, 1):
        return b.op("multibroadcast", m.x if m.x.shape.lens == (1,) else _flat(b, m.x), out_lens=m.ins.shape.lens)
    inner = reshaped(b, m.x, (*m.x.shape.lens, *[1] * trailing))
    return b.op("multibroadcast", inner, out_lens=m.ins.shape.lens)  # broadcast(x) -> multibroadcast(unsqueeze(x))


def _flat(b: RewriteBuilder, x: Instruction) -> Instruction:
    return b.op("reshape", x, dims=(1,))


@rule("nested_broadcasts", op("multibroadcast", op("multibroadcast", some("x"))), exact=True)
def nested_broadcasts(m: Match, b: RewriteBuilder) -> object:
    return b.broadcast(m.x, m.ins.shape.lens)  # spread(spread(x)) -> spread(x)


@rule("broadcast_leading_ones", op("multibroadcast", op("unsqueeze", some("x"), bind="inner")), exact=True)
def broadcast_leading_ones(m: Match, b: RewriteBuilder) -> object:
    added = m.inner.shape.ndim - m.x.shape.ndim
    if known_equal(m.x.shape.elements, 1) or not known_same(m.inner.shape.lens, (1,) * added + m.x.shape.lens):
        return None
    return b.broadcast(m.x, m.ins.shape.lens)  # spread(unsqueeze[0](x)) -> spread(x)


def _aligned(x: Instruction, rank: int) -> tuple[int, ...]:
    return (1,) * (rank - x.shape.ndim) + x.shape.lens


@rule("broadcast_outside", op("squeeze unsqueeze", op("multibroadcast", some("x"), bind="wide", once=True)), exact=True)
def reshape_of_broadcast(m: Match, b: RewriteBuilder) -> object:
    attributes = m.ins.op.normalized([m.wide.shape]).attributes()
    if any(s != 1 for s in attributes.get("steps", ())):
        return "an axis is split"
    old, new = m.wide.shape.lens, m.ins.shape.lens
    if known_same(m.ins.shape.lens, (1,)) or known_same(m.wide.shape.lens, (1,)):
        return "one element"
    small = _aligned(m.x, len(old))
    if m.ins.name == "squeeze":
        axes = attributes["axes"] or tuple(axis for axis, n in enumerate(old) if known_equal(n, 1))
        inner = [n for axis, n in enumerate(small) if axis not in axes]
    else:
        axes = attributes["axes"]
        rest = iter(small)
        inner = [1 if axis in axes else next(rest) for axis in range(len(new))]
    while len(inner) > 1 and known_equal(inner[0], 1):
        inner.pop(0)
    if uniform_value(m.x) is not None:
        return b.scalar(uniform_value(m.x), m.ins)
    return b.broadcast(reshaped(b, m.x, inner), new)  # unsqueeze(spread(x)) -> spread(unsqueeze(x))


@rule("broadcast_outside", op("transpose", op("multibroadcast", some("x"), bind="wide", once=True)), exact=True)
def transpose_of_broadcast(m: Match, b: RewriteBuilder) -> object:
    if uniform_value(m.x) is not None:
        return b.scalar(uniform_value(m.x), m.ins)
    permutation = m.ins.op.attributes()["permutation"]
    small = reshaped(b, m.x, _aligned(m.x, m.wide.shape.ndim))
    return b.broadcast(
        b.transpose(small, permutation), m.ins.shape.lens
    )  # transpose(spread(x)) -> spread(transpose(x))


@rule("broadcast_outside", op("slice", op("multibroadcast", some("x"), bind="wide")), exact=True)
def slice_of_broadcast(m: Match, b: RewriteBuilder) -> object:
    attributes = m.ins.op.normalized([m.wide.shape]).attributes()
    small = _aligned(m.x, m.wide.shape.ndim)
    missing = m.wide.shape.ndim - m.x.shape.ndim
    kept = [
        (axis - missing, start, end)
        for axis, start, end in zip(attributes["axes"], attributes["starts"], attributes["ends"])
        if not known_equal(small[axis], 1) or known_equal(m.wide.shape.lens[axis], 1)
    ]
    kept = [k for k in kept if k[0] >= 0]
    inner = m.x
    if kept:
        axes, starts, ends = zip(*kept)
        inner = b.op("slice", m.x, axes=axes, starts=starts, ends=ends)
    return b.broadcast(inner, m.ins.shape.lens)  # slice(spread(x)) -> spread(slice(x))


@rule("transpose_slice", op("slice", op("transpose", some("x"), bind="inner")), exact=True)
def slice_of_transpose(m: Match, b: RewriteBuilder) -> object:
    permutation = m.inner.op.attributes()["permutation"]
    attributes = m.ins.op.normalized([m.inner.shape]).attributes()
    axes = tuple(permutation[axis] for axis in attributes["axes"])
    part = b.op("slice", m.x, axes=axes, starts=attributes["starts"], ends=attributes["ends"])
    return b.transpose(part, permutation)  # slice(transpose(x)) -> transpose(slice(x))


@rule(
    "reshape_transpose_reshape",
    op("reshape squeeze", op("transpose", op("reshape unsqueeze", some("x")), bind="middle")),
    exact=True,
)
def reshape_transpose_reshape(m: Match, b: RewriteBuilder) -> object:
    """A transpose between reshapes that, seen over axes that stay together, is a plain transpose or nothing."""
    permutation = m.middle.op.attributes()["permutation"]
    factors = _factors(m.x.shape.lens, m.middle.inputs[0].shape.lens)
    if factors is None:
        return "the first reshape merges parts of axes"
    order = _axis_order(factors, permutation)
    if order is None:
        return "an axis is torn apart"
    order += [axis for axis, n in enumerate(m.x.shape.lens) if known_equal(n, 1)]
    return reshaped(
        b, b.transpose(m.x, order), m.ins.shape.lens
    )  # reshape(transpose(reshape(x))) -> reshape(transpose(x))


def _factors(old: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """For each axis of ``new`` the axis of ``old`` that it is a part of (-1 for length 1); ``None`` if it spans two."""
    owner: list[int] = []
    axis, inside = 0, 1
    for n in new:
        if known_equal(n, 1):
            owner.append(-1)
            continue
        while axis < len(old) and known_equal(old[axis], 1):
            axis += 1
        if axis == len(old) or exact_quotient(old[axis], inside * n) is None:
            return None
        owner.append(axis)
        inside *= n
        if known_equal(inside, old[axis]):
            axis, inside = axis + 1, 1
    return owner


def _axis_order(owner: Sequence[int], permutation: Sequence[int]) -> list[int] | None:
    """Order of whole old axes after permuting their parts; ``None`` unless parts stay together and in order."""
    order: list[int] = []
    previous = -1
    for position in permutation:
        axis = owner[position]
        if axis < 0:
            continue
        if order and order[-1] == axis:
            if position < previous:
                return None
        elif axis in order:
            return None
        else:
            order.append(axis)
        previous = position
    return order


VIEW_RULES = (
    same_lengths,
    reshape_of_copy,
    contiguous_of_standard,
    layout_of_same,
    nested_reshapes,
    canonical_reshape,
    nested_transposes,
    transpose_of_ones,
    broadcast_form,
    nested_broadcasts,
    broadcast_leading_ones,
    reshape_of_broadcast,
    transpose_of_broadcast,
    slice_of_broadcast,
    slice_of_transpose,
    reshape_transpose_reshape,
)
