"""Keep image axes separate in normalisation over channel groups, so that its operands may be channels-last.

Exporters write group normalisation (Wu and He, 2018) of [n, c, h, w] over [n, groups, c / groups * h * w]. For
channels-last data that needs transposed copies in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

from ...core.dim import exact_quotient, known_equal, known_less_equal, known_same, typical
from ...core.shape import Lens
from ...dataclass import dataclass
from ..constants import is_constant
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .fuse_reduce import REDUCTIONS
from .layout_convolution import CONVOLUTIONS
from .regions import is_scalar_literal, order_of
from .rewriter import remove_dead

Groups = tuple[tuple[int, ...], ...]
"""For each axis of a tensor, the finest axes that it consists of."""


@dataclass(frozen=True)
class GroupForm:
    """Shape of values in a region: the finest axes of each axis, and the reduced finest axes."""

    lens: Lens
    groups: Groups
    reduced: frozenset[int] = frozenset()


class SplitChannelGroups(Pass):
    """``reshape`` to channel groups, reductions over the rest, pointwise operations and ``reshape`` back -> the same
    with channels in groups and separate image axes.

    Operations after the reshape back join if their other operands are broadcast: per-channel scales and shifts, and the
    activation. Modules without convolutions are skipped, because nothing in them is channels-last.
    """

    name = "split_channel_groups"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        if not any(ins.name in CONVOLUTIONS and not ins.shape.is_dynamic for ins in module):
            return
        order = order_of(module)
        for ins in list(module):
            if ins.module is not module or ins.name != "reshape" or len(ins.inputs) != 1:
                continue
            region = _Region(module, ins, order)
            if not region.reason:
                self.log.apply(self.name, ins)
                region.rewrite()
            elif region.reductions:
                self.log.refuse(self.name, ins, region.reason)


class _Region:
    """Values computed from a reshape, with their forms; ``reason`` is why it is not rewritten."""

    def __init__(self, module: Module, root: Instruction, order: Mapping[Instruction, int]) -> None:
        self.module, self.root = module, root
        self.members: dict[Instruction, GroupForm] = {}
        self.reductions: list[Instruction] = []
        self.reason = "lengths are known at run time only"
        source = root.inputs[0].shape
        if source.is_dynamic or root.shape.is_dynamic or known_equal(source.elements, 0):
            return
        found = common_axes(source.lens, root.shape.lens) if source.ndim > 2 else None
        if found is None or not _groups_channels(*found[1:]):
            self.reason = "it makes no groups of channels"
            return
        self.finest, image, own = found
        self.image, self.full = GroupForm(source.lens, image), GroupForm(root.shape.lens, own)
        self.members[root] = self.full
        self._grow(order)
        self.reason = self._refused()

    def _grow(self, order: Mapping[Instruction, int]) -> None:
        """Add users in the module's order."""
        waiting = {user for user in self.root.users if user in order}
        while waiting:
            ins = min(waiting, key=order.__getitem__)
            waiting.remove(ins)
            form = self._form_of(ins)
            if form is not None:
                self.members[ins] = form
                waiting.update(user for user in ins.users if user in order)

    def _form_of(self, ins: Instruction) -> GroupForm | None:
        """Return the form of a user's value; None if it is not part of the region."""
        forms = [self.members.get(i) for i in ins.inputs]
        first = next(form for form in forms if form is not None)
        if ins.shape.is_dynamic or ins.shape.sub_shapes or isinstance(ins.op, Return):
            return None
        if ins.name in REDUCTIONS:
            return self._reduced(ins) if forms == [self.full] else None
        if ins.name == "multibroadcast":
            leads_back = len(forms) == 1 and first.reduced and known_same(ins.shape.lens, self.full.lens)
            return self.full if leads_back else None
        if ins.name == "reshape":
            back = forms == [self.full] and known_same(ins.shape.lens, self.image.lens)
            return self.image if back else None
        if not ins.op.pointwise or ins.module_args or not known_same(ins.shape.lens, first.lens):
            return None
        joins = all(f == first if f is not None else _is_spread(i) for f, i in zip(forms, ins.inputs))
        return first if joins and all(known_same(i.shape.lens, first.lens) for i in ins.inputs) else None

    def _reduced(self, ins: Instruction) -> GroupForm | None:
        axes = ins.op.axes  # type: ignore[attr-defined]
        reduced = frozenset(a for axis in axes for a in self.full.groups[axis % len(self.full.lens)])
        if not reduced or (self.reductions and self.members[self.reductions[0]].reduced != reduced):
            return None
        self.reductions.append(ins)
        return GroupForm(ins.shape.lens, self.full.groups, reduced)

    def _refused(self) -> str:
        if not self.reductions:
            return "nothing is reduced"
        if any(form == self.full and self._is_open(ins) for ins, form in self.members.items()):
            return "values of all groups are used otherwise than as images"
        merges = any(len(group) > 1 for group in self.full.groups)
        follows = any(form == self.image and ins.name != "reshape" for ins, form in self.members.items())
        return "" if merges or follows else "it merges no axes, and nothing follows it"

    def _is_open(self, ins: Instruction) -> bool:
        return any(user not in self.members for user in ins.users)

    def rewrite(self) -> None:
        """Replace the region by the same over the finest axes."""
        made: dict[Instruction, Instruction] = {}
        for ins, form in self.members.items():
            builder = RewriteBuilder(self.module, ins)
            lens = self._finest(form.groups, form.lens, form.reduced)
            if ins is self.root:
                made[ins] = self._root(builder, lens)
            elif ins.name == "reshape":
                made[ins] = made[ins.inputs[0]]
            elif ins.name == "multibroadcast":
                made[ins] = builder.op("multibroadcast", made[ins.inputs[0]], out_lens=lens)
            elif ins.name in REDUCTIONS:
                axes = tuple(sorted(self.members[ins].reduced))
                made[ins] = builder.op(ins.name, made[ins.inputs[0]], axes=axes)
            else:
                made[ins] = builder.op(ins.op, *(made.get(i) or self._spread(builder, i, form) for i in ins.inputs))
            for new in builder.created:
                new.debug_symbols = ins.debug_symbols
        for ins, form in self.members.items():
            if self._is_open(ins):
                back = RewriteBuilder(self.module, ins).reshape(made[ins], form.lens)
                back.debug_symbols = ins.debug_symbols
                for user in [user for user in ins.users if user not in self.members]:
                    self.module.set_inputs(user, {k: back for k, i in enumerate(user.inputs) if i is ins})
        remove_dead(self.module, [*self.members][::-1])

    def _root(self, builder: RewriteBuilder, lens: Lens) -> Instruction:
        """Return the image over the finest axes; a widening conversion, and the constants that are added to its result
        or multiplied with it, are moved behind the reshape.

        So a convolution stores the narrow values, and readers add its bias.
        """
        source = self.root.inputs[0]
        chain, wide = _added_constants(source)
        if not _widens(wide) or any(not (u in chain or u is self.root or _narrows(u)) for i in chain for u in i.users):
            chain, wide = [], source
        if not _widens(wide):
            return builder.reshape(source, lens)
        made = {wide: builder.op(wide.op, builder.reshape(wide.inputs[0], lens))}
        for ins in chain:
            made[ins] = builder.op(ins.op, *(made.get(i) or self._spread(builder, i, self.image) for i in ins.inputs))
        return made[source]

    def _spread(self, builder: RewriteBuilder, ins: Instruction, form: GroupForm) -> Instruction:
        """Return a broadcast operand over the finest axes."""
        value = ins.inputs[0]
        lens = self._finest(form.groups, form.lens, form.reduced)
        if not known_less_equal(value.shape.elements, 1):
            own = (1,) * (len(form.lens) - value.shape.ndim) + value.shape.lens
            value = builder.reshape(value, self._finest(form.groups, own, form.reduced))
        return builder.op("multibroadcast", value, out_lens=lens)

    def _finest(self, groups: Groups, lens: Sequence[int], reduced: frozenset[int]) -> tuple[int, ...]:
        """Return the finest lengths of a value with lengths ``lens``, some of which may be 1."""
        found = list(self.finest)
        for group, n in zip(groups, lens):
            for axis in group:
                if known_equal(n, 1) or axis in reduced:
                    found[axis] = 1
        return tuple(found)


