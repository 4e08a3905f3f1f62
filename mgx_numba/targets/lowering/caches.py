"""Update caches: copy the cache to its update, unless a run has both in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...codegen.launch import Launch
from ...core.dim import Length, common_divisor, known_equal, known_same, minimum
from ...core.shape import Shape
from ...core.types import Type
from ...graph.instruction import Instruction
from ...runtime.plan import Jump, Region
from .buffers import View

if TYPE_CHECKING:
    from .lowering import Lowering
    from .steps import PendingStep

MOVED_SIZES = (1, 2, 4, 8)
"""Sizes (bytes) of elements that the copying kernels move."""


def is_standard(shape: Shape) -> bool:
    """Return whether the strides are row-major at all lengths."""
    wanted = shape.to_standard().strides
    pairs = zip(shape.lens, shape.strides, wanted)
    return all(known_equal(n, 1) or known_equal(own, other) for n, own, other in pairs)


def keep_or_copy(low: Lowering, cache: View, out: View, ins: Instruction, launch: Callable[..., Launch]) -> None:
    """Append a step that copies a cache [b, h, p, d] to ``out`` [b, h, t, d], and fills missing positions with zeros.

    The step does nothing where the run has both in the same memory. The lengths may be those of any tensors that differ
    in the axis before the last at most.

    Args:
        out: the target, which is row-major if it has other lengths than the cache.
        launch: `cache_copy_launch` of the target.
    """
    plain = cache.type.size in MOVED_SIZES and is_standard(out.shape)
    if known_same(cache.lens, out.lens) and not (plain and is_standard(cache.shape)):
        low.copy(cache, out, ins)
        return
    cache = low.materialized(cache, cache.shape.to_standard().strides, ins)
    row = out.lens[-1] if len(out.lens) > 1 else 1
    rows = Shape(out.type, out.lens[:-2]).elements if len(out.lens) > 2 else 1
    given, length = (view.lens[max(0, len(view.lens) - 2)] * row for view in (cache, out))
    type = _widest(out.type, given, length, cache.offset, out.offset)
    given, length = (n // (type.size // out.type.size) for n in (given, length))
    made = low.solve(launch, rows, minimum(given, length), given, length, type, low.origin(ins))
    operands = {"x": cache, "out": out}
    for one in made.launches:
        before = len(low.draft.steps)
        low.launch(one, operands, ins)
        if len(low.draft.steps) > before and _is_whole(cache, Region.PARAMETER) and _is_whole(out, Region.OUTPUT):
            low.draft.cache_copies.append(low.draft.steps[-1])


def _widest(type: Type, *multiples: Length) -> Type:
    """Return the largest integer type of `MOVED_SIZES` in which some numbers of elements are whole."""
    for wide in (Type.uint64_type, Type.uint32_type, Type.uint16_type):
        lanes = wide.size // type.size
        if lanes > 1 and all(common_divisor(n) % lanes == 0 for n in multiples):
            return wide
    return type


def _is_whole(view: View, region: Region) -> bool:
    return view.buffer.region is region and known_equal(view.offset, 0) and is_standard(view.shape)


def updates(
    copies: Sequence[PendingStep], steps: Sequence[PendingStep], jumps: Sequence[Jump]
) -> tuple[tuple[int, int], ...]:
    """Return the pairs of output and parameter that may be the same memory.

    No step after the copy may read the parameter, and none before it may touch the output. A step in a loop or branch
    runs more than once, or not at all.

    Args:
        copies: steps that copy a parameter to an output unless both are the same memory.
        steps: all steps, in order.
        jumps: the plan's jumps.
    """
    if not copies:
        return ()
    number = {id(step): k for k, step in enumerate(steps)}
    touched: dict[tuple[Region, int], list[int]] = {}
    for k, step in enumerate(steps):
        for view in (*step.operands.values(), *step.inputs, *step.outputs):
            touched.setdefault((view.buffer.region, view.buffer.index), []).append(k)
    found: dict[int, int] = {}
    for step in copies:
        at = number.get(id(step))
        output, parameter = step.operands["out"].buffer.index, step.operands["x"].buffer.index
        if at is None or any(min(j.at, j.to) <= at <= max(j.at, j.to) for j in jumps):
            continue
        if touched[Region.PARAMETER, parameter][-1] == at == touched[Region.OUTPUT, output][0]:
            found[output] = parameter
    pairs = [(o, p) for o, p in found.items() if list(found.values()).count(p) == 1]
    return tuple(pairs)
