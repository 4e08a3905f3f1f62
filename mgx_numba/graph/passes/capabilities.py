"""Target capabilities that passes depend on. The target passes them in; no pass imports a back end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...core.shape import Shape
from ...dataclass import dataclass

if TYPE_CHECKING:
    from ..instruction import Instruction
    from ..module import Module


@dataclass(frozen=True)
class ReductionWalk:
    """How one kernel of a target traverses a reduction cluster.

    Attributes:
        tasks: tasks that threads could share: rows, or groups of columns.
        row_run: contiguous elements of a row that are vectorised; 0 if columns are.
        from_memory: whether operands come from DRAM rather than from caches.
        order: axes, largest stride first.
        loops: reduced axes longer than 1 in traversal order, outermost first; axes in one tuple are merged.
        columns: contiguous elements along kept axes that are vectorised; 1 if rows are.
        unit: preferred divisor of a part of the last loop.
        fold: iterations of the last loop whose columns are best processed side by side, in memory order; 1 for none.
        short_run: reduced axes whose contiguous elements fill a part of a cache line, while kept axes fill the rest.
            Reducing the other axes first reads whole lines. Empty if rows are read in whole lines.
    """

    tasks: int
    row_run: int
    from_memory: bool
    order: tuple[int, ...]
    loops: tuple[tuple[int, ...], ...]
    columns: int
    unit: int
    fold: int
    short_run: tuple[int, ...] = ()


@dataclass(frozen=True)
class Capabilities:
    """Features of a target's kernels, as far as rewrites depend on them.

    Attributes:
        threads: workers that share a kernel's tasks.
        walk: returns, for the body of a ``fused_reduce``, its axes and the shapes of its inputs and results, how a
            kernel would traverse it; valid for that back end only.
        tasks: tasks from which a reduction is not split.
        parts: most parts of a split reduction, over all rows.
        part_elements: least elements of a part, to pay for a task and a combining launch.
        part_share: least elements of a part per result, so that partial results are small beside the operands.
        repeated_elements: least elements for splitting a reduction whose operands are then read twice.
        signed_left: whether kernels multiply int8 left operands; otherwise these are converted to uint8.
        float8_products: whether kernels multiply float8 (e4m3fn and e5m2); otherwise float8 is a storage format.
        narrow_results: whether a reduction's kernel stores a rounded form of its result beside the result.
        multiplies_bfloat16: tells whether a float32 product with constant bfloat16 weights should have its left operand
            stored as bfloat16; None: never.
        reads_padding: tells whether a padded convolution is fastest with its padding in memory (the left operand may be
            widened from its storage type); None: never.
        joins_halves: tells whether a product with constants has a kernel that combines a column of the first half of
            its result with one of the second half; None: never.
        joins_products: tells the same for a product and another one of equal shape, whatever the rows; both are then
            joined. None: never.
        shared_texts: whether kernels read numbers that differ from model to model from memory, so that models share
            kernels, see `LiftConstants`.
        depthwise_integers: whether kernels compute depthwise convolutions of 8-bit integers.
        scattered_integers: whether kernels compute transposed convolutions of 8-bit integers.
        adds_columns: tells whether a convolution is fastest as a product of all taps, whose columns are
            added up at their places (`RewriteNarrowConvolution`); None: never.
        sums_columns: whether a product with one column is fastest as a reduction of elementwise products.
        queries_of_products: most queries whose attention stays two products if positions, not features, are contiguous
            in the keys.
        joined_groups: tells how many groups of a convolution with constant weights should be joined (`JoinGroups`);
            None: never any.
        computes_updates: tells whether a scatter's kernel computes its updates itself; None: never.
        reads_shuffled: whether grouped 1x1 convolutions are fastest with their input read through the channel shuffle.
        pools_channels: tells whether a pooling of row-major memory is fastest on channels-last copies; None: never.
        prologues: whether convolution kernels compute pointwise prologues.
        cheap_branches: whether an ``if`` costs no more than a few kernels' launches.
        block_weights: whether kernels multiply block-quantised weights, ``matmul_nbits``.
        joins_block_products: whether such products of one input are fastest as one product.
        byte_tables: elements from which pointwise kernels look up long functions of one 8-bit value; 0: never.
        reads_cache: tells whether a kernel computes a ``cached_attention``, attention to a cache's valid rows; None:
            never.
        one_pass_run: least `ReductionWalk.row_run` for computing a variance in one pass.
    """

    threads: int
    walk: Callable[[Module, Sequence[int], Sequence[Shape], Sequence[Shape]], ReductionWalk]
    tasks: int
    parts: int
    part_elements: int
    part_share: int
    repeated_elements: int
    one_pass_run: int
    block_weights: bool
    joins_block_products: bool
    byte_tables: int = 0
    reads_cache: Callable[[Instruction], bool] | None = None
    signed_left: bool = False
    float8_products: bool = False
    narrow_results: bool = False
    multiplies_bfloat16: Callable[[Instruction], bool] | None = None
    reads_padding: Callable[[Instruction], bool] | None = None
    joins_halves: Callable[[Instruction], bool] | None = None
    joins_products: Callable[[Instruction], bool] | None = None
    shared_texts: bool = False
    depthwise_integers: bool = False
    scattered_integers: bool = False
    adds_columns: Callable[[Instruction], bool] | None = None
    sums_columns: bool = False
    queries_of_products: int = 0
    joined_groups: Callable[[Instruction], int] | None = None
    computes_updates: Callable[[Instruction], bool] | None = None
    reads_shuffled: bool = False
    pools_channels: Callable[[Instruction], bool] | None = None
    prologues: bool = True
    cheap_branches: bool = False
