"""Copies of images from which convolutions read whole vectors of channels."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....codegen.alternatives import has_lengths
from ....codegen.gpu.contraction.cost import LAUNCH
from ....codegen.gpu.contraction.gemv import gemv_refusal
from ....codegen.gpu.contraction.gpu_contraction import GpuContraction
from ....codegen.gpu.contraction.im2row import ChannelPadding, channel_padding
from ....codegen.gpu.contraction.solvers import in_vectors, own_candidates
from ....codegen.gpu.data.channels import channel_padding_launch
from ....codegen.gpu.machine import machine
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.epilogue import Epilogue
from ....codegen.tuning.request import Request
from ....core.dim import known_equal, known_in
from ....core.shape import Shape, row_major_strides
from ....graph.instruction import Instruction
from ...lowering.buffers import View
from ...lowering.lowering import Lowering

__all__ = ["filled_up", "images_of", "quickest"]

CLEAR_GAIN = 1.5
"""Estimated gain from which groups of whole vectors are copied into whole slices: 16 x 64 x 8 x 64 to 112 channels, 5 x
5, 2 groups, took 18 us on an H200, 22 with a copy that promised a quarter less."""


def images_of(low: Lowering, problem: ConvProblem, x: View) -> ChannelPadding | None:
    """Return the copy of the images, with aligned channel vectors, from which a convolution should be computed; None
    for no copy.

    There is none if no copy lets kernels read vectors. Nor is there if the convolution, of the input or of its
    channels-last copy, already is a product of few rows.
    """

    def contraction(problem: ConvProblem, first_channel: int = 0) -> GpuContraction:
        request = Request(problem, Epilogue(), (), 1, False)
        return GpuContraction(request, precision=low.options.precision, first_channel=first_channel)

    last = problem
    if not known_equal(x.lens[1], 1) and not known_in(x.strides[1], 1):
        lens = (problem.batch, *problem.in_lens, problem.in_channels)
        last = replace(problem, x_strides=row_major_strides(lens)[:-1])
    if not has_lengths(last) and not gemv_refusal(contraction(last)):
        return None
    found = [f for f in channel_padding(problem) if in_vectors(contraction(f.problem, f.first_channel))]
    if problem.groups == 1 or not found:
        return found[0] if found else None

    def seconds(filled: ChannelPadding) -> float:
        copied = x.shape.bytes + prod(filled.lens) * x.type.size
        return copied / machine().bandwidth + LAUNCH / machine().clock + quickest(contraction(filled.problem))

    filled = min(found, key=seconds)
    gain = CLEAR_GAIN if in_vectors(contraction(last)) else 1.0
    return filled if gain * seconds(filled) < quickest(contraction(last)) else None


def quickest(contraction: GpuContraction) -> float:
    """Return the estimated seconds of the best kernel of a contraction."""
    return own_candidates(contraction)[0].solver.estimate(contraction)


def filled_up(low: Lowering, ins: Instruction, filled: ChannelPadding, x: View) -> View:
    """Append the copy that makes the images with aligned channel vectors, and return them."""
    lens = filled.lens
    if filled.groups > 1:
        (_, channel, *spatial), channels = x.strides, x.lens[1] // filled.groups
        split = (x.lens[0], channels, *x.lens[2:], filled.groups)
        x = x.with_shape(Shape(x.type, split, (x.strides[0], channel, *spatial, channels * channel)))
    out = low.allocate(Shape.from_permutation(x.type, lens, (0, *range(2, len(lens)), 1)))
    how = filled.channels, filled.before, filled.step, filled.block, filled.taken
    launch = channel_padding_launch(x.tensor, out.tensor, *how, low.origin(ins))
    low.launch(launch, {"x": x, "out": out}, ins)
    if filled.groups > 1:
        whole = lens[0], filled.problem.in_channels, *lens[2:-1]
        return out.with_shape(Shape.from_permutation(x.type, whole, (0, *range(2, len(whole)), 1)))
    return out
