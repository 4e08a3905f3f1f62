"""Copies with source positions read from memory: gathers, and axes remapped by a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ...core.dim import SharedLength, known_in
from ...core.types import Type
from ...dataclass import dataclass
from ..launch import axis_text
from .cluster import Tensor


@dataclass(frozen=True)
class Term:
    """One integer tensor that adds to the source position.

    An *index* counts along a source axis; negative values count from its end. A *table* holds element offsets computed
    by the compiler, multiples of ``stride``.

    Attributes:
        operand: launch operand that holds it.
        type: its element type; int64 for a table.
        strides: its element strides along the output axes.
        offset: its first element in the operand.
        length: length of the indexed source axis; 0 for a table.
        stride: element stride of that source axis.
        axis: number of that axis, for messages.
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
        """Return whether it holds element offsets."""
        return known_in(self.length, 0)

    @property
    def fits(self) -> str:
        """Return the bounds of its values, for messages."""
        return axis_text(self.axis, self.length)


@dataclass(frozen=True)
class IndexedCopy:
    """``out[i] = x[base(i) + t0(i) + t1(i) + ...]``: the base is linear in the output position, terms are read from
    memory.

    Attributes:
        name: kernel name.
        source: operand ``x``: type and offset, the output's lengths, and strides along the output's axes (0 where a
            term decides).
        elements: most elements of ``x`` that are read.
        terms: at least one.
        out: operand ``out``.
        origin: the printed instruction.
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
    """Return the copy ``out[pre, i, post] = x[pre, indices[i], post]``, ``i`` at ``axis``; operands x, indices, out.

    A one-element index tensor may be missing from the lengths of ``out`` (a scalar index). ``checked``: indices may be
    out of range.
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
    """Return the copy ``out[i] = x[i]`` with ``indices[i]`` along ``axis``; operands x, indices, out. ``checked``:
    indices may be out of range."""
    strides = tuple(0 if a == axis else s for a, s in enumerate(data.strides))
    index = _index(axis, data, indices, indices.strides, 0, checked)
    return _copy("gather_elements_kernel", data, strides, [index], out, origin)


def gathernd_copy(
    batch: int, data: Tensor, indices: Tensor, out: Tensor, origin: str = "", checked: Sequence[bool] = ()
) -> IndexedCopy:
    """Return the copy ``out[b, i, post] = x[b, *indices[b, i], post]`` with ``batch`` axes b; operands x, indices, out.

    ``checked`` tells for each element of the index tuples whether it may be out of range; by default it may.
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
    """Return the copy ``out[i, j, ...] = x[positions[0][i], j, ...]``, and its constants by operand name.

    ``positions`` maps some axes to the input position of every output position; other axes have equal lengths.
    """
    tables = {f"table{axis}": at.astype(np.int64) * x.strides[axis] for axis, at in positions.items()}
    return remapped_copy(name, list(positions), x, out, origin), tables


def remapped_copy(name: str, axes: Sequence[int], x: Tensor, out: Tensor, origin: str = "") -> IndexedCopy:
    """Return the copy of `remapping` with operands ``table<axis>``: int64, positions times the stride of ``x``."""
    ranks = range(len(out.lens))
    terms = [
        Term(f"table{axis}", Type.int64_type, tuple(int(a == axis) for a in ranks), stride=x.strides[axis])
        for axis in axes
    ]
    strides = tuple(0 if axis in axes else s for axis, s in enumerate(x.strides))
    return _copy(name, x, strides, terms, out, origin)


def _index(axis: int, data: Tensor, indices: Tensor, strides: tuple[int, ...], offset: int, checked: bool) -> Term:
    """Return the term of an index along an axis of the data."""
    return Term(
        "indices", indices.type, strides, offset, length=data.lens[axis], stride=data.strides[axis], axis=axis,
        checked=checked,
    )  # fmt: skip


def _copy(
    name: str, x: Tensor, strides: tuple[int, ...], terms: Sequence[Term], out: Tensor, origin: str
) -> IndexedCopy:
    source = Tensor(x.type, out.lens, strides, x.offset)
    return IndexedCopy(name, source, prod(x.lens), tuple(terms), out, origin)
