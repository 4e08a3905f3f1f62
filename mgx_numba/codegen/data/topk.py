"""The first few elements of a row in sorted order (``topk``).

A row is read once. The best elements so far are kept sorted in scratch memory; a vector of which no element
beats the worst of them costs one comparison, any other is inserted element by element.
"""

from __future__ import annotations

from math import prod

from ..cluster.collapse import collapse
from ..cluster.text import Slots, Tensor, dtype_name, footprint, indent, load_text
from ..cpu import host
from ..launch import Launch
from .rows import RowLoop, cast_text, vector_loop

__all__ = ["LARGEST_K", "topk_launch"]

LARGEST_K = 1024


def topk_launch(
    k: int, axis: int, largest: bool, x: Tensor, values: Tensor, positions: Tensor, origin: str = ""
) -> Launch:
    """One launch for the ``k`` (1 to `LARGEST_K`) largest or smallest elements along an axis, best first.

    Operands are named ``x``, ``values`` and ``positions`` (int64). Of equal elements the one with the lower
    position comes first; NaN counts as larger than any number.
    """
    kept = [a for a in range(len(x.lens)) if a != axis]
    lens = tuple(1 if a == axis else n for a, n in enumerate(x.lens))
    space = collapse(lens, [x.strides, values.strides, positions.strides], order_by=0, axes=kept)
    storage = dtype_name(x.type)
    compute = "uint8" if storage == "bool" else dtype_name(x.type.compute)
    lanes, step = host.lanes(compute), x.strides[axis]
    slots = Slots()
    slots.pointer("p_x", "x", storage)
    slots.pointer("p_values", "values", storage)
    slots.pointer("p_positions", "positions", "int64")
    loop = RowLoop(slots, space.lens, space.strides, x.lens[axis], lanes, 4, whole=True)
    slots.integer("k", k)
    t = slots.integer("t0", step) if step not in (0, 1) else ""
    value_step = slots.integer("value_step", values.strides[axis])
    position_step = slots.integer("position_step", positions.strides[axis])

    def beats(a: str, b: str) -> str:
        if largest:
            return f"arg_gt({a}, {b})"
        if not x.type.is_floating:
            return f"lt({a}, {b})"
        return f"logical_or(lt({a}, {b}), logical_and(isnan({b}), logical_not(isnan({a}))))"

    def insert(left: str) -> list[str]:
        place = f"(c + e) * {t}" if t else "c + e" if step else "0"
        candidate = [
            f"a = {cast_text(f'load_scalar(r_x, {place})', storage, compute)}",
            f"if count < k or {beats('a', 'load_scalar(best, k - 1)')}:",
            *indent(
                [
                    "p = imin(count, k - 1)",
                    f"while p > 0 and {beats('a', 'load_scalar(best, p - 1)')}:",
                    "    store_scalar(best, p, load_scalar(best, p - 1))",
                    "    store_scalar(at, p, load_scalar(at, p - 1))",
                    "    p -= 1",
                    "store_scalar(best, p, a)",
                    "store_scalar(at, p, c + e)",
                    "count = imin(count + 1, k)",
                ],
                1,
            ),
        ]
        each = [f"for e in range({left or lanes}):", *indent(candidate, 1)]
        if left:
            return each
        loaded = cast_text(load_text("r_x", "c", step, t, lanes), storage, compute)
        return [
            "wanted = count < k",
            "if count == k:",
            f"    v = {loaded}",
            f"    worst = load_splat(best, k - 1, {lanes})",
            f"    wanted = reduce_or({beats('v', 'worst')})",
            "if wanted:",
            *indent(each, 1),
        ]

    stored = cast_text("load_scalar(best, e)", compute, storage)
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"r_values = offset(p_values, {loop.offset(1)})",
        f"r_positions = offset(p_positions, {loop.offset(2)})",
        "count = 0",
        *vector_loop(lanes, insert),
        "for e in range(k):",
        f"    store_scalar(r_values, e * {value_step}, {stored})",
        f"    store_scalar(r_positions, e * {position_step}, load_scalar(at, e))",
    ]
    prologue = [f"best = local_{compute}({LARGEST_K})", f"at = local_int64({LARGEST_K})"]
    return Launch(
        kernel=loop.kernel("topk_kernel", inside, origin, prologue),
        args=tuple(slots.values),
        tasks=loop.tasks if 0 not in x.lens else 0,
        flops=prod(x.lens),
        bytes=footprint(x) + footprint(values) + footprint(positions),
    )
