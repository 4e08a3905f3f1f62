"""Position tables for resized or padded axes, computed at run time because lengths are symbolic.

They have the values of the operators' NumPy definition, bit by bit: coordinates are computed in float32, step by step.
"""

from __future__ import annotations

from ....core.dim import Length
from ....ops.pad import PadMode
from ....ops.resize import Resize
from ...arguments import Arguments
from ...launch import Launch
from ...resampling import Resampled, clipped, coordinates, nearest, taps
from ...statements import cast_text, indent
from .. import host
from .row_tasks import RowLoop


def pad_positions(
    mode: PadMode, length: Length, before: Length, count: Length, step: Length, origin: str = ""
) -> Launch:
    """Return a launch that fills the operand ``index`` with the source positions of a padded axis, as
    `Pad.positions`."""
    table = _Table(count, count, length, step)
    table.arguments.integer("before", before)
    lines = ["v = sub(i, before)"]
    if mode is PadMode.edge:
        lines.append(clipped("v"))
    elif mode is PadMode.wrap:
        lines.append("at = mod(v, length)")
    else:
        lines += ["period = 2 * (length - 1)", "v = mod(v, period)", "at = min(v, sub(period, v))"]
    return table.launch("pad_positions_kernel", [*lines, *table.stored(0)], origin)


def nearest_positions(op: Resize, axis: Resampled, origin: str = "") -> Launch:
    """Return a launch that fills the operand ``index`` with the position nearest to each coordinate, as
    `nearest_index`."""
    table = _Table(axis.count, axis.room, axis.length, axis.step)
    lines = [*coordinates(op, axis.factor, table.lanes), clipped(nearest(op, table.lanes)), *table.stored(0)]
    return table.launch("nearest_positions_kernel", lines, origin)


def tap_positions(op: Resize, axis: Resampled, dtype: str, origin: str = "") -> Launch:
    """Return a launch that fills the operands ``index`` and ``weight`` (of type ``dtype``), tap by tap, as
    `interpolation_taps`."""
    table = _Table(axis.count, axis.room, axis.length, axis.step)
    table.arguments.pointer("p_weight", "weight", dtype)

    weights, positions = taps(op, table.lanes)
    lines = [*coordinates(op, axis.factor, table.lanes), *weights]
    for k, position in enumerate(positions):
        lines += [
            clipped(position),
            *table.stored(k),
            f"store_tail(p_weight, {k} * room + c, {cast_text(f'w{k}', 'float32', dtype)}, left)",
        ]
    return table.launch("tap_positions_kernel", lines, origin)


class _Table:
    """Prints the kernel of a table ``index`` of several parts, each of ``room`` positions."""

    def __init__(self, count: Length, room: Length, length: Length, step: Length) -> None:
        self.lanes = host.lanes("int64") * 2
        self.arguments = Arguments()
        self.arguments.pointer("p_index", "index", "int64")
        self.arguments.integers(count=count, room=room, length=length, step=step)
        self._count = room

    @staticmethod
    def stored(part: int) -> list[str]:
        """Return lines that store ``at``, as an offset in the source, in a part of the table."""
        place = f"{part} * room + c" if part else "c"
        return [f"store_tail(p_index, {place}, mul(at, step), left)"]

    def launch(self, name: str, lines: list[str], origin: str) -> Launch:
        """Return the launch of a kernel that runs ``lines`` for vectors of positions ``i``."""
        loop = RowLoop(self.arguments, (), ((),), self._count, self.lanes, 4)
        text = [
            "c = first",
            "while c < last:",
            *indent(
                [
                    f"left = imin({self.lanes}, last - c)",
                    f"i = min(count - 1, add(iota_int64({self.lanes}), c))",
                    *lines,
                    f"c += {self.lanes}",
                ]
            ),
        ]
        return loop.launch(loop.kernel(name, text, origin), [self._count])
