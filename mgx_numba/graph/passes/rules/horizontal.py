"""Horizontal fusion: contractions of one input with several constant weights become one, and views of its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ....core.dim import known_same
from ....core.shape import Shape, common_lens
from ....dataclass import dataclass
from ...constants import CONSTANT_VIEWS, compact, constant_array, is_constant
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..match import Match, constant, op, rule, some
from ..storage_types import widens
from .contractions import along_axis


def is_activation(ins: Instruction) -> bool:
    """Return whether an instruction is a pointwise operator of one operand that keeps the element type."""
    return ins.op.pointwise and len(ins.inputs) == 1 and ins.shape.type is ins.inputs[0].shape.type


@dataclass(frozen=True)
class Branch:
    """A contraction of the shared input, with its epilogue."""

    root: Instruction
    weights: Instruction
    bias: np.ndarray | None
    activation: Instruction | None
    result: Instruction


def biased(root: Instruction, axis: int) -> Branch | None:
    """The contraction with its bias, ``None`` when its weights are no constants of its own."""
    weights = root.inputs[1]
    if not is_constant(weights) or constant_array(weights) is None or _base(weights) is None:
        return None
    result, bias = root, None
    user = only_user(result)
    if user is not None and user.name == "add":
        other = user.inputs[1] if user.inputs[0] is result else user.inputs[0]
        bias = along_axis(other, axis) if is_constant(other) else None
        if bias is not None:
            result = user
    return Branch(root, weights, bias, None, result)


def _follow(root: Instruction, axis: int) -> Branch | None:
    """The contraction with its bias and activation, ``None`` when it should stay by itself."""
    branch = biased(root, axis)
    if branch is None:
        return None
    user = only_user(branch.result)
    if user is not None and is_activation(user):
        branch = replace(branch, activation=user, result=user)
    return None if any(_joins_kernel(u) or u.name == "concat" for u in branch.result.users) else branch


def _joins_kernel(user: Instruction) -> bool:
    """Return whether a reader can be computed in the kernel of the contraction: it is pointwise, and no conversion of
    16 bits, which the readers of wide values compute themselves."""
    return user.op.pointwise and not widens(user)


def only_user(ins: Instruction) -> Instruction | None:
    """The single user, if it is not in a submodule, which may not be run."""
    user = next(iter(ins.users)) if len(ins.users) == 1 else None
    return user if user is not None and user.module is ins.module else None


def _base(weights: Instruction) -> Instruction | None:
    """The literal that only this contraction uses."""
    while weights.literal is None:
        if len(weights.users) > 1 or weights.name not in CONSTANT_VIEWS:
            return None
        weights = weights.inputs[0]
    return weights if len(weights.users) == 1 else None


def _fuse(m: Match, b: RewriteBuilder, axis: int, weight_axis: int) -> object:
    x, first = m.x, m.ins
    if x.module is not first.module:
        return "the input belongs to an outer module"
    branches = []
    for source in (x, *_as_rows(x, first)):
        for user in source.users:
            if user.op != first.op or user.inputs[0] is not source or user.inputs[1] is source:
                continue
            branch = _follow(user, axis) if user.module is x.module else None
            if branch is None:
                continue
            lens, wanted = branch.weights.shape.lens, first.inputs[1].shape.lens
            if _fits(lens, wanted if source is x else wanted[-2:], weight_axis):
                branches.append(branch)
    kind = next((br.activation for br in branches if br.root is first), None)
    branches = [br for br in branches if (br.activation and br.activation.op) == (kind and kind.op)]
    if len(branches) < 2 or all(br.root is not first for br in branches):
        return "fewer than two contractions of this input can be joined"

    b.before = x._next
    return joined(b, x, branches, axis, weight_axis)


def _as_rows(x: Instruction, first: Instruction) -> list[Instruction]:
    """Return the reshapes of ``x`` to a matrix of its rows, if ``first`` is a product: attention's values may be a
    product of rows, while queries and keys that are normalised are one of [batch, positions, features]."""
    if first.name != "dot" or x.shape.ndim < 3:
        return []
    lens = (prod(x.shape.lens[:-1]), x.shape.lens[-1])
    return [user for user in x.users if user.name in ("reshape", "squeeze") and known_same(user.shape.lens, lens)]


def joined(
    b: RewriteBuilder, x: Instruction, branches: Sequence[Branch], axis: int, weight_axis: int
) -> dict[Instruction, Instruction]:
    """Emit one contraction of ``x`` in the place of branches with equal activations; for the result of each what is
    that now, a slice along ``axis``."""
    first, kind = branches[0].root, branches[0].activation
    widths = [br.root.shape.lens[axis] for br in branches]
    in_blocks = first.name == "matmul_nbits"
    joined = b.op(first.op, x, *(_joined_blocks(b, branches) if in_blocks else [_joined(b, branches, weight_axis)]))
    if any(br.bias is not None for br in branches):
        pieces = [
            np.zeros(n, joined.shape.type.numpy) if br.bias is None else np.broadcast_to(br.bias, n)
            for br, n in zip(branches, widths)
        ]
        shape = [1] * joined.shape.ndim
        shape[axis] = sum(widths)
        joined = b.op("add", joined, b.constant(np.concatenate(pieces).reshape(shape), joined.shape))
    if kind is not None:
        joined = b.op(kind.op, joined)
    slices = b.split(joined, axis % joined.shape.ndim, widths)
    return {
        br.result: own if br.result.shape.ndim == joined.shape.ndim else b.reshape(own, br.result.shape.lens)
        for br, own in zip(branches, slices)
    }


def _joined_blocks(b: RewriteBuilder, branches: Sequence[Branch]) -> list[Instruction]:
    """Emit the block-quantised weights of all branches, column after column."""
    arrays = zip(*([constant_array(i) for i in br.root.inputs[1:]] for br in branches))
    return [b.literal(np.concatenate([part for part in parts if part is not None])) for parts in arrays]


def _joined(b: RewriteBuilder, branches: Sequence[Branch], weight_axis: int) -> Instruction:
    """Emit the weights of all branches, one after another along an axis."""
    first = branches[0].root
    values = [compact_axis(br.weights, weight_axis) for br in branches]
    outer = common_lens(*(_without(v.shape, weight_axis) for v in values))
    parts = [np.broadcast_to(v, _with(outer, weight_axis, v.shape[weight_axis])) for v in values]
    lens = list(branches[0].weights.shape.lens)
    lens[weight_axis] = sum(br.root.inputs[1].shape.lens[weight_axis] for br in branches)
    return b.constant(np.concatenate(parts, axis=weight_axis), Shape(first.shape.type, lens))


def compact_axis(weights: Instruction, axis: int) -> np.ndarray:
    """A constant's values without repetition, except along ``axis``."""
    values = constant_array(weights)
    if values is None:
        raise ValueError(f"{weights!r} is not constant")
    small = compact(values)
    return np.broadcast_to(small, _with(_without(small.shape, axis), axis, values.shape[axis]))


