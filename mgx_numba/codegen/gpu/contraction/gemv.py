"""GEMV-like contractions: one warp computes one result column for up to `MOST_ROWS` rows.

Applies to decoder steps and to convolutions whose filter covers the whole image. The kernel is bound by reading the
right operand once. Each lane has several vectors of its column in flight; loads of a constant right operand start
before the preceding launches end (programmatic dependent launch). Shuffles add the lanes' partial sums in a fixed
order. For a gated linear unit a warp computes one column of each half.
"""

from __future__ import annotations

from ....core.dim import (
    Dim,
    Length,
    ceil_div,
    known_equal,
    known_in,
    known_less_equal,
    known_same,
    less,
    less_equal,
    permitted,
    select,
)
from ....dataclass import dataclass
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem, packed_strides
from ...tuning.request import least_bytes
from ..architecture import WARP
from ..cluster.flat_index import whole_vectors, widest
from ..kernel import gpu_kernel, plane_grid
from .contraction_text import ContractionText
from .gpu_contraction import VECTOR_BYTES, GpuContraction
from .operands import Extent

TYPES = ("float16", "bfloat16", "float32")
MOST_ROWS = 4
"""Most rows. Up to this number the rows, which every warp reads, come from the caches as fast as columns from DRAM."""
WARPS = 4
"""Warps per block: one for each scheduler of a multiprocessor."""
MOST_AHEAD = 8
"""Most column vectors in flight per lane. With 16 warps per multiprocessor they are 64 KiB, more than its share of
bandwidth times latency."""


@dataclass(frozen=True)
class _Rows:
    """A contraction as a product with contiguous rows and columns.

    Attributes:
        rows: rows of the left operand.
        most: rows that the kernel computes.
        row_step, column_step: elements between rows of the left operand, and between columns of the right operand.
        lanes: elements per load, at most `VECTOR_BYTES`.
        tail: last elements of the sum, which are loaded one by one; those before are whole loads.
    """

    rows: Length
    most: int
    row_step: Length
    column_step: Length
    lanes: int
    tail: int = 0


