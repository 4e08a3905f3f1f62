"""Reduction clusters: softmax, normalisations and plain reductions as one kernel over rows.

The layout (`reduction_layout.py`) determines the kernel: how the operands are walked (`walk.py`), which values each
pass along a row computes (`stages.py`), and the strategy.

Columns of operands larger than the caches have accumulators in memory and are read row by row, in long runs. With
accumulators in registers, a task would read a short run of each row: another page of memory each time, of which
the hardware fetches more than is needed.

Rows past the caches form a pipeline: one row is read while the row before is computed and another is written. With one
stage after the other, memory would be idle while a row is computed, and arithmetic while it is written. So each stage
works on the row after that of the next stage, and the stages alternate every few vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....core.dim import known_equal, known_in, less_equal, preferred
from ....dataclass import dataclass
from ....graph.instruction import Instruction
from ...arguments import Arguments
from ...body import scalar_flops
from ...launch import Launch, TaskRange
from ...printer import VectorValue
from ...problems.cluster import ReductionProblem
from ...statements import dtype_name, for_tasks, indent, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import AHEAD_BYTES, Odometer, claim, streamable
from ..machine import machine
from .accumulators import across_lanes, initial_lines, initial_text
from .element import Element, cache_memory, lines_of_head
from .means import mean_lines, mean_name
from .reduction_layout import Names, ReduceLayout, names_of, reduce_layout
from .row_values import RowValues, all_stages, rows_at
from .vectors import Strategy

ROWS_AHEAD = 16
"""Prefetch distance, in rows, of columns in a single stage."""
AHEAD_SHARE = 4
"""The longest row that is prefetched as a whole takes one part in this many of the L2 cache."""


def prefetches(layout: ReduceLayout, k: int, place: str, at: str = "q") -> list[str]:
    """Return lines that prefetch the data that one loop step reads of input ``k``, at pointers named ``at``."""
    step = host.CACHE_LINE // layout.walk.inputs[k].type.size
    return [f"prefetch({at}_x{k}, {place} + {i})" for i in range(0, layout.lanes, step)]


def soon_read(layout: ReduceLayout, names: Names, stage: int) -> list[str]:
    """Return lines that prefetch data that is read soon, of operands that come from memory.

    The first stage prefetches the data that it will read itself. Later stages, whose row is cached by then, prefetch
    the first stage's next data: the next row, or in column mode the next columns.
    """
    found = []
    walk, longest = layout.walk, machine().l2_bytes // AHEAD_SHARE
    for k, tensor in enumerate(walk.inputs if walk.past_caches else ()):
        size, strides, next_row = tensor.type.size, names.loop_strides[k], names.next_row(k)
        if not walk.is_full[k] or not known_in(layout.inner[k], 1) or layout.same_for_rows(k):
            continue
        if not walk.row_mode:
            rows = ROWS_AHEAD if layout.stages.count == 1 else max(1, AHEAD_BYTES // (layout.lanes * size))
            ahead = f"c + {layout.lanes}" if stage or not strides else f"c + {rows} * ({strides[-1][1]})"
        elif stage == 0:
            ahead = f"c + {AHEAD_BYTES // size}"
        elif next_row and not layout.loops and preferred(less_equal(layout.cols * size, longest)):
            ahead = f"c + {next_row}"
        else:
            continue
        found += prefetches(layout, k, ahead)
    return found


def streamed_result(layout: ReduceLayout, stage: int) -> str:
    """Return the name of the result to whose addresses the loop of a stage is aligned; "" if it streams none."""
    walk = layout.walk
    for k, _ in layout.stages.stored_in(stage):
        if (
            walk.streamed
            and k not in walk.parts
            and known_in(layout.inner[len(walk.inputs) + k], 1)
            and streamable(walk.outputs[k], layout.lanes)
        ):
            return f"out{k}"
    return ""


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
        stage, read = _printed_stage(layout, names, number, turn, frozenset(known))
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


def _printed_stage(
    layout: ReduceLayout, names: Names, stage: int, turn: int, known: frozenset[int]
) -> tuple[_Stage, set[int]]:
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


def each_row(layout: ReduceLayout, names: Names, row: Sequence[str]) -> list[str]:
    """Return lines that run ``row`` for the rows of each task, with pointers ``r_<operand>`` to them.

    In column mode its columns are ``first`` to ``last``.
    """
    places = [names.odometer.offset(k) + names.parts.offsets[k] for k in range(len(names.operands))]
    pointers = [f"r_{name} = offset(p_{name}, {place})" for name, place in zip(names.operands, places)]
    return for_tasks(names.odometer.each_row([*pointers, *row], chunk=names.parts.lines))


ROWS = 4
"""Rows of which each element is read before the accumulators are updated, so that accumulators are loaded less
often."""
AHEAD = 1 << 10
"""Prefetch distance (bytes): memory further ahead is too often on another page."""


def column_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``COLUMNS``."""
    stages, lanes = layout.stages, layout.lanes
    reserved = [
        f"kept{k} = local_{stages.reduction(i).accumulator(i.inputs[0].shape.type).dtype_name}"
        f"({layout.longest_chunk + lanes})"
        for k, i in enumerate(stages.reductions)
    ]

    def clear(left: str) -> list[str]:
        neutral = [initial_text(stages.reduction(i), i.inputs[0].shape.type, lanes) for i in stages.reductions]
        return [f"store(kept{k}, c - first, {value})" for k, value in enumerate(neutral)]

    def results(left: str) -> list[str]:
        rows = rows_at(layout, names, left)
        checked = mean_lines(layout, names, 0, rows_at(layout, names, left, "o"), left)
        for ins in stages.reductions:
            rows.value(ins)
        rows.store_results()
        return [*_load(layout, names), *checked, *rows.drain()]

    chunk = [*vector_loop(lanes, clear), *_walk(layout, names), *vector_loop(lanes, results)]
    return [*reserved, *each_row(layout, names, chunk)]


