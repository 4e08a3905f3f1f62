"""Lower updates of key and value caches."""

from __future__ import annotations

from ....codegen.gpu.data.caches import cache_copy_launch, cache_rows_launch, last_rows_launch
from ....core.dim import known_in
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ...lowering.buffers import View
from ...lowering.caches import is_standard, keep_or_copy
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("update_cache", accepts=lambda ins, shape: is_standard(shape))
def lower_update_cache(low: Lowering, ins: Instruction) -> None:
    """Append a copy of the cache, which a run may skip, then kernels that write the new rows."""
    cache, rows, positions = low.inputs(ins)
    if any(known_in(n, 0) for n in (*ins.shape.lens, *cache.lens)):
        low.host(ins, "there is no row to keep")
        return
    out = low.output(ins)
    keep_or_copy(low, cache, out, ins, cache_copy_launch)
    if any(known_in(n, 0) for n in rows.lens):
        return
    origin = low.origin(ins)
    places = _places(low, ins, positions, out)
    solution = low.solve(cache_rows_launch, rows.tensor, places.tensor, out.tensor, origin)
    low.launch_all(solution, {"rows": rows, "places": places, "out": out}, ins)


def _places(low: Lowering, ins: Instruction, positions: View, out: View) -> View:
    """Return the places of new rows, computed once for all caches of one length with rows at the same positions."""
    key = "places", ins.inputs[2], out.lens[2]
    known = low.draft.common.get(key)
    if known is None:
        known = low.draft.common[key] = low.allocate(Shape(Type.int64_type, positions.lens))
        solution = low.solve(last_rows_launch, positions.tensor, known.tensor, out.lens[2], low.origin(ins))
        low.launch_all(solution, {"positions": positions, "places": known}, ins)
    return known
