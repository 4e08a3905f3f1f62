"""Products of a few rows, as a decoder's steps are: a warp reads a column of the right operand for all of them.

What takes the time is bringing that operand, once. Each lane has several vectors of its column on their way, the first
ones before the launches before are done if the operand is constant. It multiplies them with the same positions of the
rows, and the lanes' sums are joined by shuffles, always in one order.
"""

from __future__ import annotations

from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.request import least_bytes
from ..cluster.teams import WARP
from ..kernel import gpu_grid, gpu_kernel
from .operands import ProductOperands
from .placed import VECTOR_BYTES, PlacedRequest
from .text import ContractionText

__all__ = ["few_rows_refusal", "few_rows_solution"]

TYPES = ("float16", "bfloat16", "float32")
MOST_ROWS = 4
"""Rows up to which their own positions, which every warp reads, come from the caches as fast as columns from memory."""
WARPS = 4
"""Warps of a block: one for each scheduler of a multiprocessor."""
MOST_AHEAD = 8
"""Vectors of a column that a lane has on their way at most: with 16 warps on a multiprocessor 64 KiB, more than its
share of the bandwidth times the latency of memory."""


def few_rows_refusal(placed: PlacedRequest) -> str:
    """Why these kernels do not compute a contraction; empty if they do."""
    problem = placed.request.problem
    if not isinstance(problem, GemmProblem):
        return "it is a convolution"
    if problem.types.uniform not in TYPES:
        return f"no kernel of few rows is for {problem.types}"
    if problem.m > MOST_ROWS:
        return f"more than {MOST_ROWS} rows"
    if problem.prologue is not None:
        return "the left operand has a prologue"
    rank, lanes = len(problem.batch), VECTOR_BYTES // ITEMSIZE[problem.types.single]
    left, right = problem.a_strides, problem.b_strides
    if problem.k % lanes or left[-1] != 1 or any(s % lanes for s in left[:-1]):
        return "the left operand's rows are no whole vectors"
    if right[rank] != 1 or any(s % lanes for s in (*right[:rank], right[-1])):
        return "the right operand's columns are no whole vectors"
    return ""


def few_rows_solution(placed: PlacedRequest) -> Solution:
    """The launch of a product that is not refused.

    Raises:
        UnsupportedError: an operation after the product has no kernel.
    """
    text = _FewRowsText(placed)
    request = placed.request
    lines, values = text.lines(), text.arguments.values
    work = f"{'_' * bool(request.epilogue.name)}{request.epilogue.name}"
    kernel = gpu_kernel(f"gemm_rows_{request.problem.types.out}{work}_kernel", lines, WARP * WARPS, len(values))
    grid = gpu_grid(-(-text.operands.columns // WARPS), WARP * WARPS, text.operands.planes)
    return Solution((Launch(kernel, values, grid, request.problem.flops, least_bytes(request.problem)),))


class _FewRowsText(ContractionText):
    """The text of one product.

    Attributes:
        ahead: vectors of a column that a lane loads together.
        exact, once: whether columns are whole such groups, and one of them at most.
    """

    operands: ProductOperands

    def __init__(self, placed: PlacedRequest) -> None:
        super().__init__(placed)
        problem = self.request.problem
        assert isinstance(problem, GemmProblem)
        self.problem = problem
        rank = len(problem.batch)
        self.lanes = VECTOR_BYTES // ITEMSIZE[problem.types.single]
        turns = -(-problem.k // (WARP * self.lanes))
        self.once = turns <= MOST_AHEAD
        self.ahead = -(-turns // -(-turns // MOST_AHEAD))
        self.exact = problem.k % (WARP * self.lanes * self.ahead) == 0
        self.arguments.integers(row_step=problem.a_strides[rank], column_step=problem.b_strides[-1])

    def lines(self) -> list[str]:
        """All statements of the kernel."""
        buffer, lanes, rows = CodeBuffer(), self.lanes, self.problem.m
        self._begin_plane(buffer)
        for line in (
            "warp = idiv(thread, 32)",
            "lane = thread - warp * 32",
            f"column = block_index(0) * {WARPS} + warp",
            "r_column = offset(r_w, imin(column, columns - 1) * column_step)",
        ):
            buffer.line(line)
        for i in range(rows):
            buffer.line(f"r_row{i} = offset(r_x, {i} * row_step)")
            buffer.line(f"acc{i} = const_{self.accumulator}(0, {lanes})")
        buffer.line(f"k = lane * {lanes}")
        if not self.placed.constant:
            buffer.line("grid_wait()")
        self._load(buffer, "r_column", "column")
        if self.placed.constant:
            buffer.line("grid_wait()")
        if self.once:
            self._add(buffer)
        else:
            with buffer.block("while k < depth:"):
                self._add(buffer)
        for i in range(rows):
            buffer.line(f"sum{i} = reduce_add(acc{i})")
            for mask in (16, 8, 4, 2, 1):
                buffer.line(f"sum{i} = add(sum{i}, shuffle_xor(sum{i}, {mask}))")
        for i in range(rows):
            with buffer.block(f"if (lane == {i}) & (column < columns):"):
                self._store(buffer, f"splat(sum{i}, 1)", str(i), "column", 1)
        return buffer.lines

    def _load(self, buffer: CodeBuffer, base: str, name: str) -> None:
        """Emit the loads of the lane's vectors from position ``k`` on, as ``<name>0`` and so on; from an inexact end
        the last ones."""
        for j in range(self.ahead):
            place = f"k + {WARP * self.lanes * j}" if j else "k"
            place = place if self.exact and (self.once or name != "column") else f"imin({place}, depth - {self.lanes})"
            buffer.line(f"{name}{j} = load_aligned({base}, {place}, {self.lanes})")

    def _add(self, buffer: CodeBuffer) -> None:
        """Emit the products of the lane's vectors of the column; those after them are asked for before."""
        rows = range(self.problem.m)
        for i in rows:
            self._load(buffer, f"r_row{i}", f"row{i}_")
        names = ["column", *(f"row{i}_" for i in rows)]
        for j in range(self.ahead):
            for name in names:
                wide = f"cast_{self.accumulator}({name}{j})"
                if not self.exact:
                    inside = f"k + {WARP * self.lanes * j} < depth"
                    wide = f"where({inside}, {wide}, const_{self.accumulator}(0, {self.lanes}))"
                buffer.line(f"{name}{j}_wide = {wide}")
        if not self.once:
            buffer.line(f"k = k + {WARP * self.lanes * self.ahead}")
            self._load(buffer, "r_column", "column")
        for j in range(self.ahead):
            for i in rows:
                buffer.line(f"acc{i} = fma(column{j}_wide, row{i}_{j}_wide, acc{i})")
