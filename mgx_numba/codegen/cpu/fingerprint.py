"""The fingerprint of this CPU: the properties that measured times depend on besides the problem."""

from __future__ import annotations

import os

from ..._version import __version__
from ..platform import platform
from ..tuning.record import DeviceFingerprint
from .host import host


def device_fingerprint() -> DeviceFingerprint:
    """Return this machine's fingerprint: its CPU, with the features that kernels use."""
    cpu, here = host(), platform()
    versions = ("llvmlite", here.llvmlite), ("mgx_numba", __version__), ("numba", here.numba)
    return DeviceFingerprint(here.cpu, tuple(sorted(cpu.features)), os.cpu_count() or 1, cpu.vector_bits, versions)
