"""Indices that a kernel reads from memory: brought into range, and those out of range reported.

An index that is out of range is taken as 0 or skipped, so that no other memory is ever touched, and kept in a variable
until the end of the kernel's call, when it goes into the call's fault record (`codegen.launch.Mark`). 0 is in range,
since what has no elements gets no kernel: so the variable is 0 as long as all is well.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.types import Type
from ..loops import INDENT, Slots, indent

__all__ = ["Checks"]


class Checks:
    """The checks of one kernel, numbered as the indices are.

    Args:
        slots: the kernel's argument slots; those of the fault record are added if anything is checked.
        wanted: for each index whether it may be out of range; one that may not is read without a check.
        lanes: how many of each are read at a time, 0 for one by one; by default all are.
    """

    def __init__(self, slots: Slots, wanted: Sequence[bool], lanes: Sequence[int] = ()) -> None:
        count = [*lanes, *[0] * len(wanted)]
        self._lanes = {k: count[k] for k, checked in enumerate(wanted) if checked}
        if self._lanes:
            slots.fault()

    def begin(self) -> list[str]:
        """Lines for the start of a kernel."""
        return [f"wrong{k} = {f'const_int64(0, {lanes})' if lanes else '0'}" for k, lanes in self._lanes.items()]

    def read(self, k: int, name: str, load: str, type: Type, length: str) -> list[str]:
        """Lines that set ``name`` to index ``k`` along an axis of so many elements, negative ones wrapped."""
        lines = [f"{name} = cast_int64({load})"]
        if k in self._lanes:
            lines.append(f"{name}_read = {name}")
        if type.is_signed:
            lines += [f"if {name} < 0:", f"{INDENT}{name} += {length}"]
        return lines

    def note(self, k: int, name: str) -> list[str]:
        """Lines for what ``read`` has set ``name`` to being out of range; none without a check."""
        return [f"wrong{k} = {name}_read"] if k in self._lanes else []

    def scalar(self, k: int, name: str, load: str, type: Type, length: str) -> list[str]:
        """As ``read``, with an index from 0 to below the length in any case."""
        lines = self.read(k, name, load, type, length)
        if k in self._lanes:
            return [*lines, f"if {name} < 0 or {name} >= {length}:", *indent([*self.note(k, name), f"{name} = 0"], 1)]
        return [*lines, f"{name} = imax(0, imin({name}, {length} - 1))"]

    def vector(self, k: int, name: str, load: str, type: Type, length: str, left: str = "") -> list[str]:
        """As ``scalar``, for the lanes that were announced, or the first ``left`` of them."""
        lines = [f"{name} = cast_int64({load})"]
        if k in self._lanes:
            if left:
                lines.append(f"{name} = where(lt(iota_int64({self._lanes[k]}), {left}), {name}, 0)")
            lines.append(f"{name}_read = {name}")
        if type.is_signed:
            lines.append(f"{name} = where(lt({name}, 0), add({name}, {length}), {name})")
        if k not in self._lanes:
            return [*lines, f"{name} = max(0, min({name}, {length} - 1))"]
        return [
            *lines,
            f"{name}_out = ge(cast_uint64({name}), cast_uint64({length}))",  # negative ones are large without a sign
            f"wrong{k} = where({name}_out, {name}_read, wrong{k})",
            f"{name} = where({name}_out, 0, {name})",
        ]

    def end(self) -> list[str]:
        """Lines for the end of a kernel, which report what is wrong."""
        lines: list[str] = []
        for k, lanes in self._lanes.items():
            if lanes:
                lines += [f"lowest{k} = reduce_min(wrong{k})", f"highest{k} = reduce_max(wrong{k})"]
                lines.append(f"found{k} = lowest{k} if lowest{k} != 0 else highest{k}")
            name = f"found{k}" if lanes else f"wrong{k}"
            report = [f"fault[1] = {k}", f"fault[2] = {name}"]
            claim = ["if compare_exchange(fault, 0, 0, step_number) == 0:", *indent(report, 1)]
            lines += [f"if {name} != 0:", *indent(claim, 1)]
        return lines
