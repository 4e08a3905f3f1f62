"""Copies whose source position is read from memory, as problems: gathers, and axes that a table remaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ...core.dim import SharedLength, known_in
from ...core.types import Type
from ...dataclass import dataclass
from ..launch import axis_text
from .cluster import Tensor

__all__ = ["IndexedCopy", "Term", "gather_copy", "gather_elements_copy", "gathernd_copy", "remapped_copy", "remapping"]


@dataclass(frozen=True)
class Term:
    """One integer tensor that moves the source position.

    A term that is an *index* counts along an axis of the source: negative values count from its end. A *table* holds
    element offsets made by the compiler, multiples of ``stride``, which are taken as they are.

    Attributes:
        operand: name of the launch operand that holds it.
        type: its element type; int64 for a table.
        strides: its element strides along the axes of the output.
        offset: where it starts, in elements of the operand.
        length: length of the source axis that it indexes; 0 for a table.
        stride: elements of the source between neighbours on that axis.
        axis: which axis that is, for messages.
        checked: whether its values may be out of range, which is an error.
    """

    operand: str
    type: Type
    strides: tuple[SharedLength, ...]
    offset: SharedLength = 0
    length: SharedLength = 0
    stride: SharedLength = 1
    axis: int = 0
    checked: bool = False

    @property
    def is_table(self) -> bool:
        """Whether it holds element offsets."""
        return known_in(self.length, 0)

    @property
    def fits(self) -> str:
        """What its values have to fit."""
        return axis_text(self.axis, self.length)


@dataclass(frozen=True)
class IndexedCopy:
    """``out[i] = x[base(i) + t0(i) + t1(i) + ...]``: the base is linear in the output position, terms are read.

    Attributes:
        name: of kernels.
        source: type and offset of the operand ``x``, the lengths of the output, and the strides of ``x`` along the
            output's axes (0 where a term decides).
        elements: of ``x`` that are read at most.
        terms: at least one; operands are called as they say.
        out: the operand ``out``.
        origin: the printed instruction, for readers of the kernel.
    """

    name: str
    source: Tensor
    elements: SharedLength
    terms: tuple[Term, ...]
    out: Tensor
    origin: str = ""


def gather_copy(
    axis: int, data: Tensor, indices: Tensor, out: Tensor, origin: str = "", checked: bool = True
) -> IndexedCopy:
    """``out[pre, i, post] = x[pre, indices[i], post]``, ``i`` at ``axis``; operands x, indices, out.

    An index tensor of one element may be missing from the lengths of ``out`` (a scalar index). ``checked``: indices may
    be out of range.
    """
    rank = len(out.lens) - len(data.lens) + 1
    post = len(data.lens) - axis - 1
    between = indices.strides if rank == len(indices.lens) else (0,) * rank
    strides = data.strides[:axis] + (0,) * rank + data.strides[axis + 1 :]
    own = (0,) * axis + tuple(between) + (0,) * post
    index = _index(axis, data, indices, own, 0, checked)
    return _copy("gather_kernel", data, strides, [index], out, origin)


def gather_elements_copy(
    axis: int, data: Tensor, indices: Tensor, out: Tensor, origin: str = "", checked: bool = True
) -> IndexedCopy:
    """``out[i] = x[i]`` but at ``indices[i]`` along ``axis``; operands x, indices, out.

    ``checked``: indices may be out of range.
    """
    strides = tuple(0 if a == axis else s for a, s in enumerate(data.strides))
    index = _index(axis, data, indices, indices.strides, 0, checked)
    return _copy("gather_elements_kernel", data, strides, [index], out, origin)


def gathernd_copy(
    batch: int, data: Tensor, indices: Tensor, out: Tensor, origin: str = "", checked: Sequence[bool] = ()
) -> IndexedCopy:
    """``out[b, i, post] = x[b, *indices[b, i], post]`` with ``batch`` axes b; operands x, indices, out.

    ``checked`` says for each place of the index tuples whether what is there may be out of range; by default it may.
    """
    depth, step = indices.lens[-1], indices.strides[-1]
    outer, post = len(indices.lens) - 1, len(data.lens) - batch - depth
    if outer + post != len(out.lens):  # a single element, to which the operator gives one axis
        out = Tensor(out.type, (), (), out.offset)
    strides = data.strides[:batch] + (0,) * (outer - batch) + data.strides[batch + depth :]
    own = indices.strides[:-1] + (0,) * post
    terms = [_index(batch + k, data, indices, own, k * step, checked[k] if checked else True) for k in range(depth)]
    return _copy("gathernd_kernel", data, strides, terms, out, origin)


def remapping(
    name: str, positions: Mapping[int, np.ndarray], x: Tensor, out: Tensor, origin: str = ""
) -> tuple[IndexedCopy, dict[str, np.ndarray]]:
    """``out[i, j, ...] = x[positions[0][i], j, ...]``, and the constants that it reads, by operand name.

    ``positions`` are for some axes the input position of every output position; on all others lengths agree.
    """
    tables = {f"table{axis}": at.astype(np.int64) * x.strides[axis] for axis, at in positions.items()}
    return remapped_copy(name, list(positions), x, out, origin), tables


def remapped_copy(name: str, axes: Sequence[int], x: Tensor, out: Tensor, origin: str = "") -> IndexedCopy:
    """As `remapping`, with operands ``table<axis>`` of some axes: int64, positions times the stride of ``x``."""
    ranks = range(len(out.lens))
    terms = [
        Term(f"table{axis}", Type.int64_type, tuple(int(a == axis) for a in ranks), stride=x.strides[axis])
        for axis in axes
    ]
    strides = tuple(0 if axis in axes else s for axis, s in enumerate(x.strides))
    return _copy(name, x, strides, terms, out, origin)


def _index(axis: int, data: Tensor, indices: Tensor, strides: tuple[int, ...], offset: int, checked: bool) -> Term:
    """The term of an index along an axis of the data."""
    return Term(
        "indices", indices.type, strides, offset, length=data.lens[axis], stride=data.strides[axis], axis=axis,
        checked=checked,
    )  # fmt: skip


def _copy(
    name: str, x: Tensor, strides: tuple[int, ...], terms: Sequence[Term], out: Tensor, origin: str
) -> IndexedCopy:
    source = Tensor(x.type, out.lens, strides, x.offset)
    return IndexedCopy(name, source, prod(x.lens), tuple(terms), out, origin)
