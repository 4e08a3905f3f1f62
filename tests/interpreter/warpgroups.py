"""Warpgroup functions of the interpreter: MMA from shared memory, and accumulators in registers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.architecture import WARP
from mgx_numba.codegen.gpu.products import PRODUCTS, Product
from mgx_numba.core.types import numpy_dtype
from mgx_numba.dataclass import dataclass

from .asynchronous import ROW, STEP_BYTES, WARPGROUP, BlockAsync
from .memory import KernelFault

__all__ = [
    "WARPGROUP_NAMES",
    "HeldSums",
    "add_sums",
    "finite_sums",
    "fma_sums",
    "row_of_turns",
    "scale_sums",
    "sums_in_turns",
    "sums_part",
    "sums_row",
    "wgmma_zero",
]


@dataclass(frozen=True)
class HeldSums:
    """A thread's accumulators (float32 or int32). ``group`` is the number, from 1, of the last MMA group that adds to
    them; ``ready`` once it is known to be complete."""

    numbers: np.ndarray
    group: int = 0
    ready: bool = True


def wgmma_zero(dtype: type, columns: int) -> HeldSums:
    """See the vocabulary."""
    return HeldSums(np.zeros(columns // 2, dtype))


def _ready(sums: HeldSums) -> np.ndarray:
    if not sums.ready:
        raise KernelFault("reads sums that products may still be adding to")
    return sums.numbers


def sums_part(sums: HeldSums, part: int) -> np.ndarray:
    """See the vocabulary."""
    return _ready(sums)[4 * part : 4 * part + 4]


def scale_sums(sums: HeldSums, x: np.float32, y: np.float32) -> HeldSums:
    """See the vocabulary."""
    return HeldSums((_ready(sums).reshape(-1, 4) * np.array([x, x, y, y])).ravel())


def fma_sums(sums: HeldSums, x: np.float32, y: np.float32, more: HeldSums) -> HeldSums:
    """See the vocabulary."""
    factors = np.array([x, x, y, y], np.float64)  # whose products are exact
    whole = _ready(sums).reshape(-1, 4) * factors + _ready(more).reshape(-1, 4)
    return HeldSums(whole.astype(np.float32).ravel())


def add_sums(sums: HeldSums, more: HeldSums) -> HeldSums:
    """See the vocabulary."""
    return HeldSums(_ready(sums) + _ready(more))


def finite_sums(sums: HeldSums) -> np.int32:
    """See the vocabulary."""
    return np.int32(np.isfinite(_ready(sums)).all())


def sums_row(lanes: Sequence[tuple[Any, ...]]) -> list[np.ndarray]:
    """See the vocabulary; of all lanes of a warp."""
    held = np.stack([_ready(sums) for sums, *_ in lanes])
    return list(held[_places_of_row(*lanes[0][1:])])


@functools.lru_cache(maxsize=256)
def _places_of_row(row: int, part: int, wide: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lane and the number of each accumulator that `sums_row` gives a lane."""
    lanes = np.arange(WARP)[:, None]
    columns = np.array([4 * wide * part + _first_of(lane % 4, wide) + np.arange(wide) for lane in range(WARP)])
    return lanes - lanes % 4 + columns % 8 // 2, columns // 8 * 4 + 2 * row + columns % 2


def sums_in_turns(sums: HeldSums, row: int, part: int, wide: int) -> np.ndarray:
    """See the vocabulary."""
    return _ready(sums)[_places_in_turns(row, part, wide)]


