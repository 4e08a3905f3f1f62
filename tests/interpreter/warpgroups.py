"""Warpgroup functions of the interpreter: MMA from shared memory, and accumulators in registers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.architecture import WARP
from mgx_numba.codegen.gpu.products import PRODUCTS, Product
from mgx_numba.core.types import numpy_dtype
from mgx_numba.dataclass import dataclass

from .asynchronous import ROW, STEP_BYTES, WARPGROUP, BlockAsync
from .lanes import KernelFault, Lanes, is_varying
from .memory import Place

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
    """Accumulators (float32 or int32) of threads: [accumulators, threads or 1]. ``group`` is the number, from 1, of the
    last MMA group that adds to them; ``ready`` once it is known to be complete."""

    numbers: np.ndarray
    group: int = 0
    ready: bool = True

    def blended(self, mask: np.ndarray, old: HeldSums) -> HeldSums:
        """Return these accumulators for active threads (``mask``), and ``old`` for inactive threads."""
        numbers = np.where(mask, self.numbers, old.numbers)
        return HeldSums(numbers, max(self.group, old.group), self.ready and old.ready)


def wgmma_zero(dtype: type, columns: int) -> HeldSums:
    """See the vocabulary."""
    return HeldSums(np.zeros((columns // 2, 1), dtype))


def _ready(sums: HeldSums) -> np.ndarray:
    if not sums.ready:
        raise KernelFault("reads sums that products may still be adding to")
    return sums.numbers


def sums_part(sums: HeldSums, part: int) -> np.ndarray:
    """See the vocabulary."""
    return _ready(sums)[4 * part : 4 * part + 4]


def scale_sums(sums: HeldSums, x: Any, y: Any) -> HeldSums:
    """See the vocabulary."""
    return HeldSums(_ready(sums) * _of_rows(sums, x, y))


def fma_sums(sums: HeldSums, x: Any, y: Any, more: HeldSums) -> HeldSums:
    """See the vocabulary."""
    factors = _of_rows(sums, x, y).astype(np.float64)  # whose products are exact
    return HeldSums((_ready(sums) * factors + _ready(more)).astype(np.float32))


def _of_rows(sums: HeldSums, x: Any, y: Any) -> np.ndarray:
    """Return the factor of each accumulator: ``x`` in a thread's first row, ``y`` in its second row."""
    factors = np.stack(np.broadcast_arrays(*map(np.atleast_1d, (x, x, y, y))))
    return np.tile(factors, (len(sums.numbers) // 4, 1))


def add_sums(sums: HeldSums, more: HeldSums) -> HeldSums:
    """See the vocabulary."""
    return HeldSums(_ready(sums) + _ready(more))


def finite_sums(sums: HeldSums) -> Any:
    """See the vocabulary."""
    found = np.isfinite(_ready(sums)).all(axis=0).astype(np.int32)
    return found if found.size > 1 else found[0]


def sums_row(who: Lanes, sums: HeldSums, row: int, part: int, wide: int) -> np.ndarray:
    """See the vocabulary; of whole warps."""
    return _exchanged(who, _ready(sums), *_places_of_row(row, part, wide))


def _exchanged(who: Lanes, held: np.ndarray, lanes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return, for each thread, the elements ``numbers`` of the threads ``lanes`` of its warp: [32, elements]."""
    warps = np.broadcast_to(held, (len(held), who.count)).reshape(len(held), -1, WARP)
    found = warps[numbers.T[:, None], np.arange(warps.shape[1])[:, None], lanes.T[:, None]]
    return found.reshape(len(found), who.count)


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


def row_of_turns(who: Lanes, held: np.ndarray) -> np.ndarray:
    """See the vocabulary; of whole warps."""
    return _exchanged(who, held, *_places_of_turns(len(held)))


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
    product: Product, sync: BlockAsync, first: int, held: np.ndarray, left: Any, b: Place, turned: int, steps: int
) -> HeldSums:
    """Return the accumulators after an MMA; ``held`` are the accumulators before, [accumulators, threads or 1]."""
    rows, columns = _places(2 * len(held))
    whole = np.empty((64, 2 * len(held)), held.dtype)
    whole[rows, columns] = held.T
    left = _common(left) if isinstance(left, Place) else left
    whole, group = sync.multiply(product, first, whole, left, _common(b), turned, steps)
    return HeldSums(whole[rows, columns].T, group, False)


def _common(p: Place) -> Place:
    """Return a pointer that all threads of a warpgroup share."""
    if not is_varying(p.start):
        return p
    if (p.start != p.start[0]).any():
        raise KernelFault("the threads of a warpgroup multiply different operands")
    return p.of_lane(0)


def _multiply(product: Product) -> Callable[..., HeldSums]:
    def call(sync: BlockAsync, first: int, sums: HeldSums, a: Place, b: Place, turned: int, steps: int) -> HeldSums:
        return _multiplied(product, sync, first, sums.numbers, a, b, turned, steps)

    return call


def _multiply_first(product: Product) -> Callable[..., HeldSums]:
    def call(sync: BlockAsync, first: int, columns: int, a: Place, b: Place, turned: int, steps: int) -> HeldSums:
        none = np.zeros((columns // 2, 1), numpy_dtype(product.accumulator))
        return _multiplied(product, sync, first, none, a, b, turned, steps)

    return call


def _multiply_held(product: Product) -> Callable[..., HeldSums]:
    rows, columns = _places(ROW // product.size)

    def call(sync: BlockAsync, first: int, sums: HeldSums, words: np.ndarray, b: Place, turned: int) -> HeldSums:
        words = np.broadcast_to(words, (len(words), WARPGROUP))
        own = np.ascontiguousarray(words.T).view(numpy_dtype(product.a))
        left = np.empty((64, own.shape[1] * 2), own.dtype)
        left[rows[:, : own.shape[1]], columns[:, : own.shape[1]]] = own
        steps = left.shape[1] * product.size // STEP_BYTES
        return _multiplied(product, sync, first, sums.numbers, left, b, turned, steps)

    return call


def _commit(sync: BlockAsync, first: int) -> None:
    sync.commit(first)


def _wait(sync: BlockAsync, first: int, sums: HeldSums, pending: int) -> HeldSums:
    complete = sync.wait(first, pending)
    return HeldSums(sums.numbers, sums.group, sums.group <= complete)


WARPGROUP_NAMES: dict[str, Callable[..., Any]] = {
    "wgmma_commit": _commit,
    "wgmma_wait": _wait,
    **{f"wgmma_{product.name}": _multiply(product) for product in PRODUCTS.values()},
    **{f"wgmma_{product.name}_first": _multiply_first(product) for product in PRODUCTS.values()},
    **{f"wgmma_{product.name}_held": _multiply_held(product) for product in PRODUCTS.values() if product.size == 2},
}
"""Functions that the 128 threads of a warpgroup call together, after the cluster's asynchronous operations and the
number of the warpgroup's first thread."""