def _load(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that load the accumulators of a vector of columns."""
    accumulators = enumerate(names.accumulators.values())
    return [f"{name} = load(kept{k}, c - first, {layout.lanes})" for k, name in accumulators]


def _walk(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that add all rows of the columns ``first`` to ``last`` to their accumulators, several rows at a
    time."""
    bounds = names.parts.bounds
    last = len(bounds) - 1
    low, high = bounds[last]

    def pass_over(count: int) -> list[str]:
        pointers = [
            f"q{row or ''}_{name} = offset(r_{name}, {names.loop_offset(k, {last: f'(j{last} + {row})'}) or '0'})"
            for row in range(count)
            for k, name in enumerate(names.operands)
            if layout.walk.is_full[k]
        ]
        loop = vector_loop(layout.lanes, lambda left: _add_rows(layout, names, count, left))
        return [*pointers, *loop, f"j{last} += {count}"]

    walk = [
        f"j{last} = {low}",
        f"while j{last} + {ROWS} <= {high}:",
        *indent(pass_over(ROWS)),
        f"while j{last} < {high}:",
        *indent(pass_over(1)),
    ]
    for d in range(last - 1, -1, -1):
        walk = [f"for j{d} in range({', '.join(bounds[d])}):", *indent(walk)]
    return walk


def _add_rows(layout: ReduceLayout, names: Names, count: int, left: str) -> list[str]:
    """Return lines that add one vector of ``count`` rows, at pointers ``q``, ``q1``, ..., to the accumulators."""
    reductions = layout.stages.reductions
    combine = [layout.stages.reduction(ins).combine for ins in reductions]
    at = [f"q{row or ''}" for row in range(count)]
    values = rows_at(layout, names, left)
    element = Element(layout, names, values.value, 0, left)
    contributions = [element.contributions(reductions, pointers) for pointers in at]
    while len(contributions) > 1:
        half = len(contributions) // 2
        for k in range(len(reductions)):
            for row in range(half):
                pair = contributions[row][k], contributions[row + half][k]
                contributions[row][k] = element.buffer.emit(f"{combine[k]}({pair[0]}, {pair[1]})")
        contributions = contributions[:half]
    accumulators = list(names.accumulators.values())
    return [
        *values.drain(),
        *([] if left else _fetch(layout, at)),
        *_load(layout, names),
        *element.buffer.drain(),
        *(f"{name} = {combine[k]}({name}, {contributions[0][k]})" for k, name in enumerate(accumulators)),
        *(f"store(kept{k}, c - first, {name})" for k, name in enumerate(accumulators)),
    ]


def _fetch(layout: ReduceLayout, at: list[str]) -> list[str]:
    """Return lines that prefetch the data of rows a little past these pointers."""
    walk = layout.walk
    known = [k for k in range(len(walk.inputs)) if walk.is_full[k] and known_in(layout.inner[k], 1)]
    return [
        line
        for pointers in at
        for k in known
        for line in prefetches(layout, k, f"c + {AHEAD // walk.inputs[k].type.size}", pointers)
    ]


def row_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``ROWS``."""
    row = _stages(layout, names, "") if layout.walk.row_mode else _vectors_of_columns(layout, names)
    return [*cache_memory(layout, names), *each_row(layout, names, row)]


def _vectors_of_columns(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that take the columns ``first`` to ``last`` through all stages, a vector at a time."""
    return [
        "c = first",
        f"while c + {layout.lanes} <= last:",
        *indent([*_stages(layout, names, ""), f"c += {layout.lanes}"]),
        "if c < last:",
        *indent(["left = last - c", *_stages(layout, names, "left")]),
    ]


def _stages(layout: ReduceLayout, names: Names, left: str) -> list[str]:
    """Return lines of all stages for one row, or for one vector of columns (its first ``left`` columns, if given)."""
    return all_stages(layout, names, lambda stage, rows: _stage(layout, names, stage, left, rows), left)


def _stage(layout: ReduceLayout, names: Names, stage: int, left: str, rows: RowValues) -> list[str]:
    """Return lines of the loops over the reduced axes in which one stage reduces and stores."""
    reductions, stores = layout.stages.reduced_in(stage), layout.stages.stored_in(stage)
    if not reductions and not stores:
        return []

    def element(left: str) -> list[str]:
        ahead = [] if left else soon_read(layout, names, stage)
        return [*ahead, *Element(layout, names, rows.value, stage, left).lines(reductions, stores)]

    start = initial_lines(names.accumulators, reductions, layout.lanes)
    if layout.walk.row_mode:
        streamed = streamed_result(layout, stage)
        inner = vector_loop(layout.lanes, element, *names.parts.bounds[-1], aligned=streamed and f"q_{streamed}")
    else:
        inner = [*element(left), f"place += {layout.lanes}"]
        start.append("place = 0")
    offsets = [(name, names.loop_offset(k)) for k, name in enumerate(names.operands) if layout.walk.is_full[k]]
    inner = [*(f"q_{name} = offset(r_{name}, {at})" if at else f"q_{name} = r_{name}" for name, at in offsets), *inner]
    for d in range(len(layout.loops) - 1, -1, -1):
        inner = [f"for j{d} in range({', '.join(names.parts.bounds[d])}):", *indent(inner)]
    return [*start, *inner]


def whole_row_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``WHOLE_ROWS``."""
    known: dict[Instruction, VectorValue] = {}
    left = str(layout.cols) if layout.cols < layout.lanes else ""

    def stage_lines(stage: int, rows: RowValues) -> list[str]:
        reductions, stores = layout.stages.reduced_in(stage), layout.stages.stored_in(stage)
        if not reductions and not stores:
            return []
        element = Element(layout, names, rows.value, stage, left, known=known)
        printed = element.whole_row_lines(reductions, stores)
        start = [f"q_{name} = r_{name}" for k, name in enumerate(names.operands) if layout.walk.is_full[k]]
        ahead = soon_read(layout, names, 0)
        return [*start, "c = 0", *ahead, *printed] if stage == 0 else ["c = 0", *printed]

    return each_row(layout, names, all_stages(layout, names, stage_lines))


PRINTERS: dict[Strategy, Callable[[ReduceLayout, Names], list[str]]] = {
    Strategy.ROWS: row_lines,
    Strategy.WHOLE_ROWS: whole_row_lines,
    Strategy.COLUMNS: column_lines,
    Strategy.ROW_PIPELINE: pipeline_lines,
}


def reduce_launch(problem: ReductionProblem) -> Launch:
    """Return the launch that evaluates a cluster.

    Raises:
        CompileError: no operand is full.
        UnsupportedError: parts, or heads of rows, need another memory layout of the operands.
    """
    layout = reduce_layout(problem)
    arguments = Arguments()
    body = PRINTERS[layout.strategy](layout, names_of(layout, arguments))
    fence = ["stream_fence()"] if layout.walk.streamed else []
    traffic = sum(t.footprint for t in layout.walk.tensors)
    return Launch(
        kernel=cpu_kernel(layout.walk.name, kernel_text([*arguments.bind(), *body, *fence]), problem.origin),
        args=arguments.values,
        geometry=TaskRange(layout.tasks, claim(layout.tasks, traffic)),
        flops=scalar_flops(layout.stages.module) * prod(layout.walk.full),
        bytes=traffic,
    )
