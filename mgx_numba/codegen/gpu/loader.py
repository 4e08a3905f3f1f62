"""Load kernels: object store, then compiler, then driver."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import CompileError, DeviceError
from ..backend import Progress
from ..kernel import KernelSource
from ..store import Store
from ..traces import dump_kernels
from ..workers.objects import objects_of
from .architecture import Architecture
from .driver.device import Device, device, selected_architecture

_ELF = b"\x7fELF"


def assembled(source: KernelSource, code: bytes) -> bytes:
    """Return the cubin of PTX if a device of the architecture is present, else the code itself.

    Raises:
        CompileError: the code is not this kernel's, or the driver refuses it.
    """
    if not loadable(source, code):
        raise CompileError("the worker compiles for another environment")
    arch = selected_architecture()
    here = _device_of(arch) if arch.nvidia else None
    return code if here is None else here.cubin(code)


def _assembly(source: KernelSource) -> str:
    from .toolchain.compiler import assembly

    return assembly(source, selected_architecture())


def _device_of(arch: Architecture) -> Device | None:
    try:
        here = device()
    except DeviceError:
        return None
    return here if here.architecture == arch else None


def loadable(source: KernelSource, data: bytes) -> bool:
    """Return whether ``data`` is a cubin, an AMD object, or PTX that contains this kernel."""
    symbol = source.symbol.encode()
    return symbol in data and (data.startswith(_ELF) or b".visible .entry " + symbol in data)


def load(sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None) -> list[int]:
    """Return the function handles of kernels on the device in use, in the order of the sources.

    Raises:
        DeviceError: there is no device.
        CompileError: a kernel cannot be compiled.
    """
    here = device()
    dump_kernels(sources, _assembly)
    objects = objects_of(list({source.symbol: source for source in sources}.values()), progress, store)
    return [here.function(source.symbol, objects[source.symbol]) for source in sources]
