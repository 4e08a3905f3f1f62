"""The GPU that the cost models plan for: its size and rates.

Records are from published numbers, those of an H200 and an H100 in use from measurements. A device without a record is
described by the driver's attributes. Without a device, a record of the architecture to compile for is taken. A record
that the driver's ``tune --gpu`` measured stays in the cache folder, and comes before all others.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path

from ...dataclass import dataclass
from ...errors import DeviceError
from ..files import default_folder, make_folder, read_trusted, replace_file
from .architecture import ARCHITECTURES, Architecture, chosen, device_in_use, lowering_for
from .driver.device import device, model_name


@dataclass(frozen=True)
class GpuMachine:
    """Rates and sizes of a device, which the cost models read.

    Attributes:
        name: part of the driver's name of the device.
        architecture: name in `ARCHITECTURES`, which has the instruction set and the shared memory of a block.
        multiprocessors: number of multiprocessors.
        clock: Hz under load.
        bandwidth: bytes/s of a copy in DRAM, reads and writes.
        l2_bytes: size of the L2 cache.
        warp_products: 16-bit multiplications/cycle of a multiprocessor by ``mma.sync``.
        fma_lanes: float32 multiply-adds/cycle of a multiprocessor.
    """

    name: str
    architecture: str
    multiprocessors: int
    clock: float
    bandwidth: float
    l2_bytes: int
    warp_products: float = 770.0
    fma_lanes: int = 128


COPIED, SUSTAINED, REACHED = 0.875, 0.886, 0.75
"""Ratios of rates in use to published rates. Copies and clock: 4.2 TB/s of 4.8, and 1.755 GHz under the load of tensor
cores of 1.98, of an H200. ``mma.sync``: 770 of an A100's 1024 multiplications per cycle; an H200 reaches 770, too."""

_GIGA, _TERA, _MEGABYTE = 1e9, 1e12, 1 << 20
"""The prefixes of the data sheets' units."""


def _published(
    name: str, arch: str, cores: int, gigahertz: float, terabytes: float, l2_megabytes: int, products: int, lanes: int
) -> GpuMachine:
    """Return the record of a device with these peak rates; ``products`` are of 16-bit operands with float32 sums."""
    rates = SUSTAINED * gigahertz * _GIGA, COPIED * terabytes * _TERA
    return GpuMachine(name, arch, cores, *rates, l2_megabytes * _MEGABYTE, REACHED * products, lanes)


H200 = GpuMachine("H200", "sm_90a", 132, 1.755e9, 4.2e12, 50 << 20)
# White papers and data sheets: A100 SXM 80 GB, L40S (Ada), GeForce RTX 5090 and 5070 Ti, and B200 (Blackwell). The H100
# SXM differs from the H200 in its memory alone.
MACHINES: tuple[GpuMachine, ...] = (
    H200,
    GpuMachine("H100", "sm_90a", 132, 1.755e9, 2.93e12, 50 << 20),
    _published("A100", "sm_80", 108, 1.41, 2.039, 40, 1024, 64),
    _published("L40S", "sm_89", 142, 2.52, 0.864, 96, 512, 128),
    _published("RTX 5090", "sm_120a", 170, 2.41, 1.792, 96, 256, 128),
    _published("RTX 5070 Ti", "sm_120a", 70, 2.45, 0.896, 48, 256, 128),
    _published("B200", "sm_100a", 148, 1.965, 8.0, 126, 1024, 128),
)
"""Records. Of an architecture the first record stands for devices that are not there."""

_given: ContextVar[GpuMachine | None] = ContextVar("mgx_gpu_machine", default=None)


@contextmanager
def planning_for(given: GpuMachine) -> Iterator[None]:
    """Plan for ``given`` within the ``with`` block, in this thread, whatever devices are there."""
    token = _given.set(given)
    try:
        with lowering_for(ARCHITECTURES[given.architecture]):
            yield
    finally:
        _given.reset(token)


def machine(number: int | None = None) -> GpuMachine:
    """Return the machine to plan for: that of `planning_for`, a device's (by default of `device_in_use`), or a record
    of the chosen architecture."""
    given = _given.get()
    if given is not None:
        return given
    try:
        return machine_of_device(device_in_use() if number is None else number)
    except DeviceError:
        return _of_architecture(chosen())


def multiprocessors(number: int | None = None) -> int:
    """Return the multiprocessors of the machine to plan for."""
    return machine(number).multiprocessors


@functools.lru_cache(maxsize=64)
def machine_of_device(number: int) -> GpuMachine:
    """Return the kept record of a device, else the record with its name and size, else its attributes.

    Raises:
        DeviceError: there is no such device.
    """
    here = device(number)
    with contextlib.suppress(ValueError, TypeError):  # a file of another version
        return GpuMachine(**json.loads(kept_text(model_name(here.name, here.multiprocessors))))
    for known in MACHINES:
        if known.name in here.name and known.multiprocessors == here.multiprocessors:
            return known
    like = _of_architecture(here.architecture)
    return GpuMachine(
        here.name, here.architecture.name, here.multiprocessors, SUSTAINED * here.clock, COPIED * here.bandwidth,
        here.l2_bytes, like.warp_products, like.fma_lanes,
    )  # fmt: skip


def keep_machine(record: GpuMachine, model: str) -> Path:
    """Store the record of a device (`driver.device.model_of`) for this and later processes; return the file.

    Raises:
        OSError: the cache folder cannot be written.
    """
    path = _path_of(model)
    make_folder(path.parent)
    replace_file(path, json.dumps(asdict(record), indent=1).encode())
    machine_of_device.cache_clear()
    return path


def kept_text(model: str) -> str:
    """Return the kept record of a device as JSON; empty without one."""
    try:
        return read_trusted(_path_of(model)).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _path_of(model: str) -> Path:
    return default_folder() / f"gpu-{re.sub('[^A-Za-z0-9]+', '-', model)}.json"


def _of_architecture(arch: Architecture | None) -> GpuMachine:
    found = (known for known in MACHINES if arch is not None and known.architecture == arch.name)
    return next(found, H200)
