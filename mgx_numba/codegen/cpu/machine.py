"""The machine that plans are made for: what sizes and estimates of the CPU back end go by.

What instructions there are is the `Host`'s. A cache line (`host.CACHE_LINE`) is no part of this: kernels are compiled
in other processes, too, which know the CPU only.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from ...dataclass import dataclass
from ...errors import OptionError
from . import host
from .host import Host

__all__ = ["Machine", "machine", "using"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL_LAST_CACHE = 32 << 20  # of a desktop or one core complex of a server

_AMX_L2 = 2 << 20  # of a core of Sapphire, Emerald and Granite Rapids, by Intel's product pages


@dataclass(frozen=True)
class Machine:
    """One machine. What has a default was measured on, or is of, the Zen 5 that kernels were tuned on.

    Attributes:
        cpu: the CPU as LLVM sees it, as narrowed by ``MGX_CPU_FEATURES``.
        last_cache_bytes: the largest cache of the first CPU as Linux tells it, 32 MiB where the system does not.
            Tensors above it are written past the caches, and read with the next part being fetched.
        l1_bytes: the L1 data cache of a core. It says how much of a row or column is kept on a kernel's stack, and is
            not asked of the system: results of reductions would depend on it.
        l2_bytes: the L2 cache of a core, which blocks of contractions share. That of a server's core with AMX is 2 MiB
            (Intel, Sapphire Rapids and later); it is not asked of the system: blocks, and with them rounding, would
            depend on it.
        clock: cycles per second under vector load; estimates of solvers are in cycles.
        bytes_per_second: memory traffic of all threads together.
        row_part_elements: elements of a row from which a part of it is worth a task of its own.
        reduced_part_elements: elements of a reduction from which a part is worth a task, and a launch that combines.
        reduced_share: elements of such a part for each of its results, so that the results of all parts are little
            beside the operands.
        repeated_elements: elements from which a reduction is made in parts although operands are read again for it.
    """

    cpu: Host
    last_cache_bytes: int
    l1_bytes: int = 48 << 10
    l2_bytes: int = 1 << 20
    clock: float = 3.5e9
    bytes_per_second: float = 9.0e10
    row_part_elements: int = 16 << 10
    reduced_part_elements: int = 64 << 10
    reduced_share: int = 64
    repeated_elements: int = 256 << 10

    @property
    def vector_bits(self) -> int:
        """Width of the vector registers that kernels use: 512, 256 or 128."""
        return self.cpu.vector_bits


_used: list[Machine] = []


def machine() -> Machine:
    """The machine of this process, or the one that is in use."""
    return _used[-1] if _used else _machine(host.host())


@contextlib.contextmanager
def using(other: Machine) -> Iterator[Machine]:
    """Plans that are made meanwhile, in any thread, are made for another machine with this CPU.

    Raises:
        OptionError: the other machine's CPU is not the one that kernels are compiled for.
    """
    here = host.host()
    if other.cpu != here:
        raise OptionError(
            f"kernels are for the CPU {here.name!r} as narrowed here, the machine's is {other.cpu.name!r}"
        )
    _used.append(other)
    try:
        yield other
    finally:
        _used.pop()


@functools.lru_cache(maxsize=8)
def _machine(cpu: Host) -> Machine:
    return Machine(cpu, _last_cache_bytes(), **({"l2_bytes": _AMX_L2} if "amx-tile" in cpu.features else {}))


def _last_cache_bytes() -> int:
    sizes = [0]
    for path in _CACHES.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):  # as in "32768K"
            text = path.read_text().strip()
            sizes.append(int(text.rstrip("KMG")) << 10 * (1 + "KMG".find(text[-1:])))
    return max(sizes) or _USUAL_LAST_CACHE
