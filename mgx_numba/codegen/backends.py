"""The registry of back ends.

A back end is a module's ``BACKEND``; it is imported when first requested. Only a back end's own packages import it
directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..errors import OptionError
from ..interrupts import whole_module


class Registrable(Protocol):
    """The part of a back end that kernels and the registry need; see `backend.Backend` for the rest."""

    @property
    def name(self) -> str:
        """Return the name that kernels use (`KernelSource.backend`)."""

    def identity(self) -> Mapping[str, str]:
        """Return everything beside a kernel's text that its machine code depends on, by field: device, features,
        versions."""

    def architecture(self) -> str:
        """Return the architecture in use; "" for a back end that compiles for one architecture in a process."""


_MODULES = {"cpu": "mgx_numba.codegen.cpu.backend", "gpu": "mgx_numba.codegen.gpu.backend"}
"""Modules of the package's back ends."""

_backends: dict[str, object] = {}


def register(new: Registrable) -> None:
    """Register a back end under its name, replacing another."""
    _backends[new.name] = new


def registered(name: str) -> Any:
    """Return the back end of this name.

    Raises:
        OptionError: the name is unknown.
    """
    if name not in _backends:
        if name not in _MODULES:
            raise OptionError(f"unknown back end {name!r}; known: {', '.join(sorted({*_MODULES, *_backends}))}")
        register(whole_module(_MODULES[name]).BACKEND)
    return _backends[name]
