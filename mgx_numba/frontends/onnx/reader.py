"""Reader of deferred ONNX nodes, which `deferred` has emitted, once the lengths or values they need are known.

Importing this module registers the reader.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence

from ...errors import ParseError, UnsupportedError
from ...graph.deferred import register_reader
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.program import Program
from ...ops.deferred import Deferred
from .deferred import LIMIT
from .model import Model, load_model
from .options import ParseOptions
from .parser import GraphParser


@functools.lru_cache(maxsize=4096)
def _decoded(source: str) -> Model:
    try:
        return load_model(base64.b64decode(source, validate=True))
    except ValueError as error:
        raise ParseError(f"a deferred node's source is damaged: {error}") from None


class OnnxReader:
    """A reader of deferred ONNX nodes into the modules of one program; see `graph.deferred.Reader`."""

    def __init__(self, program: Program, constants: Constants) -> None:
        self._program = program
        self._constants = constants

    def expand(self, module: Module, op: Deferred, inputs: Sequence[Instruction]) -> list[Instruction]:
        model = _decoded(op.source)
        if len(model.graph.input) != len(inputs) or len(model.graph.node) != 1:
            raise ParseError(f"a deferred {op.operator} has {len(inputs)} inputs, its source {len(model.graph.input)}")
        limits = [int(p.value) for p in model.proto.metadata_props if p.key == LIMIT and p.value.isdecimal()]
        options = ParseOptions(limit_max_iterations=limits[0]) if limits else ParseOptions()
        parser = GraphParser(model, options, self._program, self._constants, reread=True)
        results = parser.read_into(module, inputs)
        types = [s.type for s in op.result.flatten()]
        if [r.shape.type for r in results] != types:
            given = ", ".join(r.shape.type.name for r in results)
            raise UnsupportedError(f"{op.operator} gives {given}, expected {', '.join(t.name for t in types)}")
        return results


register_reader("onnx", OnnxReader)
