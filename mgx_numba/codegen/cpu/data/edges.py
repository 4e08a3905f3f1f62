"""Rows whose middle is a copy of consecutive elements and whose ends come from a position table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from ....core.dim import is_symbolic, known_equal, known_in, known_same, minimum, typical
from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import indent, vector_loop
from ..loops import claim, tasks_unless_empty
from .row_tasks import RowLoop, mover, mover_lanes

LONGEST_STEP = 256
"""Most bytes of a step along the axis with the table; longer steps are copied as runs. No figures kept."""
LARGEST_TABLE = 1 << 16
"""Most positions in a table, of 8 bytes each: half of an L2 cache of 1 MiB."""


@dataclass(frozen=True)
class _EdgeRows:
    """The axis of the rows, and the positions of their elements in the source's row."""

    axis: int
    inside: tuple[int, ...]
    positions: np.ndarray

    def middle(self) -> tuple[int, int]:
        """Return the begin and the end of the longest run of consecutive positions."""
        cuts = np.flatnonzero(np.diff(self.positions) != 1) + 1
        bounds = [0, *cuts.tolist(), len(self.positions)]
        return max(itertools.pairwise(bounds), key=lambda pair: pair[1] - pair[0])


def _rows(positions: Mapping[int, np.ndarray], x: Tensor, out: Tensor) -> _EdgeRows | None:
    """Return the innermost axis with a table, merged with all axes inside it, if elements of both tensors are
    contiguous there."""
    if not positions or any(known_in(n, 0) for n in out.lens):
        return None
    axis = min(positions, key=lambda a: typical(out.strides[a]))
    within = [a for a in range(len(out.lens)) if a != axis and typical(out.strides[a]) < typical(out.strides[axis])]
    inside = sorted((a for a in within if not known_in(out.lens[a], 1)), key=lambda a: typical(out.strides[a]))
    step = 1
    for a in inside:
        if a in positions or not known_equal(x.strides[a], step) or not known_equal(out.strides[a], step):
            return None
        step *= out.lens[a]
    if is_symbolic(step) or not known_same((x.strides[axis], out.strides[axis]), (step, step)):
        return None
    if step * x.type.size > LONGEST_STEP or step * out.lens[axis] > LARGEST_TABLE:
        return None
    at = positions[axis].astype(np.int64)[:, None] * step + np.arange(step)
    return _EdgeRows(axis, tuple(inside), at.reshape(-1))


def edges_launch(
    name: str, positions: Mapping[int, np.ndarray], x: Tensor, out: Tensor, origin: str = ""
) -> tuple[Launch, dict[str, np.ndarray]] | None:
    """Return the launch and tables of ``remap_launch``, which see; ``None`` if rows are not mostly consecutive
    elements."""
    rows = _rows(positions, x, out)
    if rows is None:
        return None
    low, high = rows.middle()
    if 2 * (high - low) < len(rows.positions):
        return None
    others = [a for a in range(len(out.lens)) if a != rows.axis and a not in rows.inside]
    tables = {f"table{a}": positions[a].astype(np.int64) * x.strides[a] for a in others if a in positions}
    strides = [
        [0 if a in positions else s for a, s in enumerate(x.strides)],
        list(out.strides),
        *([int(a == b) for a in range(len(out.lens))] for b in others if b in positions),
    ]
    space = collapse(out.lens, strides, order_by=1, axes=others)
    cols, lanes, dtype = len(rows.positions), mover_lanes(x.type, len(rows.positions)), mover(x.type)
    arguments = Arguments()
    arguments.pointer("p_x", "x", dtype)
    arguments.pointer("p_out", "out", dtype)
    arguments.pointer("p_row", "row", "int64")
    for table in tables:
        arguments.pointer(f"p_{table}", table, "int64")
    for key, value in (("low", low), ("high", high), ("shift", int(rows.positions[low]) - low)):
        arguments.integer(key, value)
    loop = RowLoop(arguments, space.lens, space.strides, cols, lanes)
    places = [loop.offset(0), *(f"load_scalar(p_{t}, {loop.offset(k + 2)})" for k, t in enumerate(tables))]
    single = [
        "while c < {}:",
        *indent(["store_scalar(r_out, c, load_scalar(r_x, load_scalar(p_row, c)))", "c += 1"]),
    ]

    def copy(left: str) -> list[str]:
        if left:
            return [f"store_tail(r_out, c, load_tail(r_x, c + shift, {left}, 0, {lanes}), {left})"]
        return [f"store(r_out, c, load(r_x, c + shift, {lanes}))"]

    inside = [
        f"r_x = offset(p_x, {' + '.join(places)})",
        f"r_out = offset(p_out, {loop.offset(1)})",
        "begin_copy = imin(last, imax(first, low))",
        "end_copy = imax(begin_copy, imin(last, high))",
        "c = first",
        *(line.format("begin_copy") for line in single),
        *vector_loop(lanes, copy, first="begin_copy", last="end_copy"),
        "c = end_copy",
        *(line.format("last") for line in single),
    ]
    traffic = out.footprint + minimum(x.footprint, out.footprint)
    launch = Launch(
        kernel=loop.kernel(name, inside, origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(loop.tasks, out.lens), claim(loop.tasks, traffic)),
        bytes=traffic,
    )
    return launch, {"row": rows.positions, **tables}
