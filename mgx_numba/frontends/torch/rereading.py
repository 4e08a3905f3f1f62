"""Reader of deferred ATen nodes, registered on import of this module; it does not need PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import MgxError, UnsupportedError
from ...graph.deferred import register_reader
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.program import Program
from ...ops.deferred import Deferred
from .builder import AtenBuilder
from .emission import READER, build, decoded
from .node import located

__all__: list[str] = []


class AtenReader:
    """A reader of deferred ATen nodes into the modules of one program; see `graph.deferred.Reader`."""

    def __init__(self, program: Program, constants: Constants) -> None:
        self._program, self._constants = program, constants

    def expand(self, module: Module, op: Deferred, inputs: Sequence[Instruction]) -> list[Instruction]:
        node, args, kwargs, numbers = decoded(op.source, inputs)
        g = AtenBuilder(module, self._constants, self._program)
        g.lengths = {x for x, number in zip(inputs, numbers) if number}
        try:
            results = build(g, node, args, kwargs)
            found = [x for k in node.read() for x in results[k : k + 1] if x is not None]
            if len(found) != len(node.read()):
                raise UnsupportedError("a result is read that its builder does not give")
        except BaseException as error:
            g.take_back(0)
            if isinstance(error, MgxError):
                raise located(error, node) from error
            raise
        return found


register_reader(READER, AtenReader)
