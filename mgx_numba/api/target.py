"""``target`` and ``get_target``."""

from __future__ import annotations

from ..errors import OptionError, UnsupportedError
from ..targets.registry import missing, target_names

NOT_HERE = ("fpga",)
"""Targets of MIGraphX that exist here only if a plugin registers them."""


class target:
    """A compilation target, obtained from ``get_target``."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """Return the name that was passed to `get_target`."""
        return self._name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, target) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"target({self._name!r})"


def get_target(name: str) -> target:
    """Return the target of this name.

    Raises:
        UnsupportedError: this process lacks a requirement of the target, such as a device (the message names it); or
            the target is ``fpga`` and none is registered (`targets.registry`).
        OptionError: the target is unknown; the message lists the known targets.
    """
    known = target_names()
    if name in known:
        lacking = missing(name)
        if not lacking:
            return target(name)
        others = ", ".join(n for n in known if n != name)
        raise UnsupportedError(f"target {name!r} is not available here: {lacking}; available: {others}")
    if name in NOT_HERE:
        raise UnsupportedError(f"target {name!r} is not available here; available: {', '.join(known)}")
    raise OptionError(f"unknown target {name!r}; available: {', '.join(known)}")


def get_gpu_context() -> target:
    """Return the GPU target.

    Raises:
        UnsupportedError: there is no GPU.
    """
    return get_target("gpu")
