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
from ...environment import environment_text
from ...errors import OptionError
from ..platform import platform
from . import host
from .host import Host
from .machine_record import ENVIRONMENT, MachineRecord, record_for

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL_LAST_CACHE = 32 << 20  # a desktop's, or that of one core complex of a server

LAUNCH_SECONDS = 1e-6
"""Time (s) of one more launch beyond the barrier at its end: threads do not end together."""


@dataclass(frozen=True)
class Machine:
    """One machine: a machine record (`machine_record`) as the cost model uses it, and limits of kernels.

    Attributes:
        cpu: the CPU as LLVM sees it, restricted by ``MGX_CPU_FEATURES``.
        last_cache_bytes: the largest cache of the first CPU as Linux reports it, else 32 MiB. Larger tensors are
            written past the caches, and read with prefetching.
        l1_bytes: the L1 data cache of a core. It limits how much of a row or column is kept on a kernel's stack. It is
            not asked of the system, as results of reductions would depend on it.
        l1_sets, l1_ways: sets of the L1 data cache, and lines of a set, by the machine record.
        l2_bytes: the L2 cache of a core by the machine record, which blocks of contractions share.
        clock: half of the vector multiply-adds a second, which the estimates of solvers call cycles: the clock rate of
            a CPU with two units.
        bytes_per_second: memory traffic of all threads together.
        thread_bytes_per_second: memory traffic of one thread.
        launch_seconds: cost of one more launch, at whose end all threads meet.
        methods: see `MachineRecord.methods`.
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
    l1_sets: int = 64
    l1_ways: int = 12
    l2_bytes: int = 1 << 20
    clock: float = 3.5e9
    bytes_per_second: float = 9.0e10
    thread_bytes_per_second: float = 9.0e10
    launch_seconds: float = 2e-6
    methods: tuple[tuple[str, float], ...] = ()
    row_part_elements: int = 16 << 10
    reduced_part_elements: int = 64 << 10
    reduced_share: int = 64
    repeated_elements: int = 256 << 10

    def bandwidth(self, threads: int) -> float:
        """Return the bytes per second that this number of threads moves to and from memory."""
        return min(self.bytes_per_second, max(threads, 1) * self.thread_bytes_per_second)

    @property
    def vector_bits(self) -> int:
        """Return the width (bits) of the vector registers that kernels use: 512, 256 or 128."""
        return self.cpu.vector_bits


_used: list[Machine] = []


def machine() -> Machine:
    """Return the machine of this process, or the machine set by `using`."""
    return _used[-1] if _used else _machine(host.host(), platform().cpu, environment_text(ENVIRONMENT))


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


def machine_of(record: MachineRecord, cpu: Host) -> Machine:
    """Return the machine with the rates of a record, for kernels of the features of ``cpu``."""
    bits = str(cpu.vector_bits)
    clock = 1e9 * record.fma.get(bits, max(record.fma.values())) / 2
    one, every = record.load["memory"]
    return Machine(
        cpu,
        last_cache_bytes(),
        l1_sets=record.l1_sets,
        l1_ways=record.l1_ways,
        l2_bytes=record.l2_bytes,
        clock=clock,
        bytes_per_second=1e9 * every,
        thread_bytes_per_second=1e9 * one,
        launch_seconds=LAUNCH_SECONDS + record.barrier,
        methods=tuple(sorted(record.methods.items())),
    )


@functools.lru_cache(maxsize=8)
def _machine(cpu: Host, _name: str, _record: str) -> Machine:
    return machine_of(record_for(cpu), cpu)


def last_cache_bytes() -> int:
    """Return the bytes of the first CPU's largest cache, 32 MiB if unknown."""
    return cache_bytes() or _USUAL_LAST_CACHE


def l1_sets_and_ways() -> tuple[int, int]:
    """Return the sets of the first CPU's L1 data cache and the lines of a set, as Linux reports them; those of a cache
    of 48 KiB if unknown."""
    for path in _CACHES.glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            if ((path / "level").read_text().strip(), (path / "type").read_text().strip()) == ("1", "Data"):
                sets, ways = (int((path / name).read_text()) for name in ("number_of_sets", "ways_of_associativity"))
                if sets > 0 and ways > 0:
                    return sets, ways
    return Machine.l1_sets, Machine.l1_ways


def cache_bytes(level: int = 0) -> int:
    """Return the bytes of the first CPU's cache of ``level``, or of its largest cache for level 0, as Linux reports
    them; 0 if unknown."""
    sizes = [0]
    for path in _CACHES.glob("index*"):
        with contextlib.suppress(OSError, ValueError):  # as in "32768K"
            text = (path / "size").read_text().strip()
            if not level or (path / "level").read_text().strip() == str(level):
                sizes.append(int(text.rstrip("KMG")) << 10 * (1 + "KMG".find(text[-1:])))
    return max(sizes)
