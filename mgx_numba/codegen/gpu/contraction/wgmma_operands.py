"""Decide which contractions warpgroup MMA applies to, and which blocks of a cluster share operands by TMA multicast
(sm_90a).


The tiles of a cluster form a grid of ``cluster`` rows and ``across`` columns, numbered down the columns first. Blocks
in one grid row use the same rows of the left operand, blocks in one grid column the same columns of the right operand.
Each of them loads a part and multicasts it to all.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import Length, known_in, known_less_equal, permitted
from ....dataclass import dataclass
from ...launch import TensorLayout, Windows
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ..cluster.flat_index import whole_vectors
from ..driver.device import known_architecture
from ..products import product_of
from .gpu_contraction import VECTOR_BYTES, GpuContraction
from .operands import Extent
from .wgmma_tiles import SLICE_BYTES, WarpgroupTile

PIECE = 8
"""Columns of an accumulator fragment: four threads hold two each."""
TRANSPOSED_BYTES = 2
"""Element size (bytes) for which an MMA can read a transposed operand: PTX ISA, "wgmma.mma_async"."""
MOST_BATCH_AXES = 2
"""Batch axes of a tensor map."""
MOST_STEP, FARTHEST_CORNER, MOST_REACH = 8, 127, 255
"""Largest stride, padding and tap offset (pixels) of a tensor map in im2col mode: CUDA driver API,
cuTensorMapEncodeIm2col."""


def wgmma_refusal(contraction: GpuContraction) -> str:
    """Return the reason why warpgroup MMA does not apply to a contraction; "" if it applies."""
    if contraction.problem.types.a == "float32" and contraction.precision != "medium":
        return "warpgroups multiply float32 in TF32"
    refused = _refusal(contraction) or _gate_refusal(contraction)
    if refused or not isinstance(contraction.problem, GemmProblem) or wants_order(contraction.problem):
        return refused
    return _right_refusal(contraction.problem)


def _gate_refusal(contraction: GpuContraction) -> str:
    """Return the reason why value and gate columns cannot be interleaved; "" if they can, or need not be."""
    problem = contraction.problem
    if not contraction.request.epilogue.gated:
        return ""
    if not isinstance(problem, GemmProblem) or not contraction.constant:
        return "columns are interleaved of products with constants alone"
    return f"half of {problem.n} columns are no whole pieces" if problem.n % (2 * PIECE) else ""


def bf16_split_refusal(contraction: GpuContraction) -> str:
    """Return the reason why float32 is not computed as three bfloat16 products; "" if it is."""
    if contraction.problem.types.a != "float32" or contraction.precision != "high":
        return "only float32 is multiplied in parts, where that is precise enough"
    return _refusal(contraction)


def wants_order(problem: GemmProblem | ConvProblem) -> bool:
    """Return whether a TF32 product's right operand has contiguous columns, which no MMA instruction reads."""
    if not isinstance(problem, GemmProblem) or problem.types.b != "float32":
        return False
    return known_in(problem.b_strides[-1], 1) and not known_in(problem.b_strides[len(problem.batch)], 1)


def _refusal(contraction: GpuContraction) -> str:
    """Return the reasons that do not depend on the right operand; "" if there are none."""
    problem = contraction.request.problem
    arch = known_architecture()
    if arch is None:
        return "the architecture is not known"
    if not arch.warpgroups:
        return f"{arch.name} has no products of warpgroups"
    product = product_of(problem.types)
    if product is None:
        return f"warpgroups have no products of {problem.types}"
    if problem.prologue is not None:
        return "the left operand has a prologue"
    if Extent.of(problem).tiles(1, 1) >= 1 << 32:
        return "more results than numbers of 32 bits"
    lanes = VECTOR_BYTES // product.size
    if isinstance(problem, ConvProblem):
        integers = not product.a.startswith(("float", "bfloat"))
        beside = product.a != "float32" and (integers or contraction.request.fast_math)  # NaN times 0 is NaN
        return _convolution_refusal(problem, lanes, beside)
    if sum(map(moves, problem.batch)) > MOST_BATCH_AXES:
        return "more batch dimensions than a tensor map has"
    left = problem.a_strides
    repeats = known_in(left[len(problem.batch)], 0) and moves(problem.m)
    moving = [s for n, s in zip((*problem.batch, problem.m), left) if moves(n)]
    if not known_in(left[-1], 1) or not permitted(whole_vectors(lanes, *moving)) or repeats:
        return "the left operand's rows are no whole vectors"
    return ""


def moves(length: Length) -> bool:
    """Return whether an axis has, or may have, more than one element."""
    return not known_less_equal(length, 1)


def _right_refusal(problem: GemmProblem) -> str:
    """Return the reason why a product's right operand cannot be read in place; "" if it can."""
    rank, right, size = len(problem.batch), problem.b_strides, ITEMSIZE[problem.types.b]
    lanes = VECTOR_BYTES // size
    moving = [s for n, s in zip(problem.batch, right) if moves(n)]
    along = known_in(right[rank], 1) and not known_in(right[-1], 0)
    along = along and permitted(whole_vectors(lanes, *moving, right[-1]))
    across = known_in(right[-1], 1) and not known_in(right[rank], 0)
    across = across and permitted(whole_vectors(lanes, *moving, right[rank]))
    if across and not along and size != TRANSPOSED_BYTES:
        return f"columns of {problem.types.b} cannot be turned"
    return "" if along or across else "the right operand has no whole vectors"