def _groups_channels(image: Groups, own: Groups) -> bool:
    """Return whether channels are split into groups, or merged with other axes."""
    return len(image[1]) > 1 or any(len(group) > 1 and set(image[1]) & set(group) for group in own)


def _is_spread(ins: Instruction) -> bool:
    """Return whether a value is broadcast along leading or trailing axes, as `_Region._spread` supports."""
    return (ins.name == "multibroadcast" and len(ins.inputs) == 1) or is_scalar_literal(ins) is not None


def _added_constants(value: Instruction) -> tuple[list[Instruction], Instruction]:
    """Return the pointwise operations with broadcast constants that lead to a value, in order, and their source."""
    chain: list[Instruction] = []
    while value.op.pointwise and value.name != "convert" and not value.module_args:
        moving = [i for i in value.inputs if not (is_constant(i) and _is_spread(i))]
        if len(moving) != 1:
            break
        chain.insert(0, value)
        value = moving[0]
    return chain, value


def _widens(ins: Instruction) -> bool:
    return ins.name == "convert" and ins.inputs[0].shape.type.size < ins.shape.type.size


def _narrows(ins: Instruction) -> bool:
    return ins.name == "convert" and ins.inputs[0].shape.type.size > ins.shape.type.size


def common_axes(first: Sequence[int], second: Sequence[int]) -> tuple[Lens, Groups, Groups] | None:
    """Return the coarsest axes of which both shapes' axes are products of neighbours.

    Returns:
        their lengths, none of them 1, and their indices for each axis of the first and of the second shape; None if
        there are none.
    """
    ends = [[prod(lens[: k + 1]) for k in range(len(lens))] for lens in (first, second)]
    bounds = sorted({1, *ends[0], *ends[1]}, key=typical)
    finest: list[int] = []
    for low, high in pairwise(bounds):
        if (length := exact_quotient(high, low)) is None:
            return None
        finest.append(length)
    if not known_equal(prod(first), prod(second)):
        return None
    place = {bound: k for k, bound in enumerate(bounds)}
    groups = [
        tuple(tuple(range(place[before], place[own])) for before, own in pairwise([1, *ends[side]])) for side in (0, 1)
    ]
    return tuple(finest), groups[0], groups[1]
