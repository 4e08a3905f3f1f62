"""Values that a thread computes from operands which it reads at gathered places or in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....core.dim import Length, known_in
from ....graph.module import Module
from ...body import cluster_name, evaluate_scalar_module, scalar_flops
from ...launch import Launch
from ...problems.cluster import Tensor
from ...problems.indexed_copy import IndexedCopy
from ...space import Space, collapse
from ..cluster.flat_index import contiguous_lanes
from ..printer import ThreadPrinter, most_lanes
from .elements import ElementText
from .indexed import Positions


class GatheredValues:
    """Sources of a scalar module, with strides along common axes, and the index terms of those that are gathered.

    Operands: ``x<k>`` of each source, ``indices<k>`` of those that are gathered.

    Attributes:
        terms: index terms of the gathered sources.
        count: number of strides of all sources and terms.
        tensors: operands by name.
        checks: bounds of each index, for error messages; set by `declare`.
    """

    checks: tuple[str, ...] = ()

    def __init__(self, sources: Sequence[Tensor | IndexedCopy], module: Module | None) -> None:
        """Take a gather of one term for each gathered source; without a module the only source is the result."""
        self._module = module
        self._values = [source.source if isinstance(source, IndexedCopy) else source for source in sources]
        gathers = {k: source.terms[0] for k, source in enumerate(sources) if isinstance(source, IndexedCopy)}
        self._gathered = list(gathers)
        self.terms = [replace(term, operand=f"indices{k}") for k, term in gathers.items()]
        self.count = len(self._values) + len(self.terms)
        self.tensors = [(f"x{k}", value) for k, value in enumerate(self._values)]
        self.tensors += [(term.operand, Tensor(term.type, (), ())) for term in self.terms]

    def space(self, lens: Sequence[Length], order: Sequence[Length], *more: Sequence[Length]) -> Space:
        """Return the merged axes, at least one, in the order of the strides ``order``, with the strides of sources, of
        terms, and ``more``."""
        sets = [*(v.strides for v in self._values), *(t.strides for t in self.terms), *more]
        space = collapse(lens, [order, *sets], order_by=0)
        if not space.rank:
            return Space((1,), tuple((0,) for _ in sets))
        return Space(space.lens, space.strides[1:])

    def moving(self, strides: Sequence[Sequence[Length]]) -> list[tuple[tuple[Length, ...], Length]]:
        """Return the sources that move along the last axis, as operands of `contiguous_lanes`."""
        found = []
        for k, value in enumerate(self._values):
            if not known_in(strides[k][-1], 0):
                steps = (self.terms[self._gathered.index(k)].stride,) if k in self._gathered else ()
                found.append(((*steps, *strides[k]), value.offset))
        return found

    def declare(self, text: ElementText) -> None:
        """Declare the arguments of the terms; sources and terms have the first stride sets of the text."""
        self._places = Positions(text, self.terms, first=len(self._values))
        self.checks = self._places.checks

    def result(self, text: ElementText, strides: Sequence[Sequence[Length]], fast_math: bool) -> str:
        """Emit the loads and the module; return the thread's vector of results.

        Raises:
            UnsupportedError: the kernel language lacks an operation for its element type.
        """
        lanes, printer = text.lanes, ThreadPrinter(text.buffer, text.lanes, fast_math)
        moved = dict(zip(self._gathered, self._places.read()))
        loaded = []
        for k, value in enumerate(self._values):
            place = " + ".join([text.place(k), *([moved[k]] if k in moved else [])])
            load = "load" if lanes == 1 else "load_splat" if known_in(strides[k][-1], 0) else "load_aligned"
            loaded.append(printer.loaded(f"{load}(p_x{k}, {place}, {lanes})", value.type))
        module = self._module
        return printer.stored(loaded[0] if module is None else evaluate_scalar_module(module, printer, loaded)[0])

    @property
    def name(self) -> str:
        """Return the first part of a kernel's name."""
        return "gather_" * bool(self.terms) + "pointwise_" * (self._module is not None)

    @property
    def footprint(self) -> Length:
        """Return the bytes of the sources."""
        return sum(value.footprint for value in self._values)

    @property
    def flops(self) -> int:
        """Return the operations per element."""
        return 0 if self._module is None else scalar_flops(self._module)


def gathered_launch(
    module: Module, sources: Sequence[Tensor | IndexedCopy], out: Tensor, fast_math: bool, origin: str = ""
) -> Launch:
    """Return the launch that computes a module of gathered and other values; operands as of `GatheredValues`, and
    ``out``.

    Raises:
        UnsupportedError: the kernel language lacks an operation for its element type.
    """
    given = GatheredValues(sources, module)
    space = given.space(out.lens, out.strides, out.strides)
    strides, lanes = space.strides, 1
    terms = strides[len(sources) : -1]
    if all(known_in(s[-1], 0) for s in terms):
        most = most_lanes(max(t.type.size for _, t in (*given.tensors[: len(sources)], ("out", out))))
        lanes = contiguous_lanes(most, space.lens[-1], [*given.moving(strides), (strides[-1], out.offset)])
    text = ElementText([*given.tensors, ("out", out)], space.lens, strides, lanes)
    given.declare(text)
    text.begin()
    text.store(text.buffer.emit(given.result(text, strides, fast_math)))
    elements = prod(out.lens)
    bytes = given.footprint + out.footprint
    name = f"gather_{cluster_name(module, 'pointwise')}"
    return text.launch(name, origin, bytes, elements * given.flops, given.checks)