def _convolution_refusal(problem: ConvProblem, lanes: int, beside: bool) -> str:
    """Return the reason why a convolution does not apply; with ``beside`` slices may reach into the next group, whose
    channels are multiplied by zeros."""
    full = problem.volume()
    if problem.transposed:
        return "the convolution is a transposed one"
    if full.kernel[0] > 1 or full.in_lens[0] > 1 or full.out_lens[0] > 1 or full.pads_begin[0]:
        # positions beside the only slice would be rows below the image, which the copy engine traps at
        return "a tensor map of images has two spatial dimensions"
    slice = SLICE_BYTES // VECTOR_BYTES * lanes
    if not permitted(whole_vectors(lanes, full.group_in, *full.x_strides)):
        return "the channels of a group are no whole vectors"
    if 2 * full.group_in < slice and full.taps > 1:
        return "the channels of a group leave most of a slice empty"
    if full.groups > 1 and full.group_in % slice and not beside:
        return "a slice would reach into the next group's channels"
    windows = windows_of(full)
    reach = [d * (k - 1) for d, k in zip(full.dilation, full.kernel)]
    if max(windows.steps) > MOST_STEP or max(reach) > MOST_REACH:
        return "the filter's positions are further apart than a tensor map says"
    if max(map(abs, (*windows.lower, *windows.upper))) > FARTHEST_CORNER:
        return "the filter's first position is further outside than a tensor map says"
    return ""


def windows_of(full: ConvProblem) -> Windows:
    """Return the im2col bounding box and strides of a convolution over depth, height and width."""
    reach = [d * (k - 1) for d, k in zip(full.dilation, full.kernel)]
    return Windows(
        lower=(-full.pads_begin[2], -full.pads_begin[1]),
        upper=(full.pads_end[2] - reach[2], full.pads_end[1] - reach[1]),
        steps=(full.stride[2], full.stride[1]),
    )


def layout_of(
    dtype: str, axes: Sequence[tuple[Length, Length]], box: tuple[int, int, int, int], windows: Windows | None = None
) -> TensorLayout:
    """Return the tensor map layout of an operand.

    Args:
        axes: (length, stride in elements) of each axis, the contiguous one first.
        box: elements per load along each axis.
        windows: im2col bounding box, for images.

    Axes along which nothing moves get an arbitrary valid stride.
    """
    lanes = VECTOR_BYTES // ITEMSIZE[dtype]
    whole = [*axes, *[(1, lanes)] * (4 - len(axes))]
    lens = [n for n, _ in whole]
    strides = [s if d == 0 or (moves(n) and not known_in(s, 0)) else lanes for d, (n, s) in enumerate(whole)]
    return TensorLayout(dtype, tuple(lens), tuple(strides), box, windows)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sharing:
    """The grid of blocks in a cluster.

    Attributes:
        down, side: blocks per grid column, and per grid row.
    """

    down: int
    side: int

    @classmethod
    def of(cls, tile: WarpgroupTile) -> Sharing:
        """Return the grid of a tile's cluster."""
        return cls(tile.cluster, tile.across)

    @property
    def blocks(self) -> int:
        """Return the blocks per cluster."""
        return self.down * self.side

    @property
    def readers(self) -> int:
        """Return the number of blocks that read some multicast load of one block, including the block itself."""
        return self.down + self.side - 1

    def begin(self, buffer: CodeBuffer) -> None:
        """Emit the index of the cluster's first ``tile``, and the block's position in the cluster."""
        buffer.line(f"tile = idiv32(block_index(0), {self.blocks})")
        if self.blocks == 1:
            return
        buffer.line("rank = cluster_rank()")
        buffer.line(f"rank_side = idiv(rank, {self.down})")
        buffer.line(f"rank_down = rank - rank_side * {self.down}")

    def part(self, size: int, operand: str) -> str:
        """Return the start of the block's part of ``x`` rows or ``w`` columns, in parts of ``size``."""
        count, number = (self.side, "rank_side") if operand == "x" else (self.down, "rank_down")
        return f"{number} * {size}" if count > 1 else "0"

    def load(self, buffer: CodeBuffer, operand: str, to: str, place: str, tap: str = "") -> None:
        """Emit the TMA load of a box of ``x`` or ``w``, multicast to all blocks that multiply it. ``tap`` is the im2col
        offset (two numbers) or ""."""
        name, more = f"tensor_load{'_window' * bool(tap)}", [tap] * bool(tap)
        if operand == "x" and self.side > 1:
            beside = sum(1 << self.down * k for k in range(self.side))
            name, more = f"{name}_to", [*more, str(beside), "rank_down"]
        elif operand == "w" and self.down > 1:
            below = (1 << self.down) - 1
            name, more = f"{name}_to", [*more, str(below), f"rank_side * {self.down}"]
        buffer.line(f"{name}({', '.join((to, f'map_{operand}', 'arrived', place, *more))})")

    def release(self, buffer: CodeBuffer) -> None:
        """Emit the arrival that releases stage ``last`` to all blocks that load into it."""
        buffer.line("mbarrier_arrive(offset(empty, last))")
        for k in range(1, self.down):
            at = f"rank_side * {self.down} + imod(rank_down + {k}, {self.down})"
            buffer.line(f"mbarrier_arrive_at(offset(empty, last), {at})")
        for k in range(1, self.side):
            at = f"imod(rank_side + {k}, {self.side}) * {self.down} + rank_down"
            buffer.line(f"mbarrier_arrive_at(offset(empty, last), {at})")
