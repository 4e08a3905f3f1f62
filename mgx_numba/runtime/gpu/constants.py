"""Constants of plans in device memory, stored once for all plans."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np

from ...core.pages import memory_owner
from ...dataclass import dataclass
from ..memory import address_of
from .device_allocator import DeviceBlock, Packed, owned
from .engine import Engine


@dataclass(frozen=True)
class PlacedConstant:
    """A constant's ``address`` on the device, and the ``block`` that has it."""

    address: int
    block: DeviceBlock


class DeviceConstants:
    """A thread-safe cache of an engine's copies of constant host arrays, which live as long as the arrays."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._nothing: PlacedConstant | None = None
        self._known: dict[tuple[int, int], tuple[weakref.ref[np.ndarray], PlacedConstant]] = {}

    def placed(self, arrays: Sequence[np.ndarray]) -> list[PlacedConstant]:
        """Return the device addresses of C-contiguous arrays; new arrays are copied to one new block.

        Arrays of objects, which only the host holds, and empty arrays share one address.

        Raises:
            DeviceError: there is not enough memory.
        """
        with self._lock:
            placed = [self._find(array) for array in arrays]
            new = [k for k, known in enumerate(placed) if known is None]
            if new:
                for key in [key for key, (owner, _) in self._known.items() if owner() is None]:
                    del self._known[key]
                packed = Packed([arrays[k].nbytes for k in new])
                block = owned(self._engine, packed.size, "the program's constants")
                with self._engine.use():
                    queue = self._engine.queue()
                    for k, start in zip(new, packed.starts):
                        array, here = arrays[k], PlacedConstant(block.address + start, block)
                        placed[k] = here  # keep it: another array over the same memory may replace the cache entry
                        self._known[_key(array)] = weakref.ref(memory_owner(array)), here
                        queue.upload(here.address, array.reshape(-1).view(np.uint8))
                    queue.wait()
            return [one for one in placed if one is not None]

    def _find(self, array: np.ndarray) -> PlacedConstant | None:
        if not array.nbytes or array.dtype.hasobject:
            if self._nothing is None:
                block = owned(self._engine, 1, "the program's constants")
                self._nothing = PlacedConstant(block.address, block)
            return self._nothing
        known = self._known.get(_key(array))
        return None if known is None or known[0]() is not memory_owner(array) else known[1]


def _key(array: np.ndarray) -> tuple[int, int]:
    return address_of(array), array.nbytes
