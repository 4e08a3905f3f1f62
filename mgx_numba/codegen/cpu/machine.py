"""The machine model of plans: sizes and rates on which the CPU back end bases block sizes and estimates.

The instruction set is in `Host`. The cache line (`host.CACHE_LINE`) is not part of the model: kernels are also compiled
in other processes, which know only the CPU.
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

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL_LAST_CACHE = 32 << 20  # a desktop's, or that of one core complex of a server

_AMX_L2 = 2 << 20  # a core of Sapphire, Emerald or Granite Rapids (Intel's product pages)


@dataclass(frozen=True)
class Machine:
    """One machine. Defaults were measured on, or are properties of, the Zen 5 on which kernels were tuned.

    Attributes:
        cpu: the CPU as LLVM sees it, restricted by ``MGX_CPU_FEATURES``.
        last_cache_bytes: the largest cache of the first CPU as Linux reports it, else 32 MiB. Larger tensors are
            written past the caches, and read with prefetching.
        l1_bytes: the L1 data cache of a core. It limits how much of a row or column is kept on a kernel's stack. It is
            not asked of the system, as results of reductions would depend on it.
        l2_bytes: the L2 cache of a core, which blocks of contractions share; 2 MiB for a server core with AMX (Intel,
            Sapphire Rapids and later). It is not asked of the system, as blocks, and with them rounding, would depend
            on it.
        clock: cycles per second under vector load; estimates of solvers are in cycles.
        bytes_per_second: memory traffic of all threads together.
        row_part_elements: elements of a row from which a separate task for a part of it pays.
        reduced_part_elements: elements of a reduction from which a separate task for a part of it, and a combining
            launch, pay.
        reduced_share: elements of such a part for each of its results, so that the partial results are small beside the
            operands.
        repeated_elements: elements from which a reduction is made in parts although operands are re-read for it.
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
        """Return the width (bits) of the vector registers that kernels use: 512, 256 or 128."""
        return self.cpu.vector_bits


_used: list[Machine] = []


def machine() -> Machine:
    """Return the machine of this process, or the machine set by `using`."""
    return _used[-1] if _used else _machine(host.host())


@contextlib.contextmanager
def using(other: Machine) -> Iterator[Machine]:
    """Plan in this context, in any thread, for another machine with this CPU.

    Raises:
        OptionError: the other machine's CPU is not the CPU that kernels are compiled for.
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
