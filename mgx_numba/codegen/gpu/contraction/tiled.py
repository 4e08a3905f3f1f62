"""Generic contraction kernel: shared-memory tiles and scalar FMAs.

Applies to every contraction: any strides, element types, groups, dilation, transposed convolutions, prologues and
epilogues. A block computes a tile of the result. Step by step it gathers a slice of both operands into shared memory,
converted to the accumulator's type; each thread computes four by four elements.
"""

from __future__ import annotations

from ....core.dim import known_equal
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.gemm import GemmProblem
from ...tuning.request import least_bytes
from ..kernel import gpu_kernel, plane_grid
from .contraction_text import ContractionText
from .gpu_contraction import GpuContraction
from .operands import Extent

OWN = 4
"""Rows and columns per thread."""
DEPTH = 16
"""K elements per slice."""
PAD = 4
"""Padding elements per slice row, against bank conflicts between columns."""
SIDES = LARGE, SMALL = 64, 32
"""Sides of square tiles; the smaller one where the larger one would leave multiprocessors idle."""
FEW_TILES = 128
"""Tiles below which the smaller side is used: about the multiprocessors of a large device."""


def chosen_side(contraction: GpuContraction) -> int:
    """Return the side of `SIDES` for a contraction."""
    return LARGE if Extent.of(contraction.problem).tiles(LARGE, LARGE) >= FEW_TILES else SMALL


def tiled_solution(contraction: GpuContraction, side: int = 0) -> Solution:
    """Return the launch of a contraction. Operands are named as in `codegen.launch.Operand`; ``a0``, ... are the
    prologue's.

    Args:
        side: one of `SIDES`; 0 for `chosen_side`.

    Raises:
        UnsupportedError: no kernel exists for this result type or for an operation of the prologue or epilogue.
    """
    printer, request = _TiledText(contraction, side), contraction.request
    lines = printer.lines()
    blocks, planes = printer.tiles, printer.operands.planes
    problem, epilogue = request.problem, request.epilogue
    kind = "gemm" if isinstance(problem, GemmProblem) else "convolution"
    name = f"{kind}_{problem.types.out}{'_' * bool(epilogue.name)}{epilogue.name}_kernel"
    launch = Launch(
        kernel=gpu_kernel(name, lines, printer.threads, len(printer.arguments.values)),
        args=printer.arguments.values,
        geometry=plane_grid(blocks, planes, printer.threads),
        flops=problem.flops,
        bytes=least_bytes(problem),
    )
    return Solution((launch,))