@functools.lru_cache(maxsize=256)
def _places_in_turns(row: int, part: int, wide: int) -> np.ndarray:
    """Return the numbers of the accumulators that `sums_in_turns` gives a thread."""
    return 4 * (part * wide // 2 + np.arange(wide) // 2) + 2 * row + np.arange(wide) % 2


def row_of_turns(lanes: Sequence[tuple[Any, ...]]) -> list[np.ndarray]:
    """See the vocabulary; of all lanes of a warp."""
    held = np.stack([own for (own,) in lanes])
    return list(held[_places_of_turns(held.shape[1])])


@functools.lru_cache(maxsize=16)
def _places_of_turns(wide: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lane and the number of each element that `row_of_turns` gives a lane."""
    lanes = np.arange(WARP)[:, None]
    columns = np.array([_first_of(lane % 4, wide) + np.arange(wide) for lane in range(WARP)])
    return lanes - lanes % 4 + columns % 8 // 2, columns // 8 * 2 + columns % 2


def _first_of(q: int, wide: int) -> int:
    """Return the first column of thread ``q`` of four, each with ``wide`` neighbouring columns."""
    return q * wide if wide != 4 else 8 * (q % 2) + 4 * (q // 2)


def _rows() -> np.ndarray:
    """Return the first row of each thread of a warpgroup."""
    thread = np.arange(WARPGROUP)
    return thread // 32 * 16 + thread % 32 // 4


@functools.lru_cache(maxsize=64)
def _places(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of each accumulator, by thread and number."""
    number, thread = np.arange(columns // 2), np.arange(WARPGROUP)
    rows = _rows()[:, None] + number // 2 % 2 * 8
    return rows, number // 4 * 8 + thread[:, None] % 4 * 2 + number % 2


def _multiplied(
    product: Product, sync: BlockAsync, first: int, held: np.ndarray, left: Any, b: Any, turned: int, steps: int
) -> list[Any]:
    """Return each thread's accumulators after an MMA; ``held`` are the accumulators before."""
    rows, columns = _places(2 * held.shape[1])
    whole = np.empty((64, 2 * held.shape[1]), held.dtype)
    whole[rows, columns] = held
    whole, group = sync.multiply(product, first, whole, left, b, turned, steps)
    return [HeldSums(numbers, group, False) for numbers in whole[rows, columns]]


def _expect_one(found: set[Any]) -> None:
    if len(found) > 1:
        raise KernelFault("the threads of a warpgroup multiply different operands")


def _multiply(product: Product) -> Callable[[BlockAsync, int, Sequence[tuple[Any, ...]]], list[Any]]:
    def call(sync: BlockAsync, first: int, operands: Sequence[tuple[Any, ...]]) -> list[Any]:
        _expect_one({(a.start, b.start, *how) for _, a, b, *how in operands})
        return _multiplied(product, sync, first, np.stack([o[0].numbers for o in operands]), *operands[0][1:])

    return call


def _multiply_first(product: Product) -> Callable[[BlockAsync, int, Sequence[tuple[Any, ...]]], list[Any]]:
    def call(sync: BlockAsync, first: int, operands: Sequence[tuple[Any, ...]]) -> list[Any]:
        _expect_one({(columns, a.start, b.start, *how) for columns, a, b, *how in operands})
        none = np.zeros((WARPGROUP, operands[0][0] // 2), numpy_dtype(product.accumulator))
        return _multiplied(product, sync, first, none, *operands[0][1:])

    return call


def _multiply_held(product: Product) -> Callable[[BlockAsync, int, Sequence[tuple[Any, ...]]], list[Any]]:
    rows, columns = _places(ROW // product.size)

    def call(sync: BlockAsync, first: int, operands: Sequence[tuple[Any, ...]]) -> list[Any]:
        _expect_one({(b.start, turned) for *_, b, turned in operands})
        *_, b, turned = operands[0]
        words = np.stack([o[1] for o in operands]).view(numpy_dtype(product.a))
        left = np.empty((64, words.shape[1] * 2), words.dtype)
        left[rows[:, : words.shape[1]], columns[:, : words.shape[1]]] = words
        steps = left.shape[1] * product.size // STEP_BYTES
        return _multiplied(product, sync, first, np.stack([o[0].numbers for o in operands]), left, b, turned, steps)

    return call


def _commit(sync: BlockAsync, first: int, operands: Sequence[tuple[Any, ...]]) -> list[Any]:
    sync.commit(first)
    return [None] * WARPGROUP


def _wait(sync: BlockAsync, first: int, operands: Sequence[tuple[Any, ...]]) -> list[Any]:
    complete = sync.wait(first, operands[0][1])
    return [HeldSums(sums.numbers, sums.group, sums.group <= complete) for sums, _ in operands]


WARPGROUP_NAMES: dict[str, Callable[[BlockAsync, int, Sequence[tuple[Any, ...]]], list[Any]]] = {
    "wgmma_commit": _commit,
    "wgmma_wait": _wait,
    **{f"wgmma_{product.name}": _multiply(product) for product in PRODUCTS.values()},
    **{f"wgmma_{product.name}_first": _multiply_first(product) for product in PRODUCTS.values()},
    **{f"wgmma_{product.name}_held": _multiply_held(product) for product in PRODUCTS.values() if product.size == 2},
}
"""Functions that the 128 threads of a warpgroup call together: each thread's result from all operands."""
