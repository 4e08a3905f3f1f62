"""Registry of readers, which expand deferred nodes (`ops.deferred.Deferred`) into operators.

A frontend registers its reader under the name that its nodes carry; this module knows no model format.
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


class Reader(Protocol):
    """Expand deferred nodes into operators in all modules of a program."""

    def expand(self, module: Module, op: Deferred, inputs: Sequence[Instruction]) -> list[Instruction]:
        """Append the operators of a deferred node to ``module`` and return the node's results, in order.

        Raises:
            UnknownValueError: a value that must be constant is unknown; the module is unchanged.
            MgxError: the node cannot be read, or does not fit the inputs.
        """


_READERS: dict[str, Callable[[Program, Constants], Reader]] = {}


_MODULES = {"onnx": "mgx_numba.frontends.onnx.reader", "torch": "mgx_numba.frontends.torch.rereading"}
"""Modules of this package that register readers, by reader name."""


def register_reader(name: str, make: Callable[[Program, Constants], Reader]) -> None:
    """Register a reader; ``make(program, constants)`` creates it for a program and the program's known values."""
    _READERS[name] = make


def reader(name: str, program: Program, constants: Constants) -> Reader:
    """Return a new reader of this name for a program.

    Raises:
        UnsupportedError: there is no reader of this name.
    """
    if name in _MODULES and name not in _READERS:  # a program with saved plans needs no frontend until now
        whole_module(_MODULES[name])
    make = _READERS.get(name)
    if make is None:
        raise UnsupportedError(f"deferred nodes of {name!r} cannot be read; known are: {', '.join(_READERS) or 'none'}")
    return make(program, constants)
