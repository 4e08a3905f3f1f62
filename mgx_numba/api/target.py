"""``target`` and ``get_target``."""

from __future__ import annotations

from ..errors import OptionError, UnsupportedError
from ..targets.registry import missing, target_names

__all__ = ["NOT_HERE", "get_gpu_context", "get_target", "target"]

NOT_HERE = ("fpga",)
"""MIGraphX's targets that this package has only if somebody registers one."""


class target:
    """A place to compile for; got from ``get_target``."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """As `get_target` was given it."""
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
        UnsupportedError: this process lacks what the target needs, such as a device; the message says what. Or it is
            ``fpga``, and nobody has registered it (`targets.registry`).
        OptionError: no such target; the known ones are listed.
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
    """The GPU target.

    Raises:
        UnsupportedError: there is none.
    """
    return get_target("gpu")
