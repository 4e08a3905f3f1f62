"""Device properties that measured times depend on."""

from __future__ import annotations

from ..._version import __version__
from ...errors import DeviceError
from ..platform import platform
from ..tuning.record import DeviceFingerprint
from .architecture import WARP, chosen
from .driver.device import device
from .machine import multiprocessors


def device_fingerprint() -> DeviceFingerprint:
    """Return the fingerprint of the device in use: ``cores`` are its multiprocessors, ``vector_bits`` a warp of
    float32. Without a device, that of a large anonymous device, for plans that are made without a device."""
    versions = platform()
    made_by = (("llvmlite", versions.llvmlite), ("mgx_numba", __version__), ("numba", versions.numba))
    try:
        here = device()
    except DeviceError:
        arch = chosen()
        names = () if arch is None else (arch.name,)
        return DeviceFingerprint("", names, multiprocessors(), 32 * (WARP if arch is None else arch.wave), made_by)
    driver = ("cuda driver", str(here.driver.version))
    return DeviceFingerprint(
        here.name, (here.architecture.name,), here.multiprocessors, 32 * here.architecture.wave, (driver, *made_by)
    )
