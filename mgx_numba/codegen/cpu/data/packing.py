"""Pack weights that are not constant, where packing only moves elements: a kernel reads a table of their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...statements import for_tasks, kernel_text
from ..kernel import cpu_kernel
from ..loops import claim

TASK = 4096
"""Elements of a task."""
_EXACT = 1 << 24
"""Numbers below it are exact in float32."""


def packing_places(
    pack: Callable[[np.ndarray], np.ndarray], lens: Sequence[int], strides: Sequence[int], dtype: np.dtype
) -> np.ndarray | None:
    """Return for each packed element 1 + the place in memory of the element that it is, or 0 where it is 0.

    None if packing computes, changes the type, or has too many elements.

    Args:
        pack: packs an array.
        strides: of the weights, in elements.
    """
    count = prod(lens)
    if dtype.name not in ("float32", "float64") or count >= _EXACT:
        return None
    packed = pack(np.arange(1, count + 1, dtype=dtype).reshape(lens))
    numbers = packed.astype(np.int64)
    if packed.dtype != dtype or (numbers != packed).any() or ((numbers < 0) | (numbers > count)).any():
        return None
    sample = np.random.default_rng(0).standard_normal(count).astype(dtype)
    if not np.array_equal(pack(sample.reshape(lens)), np.concatenate([np.zeros(1, dtype), sample])[numbers]):
        return None
    offsets = sum(n * s for n, s in zip(np.indices(lens, sparse=True), strides, strict=True))
    places = np.concatenate([[0], 1 + np.broadcast_to(offsets, lens).reshape(-1)])[numbers]
    return places.astype(np.int32) if places.max(initial=0) < 1 << 31 else None


def packing_launch(count: int, dtype: str, origin: str = "") -> Launch:
    """Return the launch that writes the elements of ``w`` at ``places`` (`packing_places`) to ``out``."""
    arguments = Arguments()
    for name, type in (("w", dtype), ("places", "int32"), ("out", dtype)):
        arguments.pointer(f"p_{name}", name, type)
    arguments.integer("count", count)
    task = [
        f"for c in range(task * {TASK}, imin(count, task * {TASK} + {TASK})):",
        "    place = cast_int64(load_scalar(p_places, c))",
        f"    value = const_{dtype}(0, 0)",
        "    if place > 0:",
        "        value = load_scalar(p_w, place - 1)",
        "    store_scalar(p_out, c, value)",
    ]
    tasks, traffic = -(-count // TASK), count * (4 + 2 * np.dtype(dtype).itemsize)
    return Launch(
        kernel=cpu_kernel("packing_kernel", kernel_text([*arguments.bind(), *for_tasks(task)]), origin),
        args=arguments.values,
        geometry=TaskRange(tasks, claim(tasks, traffic)),
        bytes=traffic,
    )
