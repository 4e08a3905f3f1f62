"""``target`` and ``get_target``."""

from __future__ import annotations

from ..errors import OptionError, UnsupportedError

__all__ = ["get_gpu_context", "get_target", "target"]

_AVAILABLE = ("ref", "cpu")


class target:
    """A place to compile for; got from ``get_target``."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """``ref`` or ``cpu``."""
        return self._name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, target) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"target({self._name!r})"


def get_target(name: str) -> target:
    """The target of this name.

    Raises:
        UnsupportedError: ``gpu`` and ``fpga`` are not available.
        OptionError: no such target; the known ones are listed.
    """
    if name in _AVAILABLE:
        return target(name)
    if name in ("gpu", "fpga"):
        raise UnsupportedError(f"target {name!r} is not available here; available: {', '.join(_AVAILABLE)}")
    raise OptionError(f"unknown target {name!r}; available: {', '.join(_AVAILABLE)}")


def get_gpu_context() -> target:
    """The GPU target.

    Raises:
        UnsupportedError: there is none.
    """
    return get_target("gpu")
