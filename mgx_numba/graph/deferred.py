"""Readers of deferred nodes: what turns an `ops.deferred.Deferred` into operators, by the name in it.

A frontend registers its reader; nothing here knows any format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..errors import UnsupportedError
from ..interrupts import whole_module

if TYPE_CHECKING:
    from ..ops.deferred import Deferred
    from .folding import Constants
    from .instruction import Instruction
    from .module import Module
    from .program import Program

__all__ = ["Reader", "reader", "register_reader"]


class Reader(Protocol):
    """Writes operators for deferred nodes into the modules of one program."""

    def expand(self, module: Module, op: Deferred, inputs: Sequence[Instruction]) -> list[Instruction]:
        """Append what the node does to these inputs; its results are returned, in order.

        Raises:
            UnknownValueError: something that must be known is not; the module is as it was.
            MgxError: the node cannot be read, or does not fit the inputs.
        """


_READERS: dict[str, Callable[[Program, Constants], Reader]] = {}


_MODULES = {"onnx": "mgx_numba.frontends.onnx.rereading"}
"""Where readers of this package register themselves."""


def register_reader(name: str, make: Callable[[Program, Constants], Reader]) -> None:
    """Make a reader known: ``make`` gives one for a program, and for the values that are known of it."""
    _READERS[name] = make


def reader(name: str, program: Program, constants: Constants) -> Reader:
    """The reader of this name.

    Raises:
        UnsupportedError: there is none.
    """
    if name in _MODULES and name not in _READERS:  # no frontend was needed for a program whose plans are in a file
        whole_module(_MODULES[name])
    make = _READERS.get(name)
    if make is None:
        raise UnsupportedError(f"deferred nodes of {name!r} cannot be read; known are: {', '.join(_READERS) or 'none'}")
    return make(program, constants)
