"""Copies whose source position is read from memory.

Indices out of range are errors where a term is checked, and are clamped elsewhere, so that no other memory is read.
"""

from __future__ import annotations

from ....core.dim import known_in, known_less, less, minimum, preferred
from ...arguments import Arguments
from ...launch import Launch
from ...problems.indexed_copy import IndexedCopy
from ...space import collapse
from ...statements import dtype_name, load_text, store_text, vector_loop
from .. import host
from ..loops import is_streamed, streamable
from ..machine import machine
from .checks import Checks
from .row_tasks import KEPT_COLUMNS, RowLoop, mover, mover_lanes
from .short_runs import runs_launch


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