def _without(lens: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(lens)
    return lens[:axis] + lens[axis + 1 :]


def _with(lens: tuple[int, ...], axis: int, n: int) -> tuple[int, ...]:
    axis %= len(lens) + 1
    return (*lens[:axis], n, *lens[axis:])


def _fits(a: tuple[int, ...], b: tuple[int, ...], axis: int) -> bool:
    return len(a) == len(b) and known_same(_without(a, axis), _without(b, axis))


def _dot_check(m: Match) -> str | None:
    return "fewer than two contractions of this input can be joined" if len(m.x.users) < 2 else None


@rule("conv_dot_horiz_fusion", op("dot", some("x"), constant("w")), _dot_check, exact=True)
def join_dots(m: Match, b: RewriteBuilder) -> object:
    return _fuse(m, b, -1, -1)  # dot(x, v), dot(x, w) -> slices of dot(x, concat(v, w))


def _conv_check(m: Match) -> str | None:
    return "grouped" if m.ins.op.attributes()["group"] != 1 else _dot_check(m)


@rule("conv_dot_horiz_fusion", op("convolution", some("x"), constant("w")), _conv_check, exact=True)
def join_convolutions(m: Match, b: RewriteBuilder) -> object:
    return _fuse(m, b, 1, 0)  # conv(x, v), conv(x, w) -> slices of conv(x, concat(v, w))


HORIZONTAL_RULES = (join_dots, join_convolutions)
