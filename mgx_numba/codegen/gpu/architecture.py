"""The architectures that kernels are compiled for, and which one this process compiles for.

``MGX_GPU_ARCH`` names one; otherwise it is that of the device in use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ...dataclass import dataclass
from ...errors import OptionError

__all__ = [
    "ARCHITECTURES", "ENVIRONMENT", "WARP", "Architecture", "architecture", "chosen", "for_capability", "lowering_for",
]  # fmt: skip

ENVIRONMENT = "MGX_GPU_ARCH"
WARP = 32
"""Threads of a warp, as kernels are written for: NVIDIA's number, and half or all of a wave of AMD's."""


@dataclass(frozen=True)
class Architecture:
    """One instruction set.

    Attributes:
        name: as LLVM's target calls it.
        triple: LLVM's target triple.
        features: LLVM's features; for NVIDIA the lowest version of PTX that has this target, and its products: LLVM
            aborts the process on a lower one, and a driver refuses one above its own.
        capability: NVIDIA's compute capability, major and minor; (0, 0) for AMD.
        wave: lanes that execute together.
        shared_bytes: shared memory that a block can have.
    """

    name: str
    triple: str
    features: str
    capability: tuple[int, int]
    wave: int
    shared_bytes: int

    @property
    def nvidia(self) -> bool:
        """Whether it is NVIDIA's."""
        return self.triple.startswith("nvptx")

    @property
    def clusters(self) -> bool:
        """Whether blocks can reach each other's memory: PTX ISA, "Cluster of Cooperative Thread Arrays"."""
        return self.nvidia and self.capability >= (9, 0)

    @property
    def copies(self) -> bool:
        """Whether memory comes to a block's memory beside threads' own work: PTX ISA, "cp.async"."""
        return self.nvidia and self.capability >= (8, 0)

    @property
    def overlaps(self) -> bool:
        """Whether its kernels begin with a wait for the launch before, so that their blocks may be there by then: PTX
        ISA, "griddepcontrol"."""
        return self.nvidia and self.capability >= (9, 0)

    @property
    def warpgroups(self) -> bool:
        """Whether tensor cores take operands from a block's memory: PTX ISA, "wgmma.mma_async", which Hopper alone
        has."""
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
"""Every architecture by name."""

_given: ContextVar[Architecture | None] = ContextVar("mgx_gpu_architecture", default=None)


def architecture(name: str) -> Architecture:
    """The architecture of this name.

    Raises:
        OptionError: there is none.
    """
    if name not in ARCHITECTURES:
        raise OptionError(f"unknown GPU architecture {name!r}; known: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def for_capability(capability: tuple[int, int]) -> Architecture | None:
    """What to compile for, for an NVIDIA device of this compute capability: the highest that it can run."""
    fitting = [
        a
        for a in ARCHITECTURES.values()
        if a.nvidia and (a.capability == capability or (a.capability < capability and not a.name.endswith("a")))
    ]
    return max(fitting, key=lambda a: a.capability, default=None)


@contextmanager
def lowering_for(given: Architecture) -> Iterator[None]:
    """While the block runs, in this thread, kernels are compiled for ``given``."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


def chosen() -> Architecture | None:
    """The architecture that `lowering_for` or ``MGX_GPU_ARCH`` names, None if neither does.

    Raises:
        OptionError: the variable names one that does not exist.
    """
    given = _given.get()
    if given is None and os.environ.get(ENVIRONMENT):
        try:
            return architecture(os.environ[ENVIRONMENT])
        except OptionError as error:
            raise OptionError(f"environment variable {ENVIRONMENT}: {error}") from None
    return given
