"""Scatters that combine updates atomically, in any order. A thread computes an update, or a vector of neighbours, from
gathered and other values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import SharedLength, known_in
from ....core.shape import row_major_strides
from ....core.types import Type
from ....dataclass import dataclass
from ....graph.module import Module
from ...launch import Launch
from ...problems.cluster import Tensor
from ...problems.indexed_copy import IndexedCopy, Term
from ..cluster.flat_index import contiguous_lanes
from ..driver.device import known_architecture
from ..printer import dtype_name
from .elements import ElementText
from .gathered import GatheredValues
from .indexed import Positions

_ADDED_TOGETHER = 4
"""Adjacent float32 numbers that one atomic addition takes."""


@dataclass(frozen=True)
class UpdateScatter:
    """``out[place(i)] = combine(out[place(i)], f(a[i], b[i], ...))`` for all indices ``i`` of the updates.

    Attributes:
        combine: add, mul, min or max.
        lens: lengths of the updates.
        sources: the values that updates are computed from, with strides along the updates' axes; of a gather with one
            term its source counts.
        module: scalar module of the updates; None: they are the only source.
        type: type of the updates.
        terms: index terms of the places.
        out: the data, of a type that devices update atomically (`scatter.ATOMIC`).
        strides: strides of the data along the updates' axes; 0 where a term decides.
    """

    combine: str
    lens: tuple[SharedLength, ...]
    sources: tuple[Tensor | IndexedCopy, ...]
    module: Module | None
    type: Type
    terms: tuple[Term, ...]
    out: Tensor
    strides: tuple[SharedLength, ...]


def element_scatter(
    combine: str, axis: int, sources: Sequence[Tensor | IndexedCopy], module: Module | None, updates: Tensor,
    indices: Tensor, out: Tensor, checked: bool,
) -> UpdateScatter:  # fmt: skip
    """Return ScatterElements: ``updates[i]`` goes to ``i`` with ``indices[i]`` along ``axis``.

    Args:
        checked: whether an index out of range is an error; otherwise its update is left out.
    """
    term = Term(
        "indices", indices.type, indices.strides, length=out.lens[axis], stride=out.strides[axis], axis=axis,
        checked=checked,
    )  # fmt: skip
    strides = tuple(0 if a == axis else s for a, s in enumerate(out.strides))
    return UpdateScatter(combine, updates.lens, tuple(sources), module, updates.type, (term,), out, strides)


def slice_scatter(
    combine: str, updates: Tensor, indices: Tensor, out: Tensor, checked: Sequence[bool]
) -> UpdateScatter:
    """Return ScatterND: slice ``updates[i]`` goes to the position that the tuple ``indices[i]`` gives."""
    depth, step, outer = indices.lens[-1], indices.strides[-1], len(indices.lens) - 1
    inner = len(updates.lens) - outer
    terms = tuple(
        Term(
            "indices", indices.type, (*indices.strides[:-1], *(0,) * inner), k * step, length=out.lens[k],
            stride=out.strides[k], axis=k, checked=checked[k],
        )
        for k in range(depth)
    )  # fmt: skip
    strides = (*(0,) * outer, *out.strides[depth:])
    return UpdateScatter(combine, updates.lens, (updates,), None, updates.type, terms, out, strides)


def atomic_scatter_launch(problem: UpdateScatter, fast_math: bool, origin: str = "") -> Launch:
    """Return the launch that computes updates and combines them with ``out``, which holds the data.

    Operands: those of `GatheredValues`, ``indices``, and ``out``.

    Raises:
        UnsupportedError: the kernel language lacks an operation for its element type.
    """
    out, lens, terms = problem.out, problem.lens, problem.terms
    given = GatheredValues(problem.sources, problem.module)
    space = given.space(lens, row_major_strides(lens), *(t.strides for t in terms), problem.strides)
    strides = space.strides
    arch, lanes = known_architecture(), 1
    able = problem.combine == "add" and out.type is Type.float_type and arch is not None and arch.vector_atomics
    if able and all(known_in(s[-1], 0) for s in strides[given.count : -1]):
        stored = (*(t.stride for t in terms), *strides[-1]), out.offset
        lanes = contiguous_lanes(_ADDED_TOGETHER, space.lens[-1], [*given.moving(strides), stored])
    tensors = [*given.tensors, ("indices", Tensor(terms[0].type, (), ())), ("out", out)]
    text = ElementText(tensors, space.lens, strides, lanes)
    given.declare(text)
    places = Positions(text, terms, first=given.count, number=len(given.terms))
    text.begin()
    buffer = text.buffer
    update = given.result(text, strides, fast_math)
    if out.type is not problem.type:
        update = f"cast_{dtype_name(out.type)}({update})"
    buffer.line("inside = True", f"update = {update}")
    place = " + ".join([text.place(len(strides) - 1), *places.read("inside = False")])
    with buffer.block(f"if ({text.active}) & inside:"):
        buffer.line(f"atomic_{problem.combine}(p_out, {place}, update)")
    elements = prod(lens)
    bytes = given.footprint + out.type.size * elements
    name = f"{given.name}scatter_{problem.combine}_atomic_kernel"
    return text.launch(name, origin, bytes, elements * (1 + given.flops), (*given.checks, *places.checks))
