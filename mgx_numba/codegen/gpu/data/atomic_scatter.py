"""Scatters that combine updates atomically, in any order. A thread computes an update, or a vector of neighbours, from
gathered and other values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....core.dim import Length, SharedLength, known_in
from ....core.shape import row_major_strides
from ....core.types import Type
from ....dataclass import dataclass
from ....graph.module import Module
from ...body import evaluate_scalar_module, scalar_flops
from ...launch import Launch
from ...problems.cluster import Tensor
from ...problems.indexed_copy import IndexedCopy, Term
from ...space import Space, collapse
from ..cluster.flat_index import contiguous_lanes
from ..driver.device import known_architecture
from ..printer import ThreadPrinter, dtype_name
from .elements import ElementText
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

    Operands: ``x<k>`` of each source, ``indices<k>`` of those that are gathered, ``indices``, and ``out``.

    Raises:
        UnsupportedError: the kernel language lacks an operation for its element type.
    """
    out, lens, module = problem.out, problem.lens, problem.module
    gathered = {k: source for k, source in enumerate(problem.sources) if isinstance(source, IndexedCopy)}
    values = [source.source if isinstance(source, IndexedCopy) else source for source in problem.sources]
    terms = [replace(source.terms[0], operand=f"indices{k}") for k, source in gathered.items()]
    sets = [*(t.strides for t in [*values, *terms, *problem.terms]), problem.strides]
    space = collapse(lens, [row_major_strides(lens), *sets], order_by=0)
    if not space.rank:
        space = Space((1,), tuple((0,) for _ in space.strides))
    strides = space.strides[1:]
    lanes = _lanes(problem, space.lens[-1], values, gathered, strides)
    tensors = [(f"x{k}", value) for k, value in enumerate(values)]
    tensors += [(name, Tensor(type, (), ())) for name, type in {t.operand: t.type for t in terms}.items()]
    tensors += [("indices", Tensor(problem.terms[0].type, (), ())), ("out", out)]
    text = ElementText(tensors, space.lens, strides, lanes)
    reads = Positions(text, terms, first=len(values))
    places = Positions(text, problem.terms, first=len(values) + len(terms), number=len(terms))
    text.begin()
    buffer, printer = text.buffer, ThreadPrinter(text.buffer, lanes, fast_math)
    buffer.line("inside = True")
    moved = dict(zip(gathered, reads.read()))
    loaded = []
    for k, value in enumerate(values):
        place = " + ".join([text.place(k), *([moved[k]] if k in moved else [])])
        load = "load" if lanes == 1 else "load_splat" if known_in(strides[k][-1], 0) else "load_aligned"
        loaded.append(printer.loaded(f"{load}(p_x{k}, {place}, {lanes})", value.type))
    update = printer.stored(loaded[0] if module is None else evaluate_scalar_module(module, printer, loaded)[0])
    if out.type is not problem.type:
        update = f"cast_{dtype_name(out.type)}({update})"
    buffer.line(f"update = {update}")
    place = " + ".join([text.place(len(strides) - 1), *places.read("inside = False")])
    with buffer.block(f"if ({text.active}) & inside:"):
        buffer.line(f"atomic_{problem.combine}(p_out, {place}, update)")
    elements = prod(lens)
    bytes = sum(value.footprint for value in values) + out.type.size * elements
    flops = elements * (1 + (0 if module is None else scalar_flops(module)))
    made = "gather_" * bool(terms) + "pointwise_" * (module is not None)
    name = f"{made}scatter_{problem.combine}_atomic_kernel"
    return text.launch(name, origin, bytes, flops, (*reads.checks, *places.checks))


def _lanes(
    problem: UpdateScatter,
    length: Length,
    values: Sequence[Tensor],
    gathered: dict[int, IndexedCopy],
    strides: Sequence[tuple[Length, ...]],
) -> int:
    """Return the numbers that a thread combines together, of neighbours along the last axis: several float32 numbers
    are added at once."""
    arch, out = known_architecture(), problem.out
    able = problem.combine == "add" and out.type is Type.float_type and arch is not None and arch.vector_atomics
    if not able or not all(known_in(s[-1], 0) for s in strides[len(values) : -1]):
        return 1
    operands = [((*(t.stride for t in problem.terms), *strides[-1]), out.offset)]
    for k, value in enumerate(values):
        if not known_in(strides[k][-1], 0):
            step = (gathered[k].terms[0].stride,) if k in gathered else ()
            operands.append(((*step, *strides[k]), value.offset))
    return contiguous_lanes(_ADDED_TOGETHER, length, operands)