class _TiledText(ContractionText):
    """Kernel text of one contraction."""

    def __init__(self, contraction: GpuContraction, side: int) -> None:
        super().__init__(contraction)
        self.tile = side or chosen_side(contraction)
        self.threads = (self.tile // OWN) ** 2
        self.tiles = self._tiles(self.tile, self.tile)
        self.whole_columns = known_equal(self.operands.columns % OWN, 0)
        self.aligned = self.whole_columns and contraction.lanes(self.operands.columns, OWN) == OWN

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, tile, acc = CodeBuffer(), self.tile, self.accumulator
        pitch = tile + PAD
        self._begin(buffer, tile, tile)
        for name in ("a", "b"):
            buffer.line(f"slice_{name} = shared_{acc}({DEPTH * pitch})")
        for k in range(OWN):
            buffer.line(f"acc{k} = const_{acc}(0, {OWN})")
        buffer.line(
            f"across_rows = imod(thread, {tile // OWN}) * {OWN}",
            f"down_rows = idiv(thread, {tile // OWN}) * {OWN}",
        )
        left, right = self._left_places(buffer), self._right_places(buffer)
        buffer.line("start = 0")
        with buffer.block("while start < depth:"):
            self._gather_left(buffer, left, pitch)
            self._gather_right(buffer, right, pitch)
            buffer.line("barrier()")
            with buffer.block(f"for k in range({DEPTH}):"):
                buffer.line(f"a = load_aligned(slice_a, k * {pitch} + down_rows, {OWN})")
                buffer.line(f"b = load_aligned(slice_b, k * {pitch} + across_rows, {OWN})")
                for k in range(OWN):
                    buffer.line(f"acc{k} = fma(splat(extract(a, {k}), {OWN}), b, acc{k})")
            buffer.line("barrier()")
            buffer.line(f"start = start + {DEPTH}")
        self._finish(buffer)
        return buffer.lines

    def _left_places(self, buffer: CodeBuffer) -> tuple[str, list[tuple[str, object]]]:
        """Emit the position along K, and the rows of the tile, of the left elements that a thread loads."""
        count = self.tile * DEPTH // self.threads
        if self.operands.contiguous_depth:
            k, row, step = f"imod(thread, {DEPTH})", f"idiv(thread, {DEPTH})", self.threads // DEPTH
            depth = buffer.emit(k)
            rows = [buffer.emit(f"{row} + {step * i}") for i in range(count)]
            return depth, [(r, self.operands.row_place(buffer, buffer.emit(f"first_row + {r}"))) for r in rows]
        row = buffer.emit(f"imod(thread, {self.tile})")
        depth = buffer.emit(f"idiv(thread, {self.tile})")
        return depth, [(row, self.operands.row_place(buffer, buffer.emit(f"first_row + {row}")))]

    def _gather_left(self, buffer: CodeBuffer, places: tuple[str, list], pitch: int) -> None:
        depth, rows = places
        count = self.tile * DEPTH // self.threads
        steps = [0] if self.operands.contiguous_depth else [self.threads // self.tile * i for i in range(count)]
        for step in steps:
            inside = buffer.emit(f"{depth} + {step}") if step else depth
            self.operands.step(buffer, buffer.emit(f"start + {inside}"))
            for row, place in rows:
                condition, offset, along = self.operands.left(buffer, place)
                name = buffer.fresh()
                buffer.line(f"{name} = const_{self.accumulator}(0, 0)")
                with buffer.block(f"if {condition}:"):
                    value = self._prologue(buffer, f"load_scalar(r_x, {offset})", along, place.image)
                    buffer.line(f"{name} = cast_{self.accumulator}({value})")
                buffer.line(f"store_scalar(slice_a, {inside} * {pitch} + {row}, {name})")

    def _right_places(self, buffer: CodeBuffer) -> tuple[str, str]:
        """Emit the position along K, and the column of the tile, of the right elements that a thread loads."""
        return buffer.emit(f"idiv(thread, {self.tile})"), buffer.emit(f"imod(thread, {self.tile})")

    def _gather_right(self, buffer: CodeBuffer, places: tuple[str, str], pitch: int) -> None:
        depth, own = places
        column = buffer.emit(f"first_column + {own}")
        for i in range(self.tile * DEPTH // self.threads):
            inside = buffer.emit(f"{depth} + {self.threads // self.tile * i}") if i else depth
            k = buffer.emit(f"start + {inside}")
            name = buffer.fresh()
            buffer.line(f"{name} = const_{self.accumulator}(0, 0)")
            with buffer.block(f"if ({k} < depth) & ({column} < columns):"):
                offset = self.operands.right(buffer, k, column)
                buffer.line(f"{name} = cast_{self.accumulator}(load_scalar(r_w, {offset}))")
            buffer.line(f"store_scalar(slice_b, {inside} * {pitch} + {own}, {name})")

    def _finish(self, buffer: CodeBuffer) -> None:
        """Emit the epilogue and the stores."""
        column = buffer.emit("first_column + across_rows")
        for i in range(OWN):
            row = buffer.emit(f"first_row + down_rows + {i}" if i else "first_row + down_rows")
            if self.whole_columns:
                with buffer.block(f"if ({row} < rows) & ({column} < columns):"):
                    self._store(buffer, [f"acc{i}"], row, column, OWN, self.aligned)
            else:
                with buffer.block(f"for j in range({OWN}):"):
                    buffer.line(f"column = {column} + j")
                    with buffer.block(f"if ({row} < rows) & (column < columns):"):
                        self._store(buffer, [f"splat(extract(acc{i}, j), 1)"], row, "column", 1)
