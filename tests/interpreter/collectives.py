"""Functions that the threads of a warp, a wave or a warpgroup call together, for whole warps of threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.architecture import WARP
from mgx_numba.codegen.gpu.products import PRODUCTS, Product
from mgx_numba.core.types import numpy_dtype

from .asynchronous import WARPGROUP, BlockAsync, added_products, kept_by_tf32
from .lanes import Lanes, is_varying
from .matrix_cores import MATRIX_NAMES, WAVES
from .memory import Place
from .warpgroups import WARPGROUP_NAMES, row_of_turns, sums_row

__all__ = ["collective_names"]


def _shuffle(who: Lanes, x: Any, mask: int) -> Any:
    return x[..., np.arange(who.count) ^ mask] if is_varying(x) and x.shape[-1] > 1 else x


def _mma(product: Product, who: Lanes, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the MMA of 16 rows by 8 columns; `lang.tensor_cores` documents the fragment layout."""
    own, a, b = (np.broadcast_to(x, (len(x), who.count)).T.reshape(-1, 8, 4, len(x)) for x in (c, a, b))
    words = a.swapaxes(2, 3)
    rows = np.concatenate([words[:, :, ::2], words[:, :, 1::2]], 1).reshape(-1, 16, 8)
    columns = b.swapaxes(2, 3).reshape(-1, 8, 8)
    sums = np.concatenate([own[..., :2], own[..., 2:]], 1).reshape(-1, 16, 8)
    left, right = rows.view(numpy_dtype(product.a)), columns.view(numpy_dtype(product.b))
    if product.a == "float32":
        left, right = kept_by_tf32(left), kept_by_tf32(right)
    sums = added_products(sums.astype(numpy_dtype(product.accumulator), copy=False), left, right)
    return sums.reshape(-1, 2, WARP, 2).transpose(1, 3, 0, 2).reshape(4, who.count)


def _ldmatrix(turned: bool, who: Lanes, p: Place, i: Any) -> np.ndarray:
    """Return four tiles of eight 16-byte rows, from the lanes' pointers."""
    readers = who.numbers // WARP * WARP  # the rows go to other lanes: a lane's own writes need a barrier, too
    found = p.read(i, 16 // p.dtype.itemsize, 16, readers)
    found = np.broadcast_to(found, (len(found), who.count))
    tiles = found.T.reshape(-1, 4, 8, len(found))
    whole = np.ascontiguousarray(tiles.swapaxes(2, 3) if turned else tiles).view(np.int32)
    return whole.reshape(-1, 4, WARP).swapaxes(0, 1).reshape(4, who.count)


_WARP_NAMES: dict[str, Callable[..., Any]] = {
    "shuffle_xor": _shuffle,
    "shuffle_halves": lambda who, x: _shuffle(who, x, WARP),
    "ldmatrix4": functools.partial(_ldmatrix, False),
    "ldmatrix4_turned": functools.partial(_ldmatrix, True),
    "row_of_turns": row_of_turns,
    "sums_row": sums_row,
    **{f"mma_{product.name}": functools.partial(_mma, product) for product in PRODUCTS.values()},
    **MATRIX_NAMES,
}


def collective_names(who: Lanes, sync: Callable[[], BlockAsync], first: int) -> dict[str, Callable[..., Any]]:
    """Return the functions, which check that all threads of each warp or warpgroup call them.

    Args:
        sync: returns the asynchronous operations of the running cluster.
        first: number in its cluster of the first of ``who``.
    """

    def of_warps(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        size = WAVES.get(name, WARP)

        def call(*operands: Any) -> Any:
            who.expect_whole(size, name)
            return function(who, *operands)

        return call

    def of_warpgroup(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*operands: Any) -> Any:
            who.expect_whole(WARPGROUP, name)
            return function(sync(), first, *operands)

        return call

    def warp_barrier() -> None:
        for threads in who.meet_in_warps():
            begin = first - who.first + threads.start
            sync().meet(range(begin, begin + WARP))

    return {
        **{name: of_warps(name, function) for name, function in _WARP_NAMES.items()},
        **{name: of_warpgroup(name, function) for name, function in WARPGROUP_NAMES.items()},
        "warp_barrier": warp_barrier,
    }
