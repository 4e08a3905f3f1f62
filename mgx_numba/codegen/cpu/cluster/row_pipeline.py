"""Row kernels past the caches as a pipeline: one row is read while the row before is computed and another is written.

With one stage after the other, memory would be idle while a row is computed, and arithmetic while it is written. So
each stage works on the row after that of the next stage, and the stages alternate every few vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import known_equal, known_in
from ....dataclass import dataclass
from ....graph.instruction import Instruction
from ...statements import dtype_name, indent
from ..loops import Odometer
from .accumulators import across_lanes, initial_lines, initial_text
from .element import Element, cache_memory, lines_of_head
from .means import mean_lines, mean_name
from .prefetch import prefetches, streamed_result
from .reduction_layout import Names, ReduceLayout
from .row_values import RowValues

PIPELINE_AHEAD = 8 << 10
"""Prefetch distance (bytes) of the stage that reads an operand first."""
TURN_BYTES = 512
"""Bytes of the widest operand that a stage processes in one turn."""


@dataclass(frozen=True)
class _Stage:
    """The lines of one stage: once a row, once a turn, for a whole vector at ``c``, and for ``left`` elements of a
    vector."""

    row: Sequence[str]
    turn: Sequence[str]
    whole: Sequence[str]
    partial: Sequence[str]


def pipeline_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``ROW_PIPELINE``."""
    last = layout.stages.count - 1
    size = max(t.type.size for t, stride in zip(layout.walk.tensors, layout.inner) if not known_in(stride, 0))
    turn = max(1, TURN_BYTES // size // layout.lanes) * layout.lanes
    stages: list[_Stage] = []
    known: set[int] = set()
    for number in range(last + 1):
        stage, read = _stage(layout, names, number, turn, frozenset(known))
        stages.append(stage)
        known |= read
    setup, aged = _ages(layout, names)
    accumulators = names.accumulators.items()
    checked = [
        line for s in range(last + 1) for line in mean_lines(layout, names, s, _row_values(layout, names, s, "o"))
    ]
    joined = [
        f"{name}_0 = "
        + (
            mean_name(names, ins)
            if layout.stages.sum_can_overflow(ins)
            else f"{across_lanes(layout.stages.reduction(ins))}({name})"
        )
        for ins, name in accumulators
    ]
    finish = [*checked, *joined, *_row_results(layout, names), *aged]
    streamed = streamed_result(layout, last)
    aligned = streamed and f"r{last}_{streamed}"
    steps = _steps(stages, names.operands, names.odometer, setup, finish, layout.lanes, turn, aligned)
    return [*cache_memory(layout, names), "row = begin * batch", "stop = imin(rows, end * batch)", *steps]


def _ages(layout: ReduceLayout, names: Names) -> tuple[list[str], list[str]]:
    """Return lines that initialise the results of rows in the pipeline, by the age of the row, and lines that age them.

    Variables of heads and reductions that were finished some pipeline steps ago have that age in their names.
    """
    stages = layout.stages
    setup, aged = [], []
    for ins, name in names.heads.items():
        for age in range(stages.count, 0, -1):
            setup.append(f"{name}_{age} = const_{dtype_name(ins.shape.type)}(0, 0)")
            aged += [f"{name}_{age} = {name}_{age - 1}"] if age > 1 else []
    for ins, name in names.accumulators.items():
        for age in range(stages.count - stages.stage[ins], 0, -1):
            setup.append(f"{name}_{age} = {initial_text(stages.reduction(ins), ins.inputs[0].shape.type, 0)}")
            aged.append(f"{name}_{age} = {name}_{age - 1}")
    return setup, aged


def _row_values(layout: ReduceLayout, names: Names, stage: int, prefix: str) -> RowValues:
    """Return the row values of the row of a stage."""
    age = stage + 1

    def accumulated(ins: Instruction) -> str:
        return f"{names.accumulators[ins]}_{age - layout.stages.stage[ins]}"

    return RowValues(layout, names, f"{prefix}{stage}_", accumulated, age, f"r{stage}")


def _row_results(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that store the row results of the row that has passed all stages, if there is one."""
    last = layout.stages.count - 1
    rows = _row_values(layout, names, last, "g")
    rows.store_results()
    lines = rows.drain()
    return [f"if live{last} > 0:", *indent(lines)] if lines else []


def _stage(layout: ReduceLayout, names: Names, stage: int, turn: int, known: frozenset[int]) -> tuple[_Stage, set[int]]:
    """Return one stage, which reads the inputs ``known`` from the caches, and the inputs that it reads."""
    reductions, stores = layout.stages.reduced_in(stage), layout.stages.stored_in(stage)
    rows = _row_values(layout, names, stage, "h")
    row: list[str] = []
    heads = [lines_of_head(layout, names, rows.value, f"r{stage}", ins) for ins in names.heads] if stage == 0 else []
    if heads:
        row += [*rows.drain(), "if live0 > 0:", *indent([line for head in heads for line in head])]
    element = Element(layout, names, rows.value, stage)
    whole = element.lines(reductions, stores)
    partial = Element(layout, names, rows.value, stage, "left").lines(reductions, stores)
    ahead = []
    for k in sorted(k for k in element.read if known_in(layout.inner[k], 1) and not layout.same_for_rows(k)):
        place, next_row = f"c + {turn}", names.next_row(k)
        if k not in known and next_row:
            distance = PIPELINE_AHEAD // layout.walk.inputs[k].type.size
            place = f"c + ahead{k}"
            # Rows need not be contiguous.
            apart = f" + ({next_row} - cols) * idiv(turn + {distance}, cols)"
            ahead.append(f"ahead{k} = {distance}{'' if known_equal(layout.row_strides[k][-1], layout.cols) else apart}")
        whole += prefetches(layout, k, place)
    row += [*rows.drain(), *initial_lines(names.accumulators, reductions, layout.lanes)]
    return _Stage(row, ahead, whole, partial), element.read


def _steps(
    stages: Sequence[_Stage],
    names: Sequence[str],
    odometer: Odometer,
    setup: Sequence[str],
    finish: Sequence[str],
    lanes: int,
    turn: int,
    aligned: str,
) -> list[str]:
    """Return lines that take rows ``row`` to ``stop``, of ``cols`` elements each, through ``stages``.

    Stage ``s`` finds its row's operands as ``r<s>_<name>`` and loops over ``q_<name>``; ``live<s>`` is ``cols`` while
    it has a row, else 0. At any ``c`` later stages come first, so that a stage may overwrite a kept value after the
    next stage has read the value of the row before.

    Args:
        setup: lines before the first row.
        finish: lines after every step of the pipeline.
        turn: elements of a turn, a multiple of ``lanes``.
        aligned: pointer to whose elements whole vectors are aligned for streaming stores; "": none.
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
            *indent([*stages[stage].whole, f"c += {lanes}"]),
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
        *indent([f"turn = imin(at + {turn}, whole)", *(line for s in later_first for line in whole(s)), "at = turn"]),
        "part = cols - at",
    ]
    parts = [
        "if part > 0:",
        *indent(["c = at", *(line for s in later_first for line in partial(s)), "at += part"]),
    ]
    if aligned:
        elements = [f"part = imin(cols, stream_head({aligned}, 0))", "for end_of_row in range(2):"]
        elements += indent([*parts, *turns])
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
                *indent([*odometer.step(), *pointers]),
            ],
        ),
    ]
