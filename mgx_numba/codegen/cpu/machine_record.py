"""Machine records: measured rates of a CPU, on which the cost model is based.

A record of a known CPU model ships with the package (`SHIPPED`). Any other CPU is measured once, in the background of
the first compilation (`runtime.cpu.rates`), and its record stays in the cache folder. Until then, and where
measuring fails, a generic record applies: of the vendor's statements on an ARM CPU, else of the instruction set.

A measured record is quantised: rates are rounded to `STEPS_OF_OCTAVE` values an octave, so that noise between two
measurements rarely changes it, and a repeated measurement keeps old values that differ by less than `KEPT`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

from ...dataclass import dataclass
from ...errors import OptionError
from ..files import default_folder, make_folder, read_trusted, replace_file
from ..platform import is_pretended, platform
from .host import EMULATED_TILES, Host

ENVIRONMENT = "MGX_MACHINE"
"""Names the record to use: a shipped record, ``generic``, or the path of a JSON file. Nothing is measured then."""
SHIPPED = Path(__file__).parent / "machines"
"""Records of known CPU models, one file for each, by LLVM's name of the CPU.

``stated/arm.json`` has what is known of ARM CPUs that nobody measured: clock rates, memory and L2 caches by their
vendors, units and widths of loads by Arm's software optimisation guides. The other rates are assumed: half of the L1
cache's rate from the L2 cache, and one thread's share of the memory's.
"""
GENERIC = "generic"
MEASURED = "measured"
ESTIMATED = "estimated"
"""Name of a record whose measurement was disturbed by other work: it applies until a measurement is not."""
ESTIMATE_SECONDS = 24 * 3600
"""Age (s) of an estimated record from which a process measures again: a measurement takes over half a second of a core,
which no process should spend on a machine that is always busy."""
STEPS_OF_OCTAVE = 4
"""Values of a quantised rate between a number and its double: neighbours are 19% apart."""
KEPT = 1.3
"""Ratio of a repeated measurement to the kept value up to which the kept value stays."""
LEVELS = ("l1", "l2", "last", "memory")
_RATES = ("fma", "tiles", "load", "store", "methods")


@dataclass(frozen=True)
class MachineRecord:
    """Measured rates of one machine; a mapping without an entry leaves the rate open.

    Attributes:
        name: LLVM's name of the CPU, `GENERIC`, `MEASURED`, or `ESTIMATED`.
        model: name of the CPU as the system states it, and where the record comes from; for readers.
        threads: threads of the rates "of all threads".
        l2_bytes: size of a core's L2 cache.
        l1_sets, l1_ways: sets of a core's L1 data cache, and lines of a set.
        fma: 1e9 vector instructions per second of one thread, by vector width in bits: fused multiply-adds of float32.
        tiles: 1e9 operations per second of one thread that runs a register tile over operands in the L2 cache, by
            `RegisterTile.name`.
        load, store: 1e9 bytes per second, by level of `LEVELS`: of one thread, and of all threads together.
        barrier: seconds from the end of a step to the begin of the next for all threads.
        claim: seconds of one thread to claim and start a task.
        methods: for methods that rewrite arithmetic (`Solver.method`), the factor by which their measured times exceed
            the estimates, relative to plain methods; from `bench.fit_choices`, not from measuring at the first use.
    """

    name: str
    model: str = ""
    threads: int = 1
    l2_bytes: int = 1 << 20
    l1_sets: int = 64
    l1_ways: int = 12
    fma: Mapping[str, float] = field(default_factory=dict)
    tiles: Mapping[str, float] = field(default_factory=dict)
    load: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    store: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    barrier: float = 2e-6
    claim: float = 1e-7
    methods: Mapping[str, float] = field(default_factory=dict)

    def quantised(self) -> MachineRecord:
        """Return this record with each rate and duration rounded to the nearest of `STEPS_OF_OCTAVE` an octave."""
        return self.mapped(lambda _, value: _nearest(value))

    def steadied(self, before: MachineRecord) -> MachineRecord:
        """Return this record with the values of ``before`` wherever both agree within a factor of `KEPT`."""
        known = before._values()

        def kept(place: str, value: float) -> float:
            old = known.get(place, 0.0)
            return old if old and 1 / KEPT <= value / old <= KEPT else value

        return self.mapped(kept)

    def _values(self) -> dict[str, float]:
        """Return all rates and durations by their places."""
        found: dict[str, float] = {}
        self.mapped(lambda place, value: found.setdefault(place, value))
        return found

    def mapped(self, change: Callable[[str, float], float]) -> MachineRecord:
        """Return this record with ``change(place, value)`` for each rate and duration; ``place`` names the value."""

        def each(place: str, value: Any) -> float | tuple[float, ...]:
            if isinstance(value, tuple):
                return tuple(change(f"{place} {n}", one) for n, one in enumerate(value))
            return change(place, value)

        made: dict[str, Any] = {name: change(name, getattr(self, name)) for name in ("barrier", "claim")}
        for name in _RATES:
            made[name] = {key: each(f"{name} {key}", value) for key, value in getattr(self, name).items()}
        return replace(self, **made)

    def to_json(self) -> str:
        """Return the record as JSON text with a line for each field."""
        lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in asdict(self).items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @staticmethod
    def from_json(text: str | bytes) -> MachineRecord:
        """Return the record of a JSON text.

        Raises:
            ValueError: the text is not a record.
        """
        given = json.loads(text)
        known = {own.name for own in fields(MachineRecord)}
        if not isinstance(given, dict) or not known.issuperset(given) or "name" not in given:
            raise ValueError("not a machine record")
        for name in _RATES:
            values = given.get(name, {})
            given[name] = {key: tuple(v) if isinstance(v, list) else v for key, v in dict(values).items()}
        found = MachineRecord(**given)
        if not all(isinstance(v, (int, float)) and 0 < v < math.inf for v in found._values().values()):
            raise ValueError("a rate of the machine record is not a positive number")
        for name in ("threads", "l2_bytes", "l1_sets", "l1_ways"):
            if type(value := getattr(found, name)) is not int or value < 1:
                raise ValueError(f"{name} of the machine record is {value!r}, expected a positive integer")
        if not found.fma or len(found.load.get("memory", ())) != 2:
            raise ValueError("the machine record lacks the rate of multiply-adds or of loads from memory")
        return found

    def __str__(self) -> str:
        """Return the record in one line."""
        parts = [self.name + (f" ({self.model})" if self.model else "")]
        parts += [f"multiply-adds of {bits} bits {rate:.3g}e9/s" for bits, rate in self.fma.items()]
        parts += [f"{name} {rate:.4g} GFLOP/s" for name, rate in self.tiles.items()]
        for title in ("load", "store"):
            for level, (one, every) in getattr(self, title).items():
                parts.append(f"{title} {level} {one:.3g} GB/s, {every:.4g} on {self.threads} threads")
        return "; ".join([*parts, f"barrier {self.barrier * 1e6:.2g} us", f"claim {self.claim * 1e9:.3g} ns"])


def record_for(cpu: Host) -> MachineRecord:
    """Return the record that applies to this process: named by `ENVIRONMENT`, shipped, measured, or generic.

    Raises:
        OptionError: the variable names no record.
    """
    chosen = os.environ.get(ENVIRONMENT, "")
    if chosen:
        return named_record(chosen, cpu)
    shipped = SHIPPED / f"{platform().cpu}.json"
    with contextlib.suppress(OSError, ValueError):
        return MachineRecord.from_json(shipped.read_bytes())
    if not is_pretended():
        with contextlib.suppress(OSError, ValueError, TypeError):
            return MachineRecord.from_json(read_trusted(record_path(cpu)))
    return generic_record(cpu)


def named_record(name: str, cpu: Host) -> MachineRecord:
    """Return the shipped record ``name``, the generic record of ``cpu``, or the record in a JSON file.

    Raises:
        OptionError: there is no such record.
    """
    if name == GENERIC:
        return generic_record(cpu)
    path = Path(name) if name.endswith(".json") else SHIPPED / f"{name}.json"
    try:
        return MachineRecord.from_json(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        known = ", ".join((GENERIC, *sorted(p.stem for p in SHIPPED.glob("*.json"))))
        raise OptionError(
            f"{ENVIRONMENT}={name!r}: {error}; expected one of {known}, or the path of a .json file"
        ) from None


def generic_record(cpu: Host) -> MachineRecord:
    """Return the record of a CPU that was not measured: its vendor's statements, or another CPU's with its
    instructions."""
    if "neon" in cpu.features:
        stated = json.loads((SHIPPED / "stated" / "arm.json").read_bytes())
        found = stated.get(platform().cpu, stated["neoverse-n1"])
        return MachineRecord.from_json(json.dumps({"name": GENERIC, **found}))
    if "amx-tile" in cpu.features or EMULATED_TILES in cpu.features:
        like = "emeraldrapids"
    else:
        like = "znver3" if "avx2" in cpu.features and cpu.vector_bits < 512 else "znver5"
    found = MachineRecord.from_json((SHIPPED / f"{like}.json").read_bytes())
    return replace(found, name=GENERIC, model=f"rates of {like}", methods={})


def to_be_measured(cpu: Host) -> bool:
    """Return whether this machine's record should be measured: neither named nor shipped nor kept, or kept as an
    estimate that is older than `ESTIMATE_SECONDS`."""
    if os.environ.get(ENVIRONMENT) or is_pretended():
        return False
    name = record_for(cpu).name
    if name == ESTIMATED:
        with contextlib.suppress(OSError):
            return time.time() - record_path(cpu).stat().st_mtime > ESTIMATE_SECONDS
    return name in (GENERIC, ESTIMATED)


def keep_record(cpu: Host, measured: MachineRecord) -> MachineRecord:
    """Store a quantised measurement in the cache folder for later processes, and return it.

    Values of an earlier record that still hold are kept, and all of them if this measurement was disturbed; the file
    then counts as new. A folder that cannot be written is no error.
    """
    made, path = measured.quantised(), record_path(cpu)
    with contextlib.suppress(OSError, ValueError, TypeError):
        before = MachineRecord.from_json(read_trusted(path))
        if made.name == ESTIMATED:
            with contextlib.suppress(OSError):
                os.utime(path)
            return before
        made = made.steadied(before)
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        replace_file(path, made.to_json().encode())
    return made


def record_path(cpu: Host) -> Path:
    """Return the file of this machine's measured record, named by CPU model, vector width and number of cores."""
    return default_folder() / f"machine-{platform().cpu}-{cpu.vector_bits}-{os.cpu_count()}.json"


def _nearest(value: float) -> float:
    """Return the nearest power of ``2 ** (1 / STEPS_OF_OCTAVE)``, to 3 digits."""
    return float(f"{2 ** (round(STEPS_OF_OCTAVE * math.log2(value)) / STEPS_OF_OCTAVE):.3g}")
