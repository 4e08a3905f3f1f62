"""What times measured on this GPU depend on besides the problem."""

from __future__ import annotations

from ..._version import __version__
from ..platform import platform
from ..tuning.record import DeviceFingerprint
from .driver.device import device

__all__ = ["device_fingerprint"]


def device_fingerprint() -> DeviceFingerprint:
    """Of the first device: ``cores`` are its multiprocessors, ``vector_bits`` those of a warp of float32."""
    here, versions = device(), platform()
    return DeviceFingerprint(
        here.name,
        (here.architecture.name,),
        here.multiprocessors,
        32 * here.architecture.wave,
        (
            ("cuda driver", str(here.driver.version)),
            ("llvmlite", versions.llvmlite),
            ("mgx_numba", __version__),
            ("numba", versions.numba),
        ),
    )
