"""Fourier transforms, by products with constant matrices.

ai.onnx: DFT MelWeightMatrix STFT.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .node import Node
from .registry import register
from .tensors import ir_type


def transform(
    g: Builder, x: Instruction, points: int, inverse: bool, one_sided: bool
) -> tuple[Instruction, Instruction]:
    """Emit real and imaginary part [rows, bins] of the Fourier transform of x [rows, n, 1 or 2].

    ``points`` is the length of the transform. The one-sided inverse takes the first half of a Hermitian spectrum.
    """
    rows, n, parts = g.lens(x)
    used = min(n, points)
    bins = points // 2 + 1 if one_sided and not inverse else points
    if used * bins > LARGEST:
        raise UnsupportedError(f"a transform of {points} points needs too large a matrix")
    angle = 2 * np.pi * np.outer(np.arange(used), np.arange(bins)) / points
    weight = np.full((used, 1), 1 / points if inverse else 1.0)
    if one_sided and inverse:
        mirrored = np.arange(used)[:, None]
        weight = weight * np.where((mirrored == 0) | (2 * mirrored == points), 1, 2)
    type = x.shape.type
    cosine, sine = (g.literal(f(angle) * weight, type) for f in (np.cos, np.sin))
    pieces = [g.reshape(p, (rows, n)) for p in g.split(x, 2, [1] * parts)]
    pieces = [g.slice(p, 1, 0, used) for p in pieces]
    real, imaginary = g.op("dot", pieces[0], cosine), g.op("dot", pieces[0], sine)
    if not inverse:
        imaginary = g.op("neg", imaginary)
    if parts == 2:
        other_cosine, other_sine = g.op("dot", pieces[1], cosine), g.op("dot", pieces[1], sine)
        real = g.op("sub" if inverse else "add", real, other_sine)
        imaginary = g.op("add", imaginary, other_cosine)
    return real, imaginary


@register("DFT")
def dft(
    g: Builder, node: Node, x: Instruction, length: Instruction | None = None, axis: Instruction | None = None
) -> Instruction:
    """Emit the Fourier transform along one axis (an attribute before operator set 20) of [batch, ..., 1 or 2]."""
    lens = g.lens(x)
    if len(lens) < 2 or lens[-1] not in (1, 2):
        raise ShapeError(f"input {list(lens)} must end in an axis of length 1 or 2")
    number = node.get_int("axis", 1) if node.opset < 20 else g.int_value(axis, "axis") if axis is not None else -2
    along = g.axis(number, len(lens))
    if along == len(lens) - 1:
        raise ParseError(f"axis {along} is the one of real and imaginary parts")
    inverse, one_sided = node.get_bool("inverse"), node.get_bool("onesided")
    n = lens[along]
    points = g.int_value(length, "dft_length") if length is not None else (2 * (n - 1) if one_sided and inverse else n)
    if points < 1:
        raise ParseError(f"dft_length is {points}, expected at least 1")
    order = [k for k in range(len(lens)) if k not in (along, len(lens) - 1)]
    outer = [lens[k] for k in order]
    flat = g.reshape(g.transpose(x, [*order, along, len(lens) - 1]), (prod(outer), n, lens[-1]))
    real, imaginary = transform(g, flat, points, inverse, one_sided)
    bins = g.lens(real)[1]
    both = [real] if one_sided and inverse else [real, imaginary]
    parts = [g.reshape(p, (*outer, bins, 1)) for p in both]
    joined = g.op("concat", *parts, axis=len(lens) - 1) if len(parts) > 1 else parts[0]
    back = [*order, along, len(lens) - 1]
    return g.transpose(joined, [back.index(k) for k in range(len(lens))])


@register("STFT")
def stft(
    g: Builder,
    node: Node,
    x: Instruction,
    step: Instruction,
    window: Instruction | None = None,
    length: Instruction | None = None,
) -> Instruction:
    """Emit the windowed and transformed frames [batch, frames, bins, 2] of the signal [batch, n, 1 or 2]."""
    lens = g.lens(x)
    if len(lens) == 2:
        x, lens = g.unsqueeze(x, [2]), (*lens, 1)
    if len(lens) != 3 or lens[2] not in (1, 2):
        raise ShapeError(f"signal is {list(lens)}, expected [batch, n, 1 or 2]")
    if window is not None and rank(window) != 1:
        raise ShapeError(f"window is {list(g.lens(window))}, expected a vector")
    hop = g.int_value(step, "frame_step")
    if length is not None:
        size = g.int_value(length, "frame_length")
    elif window is not None:
        size = g.lens(window)[0]
    else:
        size = lens[1]
    if hop < 1 or not 1 <= size <= lens[1]:
        raise ShapeError(f"frames of {size} every {hop} do not fit a signal of {lens[1]}")
    frames = (lens[1] - size) // hop + 1
    if frames * size > LARGEST:
        raise UnsupportedError(f"{frames} frames of {size} are too many")
    places = np.arange(frames)[:, None] * hop + np.arange(size)
    cut = g.op("gather", x, g.literal(places), axis=1)
    if window is not None:
        cut = g.pointwise("mul", cut, g.reshape(window, (size, 1)))
    flat = g.reshape(cut, (lens[0] * frames, size, lens[2]))
    real, imaginary = transform(g, flat, size, False, node.get_bool("onesided", True))
    bins = g.lens(real)[1]
    parts = [g.reshape(p, (lens[0], frames, bins, 1)) for p in (real, imaginary)]
    return g.op("concat", *parts, axis=3)


@register("MelWeightMatrix")
def mel_weight_matrix(
    g: Builder,
    node: Node,
    bins: Instruction,
    length: Instruction,
    rate: Instruction,
    low: Instruction,
    high: Instruction,
) -> Instruction:
    """Emit triangular filters evenly spaced in mel frequency, over a one-sided spectrum; inputs are constant."""
    count, points, sampling = (
        g.int_value(x, n) for x, n in ((bins, "num_mel_bins"), (length, "dft_length"), (rate, "sample_rate"))
    )
    edges = [float(g.constant(x, n).ravel()[0]) for x, n in ((low, "lower_edge_hertz"), (high, "upper_edge_hertz"))]
    if count < 1 or points < 1 or sampling < 1 or count * points > LARGEST:
        raise ParseError(f"num_mel_bins {count}, dft_length {points} and sample_rate {sampling} must be positive")
    mel = [2595 * np.log10(1 + f / 700) for f in edges]
    corners = np.arange(count + 2) * ((mel[1] - mel[0]) / (count + 2)) + mel[0]
    hertz = 700 * (10 ** (corners / 2595) - 1)
    place = ((points + 1) * hertz / sampling).astype(np.int64)
    if place.min() < 0 or place.max() > points // 2:
        raise ParseError(f"edges {edges} lie outside of the {points // 2 + 1} bins of the spectrum")
    result = np.zeros((points // 2 + 1, count), np.float32)
    for k in range(count):
        first, middle, last = place[k], place[k + 1], place[k + 2]
        if middle == first:
            result[middle, k] = 1
        else:
            rising = np.arange(first, middle + 1)
            result[rising, k] = (rising - first) / (middle - first)
        if last != middle:
            falling = np.arange(middle, last)
            result[falling, k] = (last - falling) / (last - middle)
    return g.literal(result, ir_type(node.get_int("output_datatype", 1)))
