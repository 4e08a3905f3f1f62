"""Checks of indices that a kernel reads from memory: keep them in range, and report indices out of range.

An index out of range is replaced by an index in range, or skipped, so that no other memory is touched. It is kept in a
variable until the end of the kernel's call, when it goes into the fault record (`codegen.launch.Mark`). The variable
starts as 0, which is in range: empty problems get no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.types import Type
from ...arguments import Arguments
from ...statements import INDENT, indent
from ..records import Record, RecordText, Word

FAULT = RecordText(
    Record("fault", (Word("step", "0, or who noted it"), Word("check", "of its kernel"), Word("index", "as it was"))),
    "fault",
)
"""The call's fault record, as `Mark.FAULT` describes it."""


class Checks:
    """The checks of one kernel, numbered as the indices are.

    Args:
        arguments: arguments of the kernel; the fault record's are added if any index is checked.
        wanted: for each index whether it may be out of range; other indices are read without a check.
        lanes: how many of each index are read at a time, 0 for one by one; by default all are.
    """

    def __init__(self, arguments: Arguments, wanted: Sequence[bool], lanes: Sequence[int] = ()) -> None:
        count = [*lanes, *[0] * len(wanted)]
        self._lanes = {k: count[k] for k, checked in enumerate(wanted) if checked}
        self._lengths: dict[int, tuple[str, bool]] = {}
        if self._lanes:
            arguments.fault()

    def begin(self) -> list[str]:
        """Return lines for the start of a kernel."""
        return [f"wrong{k} = {f'const_uint64(0, {lanes})' if lanes else '0'}" for k, lanes in self._lanes.items()]

    def read(self, k: int, name: str, load: str, type: Type, length: str) -> list[str]:
        """Return lines that set ``name`` to index ``k`` along an axis of ``length`` elements, with negative indices
        wrapped."""
        self._lengths[k] = (length, type.is_signed)
        wrap = [f"if {name} < 0:", f"{INDENT}{name} += {length}"] if type.is_signed else []
        return [f"{name} = cast_int64({load})", *wrap]

    @staticmethod
    def outside(name: str, length: str) -> str:
        """Return the expression whether the index ``name`` that ``read`` has set is out of range."""
        return f"ge(cast_uint64({name}), cast_uint64({length}))"  # negative numbers are large as unsigned

    def note(self, k: int, name: str) -> list[str]:
        """Return lines that record index ``name`` as out of range; none without a check."""
        return [f"wrong{k} = {name}"] if k in self._lanes else []

    def scalar(self, k: int, name: str, load: str, type: Type, length: str) -> list[str]:
        """Return the lines of ``read``, with an index from 0 to below the length in any case."""
        lines = self.read(k, name, load, type, length)
        if k in self._lanes:
            return [*lines, f"if {self.outside(name, length)}:", *indent([*self.note(k, name), f"{name} = 0"])]
        return [*lines, f"{name} = imax(0, imin({name}, {length} - 1))"]

    def vector(self, k: int, name: str, load: str, type: Type, length: str, left: str = "") -> list[str]:
        """Return the lines of ``scalar`` for the declared lanes, or the first ``left`` lanes."""
        self._lengths[k] = (length, type.is_signed)
        lines = [f"{name} = cast_int64({load})"]
        if left and k in self._lanes:
            lines.append(f"{name} = where(lt(iota_int64({self._lanes[k]}), {left}), {name}, 0)")
        if type.is_signed:
            lines.append(f"{name} = where(lt({name}, 0), add({name}, {length}), {name})")
        if k not in self._lanes:
            return [*lines, f"{name} = max(0, min({name}, {length} - 1))"]
        return [
            *lines,
            f"{name}_far = cast_uint64({name})",
            f"wrong{k} = max(wrong{k}, {name}_far)",
            f"{name} = cast_int64(min({name}_far, cast_uint64({length} - 1)))",
        ]

    def end(self) -> list[str]:
        """Return lines for the end of a kernel, which report indices out of range."""
        lines: list[str] = []
        for k, lanes in self._lanes.items():
            length, wrapped = self._lengths[k]
            found = f"cast_int64(reduce_max(wrong{k}))" if lanes else f"wrong{k}"
            lines += [
                f"found{k} = {found}",
                f"if {self.outside(f'found{k}', length)}:",
                *([f"{INDENT}if found{k} < 0:", f"{INDENT * 2}found{k} -= {length}"] if wrapped else []),
                f"{INDENT}if compare_exchange(fault, {FAULT.place('step')}, 0, step_number) == 0:",
                *indent(FAULT.fill(check=k, index=f"found{k}"), 2),
            ]
        return lines
