"""The tasks of reduction kernels that take one row after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ...statements import for_tasks
from .names import Names
from .reduction_layout import ReduceLayout


def each_row(layout: ReduceLayout, names: Names, row: Sequence[str]) -> list[str]:
    """Return lines that run ``row`` for the rows of each task, with pointers ``r_<operand>`` to them.

    In column mode its columns are ``first`` to ``last``.
    """
    places = [names.odometer.offset(k) + names.parts.offsets[k] for k in range(len(names.operands))]
    pointers = [f"r_{name} = offset(p_{name}, {place})" for name, place in zip(names.operands, places)]
    return for_tasks(names.odometer.each_row([*pointers, *row], chunk=names.parts.lines))
