"""Copies of short runs, a few contiguous elements in both tensors repeated at constant strides, and copies whose source
position is read from memory.

A run is moved by vectors that fit into it; the last vector may be smaller and overlap the one before. Along the
dimension in which the target's runs are adjacent, strides are loop constants. The other dimensions are walked in the
order of the source, a block of that dimension at a time. Cache lines of the source are thus fully used while they are
cached.

Indices out of range are errors where a term is checked, and are clamped elsewhere, so that no other memory is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ....core.dim import (
    Length,
    ceil_div,
    is_symbolic,
    known_equal,
    known_in,
    known_less,
    known_less_equal,
    less,
    maximum,
    minimum,
    preferred,
    typical,
)  # fmt: skip
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...problems.indexed_copy import IndexedCopy, Term
from ...space import Space, collapse
from ...statements import dtype_name, for_tasks, indent, kernel_text, load_text, store_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import Odometer, claim, is_streamed, streamable, task_elements, tasks_unless_empty
from ..machine import machine
from .checks import Checks
from .row_tasks import KEPT_COLUMNS, RowLoop, mover, mover_lanes

LONGEST_RUN = 4096
"""Most bytes of a run: a longer run is a row, for which a loop of its own pays. A page of memory."""
FEWEST_STEPS = 4
"""Least steps of an innermost loop: with fewer, the loop around it costs more than the steps."""
FEWEST_BYTES = 256
"""Bytes of an innermost loop of fewer steps for which the loop around it pays: four cache lines."""
BLOCK_SHARE = 8
"""A block of the source takes one part in this many of the L2 cache, where its lines are used up."""
STAGED_BYTES = 8 << 10
"""Scratch memory (bytes) in which runs are assembled to whole lines: a sixth of the L1 cache, which the source needs,
too."""
FEWEST_BLOCK_BYTES = 2 << 10
"""Least bytes of the target in a block: less than half a page at a time is slow to write. No figures kept."""
UNROLLED = 4
"""Vectors of a run, or runs, that are moved together, so that their loads are independent."""
LEAST_BYTES = 16  # a 128-bit register: the tail of a run overlaps the vector before it rather than being shorter
AHEAD_RUNS = 16
"""Prefetch distance in runs at read positions: about the number of misses that a core has in flight."""
AHEAD_BYTES = 2 << 10
"""Most bytes of prefetched runs: more lines than the core can have in flight would be dropped."""


def runs_launch(
    name: str,
    source: Tensor,
    out: Tensor,
    operands: tuple[str, str],
    terms: Sequence[Term] = (),
    source_bytes: Length = 0,
    origin: str = "",
) -> Launch | None:
    """Return a launch that copies short runs; ``None`` if there are none.

    Args:
        name: kernel name.
        source: lengths as ``out``; strides along the axes of the output, 0 where a term decides.
        out: the target; its strides must not repeat elements.
        operands: names of source and target.
        terms: index terms that move the source position, if there are any.
        source_bytes: size of the operand, if it differs from the size by the source's lengths and strides.
        origin: the kernel's origin.
    """
    space = collapse(out.lens, [source.strides, out.strides, *(t.strides for t in terms)], order_by=1)
    if space.rank < 2 or known_in(space.elements, 0):
        return None
    run = space.lens[-1]
    inner = [s[-1] for s in space.strides]
    if not all(known_in(s, 1) for s in inner[:2]) or not all(known_in(s, 0) for s in inner[2:]):
        return None
    if is_symbolic(run) or not 1 < run * source.type.size <= LONGEST_RUN:
        return None
    read = source.footprint if known_in(source_bytes, 0) else source_bytes
    return _Runs(space, source, out, operands, terms, read).launch(name, origin)


def _along(space: Space, item: int) -> int:
    """Return the dimension of the innermost loop: the next after the runs in the target, or the longest if that is
    short.

    An unknown length counts as long.
    """
    last = space.rank - 2
    steps = space.lens[last]
    if is_symbolic(steps) or steps >= FEWEST_STEPS or steps * space.lens[-1] * item >= FEWEST_BYTES:
        return last
    return max(range(last + 1), key=lambda d: (typical(space.lens[d]), d))


class _Place(NamedTuple):
    """The names of a term: its pointer, its step from run to run ("" if that is 1), and length and scale of an
    index."""

    number: int
    pointer: str
    step: str
    length: str
    scale: str


class _Runs:
    """Print the kernel for an iteration space of runs."""

    def __init__(
        self,
        space: Space,
        source: Tensor,
        out: Tensor,
        operands: tuple[str, str],
        terms: Sequence[Term],
        source_bytes: Length,
    ) -> None:
        self.source, self.out, self.terms = source, out, terms
        self.item = source.type.size
        self.run = space.lens[-1]
        self.along = _along(space, self.item)
        self.steps = [s[self.along] for s in space.strides]
        self.streamed = is_streamed([out])
        line = host.CACHE_LINE // self.item
        self.lanes = min(1 << (self.run.bit_length() - 1), host.lanes(mover(source.type)))
        rest = self.run % self.lanes
        self.tail = min(self.lanes, max(1 << (rest - 1).bit_length(), LEAST_BYTES // self.item)) if rest else 0
        self.whole = self.lanes == line and self.run % self.lanes == 0
        self.staged = self.streamed and not self.whole and known_equal(self.steps[1], self.run)
        self.source_bytes = source_bytes
        if terms:
            self.jumps = preferred(less(machine().last_cache_bytes // 2, source_bytes))
        else:
            self.jumps = self.streamed and not known_less_equal(abs(self.steps[0]), self.run)
        self.arguments = Arguments()
        for pointer, operand in zip(("p_x", "p_out"), operands):
            self.arguments.pointer(pointer, operand, mover(source.type))
        self.pointers: dict[str, str] = {}
        for term in terms:
            if term.operand not in self.pointers:
                self.pointers[term.operand] = f"p_t{len(self.pointers)}"
                self.arguments.pointer(self.pointers[term.operand], term.operand, dtype_name(term.type))
        self.checks = Checks(self.arguments, [t.checked for t in terms])
        self._walk(space)

    def _walk(self, space: Space) -> None:
        """Return the loop order: blocks of the vectorised dimension, within the remaining dimensions."""
        rows = space.lens[self.along]
        others = [d for d in range(space.rank - 1) if d != self.along]
        reach = [abs(s) for s in space.strides[0]]
        run_bytes = self.run * self.item
        blocked = not self.terms and (self.streamed or run_bytes < host.CACHE_LINE)
        within = [d for d in others if blocked and typical(reach[d]) < typical(reach[self.along])]
        within.sort(key=lambda d: -typical(reach[d]))
        others = [d for d in others if d not in within]
        if within:
            share = machine().l2_bytes // BLOCK_SHARE // maximum(reach[self.along] * self.item, 1)
            chunk = maximum(share, FEWEST_BLOCK_BYTES // run_bytes)
        else:
            chunk = task_elements(space.elements) // self.run
        if self.staged:
            chunk = minimum(chunk, STAGED_BYTES // run_bytes)
        chunks = ceil_div(rows, maximum(1, minimum(rows, chunk)))
        self.chunk = ceil_div(rows, maximum(chunks, 1))
        lens, strides = [space.lens[d] for d in others], [[s[d] for d in others] for s in space.strides]
        self.block = len(lens)
        lens.append(chunks)
        for own, s in zip(strides, self.steps):
            own.append(self.chunk * s)
        for d in within:
            lens.append(space.lens[d])
            for own, given in zip(strides, space.strides):
                own.append(given[d])
        self.points = prod(lens)
        self.batch = maximum(1, task_elements(space.elements) // maximum(self.chunk * self.run, 1))
        for name, value in (
            ("points", self.points),
            ("batch", self.batch),
            ("rows", rows),
            ("chunk", self.chunk),
            ("run", self.run),
            ("x_step", self.steps[0]),
            ("out_step", self.steps[1]),
        ):
            self.arguments.integer(name, value)
        self.odometer = Odometer(self.arguments, lens, strides)

    def launch(self, name: str, origin: str) -> Launch:
        pointers = ["r_x = offset(p_x, {})", "r_out = offset(p_out, {})"]
        lines = [text.format(self.odometer.offset(k)) for k, text in enumerate(pointers)]
        rows = self._positions(lines)
        target = "scratch" if self.staged else "r_out"
        unrolled = UNROLLED if -(-self.run // self.lanes) <= UNROLLED else 1
        body = [
            *lines,
            f"count = imin(chunk, rows - i{self.block} * chunk)",
            "row = 0",
            *self._loop(rows, target, unrolled),
            *(self._loop(rows, target, 1) if unrolled > 1 else []),
            *(self._streaming() if self.staged else []),
            "point += 1",
            *self.odometer.step(),
        ]
        scratch = [f"scratch = local_{mover(self.source.type)}({STAGED_BYTES // self.item})"] if self.staged else []
        task = [
            "point = task * batch",
            "stop = imin(points, point + batch)",
            *self.odometer.start("point"),
            "while point < stop:",
            *indent(body),
        ]
        fence = ["stream_fence()"] if self.streamed else []
        text = kernel_text(
            [
                *self.arguments.bind(),
                *self.checks.begin(),
                *scratch,
                *for_tasks(task),
                *self.checks.end(),
                *fence,
            ]
        )
        tasks = tasks_unless_empty(ceil_div(self.points, self.batch), self.out.lens)
        moved = minimum(self.source_bytes, self.out.footprint) + self.out.footprint
        return Launch(
            kernel=cpu_kernel(name, text, origin),
            args=self.arguments.values,
            geometry=TaskRange(tasks, claim(tasks, moved)),
            bytes=moved,
            checks=tuple(t.fits for t in self.terms),
        )

    def _positions(self, lines: list[str]) -> list[_Place]:
        """Return the terms that differ from run to run; the code of the others is added to ``lines``."""
        result = []
        for k, term in enumerate(self.terms):
            own = [] if known_in(term.offset, 0) else [self.arguments.integer(f"start{k}", term.offset)]
            start = " + ".join([self.odometer.offset(k + 2), *own])
            length = scale = ""
            if not term.is_table:
                length = self.arguments.integer(f"length{k}", term.length)
                scale = self.arguments.integer(f"scale{k}", term.stride)
            if not known_in(self.steps[k + 2], 0):
                lines.append(f"r_t{k} = offset({self.pointers[term.operand]}, {start})")
                step = "" if known_in(self.steps[k + 2], 1) else self.arguments.integer(f"t_step{k}", self.steps[k + 2])
                result.append(_Place(k, f"r_t{k}", step, length, scale))
            else:
                lines += self._read(f"at{k}", _Place(k, self.pointers[term.operand], "", length, scale), start)
                lines.append(f"r_x = offset(r_x, at{k})")
        return result

    def _read(self, name: str, term: _Place, place: str) -> list[str]:
        """Return lines that assign how far a term moves the source position."""
        load = f"load_scalar({term.pointer}, {place})"
        if not term.length:
            return [f"{name} = cast_int64({load})"]
        type = self.terms[term.number].type
        return [*self.checks.scalar(term.number, name, load, type, term.length), f"{name} *= {term.scale}"]

    def _loop(self, terms: Sequence[_Place], target: str, unrolled: int) -> list[str]:
        """Return lines that move the runs from ``row``, ``unrolled`` at a time."""
        lines: list[str] = []
        for u in range(unrolled):
            lines += self._place(terms, f"row + {u}" if u else "row", f"from{u}")
            if self.jumps:
                far = max(1, min(AHEAD_RUNS, AHEAD_BYTES // (self.run * self.item)))
                ahead = f"imin(row + {far + u}, count - 1)" if terms else f"row + {far + u}"
                lines += self._place(terms, ahead, "far", prefetched=True)
                for part in range(0, min(self.run * self.item, AHEAD_BYTES), host.CACHE_LINE):
                    lines.append(f"prefetch(r_x, far + {part // self.item})")
        step = "run" if self.staged else "out_step"
        rows = [f"(row + {u}) * {step}" if u else f"row * {step}" for u in range(unrolled)]
        vectors, store = -(-self.run // self.lanes), "store_stream" if self.streamed and self.whole else "store"
        if vectors > UNROLLED:
            lines.append("c = 0")
            for most in (UNROLLED, 1):
                places = [f"c + {u * self.lanes}" for u in range(most)]
                moves = [f"w{u} = load(r_x, from0 + {place}, {self.lanes})" for u, place in enumerate(places)]
                moves += [f"{store}({target}, {rows[0]} + {place}, w{u})" for u, place in enumerate(places)]
                lines.append(f"while c + {most * self.lanes} <= run:")
                lines += indent([*moves, f"c += {most * self.lanes}"])
            if self.run % self.lanes:
                last = f"run - {self.tail}"
                lines.append(f"store({target}, {rows[0]} + {last}, load(r_x, from0 + {last}, {self.tail}))")
        else:
            parts = [(str(v * self.lanes), self.lanes) for v in range(vectors)]
            if self.run % self.lanes:
                parts[-1] = (f"run - {self.tail}", self.tail)
            pairs = [(u, v) for u in range(unrolled) for v in range(vectors)]
            lines += [f"v{u}_{v} = load(r_x, from{u} + {parts[v][0]}, {parts[v][1]})" for u, v in pairs]
            lines += [f"{store}({target}, {rows[u]} + {parts[v][0]}, v{u}_{v})" for u, v in pairs]
        return [f"while row + {unrolled} <= count:", *indent([*lines, f"row += {unrolled}"])]

    def _place(self, terms: Sequence[_Place], row: str, name: str, prefetched: bool = False) -> list[str]:
        """Return lines that assign the start of the source's run of ``row``.

        Args:
            prefetched: the run is only prefetched, so indices that are negative or out of range may give any place.
        """
        lines, parts = [], [] if known_in(self.steps[0], 0) else [f"({row}) * x_step"]
        for term in terms:
            place = f"({row}) * {term.step}" if term.step else row
            moved = f"{name}_{term.number}"
            if prefetched:
                lines.append(f"{moved} = cast_int64(load_scalar({term.pointer}, {place}))")
                parts.append(f"{moved} * {term.scale}" if term.scale else moved)
            else:
                lines += self._read(moved, term, place)
                parts.append(moved)
        return [*lines, f"{name} = {' + '.join(parts) or '0'}"]

    def _streaming(self) -> list[str]:
        """Return lines that write the runs gathered in scratch memory by streaming stores."""
        lanes = host.CACHE_LINE // self.item

        def move(left: str) -> list[str]:
            if left:
                return [f"store_tail(r_out, c, load_tail(scratch, c, left, 0, {lanes}), left)"]
            return [f"store_stream(r_out, c, load(scratch, c, {lanes}))"]

        return ["full = count * run", *vector_loop(lanes, move, first="0", last="full", aligned="r_out")]


def indexed_launch(problem: IndexedCopy) -> Launch:
    """Return the launch that fills the output."""
    name, source, terms, out, origin = problem.name, problem.source, problem.terms, problem.out, problem.origin
    source_bytes = problem.elements * source.type.size
    runs = runs_launch(name, source, out, ("x", "out"), terms, source_bytes, origin)
    if runs is not None:
        return runs
    tensors = [source.strides, out.strides, *(t.strides for t in terms)]
    space = collapse(out.lens, tensors, order_by=1)
    lens, strides = space.lens or (1,), [s or (0,) for s in space.strides]
    if space.rank == 0:
        strides[1] = (1,)
    inner = [s[-1] for s in strides]
    along = [k for k in range(len(terms)) if not known_in(inner[k + 2], 0)]
    dtype = mover(source.type)
    lanes = host.lanes("int64") * 2 if along else mover_lanes(source.type, lens[-1])

    arguments = Arguments()
    arguments.pointer("p_x", "x", dtype)
    arguments.pointer("p_out", "out", dtype)
    operands: dict[str, str] = {}
    for term in terms:
        if term.operand not in operands:
            operands[term.operand] = f"p_t{len(operands)}"
            arguments.pointer(operands[term.operand], term.operand, dtype_name(term.type))
    checks = Checks(arguments, [t.checked for t in terms], [lanes if k in along else 0 for k in range(len(terms))])
    starts = [
        arguments.integer(f"start{k}", t.offset) if not known_in(t.offset, 0) else "" for k, t in enumerate(terms)
    ]
    lengths = [arguments.integer(f"length{k}", t.length) if not t.is_table else "" for k, t in enumerate(terms)]
    scales = [arguments.integer(f"scale{k}", t.stride) if not t.is_table else "" for k, t in enumerate(terms)]
    # Every row has the same column positions: they are computed once a task.
    repeated = all(known_in(s, 0) for k in along for s in strides[k + 2][:-1])
    kept = "int64" if along and space.rank > 1 and repeated else ""
    if kept and not any(terms[k].is_table for k in along):
        reach = sum(terms[k].length * abs(terms[k].stride) for k in along) + lens[-1] * abs(inner[0])
        kept = "int32" if known_less(reach, 1 << 31) else kept
    outer = [s[:-1] for s in strides]
    longest = KEPT_COLUMNS if kept else lens[-1]
    loop = RowLoop(arguments, lens[:-1], outer, lens[-1], lanes, 4 if along else 1, longest, together=bool(kept))
    steps = [arguments.step(f"step{k}", s) for k, s in enumerate(inner)]
    streamed = not along and known_in(inner[1], 1) and is_streamed([out]) and streamable(out, lanes)

    inside = [f"r_out = offset(p_out, {loop.offset(1)})"]
    before: list[str] = []
    position = [loop.offset(0)]
    for k, term in enumerate(terms):
        place = " + ".join(filter(None, [loop.offset(k + 2), starts[k]]))
        if k in along:
            (before if kept else inside).append(f"r_t{k} = offset({operands[term.operand]}, {place})")
            continue
        load = f"load_scalar({operands[term.operand]}, {place})"
        if not term.is_table:
            inside += [*checks.scalar(k, f"at{k}", load, term.type, lengths[k]), f"at{k} *= {scales[k]}"]
        else:
            inside.append(f"at{k} = cast_int64({load})")
        position.append(f"at{k}")
    inside.append(f"r_x = offset(p_x, {' + '.join(position)})")

    def moved(left: str) -> list[str]:
        value = load_text("r_x", "c", inner[0], steps[0], lanes, left)
        return [store_text("r_out", "c", inner[1], steps[1], value, left, streamed)]

    def placed(left: str) -> tuple[list[str], str]:
        """Return lines, and the expression of the positions of a vector of columns."""
        lines, parts = [], []
        for k in along:
            loaded = load_text(f"r_t{k}", "c", inner[k + 2], steps[k + 2], lanes, left)
            if not terms[k].is_table:
                lines += checks.vector(k, f"v{k}", loaded, terms[k].type, lengths[k], left)
                lines.append(f"v{k} = mul(v{k}, {scales[k]})")
            else:
                lines.append(f"v{k} = cast_int64({loaded})")
            parts.append(f"v{k}")
        if not known_in(inner[0], 0):
            lane = f"add(iota_int64({lanes}), c)"
            parts.append(f"mul({lane}, {steps[0]})" if steps[0] else lane)
        place = parts[0]
        for part in parts[1:]:
            place = f"add({place}, {part})"
        return lines, place

    below = loop.odometer.strides[0][-1] if kept and preferred(less(machine().last_cache_bytes, source_bytes)) else ""
    fetched = [f"prefetch(r_x, {below} + c)"] if below else []

    def gathered(left: str) -> list[str]:
        lines, place = (fetched, f"load(kept, c - first, {lanes})") if kept else placed(left)
        value = f"gather_tail(r_x, {place}, {left}, 0)" if left else f"gather(r_x, {place})"
        return [*lines, store_text("r_out", "c", inner[1], steps[1], value, left)]

    def remembered(left: str) -> list[str]:
        lines, place = placed(left)
        return [*lines, f"store(kept, c - first, cast_{kept}({place}))"]

    prologue = checks.begin() + ([f"kept = local_{kept}({longest + lanes})"] if kept else [])
    before += vector_loop(lanes, remembered) if kept else []
    inside += vector_loop(lanes, gathered if along else moved, aligned="r_out" if streamed else "")
    kernel = loop.kernel(name, inside, origin, prologue, before, streamed=streamed, epilogue=checks.end())
    traffic = out.footprint + minimum(source_bytes, out.footprint)
    return loop.launch(kernel, out.lens, traffic, checks=tuple(t.fits for t in terms))
