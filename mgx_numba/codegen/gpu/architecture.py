"""GPU architectures, and the one that this process compiles for.

``MGX_GPU_ARCH`` names it; otherwise it is the architecture of the device in use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ...dataclass import dataclass
from ...errors import OptionError

ENVIRONMENT = "MGX_GPU_ARCH"
WARP = 32
"""Threads per warp in kernel text: NVIDIA's number, and half or all of an AMD wave."""


@dataclass(frozen=True)
class Architecture:
    """One GPU instruction set.

    Attributes:
        name: LLVM's target CPU.
        triple: LLVM's target triple.
        features: LLVM's target features. For NVIDIA the lowest PTX version that has this target: LLVM aborts on a lower
            one, and a driver refuses one above its own.
        capability: NVIDIA's compute capability (major, minor); (0, 0) for AMD.
        wave: lanes that execute together.
        shared_bytes: most shared memory per block.
    """

    name: str
    triple: str
    features: str
    capability: tuple[int, int]
    wave: int
    shared_bytes: int

    @property
    def nvidia(self) -> bool:
        """Return whether this is an NVIDIA architecture."""
        return self.triple.startswith("nvptx")

    @property
    def clusters(self) -> bool:
        """Return whether thread block clusters exist: PTX ISA, "Cluster of Cooperative Thread Arrays"."""
        return self.nvidia and self.capability >= (9, 0)

    @property
    def copies(self) -> bool:
        """Return whether asynchronous copies exist: PTX ISA, "cp.async"."""
        return self.nvidia and self.capability >= (8, 0)

    @property
    def overlaps(self) -> bool:
        """Return whether programmatic dependent launch exists: kernels start early and wait for preceding launches (PTX
        ISA, "griddepcontrol")."""
        return self.nvidia and self.capability >= (9, 0)

    @property
    def vector_atomics(self) -> bool:
        """Return whether one instruction adds several float32 numbers to memory: PTX ISA, "red", ``.vec_32_bit``."""
        return self.nvidia and self.capability >= (9, 0)

    @property
    def warpgroups(self) -> bool:
        """Return whether warpgroup MMA exists: PTX ISA, "wgmma.mma_async"; Hopper only."""
        return self.nvidia and self.capability == (9, 0) and self.name.endswith("a")


_NVPTX, _AMDGCN = "nvptx64-nvidia-cuda", "amdgcn-amd-amdhsa"


def _nvidia(name: str, ptx: int, capability: tuple[int, int], kilobytes: int) -> Architecture:
    return Architecture(name, _NVPTX, f"+ptx{ptx}", capability, 32, kilobytes << 10)


def _amd(name: str, wave: int) -> Architecture:
    return Architecture(name, _AMDGCN, "", (0, 0), wave, 64 << 10)


# PTX versions: "Release notes" of the PTX ISA manual, table of targets; shared memory of a block: CUDA C++ programming
# guide, "Technical specifications per compute capability"; waves and LDS: LLVM's AMDGPU usage, "Processors".
ARCHITECTURES: dict[str, Architecture] = {
    a.name: a
    for a in (
        _nvidia("sm_75", 65, (7, 5), 64),
        _nvidia("sm_80", 70, (8, 0), 163),
        _nvidia("sm_86", 71, (8, 6), 99),
        _nvidia("sm_89", 84, (8, 9), 99),
        _nvidia("sm_90a", 84, (9, 0), 227),
        _nvidia("sm_100a", 86, (10, 0), 227),
        _nvidia("sm_120a", 87, (12, 0), 99),
        _amd("gfx90a", 64),
        _amd("gfx942", 64),
        _amd("gfx1100", 32),
        _amd("gfx1201", 32),
    )
}
"""All architectures by name."""

_given: ContextVar[Architecture | None] = ContextVar("mgx_gpu_architecture", default=None)


def architecture(name: str) -> Architecture:
    """Return the architecture ``name``.

    Raises:
        OptionError: it is unknown.
    """
    if name not in ARCHITECTURES:
        raise OptionError(f"unknown GPU architecture {name!r}; known: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def for_capability(capability: tuple[int, int]) -> Architecture | None:
    """Return the highest architecture that an NVIDIA device of this compute capability runs; None if there is none."""
    fitting = [
        a
        for a in ARCHITECTURES.values()
        if a.nvidia and (a.capability == capability or (a.capability < capability and not a.name.endswith("a")))
    ]
    return max(fitting, key=lambda a: a.capability, default=None)


@contextmanager
def lowering_for(given: Architecture) -> Iterator[None]:
    """Compile for ``given`` within the ``with`` block, in this thread."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


_number: ContextVar[int] = ContextVar("mgx_gpu_number", default=0)


@contextmanager
def lowering_on(number: int) -> Iterator[None]:
    """Plan, compile and load for device ``number`` within the ``with`` block, in this thread: devices of a machine may
    differ."""
    token = _number.set(number)
    try:
        yield
    finally:
        _number.reset(token)


def device_in_use() -> int:
    """Return the number of the device to plan, compile and load for: that of `lowering_on`, else the first."""
    return _number.get()


def chosen() -> Architecture | None:
    """Return the architecture of `lowering_for` or ``MGX_GPU_ARCH``; None if neither is set.

    Raises:
        OptionError: the variable names an unknown architecture.
    """
    given = _given.get()
    if given is None and os.environ.get(ENVIRONMENT):
        try:
            return architecture(os.environ[ENVIRONMENT])
        except OptionError as error:
            raise OptionError(f"environment variable {ENVIRONMENT}: {error}") from None
    return given
