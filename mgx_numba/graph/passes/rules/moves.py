"""Transposes and reshapes moved past operations that do not care, toward others that cancel them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....core.dim import known_equal, known_same
from ....core.shape import Shape, invert_permutation
from ...constants import compact, constant_array, is_constant, uniform_value
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..match import Match, constant, op, rule, some
from .linear import POINTWISE

REGROUPINGS = ("reshape", "squeeze", "unsqueeze")
MOST_MOVED = 32
"""Most operators past which a transpose is moved to the one that cancels it: two dots with a GELU have 12."""
_POINTWISE = frozenset(POINTWISE.split())


@rule("unary_shape_transforms", op(POINTWISE), exact=True, reads=("transpose",))
def transpose_after_pointwise(m: Match, b: RewriteBuilder) -> object:
    """``f(transpose(x), transpose(y), c) -> transpose(f(x, y, transpose'(c)))`` with one permutation for all."""
    views = [i for i in m.ins.inputs if not is_constant(i)]
    if not views or any(v.name != "transpose" or v.op != views[0].op for v in views):
        return None
    permutation = views[0].op.attributes()["permutation"]
    inverse = invert_permutation(permutation)
    small = Shape(m.ins.shape.type, [m.ins.shape.lens[axis] for axis in inverse])

    def constant(i: Instruction) -> Instruction:
        value = uniform_value(i)
        if value is not None:
            return b.scalar(value, Shape(i.shape.type, small.lens))
        array = constant_array(i)
        return b.transpose(i, inverse) if array is None else _transposed_constant(b, i, inverse)

    operands = [i.inputs[0] if i in views else constant(i) for i in m.ins.inputs]
    return b.transpose(b.op(m.ins.op, *operands), permutation)


def _transposed_constant(b: RewriteBuilder, ins: Instruction, permutation: tuple[int, ...]) -> Instruction:
    if ins.name == "multibroadcast":
        source = ins.inputs[0]
        full = b.reshape(source, (1,) * (ins.shape.ndim - source.shape.ndim) + source.shape.lens)
        lens = tuple(ins.shape.lens[axis] for axis in permutation)
        return b.broadcast(b.transpose(full, permutation), lens)
    return b.transpose(ins, permutation)


@rule("unary_shape_transforms", op(POINTWISE), exact=True, reads=REGROUPINGS)
def reshape_after_pointwise(m: Match, b: RewriteBuilder) -> object:
    """``f(reshape(x), c) -> reshape(f(x, c))`` for constants with equal elements, unless rows are only regrouped."""
    views = [i for i in m.ins.inputs if uniform_value(i) is None]
    if len(set(views)) != 1 or views[0].name not in REGROUPINGS or len(views[0].users) > 1:
        return None
    source = views[0].inputs[0]
    if is_constant(source) or len(views[0].inputs) != 1 or known_equal(source.shape.elements, 1):
        return None
    if not source.shape.standard or _is_row_reshape(views[0]):
        return "the reshape is better where it is"
    operands = [
        source if i is views[0] else b.scalar(uniform_value(i), Shape(i.shape.type, source.shape.lens))
        for i in m.ins.inputs
    ]
    view = views[0].op if views[0].name != "reshape" else None
    result = b.op(m.ins.op, *operands)
    return b.op(view, result) if view is not None else b.reshape(result, m.ins.shape.lens)


def _is_row_reshape(ins: Instruction) -> bool:
    old, new = ins.inputs[0].shape.lens, ins.shape.lens
    return bool(old) and bool(new) and known_equal(old[-1], new[-1])


@rule("reshape_dot", op("reshape unsqueeze", some("x")), exact=True)
def reshape_before_dot(m: Match, b: RewriteBuilder) -> object:
    """``reshape(f(dot(x, w)), c) -> f(dot(reshape(x), spread(w)), c)`` where rows are only regrouped, or stay together.

    Bias, activation and what follows then see one tensor shape, and pairs of reshapes around a dot vanish.
    """
    if not _is_row_reshape(m.ins) or m.ins.shape.ndim <= m.x.shape.ndim:
        return None
    if m.ins.name == "unsqueeze" and not known_same(m.ins.shape.lens[-2:], m.x.shape.lens):
        return "rows would become matrices"
    chain: list[Instruction] = []
    value = m.x
    while value.op.pointwise and not value.module_args and len(value.users) == 1:
        variable = [i for i in value.inputs if not is_constant(i)]
        if len(variable) != 1 or not all(_differs_by_column(i) for i in value.inputs if is_constant(i)):
            return "between dot and reshape is more than operations with constants"
        chain.append(value)
        value = variable[0]
    if value.name != "dot" or len(value.users) > 1 or value.shape.ndim != 2:
        return "no dot of matrices is below"
    a, w = value.inputs
    lens = m.ins.shape.lens
    spread: Callable[[Instruction], Instruction] = lambda i: _spread_rows(b, i, lens)  # noqa: E731
    weights = b.broadcast(w, (*lens[:-2], *w.shape.lens))
    result = b.op(value.op, b.reshape(a, (*lens[:-1], a.shape.lens[-1])), weights)
    for step in reversed(chain):
        result = b.op(step.op, *(spread(i) if is_constant(i) else result for i in step.inputs))
    return result


def _differs_by_column(ins: Instruction) -> bool:
    array = constant_array(ins)
    return array is not None and array.ndim == 2 and (array.strides[0] == 0 or array.shape[0] == 1)


def _spread_rows(b: RewriteBuilder, ins: Instruction, lens: tuple[int, ...]) -> Instruction:
    array = constant_array(ins)
    if array is None:
        raise ValueError(f"{ins!r} is not constant")
    shape = Shape(ins.shape.type, lens)
    value = uniform_value(ins)
    return b.scalar(value, shape) if value is not None else b.constant(array[0].copy(), shape)


@rule("transpose_dot", op("dot", op("transpose", some("x"), bind="left"), constant("w")), exact=True)
def transpose_after_dot(m: Match, b: RewriteBuilder) -> object:
    """``dot(transpose(x), w) -> transpose(dot(transpose(w), x))`` where a later transpose cancels the new one.

    Models write a layer over the tokens of a sequence between two transposes (MLP-Mixer, gMLP, TSMixer).
    """
    rank = m.ins.shape.ndim
    if tuple(m.left.op.attributes()["permutation"]) != (*range(rank - 2), rank - 1, rank - 2):
        return "not the last two axes are exchanged"
    values = constant_array(m.w)
    if values is None:
        return "the weights are no literal"
    if not _only_transposed(m.ins, m.left):
        return "the result is not transposed back"
    lens = m.w.shape.lens
    columns = np.ascontiguousarray(compact(values).swapaxes(-1, -2))
    weights = b.constant(columns, Shape(m.w.shape.type, (*lens[:-2], lens[-1], lens[-2])))
    return b.transpose(b.op(m.ins.op, weights, m.x), m.left.op.attributes()["permutation"])


def _only_transposed(ins: Instruction, view: Instruction) -> bool:
    """Return whether all that is computed from ``ins`` by pointwise operators and dots is transposed like ``view``."""
    region, ended = [ins], False
    for value in region:  # which grows
        for user in value.users:
            if user.op == view.op:
                ended = True
            elif user in region:
                continue
            elif user.name in _POINTWISE or (user.name == "dot" and is_constant(user.inputs[1])):
                region.append(user)
            else:
                return False
        if not value.users or len(region) > MOST_MOVED:
            return False
    others = (i for value in region[1:] for i in value.inputs if i not in region and not is_constant(i))
    return ended and all(other.op == view.op for other in others)


MOVE_RULES = (transpose_after_pointwise, reshape_after_pointwise, reshape_before_dot, transpose_after_dot)
