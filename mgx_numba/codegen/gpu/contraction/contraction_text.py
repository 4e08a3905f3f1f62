"""Common code of all contraction kernel texts: arguments, prologue, epilogue and stores."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ....core.dim import Length, ceil_div
from ....core.types import Type, from_numpy, numpy_dtype
from ....errors import UnsupportedError
from ...arguments import Arguments
from ...printer import CodeBuffer, VectorValue
from ...problems.epilogue import ACCESSES
from ...problems.gemm import GemmProblem
from ..kernel import block_of_plane
from ..printer import ThreadPrinter
from .gpu_contraction import GpuContraction
from .operands import operands_of

ACCUMULATORS = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
    "int32": "int32",
}
"""Accumulator type of each result type."""


class ContractionText:
    """Kernel text of one contraction.

    Attributes:
        accumulator: dtype of the accumulators.
        out_dtype: dtype of the result.
        operands: index arithmetic of the operands.
        lanes: elements of the left operand per load; 0 for scalar loads.
    """

    lanes = 0

    def __init__(self, contraction: GpuContraction) -> None:
        """Prepare the text.

        Raises:
            UnsupportedError: no kernel accumulates the result type.
        """
        request = contraction.request
        problem, epilogue = request.problem, request.epilogue
        self.request, self.contraction = request, contraction
        if problem.types.out not in ACCUMULATORS:
            raise UnsupportedError(f"GPU kernels have no contractions that give {problem.types.out}")
        self.accumulator = ACCUMULATORS[problem.types.out]
        self.arguments = Arguments()
        self.arguments.pointer("p_x", "x", problem.types.a)
        in_blocks = isinstance(problem, GemmProblem) and problem.blocks is not None
        self.arguments.pointer("p_w", "w", "int32" if in_blocks else problem.types.b)
        self.out_dtype = epilogue.out_dtype(problem.types.out)
        self.arguments.pointer("p_out", "out", self.out_dtype)
        for k, operand in enumerate(epilogue.operands):
            self.arguments.pointer(f"p_e{k}", f"e{k}", operand.dtype)
        prologue = problem.prologue
        self._images: list[str] = []
        for k, before in enumerate(prologue.operands if prologue else ()):
            self.arguments.pointer(f"p_a{k}", f"a{k}", before.dtype)
            self._images.append(self.arguments.integer(f"ai{k}", sum(before.batch_strides)))
        self.operands = operands = operands_of(problem, epilogue, request.strides, self.arguments)
        self.arguments.integer("rows", operands.rows)
        self.arguments.integer("columns", operands.columns)
        self.arguments.integer("depth", operands.depth)

    def _tiles(self, rows: int, columns: int) -> Length:
        """Return the tiles per plane of the result."""
        found: Length = ceil_div(self.operands.rows, rows) * ceil_div(self.operands.columns, columns)
        return found

    def _begin(self, buffer: CodeBuffer, rows: int, columns: int) -> None:
        """Emit the arguments and the first row and column of the block's tile."""
        self.arguments.integer("across", ceil_div(self.operands.columns, columns))
        block = self._begin_plane(buffer, self._tiles(rows, columns))
        buffer.line(
            f"down = idiv({block}, across)",
            f"first_row = down * {rows}",
            f"first_column = ({block} - down * across) * {columns}",
        )

    def _begin_plane(self, buffer: CodeBuffer, blocks: Length) -> str:
        """Emit the arguments and the block's plane; return the block's index among the ``blocks`` of a plane."""
        block, places = block_of_plane(self.arguments, blocks, self.operands.planes)
        buffer.line(*self.arguments.bind(), "thread = thread_index(0)", *places)
        self.operands.begin(buffer)
        self._planes(buffer)
        return block

    def _planes(self, buffer: CodeBuffer) -> None:
        """Emit the pointers to the plane of each operand."""
        names = ["x", "w", "out", *(f"e{k}" for k in range(len(self.request.epilogue.operands)))]
        for k, name in enumerate(names):
            buffer.line(f"r_{name} = offset(p_{name}, {self.operands.plane_offset(k)})")

    def _prologue(self, buffer: CodeBuffer, loaded: str, along: str, image: str) -> str:
        """Emit the prologue of a loaded element of the left operand."""
        problem = self.request.problem
        if problem.prologue is None:
            return loaded
        printer = ThreadPrinter(buffer, self.lanes, problem.prologue.fast_math)
        values = [printer.loaded(loaded, problem.types.a)]
        for k, operand in enumerate(problem.prologue.operands):
            place = f"{image} * {self._images[k]}"
            if operand.access == "per_k":
                place += f" + plane * channels + {along}"
            if not self.lanes:
                text = f"load_scalar(p_a{k}, {place})"
            else:
                text = f"{'load' if operand.access == 'per_k' else 'load_splat'}(p_a{k}, {place}, {self.lanes})"
            values.append(printer.loaded(text, operand.dtype))
        return printer.stored(problem.prologue.body.evaluate(printer, values))

    def _store(
        self, buffer: CodeBuffer, sums: Sequence[str], row: str, column: str, lanes: int, aligned: bool = False
    ) -> None:
        """Emit the epilogue of accumulators and the store; ``sums`` has one name per accumulator of a result element.
        ``aligned``: all loads and stores are aligned vectors."""
        place, extras = self._extras(buffer, row, column, lanes, aligned)
        self._put(buffer, place, self._finished(buffer, sums, list(extras.values()), lanes), lanes, aligned)

    def _extras(
        self,
        buffer: CodeBuffer,
        row: str,
        column: str,
        lanes: int,
        aligned: bool,
        accesses: Container[str] = ACCESSES,
    ) -> tuple[str, dict[int, VectorValue]]:
        """Emit the loads of the epilogue's operands whose access is in ``accesses``.

        Returns:
            the offset of the result in its plane, and the loaded values by operand number.
        """
        epilogue = self.request.epilogue
        printer = ThreadPrinter(buffer, lanes, epilogue.fast_math)
        out, *places = self.operands.result_row(buffer, row)
        values = {}
        for k, (operand, place) in enumerate(zip(epilogue.operands, places)):
            if operand.access not in accesses:
                continue
            if operand.access in ("full", "per_n"):
                text = f"load{_suffix(lanes, aligned)}(r_e{k}, {place} + {column}, {lanes})"
            else:
                text = f"load_splat(r_e{k}, {place}, {lanes})"
            values[k] = printer.loaded(text, operand.dtype)
        return f"{out} + {column}", values

    def _finished(self, buffer: CodeBuffer, sums: Sequence[str], extras: list[VectorValue], lanes: int) -> str:
        """Emit the epilogue of accumulators.

        Raises:
            UnsupportedError: no kernel exists for accumulators of this type.
        """
        epilogue, problem = self.request.epilogue, self.request.problem
        printer = ThreadPrinter(buffer, lanes, epilogue.fast_math)
        type: Type = from_numpy(numpy_dtype(problem.types.out))
        values = [VectorValue(buffer.emit(own) if "(" in own else own, type) for own in sums]
        if type.compute.dtype_name != self.accumulator:
            raise UnsupportedError(f"GPU kernels have no sums of {problem.types.out}")
        if epilogue.body is None:
            return printer.stored(values[0])
        return printer.stored(epilogue.body.evaluate(printer, [*values, *extras]))

    @staticmethod
    def _put(buffer: CodeBuffer, place: str, value: str, lanes: int, aligned: bool) -> None:
        """Emit the store of epilogue results."""
        buffer.line(f"store{_suffix(lanes, aligned)}(r_out, {place}, {value})")


def _suffix(lanes: int, aligned: bool) -> str:
    """Return the name suffix of aligned vector loads and stores."""
    return "_aligned" if aligned and lanes > 1 else ""
