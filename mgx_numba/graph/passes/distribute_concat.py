"""Compute what follows a concatenation of two values for each of them, and concatenate the results.

A kernel writes its part of a concatenation in place, so that two kernels are left of three: rotary positions (Su et
al., 2021) turn ``x`` into ``x * cos + concat(-b, a) * sin`` for its halves ``a`` and ``b``; the concatenation may be
transposed before. In another form ``a`` and ``b`` are the even and the odd elements, and the concatenation along an
axis of length 2 is followed by a reshape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...core.dim import is_symbolic, known_equal, known_same
from ...ops.base import Operator
from ..constants import is_constant
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .rewriter import remove_dead

RESHAPES = frozenset({"reshape", "reshape_lazy"})
VECTOR_BYTES = 16
"""Bytes that a thread loads and stores at once; parts of rows that are no multiples are written by single elements."""


class DistributeConcat(Pass):
    """``f(concat(a, b), c)`` -> ``concat(f(a, c[:n]), f(b, c[n:]))`` for pointwise operations ``f``, if ``a`` or ``b``
    is computed for the concatenation alone by a pointwise operation."""

    name = "distribute_concat"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in [i for i in module if i.name == "concat"]:
            _merge_first(module, ins)
            last = _last(ins)
            if last is _first(ins):
                continue
            reason = _refused(ins, last)
            if reason:
                self.log.refuse(self.name, ins, reason)
                continue
            self.log.apply(self.name, ins)
            _distribute(module, ins, last)


def _is_pointwise(ins: Instruction) -> bool:
    """Return whether an instruction computes each element from the same element of all operands."""
    if not ins.op.pointwise or ins.module_args or ins.shape.is_dynamic:
        return False
    return all(known_same(i.shape.lens, ins.shape.lens) for i in ins.inputs)


def _first(concat: Instruction) -> Instruction:
    """Return the value that a chain of operations on a concatenation reads: the concatenation, its transpose, or the
    reshape that interleaves its values."""
    return _interleaved(concat) or _transposed(concat) or concat


def _transposed(concat: Instruction) -> Instruction | None:
    """Return the transpose that is a concatenation's only user."""
    (user,) = concat.users if len(concat.users) == 1 else (None,)
    return user if user is not None and user.name == "transpose" and user.module is concat.module else None


def _axis(concat: Instruction) -> int:
    """Return the axis of a concatenation in the value that a chain of operations reads."""
    axis: int = concat.op.axis % concat.shape.ndim  # type: ignore[attr-defined]
    turned = _transposed(concat)
    return axis if turned is None else list(turned.op.attributes()["permutation"]).index(axis)


def _last(concat: Instruction) -> Instruction:
    """Return the last operation of a chain of pointwise operations that starts at a concatenation."""
    last = _first(concat)
    while len(last.users) == 1:
        (user,) = last.users
        if isinstance(user.op, Return) or user.module is not concat.module or not _is_pointwise(user):
            break
        last = user
    return last


def _interleaved(concat: Instruction) -> Instruction | None:
    """Return the reshape that merges the last axis of a concatenation of single elements with the axis before, if that
    is the concatenation's only user."""
    return _merging(concat, concat)


def _merging(concat: Instruction, value: Instruction) -> Instruction | None:
    """Return the only user of a value of the concatenation's lengths if it is such a reshape."""
    lens, axis = concat.shape.lens, concat.op.axis  # type: ignore[attr-defined]
    if concat.shape.is_dynamic or len(lens) < 2 or axis % len(lens) != len(lens) - 1 or len(value.users) != 1:
        return None
    (user,) = value.users
    merges = user.name in RESHAPES and len(user.inputs) == 1 and user.module is concat.module
    if not merges or any(not known_equal(i.shape.lens[-1], 1) for i in concat.inputs):
        return None
    return user if known_same(user.shape.lens, (*lens[:-2], lens[-2] * lens[-1])) else None


def _merge_first(module: Module, concat: Instruction) -> None:
    """``reshape(f(concat))`` -> ``f(reshape(concat))`` where the reshape interleaves, for a conversion ``f``."""
    (user,) = concat.users if len(concat.users) == 1 else (None,)
    if user is None or user.name != "convert" or user.module is not concat.module:
        return
    merging = _merging(concat, user)
    if merging is None:
        return
    merged = module.insert_instruction(merging, merging.op, [concat])
    converted = module.insert_instruction(merging, user.op, [merged])
    converted.debug_symbols = user.debug_symbols
    module.replace_instruction(merging, converted)
    remove_dead(module, [merging, user])


def _refused(concat: Instruction, last: Instruction) -> str:
    """Return the reason to keep a concatenation before what follows; "" for none."""
    axis = concat.op.axis  # type: ignore[attr-defined]
    pieces = concat.inputs
    if concat.shape.is_dynamic or len(pieces) != 2 or any(is_symbolic(i.shape.lens[axis]) for i in pieces):
        return "it is no concatenation of two values of known lengths along its axis"
    interleaved = _interleaved(concat) is not None
    made = [i.inputs[0] if interleaved and i.name == "unsqueeze" and len(i.users) == 1 else i for i in pieces]
    if not any(_is_pointwise(i) and len(i.users) == 1 and not is_constant(i) for i in made):
        return "no operation computes a value for the concatenation alone"
    if interleaved:
        return ""
    inner = _axis(concat) == concat.shape.ndim - 1
    sizes = [i.shape.lens[axis] * t.size for i in pieces for t in (concat.shape.type, last.shape.type)]
    return "parts of rows are no whole vectors" if inner and any(n % VECTOR_BYTES for n in sizes) else ""


