"""What warpgroups call together, in the interpreter: products from a block's memory, and sums that threads hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..products import PRODUCTS, Product
from .asynchronous import WARPGROUP, BlockAsync
from .memory import KernelFault, Place

__all__ = ["WARPGROUP_NAMES", "HeldSums", "store_sums", "wgmma_zero"]


@dataclass(frozen=True)
class HeldSums:
    """A thread's sums, float32 or int32; ``ready`` when no product that adds to them is on the way."""

    numbers: np.ndarray
    ready: bool = True


def wgmma_zero(dtype: type, columns: int) -> HeldSums:
    """See the vocabulary."""
    return HeldSums(np.zeros(columns // 2, dtype))


def store_sums(p: Place, i: int, pitch: int, sums: HeldSums, first: int, count: int) -> None:
    """See the vocabulary."""
    if not sums.ready:
        raise KernelFault("stores sums that products may still be adding to")
    for half in (0, 1):
        for j in range(count):
            at = 4 * (first + j) + 2 * half
            p.write(i + half * 8 * pitch + 8 * j, sums.numbers[at : at + 2])


def _rows() -> np.ndarray:
    """The first row of each thread of a warpgroup."""
    thread = np.arange(WARPGROUP)
    return thread // 32 * 16 + thread % 32 // 4


def _places(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each of a thread's sums, by thread and number."""
    number, thread = np.arange(columns // 2), np.arange(WARPGROUP)
    rows = _rows()[:, None] + number // 2 % 2 * 8
    return rows, number // 4 * 8 + thread[:, None] % 4 * 2 + number % 2


def _multiply(product: Product) -> Callable[[BlockAsync, int, Sequence[tuple[Any, ...]]], list[Any]]:
    def call(sync: BlockAsync, first: int, operands: Sequence[tuple[Any, ...]]) -> list[Any]:
        _, a, b, turned = operands[0]
        if any((o[1].start, o[2].start, o[3]) != (a.start, b.start, turned) for o in operands):
            raise KernelFault("the threads of a warpgroup multiply different operands")
        held = np.stack([o[0].numbers for o in operands])
        rows, columns = _places(2 * held.shape[1])
        whole = np.empty((64, 2 * held.shape[1]), held.dtype)
        whole[rows, columns] = held
        whole = sync.multiply(product, first, whole, a, b, turned)
        return [HeldSums(numbers, False) for numbers in whole[rows, columns]]

    return call


def _commit(sync: BlockAsync, first: int, operands: Sequence[tuple[Any, ...]]) -> list[Any]:
    sync.commit(first)
    return [None] * WARPGROUP


def _wait(sync: BlockAsync, first: int, operands: Sequence[tuple[Any, ...]]) -> list[Any]:
    ready = sync.wait(first, operands[0][1])
    return [HeldSums(sums.numbers, ready) for sums, _ in operands]


WARPGROUP_NAMES: dict[str, Callable[[BlockAsync, int, Sequence[tuple[Any, ...]]], list[Any]]] = {
    "wgmma_commit": _commit,
    "wgmma_wait": _wait,
    **{f"wgmma_{product.name}": _multiply(product) for product in PRODUCTS.values()},
}
"""Names that the 128 threads of a warpgroup call together: each thread's result, from the operands of all."""
