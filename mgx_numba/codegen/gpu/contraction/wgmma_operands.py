"""Which contractions the copy engine brings operands of, as warpgroups multiply them (sm_90a)."""

from __future__ import annotations

from ....errors import DeviceError
from ...launch import Windows
from ...problems.convolution import ConvProblem
from ...problems.gemm import GemmProblem
from ..driver.device import selected_architecture
from ..products import product_of
from .operands import Extent
from .placed import VECTOR_BYTES, PlacedRequest
from .wgmma_tiles import SLICE_BYTES

__all__ = ["MOST_BATCH_AXES", "wgmma_refusal", "windows_of"]

TARGET = "sm_90a"
"""The only architecture with these instructions."""
TURNED_BYTES = 2
"""Bytes of the elements whose columns an instruction can read across: PTX ISA, "wgmma.mma_async", transposition."""
MOST_BATCH_AXES = 2
"""Dimensions of a tensor map besides a matrix's own."""
MOST_STEP, FARTHEST_CORNER, MOST_REACH = 8, 127, 255
"""Pixels between positions, between an image's corner and theirs, and between taps, that a tensor map of images can
say: CUDA driver API, cuTensorMapEncodeIm2col."""


def wgmma_refusal(placed: PlacedRequest) -> str:
    """Why warpgroups do not compute a contraction; empty if they do."""
    problem = placed.request.problem
    try:
        arch = selected_architecture()
    except DeviceError:
        return "the architecture is not known"
    if arch.name != TARGET:
        return f"{arch.name} has no products of warpgroups"
    product = product_of(problem.types)
    if product is None:
        return f"warpgroups have no products of {problem.types}"
    if product.a == "float32" and placed.precision != "medium":
        return "warpgroups multiply float32 in TF32"
    if problem.prologue is not None:
        return "the left operand has a prologue"
    if Extent.of(problem).tiles(1, 1) >> 32:
        return "more results than numbers of 32 bits"
    lanes = VECTOR_BYTES // product.size
    if isinstance(problem, GemmProblem):
        return _gemm_refusal(problem, lanes)
    return _convolution_refusal(problem, lanes)


def _gemm_refusal(problem: GemmProblem, lanes: int) -> str:
    rank = len(problem.batch)
    if sum(n > 1 for n in problem.batch) > MOST_BATCH_AXES:
        return "more batch dimensions than a tensor map has"
    left, right = problem.a_strides, problem.b_strides
    if left[-1] != 1 or any(s % lanes for s in left[:-1]) or (problem.m > 1 and left[rank] == 0):
        return "the left operand's rows are no whole vectors"
    moving = [s for n, s in zip(problem.batch, right) if n > 1]
    along = right[rank] == 1 and right[-1] and not any(s % lanes for s in (*moving, right[-1]))
    across = right[-1] == 1 and right[rank] and not any(s % lanes for s in (*moving, right[rank]))
    if across and not along and VECTOR_BYTES // lanes != TURNED_BYTES:
        return f"columns of {problem.types.b} cannot be turned"
    return "" if along or across else "the right operand has no whole vectors"


def _convolution_refusal(problem: ConvProblem, lanes: int) -> str:
    full = problem.volume()
    if problem.transposed:
        return "the convolution is a transposed one"
    if full.kernel[0] > 1 or full.in_lens[0] > 1:
        return "a tensor map of images has two spatial dimensions"
    slice = SLICE_BYTES // VECTOR_BYTES * lanes
    if full.group_in % lanes or any(s % lanes for s in full.x_strides):
        return "the channels of a group are no whole vectors"
    if 2 * full.group_in < slice or (full.groups > 1 and full.group_in % slice):
        return "the channels of a group leave most of a slice empty"
    windows = windows_of(full)
    reach = [d * (k - 1) for d, k in zip(full.dilation, full.kernel)]
    if max(windows.steps) > MOST_STEP or max(reach) > MOST_REACH:
        return "the filter's positions are further apart than a tensor map says"
    if max(map(abs, (*windows.lower, *windows.upper))) > FARTHEST_CORNER:
        return "the filter's first position is further outside than a tensor map says"
    return ""


def windows_of(full: ConvProblem) -> Windows:
    """The positions of the filter of a convolution over depth, height and width."""
    reach = [d * (k - 1) for d, k in zip(full.dilation, full.kernel)]
    return Windows(
        lower=(-full.pads_begin[2], -full.pads_begin[1]),
        upper=(full.pads_end[2] - reach[2], full.pads_end[1] - reach[1]),
        steps=(full.stride[2], full.stride[1]),
    )