def gemv_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the kernel does not apply to a contraction; "" if it applies."""
    found = _rows_of(contraction.problem)
    return found if isinstance(found, str) else ""


def _rows_of(problem: GemmProblem | ConvProblem) -> _Rows | str:
    """Return the rows and columns of a contraction, or the reason why the kernel does not apply."""
    if problem.types.uniform not in TYPES:
        return f"no kernel of few rows is for {problem.types}"
    if problem.prologue is not None:
        return "the left operand has a prologue"
    return _of_product(problem) if isinstance(problem, GemmProblem) else _of_images(problem)


def _of_product(problem: GemmProblem) -> _Rows | str:
    rank = len(problem.batch)
    left, right = problem.a_strides, problem.b_strides
    if not known_in(left[-1], 1):
        return "the left operand's rows are not contiguous"
    if not known_in(right[rank], 1):
        return "the right operand's columns are not contiguous"
    most = _most(problem.m)
    if not most:
        return f"more than {MOST_ROWS} rows"
    steps = [*left[:rank], *right[:rank], right[-1], 0 if known_equal(problem.m, 1) else left[rank]]
    lanes = _lanes(problem, *steps)
    if isinstance(problem.k, Dim) or problem.k < lanes:
        return _Rows(problem.m, most, left[rank], right[-1], _lanes(problem, problem.k, *steps))
    return _Rows(problem.m, most, left[rank], right[-1], lanes, problem.k % lanes)


def _most(rows: Length) -> int:
    """Return the rows that the kernel computes; 0 if there are too many.

    For a symbolic number of rows: 1 or `MOST_ROWS`, by the range of the symbol.
    """
    if not isinstance(rows, Dim):
        return rows if rows <= MOST_ROWS else 0
    if not permitted(less_equal(rows, MOST_ROWS)):
        return 0
    return 1 if permitted(less_equal(rows, 1)) else MOST_ROWS


def _of_images(problem: ConvProblem) -> _Rows | str:
    """Return the rows of a convolution whose filter covers the image: each image is a row."""
    pads = (*problem.pads_begin, *problem.pads_end)
    spread = any(d != 1 and n != 1 for d, n in zip(problem.dilation, problem.kernel))
    if problem.transposed or any(pads) or not known_same(problem.kernel, problem.in_lens) or spread:
        return "its filter does not cover the images"
    places = zip(problem.in_lens, problem.x_strides[1:], packed_strides((*problem.in_lens, problem.in_channels)))
    if any(n != 1 and own != packed for n, own, packed in places) or (problem.groups > 1 and problem.taps > 1):
        return "what a filter covers is not contiguous"
    most = _most(problem.batch)
    if not most:
        return f"more than {MOST_ROWS} images"
    depth = problem.taps * problem.group_in
    image = 0 if known_less_equal(problem.batch, 1) else problem.x_strides[0]
    return _Rows(problem.batch, most, image, depth, _lanes(problem, depth, image, depth))


def _lanes(problem: GemmProblem | ConvProblem, *lens: Length) -> int:
    return widest(VECTOR_BYTES // ITEMSIZE[problem.types.single], lambda lanes: whole_vectors(lanes, *lens))


def gemv_rounds(contraction: GpuContraction) -> Length:
    """Return how often a lane waits for loads. Each wait takes about half of a slice's `LATENCY`: 3 x 6633 times 6633 x
    56, whose odd rows are loaded by elements, takes 11.5 us on an H200 with 26 waits."""
    found = _rows_of(contraction.problem)
    assert isinstance(found, _Rows)
    return ceil_div(Extent.of(contraction.problem).depth, WARP * found.lanes * MOST_AHEAD)


def gemv_solution(contraction: GpuContraction) -> Solution:
    """Return the launch of an applicable product.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    text = _GemvText(contraction)
    request = contraction.request
    lines, values = text.lines(), text.arguments.values
    work = f"{'_' * bool(request.epilogue.name)}{request.epilogue.name}"
    kind = "gemm" if isinstance(request.problem, GemmProblem) else "convolution"
    kernel = gpu_kernel(f"{kind}_rows_{request.problem.types.out}{work}_kernel", lines, WARP * WARPS, len(values))
    blocks = select(less(0, text.operands.rows), text.blocks, 0)  # each block reads a row
    grid = plane_grid(blocks, text.operands.planes, WARP * WARPS)
    return Solution((Launch(kernel, values, grid, request.problem.flops, least_bytes(request.problem)),))


