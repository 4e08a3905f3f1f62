"""Fourier transforms, by products with constant matrices."""

from __future__ import annotations

from math import isqrt, prod

import numpy as np

from ...core.dim import Dim
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .node import Node
from .registry import register
from .tensors import ir_type

LEAST_GAIN = 3
"""Products of a direct transform for each product of one in two steps, from which the latter is taken.

Zen 3, one thread, 16 rows: with a gain of 3.2 (128 points) 11.9 and 13.0 us for float32, 23.9 and 14.1 us for float64;
of 2.7 (64 points) 4.4 and 10.0 us, 7.2 and 10.1 us; of 12.8 (512 points) 199 and 47 us, 387 and 80 us."""

LARGEST_MATRIX = 1 << 22
"""Largest matrix of a transform (elements, 16 MiB of float32). Longer prime transforms are convolutions: of 4093 points
a matrix takes 64 MiB. No figures kept."""


def transform(g: Builder, x: Instruction, points: int, inverse: bool, one_sided: bool) -> Instruction:
    """Emit the Fourier transform [rows, bins, 2] of x [rows, n, 1 or 2]: real and imaginary parts.

    ``points`` is the length of the transform. The one-sided inverse [rows, points, 1] takes the first half of a
    Hermitian spectrum. A transform is a product with a matrix, or two of them for points with two similar factors, or a
    convolution.
    """
    _, n, parts = g.lens(x)
    if points > LARGEST:  # the factors of huge numbers would not be found in any time
        raise UnsupportedError(f"a transform of {points} points is too long, expected at most {LARGEST}")
    used, real = min(n, points), one_sided and inverse
    bins = points // 2 + 1 if one_sided and not inverse else points
    x, type = g.slice(x, 1, 0, used), x.shape.type
    weights = np.full((used, 1), 1 / points if inverse else 1.0)
    if real:
        mirrored = np.arange(used)[:, None]
        weights = weights * np.where((mirrored == 0) | (2 * mirrored == points), 1, 2)
    outer, inner = _factors(points)
    columns = -(-bins // outer)
    direct, two = used * parts * bins * (1 if real else 2), points * (2 * outer * parts + 4 * columns)
    in_two = LEAST_GAIN * two < direct
    elements = inner * columns if in_two else used * bins  # at most 2 * points for a power of two
    by_convolution = elements > max(LARGEST_MATRIX, 2 * points)
    if in_two or by_convolution:
        scaled = g.pointwise("mul", x, g.literal(weights, type)) if inverse else x
        return (_by_convolution if by_convolution else _in_two_steps)(g, scaled, points, bins, inverse, real)
    matrix = _coupled(_roots(used, bins, points, inverse) * weights, real)[:, :parts]
    product = g.op("dot", g.reshape(x, (g.lens(x)[0], used * parts)), g.literal(matrix.reshape(used * parts, -1), type))
    return g.reshape(product, (g.lens(x)[0], bins, matrix.shape[-1]))


def _by_convolution(g: Builder, x: Instruction, points: int, bins: int, inverse: bool, real: bool) -> Instruction:
    """Emit `transform` by Bluestein's algorithm, for points without two similar factors.

    With ``c[k] = w(k * k / 2, points)``, a convolution is computed by transforms of a power of two::

        X[k] = c[k] * sum_j conj(c[k - j]) * c[j] * x[j]
    """
    _, used, parts = g.lens(x)
    whole = 1 << (used + bins - 2).bit_length()
    if whole > LARGEST:
        raise UnsupportedError(f"a transform of {points} points is too long, expected at most {LARGEST // 4}")
    places = np.arange(max(used, bins))
    chirp = np.exp((1j if inverse else -1j) * np.pi * (places * places % (2 * points)) / points)
    kernel = np.zeros(whole, np.complex128)
    kernel[:bins] = chirp[:bins].conj()
    kernel[whole - used + 1 :] = chirp[1:used][::-1].conj()
    if parts == 1:
        x = g.op("pad", x, pads=(0, 0, 0, 0, 0, 1))
    spectrum = transform(g, _times(g, x, chirp[:used]), whole, False, False)
    result = g.slice(transform(g, _times(g, spectrum, np.fft.fft(kernel)), whole, True, False), 1, 0, bins)
    return g.slice(_times(g, result, chirp[:bins]), 2, 0, 1 if real else 2)


def _times(g: Builder, x: Instruction, factors: np.ndarray) -> Instruction:
    """Emit the product of complex numbers [rows, n, 2] with n complex factors."""
    type = x.shape.type
    swapped = g.op("concat", *(g.slice(x, 2, k, k + 1) for k in (1, 0)), axis=2)
    cosine = np.stack([factors.real, factors.real], 1)
    sine = np.stack([-factors.imag, factors.imag], 1)
    products = (g.pointwise("mul", v, g.literal(f, type)) for v, f in ((x, cosine), (swapped, sine)))
    return g.pointwise("add", *products)


def _factors(points: int) -> tuple[int, int]:
    """Return the two factors of ``points`` that are closest to each other, the smaller one first."""
    first = next(k for k in range(isqrt(points), 0, -1) if points % k == 0)
    return first, points // first


def _roots(rows: int, columns: int, points: int, inverse: bool) -> np.ndarray:
    """Return the matrix of ``exp(-2 pi i row column / points)``, or of its conjugate for an inverse transform."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % points / points
    return np.exp((2j if inverse else -2j) * np.pi * turns)


def _coupled(matrix: np.ndarray, real: bool = False) -> np.ndarray:
    """Return the real matrix [rows, 2, columns, 2] by which real and imaginary parts are multiplied with a complex
    matrix [rows, columns]; ``real``: [rows, 2, columns, 1] for the real parts of the result alone."""
    every = np.array([[matrix.real, matrix.imag], [-matrix.imag, matrix.real]])[:, : 1 if real else 2]
    return every.transpose(2, 0, 3, 1)


def _in_two_steps(g: Builder, x: Instruction, points: int, bins: int, inverse: bool, real: bool) -> Instruction:
    """Emit `transform` by the algorithm of Cooley and Tukey, for ``points = outer * inner``.

    With positions ``i * inner + j`` and bins ``k + outer * m``::

        X[k + outer * m] = sum_j w(j * m, inner) * w(j * k, points) * sum_i w(i * k, outer) * x[i * inner + j]
    """
    (rows, used, parts), type = g.lens(x), x.shape.type
    outer, inner = _factors(points)
    columns = -(-bins // outer)
    if used < points:
        x = g.op("pad", x, pads=(0, 0, 0, 0, points - used, 0))
    x = g.transpose(g.reshape(x, (rows, outer, inner, parts)), [0, 1, 3, 2])
    first = _coupled(_roots(outer, outer, outer, inverse))[:, :parts].transpose(3, 2, 0, 1)
    step = g.literal(first.reshape(2 * outer, outer * parts), type)
    y = g.matmul(step, g.reshape(x, (rows, outer * parts, inner)))
    a, b = (g.slice(y, 1, k * outer, (k + 1) * outer) for k in range(2))
    turned = _roots(outer, inner, points, inverse)
    cosine, sine = (g.literal(v, type) for v in (turned.real, turned.imag))
    turned_a = g.pointwise("sub", g.pointwise("mul", a, cosine), g.pointwise("mul", b, sine))
    turned_b = g.pointwise("add", g.pointwise("mul", a, sine), g.pointwise("mul", b, cosine))
    joined = g.reshape(g.op("concat", turned_a, turned_b, axis=2), (rows * outer, 2 * inner))
    second = _coupled(_roots(inner, columns, inner, inverse), real).transpose(1, 0, 2, 3)
    ends = second.shape[-1]
    z = g.op("dot", joined, g.literal(second.reshape(2 * inner, columns * ends), type))
    ordered = g.transpose(g.reshape(z, (rows, outer, columns, ends)), [0, 2, 1, 3])
    return g.slice(g.reshape(ordered, (rows, columns * outer, ends)), 1, 0, bins)


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
    result = transform(g, flat, points, inverse, one_sided)
    joined = g.reshape(result, (*outer, *g.lens(result)[1:]))
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
    if not isinstance(frames, Dim) and frames * size > LARGEST:
        raise UnsupportedError(f"{frames} frames of {size} are too many")
    starts = g.pointwise("mul", g.iota(frames, 0, 2), g.literal(np.int64(hop)))
    cut = g.op("gather", x, g.pointwise("add", starts, g.iota(size, 1, 2)), axis=1)
    if window is not None:
        cut = g.pointwise("mul", cut, g.reshape(window, (size, 1)))
    flat = g.reshape(cut, (lens[0] * frames, size, lens[2]))
    result = transform(g, flat, size, False, node.get_bool("onesided", True))
    return g.reshape(result, (lens[0], frames, *g.lens(result)[1:]))


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
        given = f"num_mel_bins {count}, dft_length {points} and sample_rate {sampling}"
        raise ParseError(f"{given} must be positive, and give at most {LARGEST} weights")
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
