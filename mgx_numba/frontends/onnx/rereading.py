"""Registration of the reader of deferred ONNX nodes, on import of this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.deferred import Reader, register_reader
from ...interrupts import whole_module

if TYPE_CHECKING:
    from ...graph.folding import Constants
    from ...graph.program import Program

__all__: list[str] = []


def _reader(program: Program, constants: Constants) -> Reader:
    whole_module("mgx_numba.frontends.onnx.reader")
    from .reader import OnnxReader

    return OnnxReader(program, constants)


register_reader("onnx", _reader)
