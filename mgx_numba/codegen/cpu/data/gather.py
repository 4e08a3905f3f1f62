"""The gather operators as indexed copies."""

from __future__ import annotations

from collections.abc import Sequence

from ...launch import Launch
from ...problems.cluster import Tensor
from .indexed import indexed_launch
from .terms import Term

__all__ = ["gather_elements_launch", "gather_launch", "gathernd_launch"]


def gather_launch(
    axis: int, data: Tensor, indices: Tensor, out: Tensor, origin: str = "", checked: bool = True
) -> Launch:
    """``out[pre, i, post] = x[pre, indices[i], post]``, ``i`` at ``axis``; operands x, indices, out.

    An index tensor of one element may be missing from the lengths of ``out`` (a scalar index). ``checked``: indices may
    be out of range.
    """
    rank = len(out.lens) - len(data.lens) + 1
    post = len(data.lens) - axis - 1
    between = indices.strides if rank == len(indices.lens) else (0,) * rank
    strides = data.strides[:axis] + (0,) * rank + data.strides[axis + 1 :]
    index = Term(
        "indices",
        indices.type,
        (0,) * axis + tuple(between) + (0,) * post,
        length=data.lens[axis],
        stride=data.strides[axis],
        axis=axis,
        checked=checked,
    )
    return indexed_launch("gather_kernel", Tensor(data.type, out.lens, strides), _elements(data), [index], out, origin)


def gather_elements_launch(
    axis: int, data: Tensor, indices: Tensor, out: Tensor, origin: str = "", checked: bool = True
) -> Launch:
    """``out[i] = x[i]`` but at ``indices[i]`` along ``axis``; operands x, indices, out.

    ``checked``: indices may be out of range.
    """
    strides = tuple(0 if a == axis else s for a, s in enumerate(data.strides))
    index = Term(
        "indices",
        indices.type,
        indices.strides,
        length=data.lens[axis],
        stride=data.strides[axis],
        axis=axis,
        checked=checked,
    )
    source = Tensor(data.type, out.lens, strides)
    return indexed_launch("gather_elements_kernel", source, _elements(data), [index], out, origin)


def gathernd_launch(
    batch: int, data: Tensor, indices: Tensor, out: Tensor, origin: str = "", checked: Sequence[bool] = ()
) -> Launch:
    """``out[b, i, post] = x[b, *indices[b, i], post]`` with ``batch`` axes b; operands x, indices, out.

    ``checked`` says for each place of the index tuples whether what is there may be out of range; by default it may.
    """
    depth, step = indices.lens[-1], indices.strides[-1]
    outer, post = len(indices.lens) - 1, len(data.lens) - batch - depth
    if outer + post != len(out.lens):  # a single element, to which the operator gives one axis
        out = Tensor(out.type, (), ())
    strides = data.strides[:batch] + (0,) * (outer - batch) + data.strides[batch + depth :]
    terms = [
        Term(
            "indices",
            indices.type,
            indices.strides[:-1] + (0,) * post,
            offset=k * step,
            length=data.lens[batch + k],
            stride=data.strides[batch + k],
            axis=batch + k,
            checked=checked[k] if checked else True,
        )
        for k in range(depth)
    ]
    return indexed_launch("gathernd_kernel", Tensor(data.type, out.lens, strides), _elements(data), terms, out, origin)


def _elements(data: Tensor) -> int:
    total = 1
    for n in data.lens:
        total *= n
    return total
