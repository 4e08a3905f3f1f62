"""One-hot encoding: compare an index with the position along the new axis."""

from __future__ import annotations

from ....core.dim import known_in
from ...arguments import Arguments
from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import dtype_name, load_text, store_text, vector_loop
from .. import host
from .row_tasks import RowLoop, mover


def onehot_launch(axis: int, indices: Tensor, values: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes ``values[1]`` where the position along ``axis`` equals the index, ``values[0]``
    elsewhere.

    Operands are named ``indices`` (the lengths of ``out`` without ``axis``), ``values`` (two elements) and ``out``.
    Negative indices count from the end.
    """
    index_strides = (*indices.strides[:axis], 0, *indices.strides[axis:])
    # The position along the axis is the element offset in a tensor that has stride 1 there and 0 elsewhere.
    ruler = tuple(int(a == axis) for a in range(len(out.lens)))
    space = collapse(out.lens, [out.strides, index_strides, ruler], order_by=0)
    lens, strides = space.lens or (1,), [s or (1,) for s in space.strides]
    inner = [s[-1] for s in strides]
    lanes = host.lanes("int64") * 2
    arguments = Arguments()
    arguments.pointer("p_out", "out", mover(out.type))
    arguments.pointer("p_values", "values", mover(out.type))
    arguments.pointer("p_indices", "indices", dtype_name(indices.type))
    loop = RowLoop(arguments, lens[:-1], [s[:-1] for s in strides], lens[-1], lanes, 2)
    step = [arguments.step(f"t{k}", s) for k, s in enumerate(inner)]
    depth = arguments.integer("depth", out.lens[axis])
    on_at = arguments.integer("on_at", max(zip(values.lens, values.strides, strict=True), default=(2, 1))[1])
    lane = f"add(iota_int64({lanes}), c)"
    place = f"add(mul({lane}, {step[2]}), start)" if step[2] else f"add({lane}, start)"
    every = f"splat(start, {lanes})"

    def body(left: str) -> list[str]:
        index = load_text("r_indices", "c", inner[1], step[1], lanes, left)
        return [
            f"v = cast_int64({index})",
            f"v = where(lt(v, 0), add(v, {depth}), v)",
            f"hit = eq(v, {every if known_in(inner[2], 0) else place})",
            store_text("r_out", "c", inner[0], step[0], "where(hit, on, off)", left),
        ]

    inside = [
        f"r_out = offset(p_out, {loop.offset(0)})",
        f"r_indices = offset(p_indices, {loop.offset(1)})",
        f"start = {loop.offset(2)}",
        *vector_loop(lanes, body),
    ]
    prologue = [f"off = load_splat(p_values, 0, {lanes})", f"on = load_splat(p_values, {on_at}, {lanes})"]
    kernel = loop.kernel("onehot_kernel", inside, origin, prologue)
    return loop.launch(kernel, out.lens, indices.footprint + out.footprint)
