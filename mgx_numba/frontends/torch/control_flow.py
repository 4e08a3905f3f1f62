"""PyTorch's higher-order operators: ``cond``, ``while_loop``, ``scan`` and ``map``, whose bodies become submodules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...core.dim import Length
from ...core.shape import Shape
from ...core.types import Type
from ...graph.instruction import Instruction
from ...graph.length_arithmetic import array_of_lengths
from ...ops.control import LONGEST
from ..loops import as_entered, members
from .builder import AtenBuilder

if TYPE_CHECKING:
    from torch.fx import GraphModule

Inline = Callable[["GraphModule", Sequence[object], AtenBuilder], list[Instruction]]
"""``inline(graph, values, g)``: emits a body's graph by a builder, with values for its inputs; returns its results."""


def cond(
    g: AtenBuilder,
    inline: Inline,
    condition: Instruction | bool,
    true: GraphModule,
    false: GraphModule,
    operands: Sequence[object] = (),
) -> list[Instruction]:
    """Emit the results of graph ``true`` if the condition holds, else of graph ``false``."""
    known = condition if isinstance(condition, bool) else g.constants.value(condition)
    if known is not None:
        return inline(true if np.any(known) else false, operands, g)
    assert isinstance(condition, Instruction)
    modules = []
    for graph, suffix in ((true, "if"), (false, "else")):
        inner = g.inner(suffix)
        inner.module.add_return(inline(graph, operands, inner))
        modules.append(inner.module)
    chosen = g.op("if", g.reshape(g.cast(condition, Type.bool_type), ()), modules=modules)
    return [g.op("get_tuple_elem", chosen, index=k) for k in range(len(chosen.shape.sub_shapes))]


def while_loop(
    g: AtenBuilder,
    inline: Inline,
    condition: GraphModule,
    body: GraphModule,
    carried: Sequence[Instruction],
    further: Sequence[object] = (),
) -> list[Instruction]:
    """Emit a loop that runs while ``condition`` of the carried values holds; more than `LONGEST` runs are an error."""
    (start,) = inline(condition, [*carried, *further], g)
    endless = g.literal(np.array([np.iinfo(np.int64).max]))
    inner = g.inner("loop")
    _, values = _parameters(inner, carried)
    results = inline(body, [*values, *further], inner)
    (after,) = inline(condition, [*results, *further], inner)
    inner.module.add_return([after, *results])
    return _looped(g, inner, endless, start, carried, LONGEST)


def scan(
    g: AtenBuilder,
    inline: Inline,
    body: GraphModule,
    carried: Sequence[Instruction],
    scanned: Sequence[Instruction],
    further: Sequence[object] = (),
) -> list[Instruction]:
    """Emit a loop over the first axis of ``scanned``: ``body`` gives the next carried values, then a row of each
    result."""
    inner = g.inner("scan")
    number, values = _parameters(inner, carried)
    rows = [inner.squeeze(inner.op("scan_slice", x, number, axis=0, direction=0), [0]) for x in scanned]
    inner.module.add_return([inner.literal(np.array([True])), *inline(body, [*values, *rows, *further], inner)])
    x, always = scanned[0], g.literal(np.array([True]))
    if x.shape.is_dynamic:
        trips = g.op("dimensions_of", x, start=0, end=1)
        return _looped(g, inner, trips, always, carried, x.shape.dims[0].max, counted=True)
    length = g.lens(x)[0]
    return _looped(g, inner, g.literal(array_of_lengths([length], (1,))), always, carried, length)


def map_impl(
    g: AtenBuilder, inline: Inline, body: GraphModule, scanned: Sequence[Instruction], further: Sequence[object] = ()
) -> list[Instruction]:
    """Emit the results of ``body`` for each row of ``scanned``."""
    return scan(g, inline, body, (), scanned, further)


BUILDERS: dict[str, Callable[..., list[Instruction]]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": map_impl,
}
"""Builder functions of the higher-order operators by name."""


def _parameters(inner: AtenBuilder, carried: Sequence[Instruction]) -> tuple[Instruction, list[Instruction]]:
    """Add a loop body's parameters; return the number of the iteration and the carried values."""
    number = inner.module.add_parameter("iteration", Shape(Type.int64_type))
    inner.module.add_parameter("condition", Shape(Type.bool_type))
    return number, [inner.module.add_parameter(f"carried_{k}", x.shape.row_major()) for k, x in enumerate(carried)]


def _looped(
    g: AtenBuilder,
    inner: AtenBuilder,
    trips: Instruction,
    start: Instruction,
    carried: Sequence[Instruction],
    most: Length,
    counted: bool = False,
) -> list[Instruction]:
    """Emit the loop; with ``counted`` scan outputs are as long as ``trips``, which is not known yet."""
    rows = len(inner.module.results()) - 1 - len(carried)
    looped = g.op(
        "loop",
        trips,
        start,
        *carried,
        modules=[inner.module],
        max_iterations=most,
        scan_output_directions=(0,) * rows,
        use_dyn_output=counted and rows > 0,
    )
    values = members(g, looped, inner.module)
    kept = [as_entered(g, value, before) for value, before in zip(values, carried, strict=False)]
    return kept + values[len(carried) :]