class _GemvText(ContractionText):
    """Kernel text of one product.

    Attributes:
        blocks: thread blocks per plane.
        columns: names of the columns that a warp reads.
        ahead: column vectors that a lane loads together.
        tail: see `_Rows.tail`.
        whole: expression of the elements of a column before the tail.
        rows: rows that the kernel computes.
        all_rows: whether the operand has exactly ``rows`` rows; otherwise excess rows are masked.
        exact: whether a column is a whole number of load groups.
        once: whether a column is at most one load group.
    """

    def __init__(self, contraction: GpuContraction) -> None:
        super().__init__(contraction)
        found = _rows_of(self.request.problem)
        assert isinstance(found, _Rows)
        self.rows, self.lanes, self.all_rows = found.most, found.lanes, not isinstance(found.rows, Dim)
        self.blocks: Length = ceil_div(self.operands.columns // contraction.request.epilogue.sums, WARPS)
        self.columns = ("column", "gate")[: contraction.request.epilogue.sums]
        self.tail = found.tail
        self.whole = f"(depth - {self.tail})" if self.tail else "depth"
        depth = self.operands.depth - self.tail
        turns = ceil_div(depth, WARP * self.lanes)
        most = MOST_AHEAD // len(self.columns)
        self.once = known_less_equal(turns, most)
        self.ahead = most if isinstance(turns, Dim) else ceil_div(turns, ceil_div(turns, most))
        self.exact = known_equal(depth % (WARP * self.lanes * self.ahead), 0)
        self.arguments.integers(row_step=found.row_step, column_step=found.column_step)

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, lanes, rows = CodeBuffer(), self.lanes, self.rows
        block = self._begin_plane(buffer, self.blocks)
        buffer.line(
            "warp = idiv(thread, 32)",
            "lane = thread - warp * 32",
            f"column = {block} * {WARPS} + warp",
            "results = columns" if len(self.columns) == 1 else "results = idiv32(columns, 2)",
        )
        for c, name in enumerate(self.columns):
            further = f" + {c} * results" if c else ""
            buffer.line(f"r_{name} = offset(r_w, (imin(column, results - 1){further}) * column_step)")
        for i in range(rows):
            row = str(i) if self.all_rows or not i else f"imin({i}, rows - 1)"
            buffer.line(f"r_row{i} = offset(r_x, {row} * row_step)")
            for name in self.columns:
                buffer.line(f"{name}_acc{i} = const_{self.accumulator}(0, {lanes})")
        buffer.line(f"k = lane * {lanes}")
        if not self.contraction.constant:
            buffer.line("grid_wait()")
        self._load_columns(buffer)
        if self.contraction.constant:
            buffer.line("grid_wait()")
        if self.once:
            self._add(buffer)
        else:
            with buffer.block(f"while k < {self.whole}:"):
                self._add(buffer)
        if self.tail:
            buffer.line(f"last = {self.whole} + imin(lane, {self.tail - 1})")
            for name in (*self.columns, *(f"row{i}" for i in range(rows))):
                buffer.line(f"{name}_last = cast_{self.accumulator}(load(r_{name}, last, 1))")
        for i in range(rows):
            for name in self.columns:
                own = f"{name}_sum{i}"
                buffer.line(f"{own} = reduce_add({name}_acc{i})")
                if self.tail:
                    product = f"mul({name}_last, row{i}_last)"
                    apart = f"where(lane < {self.tail}, {product}, const_{self.accumulator}(0, 1))"
                    buffer.line(f"{own} = add({own}, reduce_add({apart}))")
                for mask in (16, 8, 4, 2, 1):
                    buffer.line(f"{own} = add({own}, shuffle_xor({own}, {mask}))")
        for i in range(rows):
            there = "" if self.all_rows or not i else f" & ({i} < rows)"
            with buffer.block(f"if (lane == {i}) & (column < results){there}:"):
                self._store(buffer, [f"splat({name}_sum{i}, 1)" for name in self.columns], str(i), "column", 1)
        return buffer.lines

    def _load_columns(self, buffer: CodeBuffer) -> None:
        """Emit the loads of the lane's column vectors."""
        for name in self.columns:
            self._load(buffer, f"r_{name}", name)

    def _load(self, buffer: CodeBuffer, base: str, name: str) -> None:
        """Emit the loads of the lane's vectors ``<name>0``, ``<name>1``, ... from position ``k``. At an inexact end,
        the last vectors are loaded instead."""
        load = "load_aligned" if self.lanes > 1 else "load"
        for j in range(self.ahead):
            place = f"k + {WARP * self.lanes * j}" if j else "k"
            if not self.exact or (name in self.columns and not self.once):
                place = f"imin({place}, {self.whole} - {self.lanes})"
            buffer.line(f"{name}{j} = {load}({base}, {place}, {self.lanes})")

    def _add(self, buffer: CodeBuffer) -> None:
        """Emit the multiply-adds of the loaded column vectors, after the loads of the next ones (double buffer)."""
        rows = range(self.rows)
        for i in rows:
            self._load(buffer, f"r_row{i}", f"row{i}_")
        names = [*self.columns, *(f"row{i}_" for i in rows)]
        for j in range(self.ahead):
            for name in names:
                wide = f"cast_{self.accumulator}({name}{j})"
                if not self.exact:
                    inside = f"k + {WARP * self.lanes * j} < {self.whole}"
                    wide = f"where({inside}, {wide}, const_{self.accumulator}(0, {self.lanes}))"
                buffer.line(f"{name}{j}_wide = {wide}")
        if not self.once:
            buffer.line(f"k = k + {WARP * self.lanes * self.ahead}")
            self._load_columns(buffer)
        for j in range(self.ahead):
            for i in rows:
                for name in self.columns:
                    buffer.line(f"{name}_acc{i} = fma({name}{j}_wide, row{i}_{j}_wide, {name}_acc{i})")
