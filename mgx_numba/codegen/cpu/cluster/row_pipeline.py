"""Row kernels past the caches as a pipeline: while one row is read, the row before is computed and another is written.

One stage after the other, a row would leave the memory idle while it is computed with, and the arithmetic while it is
written. So each stage works on the row after that of the next stage, and they take turns every few vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..loops import Odometer, indent

__all__ = ["PipelineStage", "pipeline_lines"]


@dataclass(frozen=True)
class PipelineStage:
    """Lines of one stage: for its row, for every turn, for a whole vector at ``c``, for ``left`` elements of one."""

    row: Sequence[str]
    turn: Sequence[str]
    whole: Sequence[str]
    partial: Sequence[str]


def pipeline_lines(
    stages: Sequence[PipelineStage],
    names: Sequence[str],
    odometer: Odometer,
    setup: Sequence[str],
    finish: Sequence[str],
    lanes: int,
    turn: int,
    aligned: str = "",
) -> list[str]:
    """Lines that take rows ``row`` to ``stop``, of ``cols`` elements each, through ``stages``.

    Stage ``s`` finds its row's operands as ``r<s>_<name>`` and loops over ``q_<name>``; ``live<s>`` is ``cols`` while
    it has a row, else 0. At any ``c`` the later stages come first, so that a stage may keep something at a place where
    the next one finds what was kept for the row before. ``setup`` runs before the first row, ``finish`` after every
    step of the pipeline. Turns take ``turn`` elements, a multiple of ``lanes``. With ``aligned``, a pointer, whole
    vectors start where its elements can be streamed.
    """
    last = len(stages) - 1
    later_first = range(last, -1, -1)
    pointers = [f"r0_{name} = offset(p_{name}, {odometer.offset(k)})" for k, name in enumerate(names)]

    def whole(stage: int) -> list[str]:
        return [
            *stages[stage].turn,
            *(f"q_{name} = r{stage}_{name}" for name in names),
            "c = at",
            f"end = imin(turn, live{stage})",
            "while c < end:",
            *indent([*stages[stage].whole, f"c += {lanes}"], 1),
        ]

    def partial(stage: int) -> list[str]:
        return [
            *(f"q_{name} = r{stage}_{name}" for name in names),
            f"left = imin(part, live{stage})",
            *stages[stage].partial,
        ]

    turns = [
        f"whole = at + idiv(cols - at, {lanes}) * {lanes}",
        "while at < whole:",
        *indent(
            [f"turn = imin(at + {turn}, whole)", *(line for s in later_first for line in whole(s)), "at = turn"], 1
        ),
        "part = cols - at",
    ]
    parts = [
        "if part > 0:",
        *indent(["c = at", *(line for s in later_first for line in partial(s)), "at += part"], 1),
    ]
    if aligned:
        elements = [f"part = imin(cols, stream_head({aligned}, 0))", "for end_of_row in range(2):"]
        elements += indent([*parts, *turns], 1)
    else:
        elements = [*turns, *parts]
    return [
        "total = stop - row",
        *odometer.start("row"),
        *pointers,
        *(f"r{s}_{name} = r0_{name}" for s in range(1, last + 1) for name in names),
        *setup,
        f"for t in range(total + {last}):",
        *indent(
            [
                *(f"live{s} = cols if {s} <= t and t < total + {s} else 0" for s in range(last + 1)),
                *(line for stage in stages for line in stage.row),
                "at = 0",
                *elements,
                *finish,
                *(f"r{s}_{name} = r{s - 1}_{name}" for s in range(last, 0, -1) for name in names),
                "if t + 1 < total:",
                *indent([*odometer.step(), *pointers], 1),
            ],
            1,
        ),
    ]
