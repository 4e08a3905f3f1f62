"""Lower updates of key and value caches."""

from __future__ import annotations

from ....codegen.gpu.data.cache_copy import cache_copy_launch
from ....codegen.gpu.data.indexed import positions_launch
from ....codegen.gpu.data.scatter import element_lines, scatter_launch
from ....core.dim import known_in
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.caches import UpdateCache
from ...lowering.caches import is_standard, keep_or_copy
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("update_cache", accepts=lambda ins, shape: is_standard(shape))
def lower_update_cache(low: Lowering, ins: Instruction) -> None:
    """Append a copy of the cache, which a run may skip, then kernels that write the new rows."""
    cache, rows, positions = low.inputs(ins)
    assert isinstance(ins.op, UpdateCache)
    if any(known_in(n, 0) for n in (*ins.shape.lens, *cache.lens)):
        low.host(ins, "there is no row to keep")
        return
    out = low.output(ins)
    keep_or_copy(low, cache, out, ins, cache_copy_launch)
    if any(known_in(n, 0) for n in rows.lens):
        return
    across = (positions.strides[0], 0, positions.strides[1], 0)
    indices = positions.with_shape(Shape(positions.type.unsigned, rows.lens, across))  # negative ones do not wrap
    lines, origin = element_lines(2, indices.tensor, rows.tensor, out.tensor, False), low.origin(ins)
    places = low.allocate(Shape(Type.int64_type, lines.positions.lens))
    solution = low.solve(positions_launch, lines.terms, lines.positions, origin)
    low.launch_all(solution, {"indices": indices, "out": places}, ins)
    solution = low.solve(scatter_launch, "none", lines, rows.tensor, out.tensor, origin)
    low.launch_all(solution, {"positions": places, "updates": rows, "out": out}, ins)
