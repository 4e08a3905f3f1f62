"""Position tables for resized or padded axes, computed at run time because lengths are symbolic.

They have the values of the operators' NumPy definition, bit by bit: coordinates are computed in float32, step by step.
"""

from __future__ import annotations

from ....core.dim import Length, SharedLength
from ....dataclass import dataclass
from ....ops.pad import PadMode
from ....ops.resize import Resize
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...statements import cast_text, const_text, indent
from .. import host
from ..loops import tasks_unless_empty
from .row_tasks import RowLoop


@dataclass(frozen=True)
class Resampled:
    """An axis of ``length`` elements that is resized to ``count``; ``factor`` is None where it is the quotient of the
    two.

    Attributes:
        step: elements of the source between neighbours, by which positions are multiplied.
        room: entries of a table, at least ``count``; further entries repeat the last position.
    """

    length: SharedLength
    count: SharedLength
    factor: float | None
    step: SharedLength
    room: SharedLength


def pad_positions(
    mode: PadMode, length: Length, before: Length, count: Length, step: Length, origin: str = ""
) -> Launch:
    """Return a launch that fills the operand ``index`` with the source positions of a padded axis, as
    `Pad.positions`."""
    table = _Table(count, count, length, step)
    table.arguments.integer("before", before)
    lines = ["v = sub(i, before)"]
    if mode is PadMode.edge:
        lines.append(table.clipped("v"))
    elif mode is PadMode.wrap:
        lines.append("at = mod(v, length)")
    else:
        lines += ["period = 2 * (length - 1)", "v = mod(v, period)", "at = min(v, sub(period, v))"]
    return table.launch("pad_positions_kernel", [*lines, *table.stored(0)], origin)


def nearest_positions(op: Resize, axis: Resampled, origin: str = "") -> Launch:
    """Return a launch that fills the operand ``index`` with the position nearest to each coordinate, as
    `nearest_index`."""
    table = _Table(axis.count, axis.room, axis.length, axis.step)
    half = const_text("float32", 0.5, table.lanes)
    rounded = {
        "round_prefer_floor": f"ceil(sub(v, {half}))",
        "round_prefer_ceil": f"floor(add(v, {half}))",
        "floor": "floor(v)",
        "ceil": "ceil(v)",
    }[op.nearest_mode]
    lines = [*table.coordinates(op, axis.factor), table.clipped(f"cast_int64({rounded})"), *table.stored(0)]
    return table.launch("nearest_positions_kernel", lines, origin)


def taps_of(op: Resize) -> int:
    """Return the number of positions that an interpolated element is a sum of."""
    return 2 if op.mode == "linear" else 4


def tap_positions(op: Resize, axis: Resampled, dtype: str, origin: str = "") -> Launch:
    """Return a launch that fills the operands ``index`` and ``weight`` (of type ``dtype``), tap by tap, as
    `interpolation_taps`."""
    table = _Table(axis.count, axis.room, axis.length, axis.step)
    table.arguments.pointer("p_weight", "weight", dtype)

    def number(value: float) -> str:
        return const_text("float32", float(value), table.lanes)

    lines = [*table.coordinates(op, axis.factor), "base = floor(v)", "t = sub(v, base)"]
    offsets = [0, 1] if op.mode == "linear" else [-1, 0, 1, 2]
    if op.mode == "linear":
        lines += [f"w0 = sub({number(1)}, t)", "w1 = t"]
    else:
        a = op.cubic_coeff_a
        away = (f"add(t, {number(1)})", "t", f"sub({number(1)}, t)", f"sub({number(2)}, t)")
        for k, distance in enumerate(away):
            near = f"mul(mul(sub(mul({number(a + 2)}, d), {number(a + 3)}), d), d)"
            far = f"mul(add(mul(sub(mul({number(a)}, d), {number(5 * a)}), d), {number(8 * a)}), d)"
            lines += [
                f"d = {distance}",
                f"w{k} = where(le(d, {number(1)}), add({near}, {number(1)}), sub({far}, {number(4 * a)}))",
            ]
    for k, offset in enumerate(offsets):
        lines.append(table.clipped(f"cast_int64(add(base, {number(offset)}))"))
        lines += [
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

    def coordinates(self, op: Resize, factor: float | None) -> list[str]:
        """Return lines that set ``v`` to the source coordinate of position ``i``, as `source_coordinates`."""
        half, zero = const_text("float32", 0.5, self.lanes), const_text("float32", 0, self.lanes)
        mode, real = op.coordinate_transformation_mode, "cast_float32({})".format
        quotient = real("div(cast_float64(count), cast_float64(length))")
        scale = quotient if factor is None else const_text("float32", factor, 0)
        lines = ["x = cast_float32(i)", f"scale = splat({scale}, {self.lanes})"]
        centred = f"div(add(x, {half}), scale)"
        if mode == "align_corners":
            far = f"div(mul(x, splat({real('length - 1')}, {self.lanes})), splat({real('count - 1')}, {self.lanes}))"
            lines += ["if count > 1:", f"    v = {far}", "else:", f"    v = {zero}"]
        elif mode == "asymmetric":
            lines.append("v = div(x, scale)")
        elif mode == "tf_half_pixel_for_nn":
            lines.append(f"v = {centred}")
        elif mode == "half_pixel_symmetric":
            lines += [
                f"whole = splat({real('length')}, {self.lanes})",
                f"share = div(splat({real('count')}, {self.lanes}), mul(scale, whole))",
                f"away = mul(mul(whole, {half}), sub({const_text('float32', 1, self.lanes)}, share))",
                f"v = sub(add(away, {centred}), {half})",
            ]
        else:
            lines.append(f"v = sub({centred}, {half})")
            if mode == "pytorch_half_pixel":
                lines += ["if count <= 1:", f"    v = {zero}"]
        # An axis that keeps its length is not resampled.
        return [*lines, "if length == count:", "    v = x"] if factor is None else lines

    @staticmethod
    def clipped(value: str) -> str:
        """Return the line that sets ``at`` to the nearest position inside the source."""
        return f"at = max(0, min({value}, length - 1))"

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
        return Launch(
            kernel=loop.kernel(name, text, origin),
            args=self.arguments.values,
            geometry=TaskRange(tasks_unless_empty(loop.tasks, [self._count])),
        )
