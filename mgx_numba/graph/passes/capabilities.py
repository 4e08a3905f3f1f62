"""What passes need to know of a target: the target gives it to its list of passes, and no pass imports a back end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...core.shape import Shape
from ...core.types import Type
from ...dataclass import dataclass

if TYPE_CHECKING:
    from ..instruction import Instruction
    from ..module import Module

__all__ = ["Capabilities", "ReductionWalk"]


@dataclass(frozen=True)
class ReductionWalk:
    """How one kernel of a target would go through a reduction cluster.

    Attributes:
        tasks: what threads could share of it: rows, or groups of columns.
        row_run: elements of a row that follow one another in memory and are taken side by side; 0 if columns are.
        from_memory: whether operands come from memory rather than from caches.
        order: the axes, that with the longest way between neighbours in memory first.
        loops: the reduced axes longer than 1 in the order in which they are walked, outermost first; those in one tuple
            are walked as one.
        columns: elements along the kept axes that follow one another and are taken side by side; 1 if rows are.
        unit: elements of the last loop of which a share of it should be a multiple.
        fold: steps of the last loop whose columns are best taken side by side, in memory as they are; 1 if none.
    """

    tasks: int
    row_run: int
    from_memory: bool
    order: tuple[int, ...]
    loops: tuple[tuple[int, ...], ...]
    columns: int
    unit: int
    fold: int


@dataclass(frozen=True)
class Capabilities:
    """What a target's kernels can do, as far as rewrites go by it.

    Attributes:
        threads: workers that share a kernel's tasks.
        walk: for the body of a ``fused_reduce``, its axes, and the shapes of its inputs and results, how a kernel would
            go through it. It is the back end's answer, for whose kernels alone it holds.
        tasks: tasks of a reduction that are enough for any number of threads, so that it stays whole.
        parts: parts that a reduction is divided into at the most, all its rows together.
        part_elements: elements from which a part is worth a task, and a launch that combines.
        part_share: elements of a part for each of its results, so that the results of all parts are little beside the
            operands.
        repeated_elements: elements from which a reduction is divided although operands are read again for it.
        signed_left: whether kernels multiply left operands in int8; else they are made uint8.
        float8_products: whether kernels multiply float8, e4m3fn and e5m2; else it is how values are stored.
        narrow_results: whether a reduction's kernel stores what is rounded of its result besides the result itself.
        multiplies_bfloat16: whether a product of float32 with constant weights in bfloat16 is best computed of left
            operands that are stored in bfloat16; None if none is.
        reads_padding: whether a padded convolution, whose left operand may be widened from how it is stored, is best
            computed of one around which the padding lies in memory; None if none is.
        joins_halves: whether a product with constants is best computed by a kernel that may make one value of a column
            in the first half of its result and of that in the second half; None if there is none.
        joins_products: whether that is so of products of an element type with so many columns, whatever their rows;
            products of one input are then joined for it. None if it is of none.
        depthwise_integers: whether kernels convolve 8-bit integers where each channel is a group.
        scattered_integers: whether kernels compute transposed convolutions of 8-bit integers.
        reads_shuffled: whether grouped convolutions by one tap are best computed from an input whose channels are not
            yet shuffled.
        prologues: whether what leads to the input of a convolution is best computed while that is read.
        block_weights: whether kernels multiply by weights of few bits in blocks, ``matmul_nbits``.
        one_pass_run: `ReductionWalk.row_run` from which a variance is best computed while its row is read once.
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
    signed_left: bool = False
    float8_products: bool = False
    narrow_results: bool = False
    multiplies_bfloat16: Callable[[Instruction], bool] | None = None
    reads_padding: Callable[[Instruction], bool] | None = None
    joins_halves: Callable[[Instruction], bool] | None = None
    joins_products: Callable[[Type, int], bool] | None = None
    depthwise_integers: bool = False
    scattered_integers: bool = False
    reads_shuffled: bool = False
    prologues: bool = True
