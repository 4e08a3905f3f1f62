"""Scatters: updates written or combined at positions that an integer tensor holds.

The output already holds the data. Updates that may meet at one position are done by one task, in row-major order of
their indices, so that the result is deterministic. Positions out of range are skipped; where they are checked they are
errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import Length, known_in, known_less, maximum, minimum
from ...arguments import Arguments
from ...launch import Launch, axis_text
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import cast_text, dtype_name, indent, load_text, store_text, vector_loop
from .. import host
from ..machine import machine
from .checks import Checks
from .row_tasks import FEWEST_CHUNKS, RowLoop, mover, mover_lanes

RUN_BYTES = 1 << 15
"""Least bytes of a slice that one task takes, of slices that long. Zen 3, 300 slices of 1.7 MB of float32: 41 ms of CPU
time with 32 KiB, 77 ms with runs of 48 elements, as many as work alone would give a task."""

_COMBINE = {"add": "add", "mul": "mul", "min": "min", "max": "max"}


def scatter_launch(
    combine: str, axis: int, indices: Tensor, updates: Tensor, out: Tensor, origin: str = "", checked: bool = True
) -> Launch:
    """Return the launch of ScatterElements into ``out``: ``updates[i]`` goes to ``i``, with ``indices[i]`` along
    ``axis``.

    Operands are named ``indices``, ``updates`` and ``out``.

    Args:
        combine: none, add, mul, min or max.
        checked: indices may be out of range.
    """
    kept = [a for a in range(len(out.lens)) if a != axis]
    tensors = [indices.strides, updates.strides, out.strides]
    space = collapse(updates.lens, tensors, order_by=2, axes=kept)
    arguments, storage, compute = _operands(combine, indices, updates, out)
    length = updates.lens[axis]
    loop = RowLoop(arguments, space.lens, space.strides, 1, 1, 8 * length)
    arguments.integer("count", length)
    arguments.integer("length", out.lens[axis])
    checks = Checks(arguments, [checked])
    wrong = checks.note(0, "at")
    steps = [arguments.integer(f"step{k}", s[axis]) for k, s in enumerate(tensors)]
    new = cast_text("load_scalar(r_updates, 0)", storage, compute)
    if combine != "none":
        new = f"{_COMBINE[combine]}({cast_text('load_scalar(r_out, at)', storage, compute)}, {new})"
    inside = [
        f"r_indices = offset(p_indices, {loop.offset(0)})",
        f"r_updates = offset(p_updates, {loop.offset(1)})",
        f"r_out = offset(p_out, {loop.offset(2)})",
        "for j in range(count):",
        *indent(
            [
                *checks.read(0, "at", "load_scalar(r_indices, 0)", indices.type, "length"),
                "if at >= 0 and at < length:",
                f"    at *= {steps[2]}",
                f"    store_scalar(r_out, at, {cast_text(new, compute, storage)})",
                *(["else:", *indent(wrong)] if wrong else []),
                f"r_indices = offset(r_indices, {steps[0]})",
                f"r_updates = offset(r_updates, {steps[1]})",
            ],
        ),
    ]
    kernel = loop.kernel(f"scatter_{combine}_kernel", inside, origin, checks.begin(), epilogue=checks.end())
    moved = indices.footprint + 2 * updates.footprint
    return loop.launch(kernel, updates.lens, moved, checks=(axis_text(axis, out.lens[axis]),))


def scatternd_launch(
    combine: str, indices: Tensor, updates: Tensor, out: Tensor, origin: str = "", checked: Sequence[bool] = ()
) -> Launch:
    """Return the launch of ScatterND into ``out``: slices ``updates[i]`` go to the positions ``indices[i]``.

    Operands are named ``indices``, ``updates`` and ``out``.

    Args:
        combine: none, add, mul, min or max.
        checked: for each element of the index tuples whether it may be out of range; by default it may.
    """
    depth, tuples = indices.lens[-1], len(indices.lens) - 1
    slice_axes = range(tuples, len(updates.lens))
    out_slices = (*(0,) * tuples, *out.strides[depth:])
    space = collapse(updates.lens, [updates.strides, out_slices], order_by=1, axes=slice_axes)
    lens, strides = space.lens or (1,), [s or (1,) for s in space.strides]
    each = collapse(
        updates.lens, [indices.strides[:-1] + (0,) * len(slice_axes), updates.strides], 0, axes=range(tuples)
    )
    arguments, storage, compute = _operands(combine, indices, updates, out)
    lanes = mover_lanes(out.type, lens[-1]) if combine == "none" else host.lanes(compute)
    least = minimum(RUN_BYTES // out.type.size, prod(lens) // FEWEST_CHUNKS)  # of each of many slices
    weight = maximum(prod(each.lens), 1)
    loop = RowLoop(arguments, lens[:-1], [s[:-1] for s in strides], lens[-1], lanes, weight, least=least)
    inner = [s[-1] for s in strides]
    step = [arguments.step(f"t{k}", s) for k, s in enumerate(inner)]
    counts = [arguments.integer(f"m{d}", n) for d, n in enumerate(each.lens)]
    walks = [_walk(arguments, f"{name}", each.strides[k]) for k, name in enumerate("iu")]

    def body(left: str) -> list[str]:
        new = cast_text(load_text("q", "c", inner[0], step[0], lanes, left), storage, compute)
        if combine != "none":
            old = cast_text(load_text("w", "c", inner[1], step[1], lanes, left), storage, compute)
            new = f"{_COMBINE[combine]}({old}, {new})"
        return [*fetched, store_text("w", "c", inner[1], step[1], cast_text(new, compute, storage), left)]

    uncached = each.rank and known_in(inner[0], 1) and known_less(machine().l2_bytes, updates.footprint)
    fetched = [f"prefetch(q, {arguments.integer('below', each.strides[1][-1])} + c)"] if uncached else []
    checks = Checks(arguments, checked or [True] * depth)
    wrong: list[str] = []
    lines = [f"t = offset(p_indices, {walks[0]})", "place = 0", "inside = True"]
    for k in range(depth):
        length = arguments.integer(f"length{k}", out.lens[k])
        scale = arguments.integer(f"scale{k}", out.strides[k])
        start = arguments.integer(f"tuple{k}", k * indices.strides[-1])
        lines += [
            *checks.read(k, f"at{k}", f"load_scalar(t, {start})", indices.type, length),
            f"inside = inside and at{k} >= 0 and at{k} < {length}",
            f"place += at{k} * {scale}",
        ]
        if note := checks.note(k, f"at{k}"):
            wrong += [f"if {checks.outside(f'at{k}', length)}:", *indent(note)]
    lines += [
        "if inside:",
        *indent(
            [
                f"q = offset(r_updates, {walks[1]})",
                "w = offset(r_out, place)",
                *vector_loop(lanes, body),
            ],
        ),
        *(["else:", *indent(wrong)] if wrong else []),
    ]
    for d in range(len(counts) - 1, -1, -1):
        lines = [f"for j{d} in range({counts[d]}):", *indent(lines)]
    inside = [
        f"r_updates = offset(p_updates, {loop.offset(0)})",
        f"r_out = offset(p_out, {loop.offset(1)})",
        *lines,
    ]
    kernel = loop.kernel(f"scatternd_{combine}_kernel", inside, origin, checks.begin(), epilogue=checks.end())
    moved = indices.footprint + 2 * updates.footprint
    bounds = tuple(axis_text(k, n) for k, n in enumerate(out.lens[:depth]))
    return loop.launch(kernel, updates.lens, moved, checks=bounds)


def _operands(combine: str, indices: Tensor, updates: Tensor, out: Tensor) -> tuple[Arguments, str, str]:
    """Return the arguments with the pointers, and the dtypes in which elements are stored and combined."""
    storage, compute = _dtypes(combine, out)
    arguments = Arguments()
    arguments.pointer("p_indices", "indices", dtype_name(indices.type))
    arguments.pointer("p_updates", "updates", storage)
    arguments.pointer("p_out", "out", storage)
    return arguments, storage, compute


def _dtypes(combine: str, out: Tensor) -> tuple[str, str]:
    """Return the dtypes in which elements are stored and combined."""
    if combine == "none":
        return mover(out.type), mover(out.type)
    return dtype_name(out.type), dtype_name(out.type.compute)


def _walk(arguments: Arguments, name: str, strides: Sequence[Length]) -> str:
    """Return the expression of the offset at the loop counters ``j0``, ``j1``, ...."""
    terms = [f"j{d} * {arguments.integer(f'{name}_{d}', s)}" for d, s in enumerate(strides) if not known_in(s, 0)]
    return " + ".join(terms) or "0"