def _distribute(module: Module, concat: Instruction, last: Instruction) -> None:
    """Replace ``last`` by a concatenation of its windows."""
    axis = _axis(concat)
    merged, turned, first = _interleaved(concat), _transposed(concat), _first(concat)
    chain, ins = set(), first
    while ins is not last:
        (ins,) = ins.users
        chain.add(ins)
    start, results = 0, []
    for piece in concat.inputs:
        if turned is not None:
            piece = _turned(last, turned.op, piece)
        end = start + piece.shape.lens[axis]
        if merged is None:
            results.append(_Window(last, chain, axis, start, end).of(last, {first: piece}))
        else:
            window = _Interleaved(last, chain, axis, start, end)
            results.append(window.of(last, {first: window.unsqueezed(piece)}))
        start = end
    joined = module.insert_instruction(last, concat.op.with_attributes(axis=axis), results)
    joined.debug_symbols = last.debug_symbols
    if merged is not None:
        joined = module.insert_instruction(last, merged.op, [joined])
        joined.debug_symbols = last.debug_symbols
    module.replace_instruction(last, joined)
    remove_dead(module, [last])


def _turned(last: Instruction, turn: Operator, piece: Instruction) -> Instruction:
    """Return a view of a piece: the operation that computes the piece, if any, on views of its operands, so that
    operations on the piece are fused with that one."""
    assert last.module is not None
    if len(piece.users) > 1 or is_constant(piece) or not _is_pointwise(piece):
        return last.module.insert_instruction(last, turn, [piece])
    views = [last.module.insert_instruction(last, turn, [i]) for i in piece.inputs]
    made = last.module.insert_instruction(last, piece.op, views)
    made.debug_symbols = piece.debug_symbols
    return made


class _Window(NamedTuple):
    """A range of values along ``axis``, made before ``last``; values of ``chain`` are computed for windows alone."""

    last: Instruction
    chain: set[Instruction]
    axis: int
    start: int
    end: int

    def of(self, value: Instruction, known: dict[Instruction, Instruction]) -> Instruction:
        """Return the window of a value; ``known`` has the windows of other values."""
        if value not in known:
            known[value] = self._made(value, known)
            known[value].debug_symbols = value.debug_symbols
        return known[value]

    def _made(self, value: Instruction, known: dict[Instruction, Instruction]) -> Instruction:
        if value in self.chain or (_is_pointwise(value) and len(value.users) == 1 and not is_constant(value)):
            return self._insert(value.op, [self.of(i, known) for i in value.inputs])
        return self._part(value)

    def _insert(self, op: Any, inputs: list[Instruction], **attributes: Any) -> Instruction:
        assert self.last.module is not None
        return self.last.module.insert_instruction(self.last, op, inputs, **attributes)

    def _part(self, value: Instruction) -> Instruction:
        """Return the window of a value that is computed whole."""
        if value.name == "multibroadcast" and len(value.inputs) == 1:
            (source,) = value.inputs
            own = self.axis - value.shape.ndim + source.shape.ndim
            if own < 0 or known_equal(source.shape.lens[own], 1):
                lens = [self.end - self.start if a == self.axis else n for a, n in enumerate(value.shape.lens)]
                return self._insert(value.name, [source], out_lens=tuple(lens))
        return self._insert("slice", [value], axes=[self.axis], starts=[self.start], ends=[self.end])


class _Interleaved(_Window):
    """Every other element along the last axis of values [..., 2 n], as [..., n, 1]."""

    def _part(self, value: Instruction) -> Instruction:
        if value.name == "multibroadcast" and len(value.inputs) == 1:
            (source,) = value.inputs
            lens = (*value.shape.lens[:-1], value.shape.lens[-1] // 2, 1)
            if known_equal(source.shape.lens[-1], 1):
                source = self._insert("unsqueeze", [source], axes=[source.shape.ndim])
            else:
                source = self._pairs(source)
            return self._insert(value.name, [source], out_lens=lens)
        return self._pairs(value)

    def _pairs(self, value: Instruction) -> Instruction:
        lens = (*value.shape.lens[:-1], value.shape.lens[-1] // 2, 2)
        pairs = self._insert("reshape", [value], dims=lens)
        return self._insert("slice", [pairs], axes=[len(lens) - 1], starts=[self.start], ends=[self.end])

    def unsqueezed(self, piece: Instruction) -> Instruction:
        """Return a piece with the operation that computes it, if any, behind its ``unsqueeze``."""
        if piece.name != "unsqueeze" or len(piece.users) > 1:
            return piece
        return _turned(self.last, piece.op, piece.inputs[0])
