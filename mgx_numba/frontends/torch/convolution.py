"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ShapeError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Sizes


def spread(values: Sizes, count: int) -> tuple[int, ...]:
    """Return one value for each spatial axis; a single value stands for all."""
    listed = [values] if isinstance(values, int) else list(values)
    return tuple(listed * count if len(listed) == 1 else listed)


def _same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    total = [d * (k - 1) for k, d in zip(kernel, dilation)]
    return (*(n // 2 for n in total), *(n - n // 2 for n in total))


@register("convolution")
def convolution(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    w: Instruction,
    bias: Instruction | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Instruction:
    """Emit a convolution or a transposed one, plus a bias."""
    count = rank(w) - 2
    if rank(x) == count + 1:  # an image without batch
        args = (bias, stride, padding, dilation, transposed, output_padding, groups)
        return g.squeeze(convolution(g, node, g.unsqueeze(x, [0]), w, *args), [0])
    if rank(x) != rank(w):
        raise ShapeError(f"weights of {rank(w)} dimensions do not fit an input of {rank(x)}")
    stride, dilation = spread(stride, count), spread(dilation, count)
    kernel = g.lens(w)[2:]
    if isinstance(padding, str):
        padding = _same_padding(kernel, dilation) if padding == "same" else (0,) * count
    else:
        padding = spread(padding, count)
    if transposed:
        extra = spread(output_padding, count)
        y = _transposed(g, x, w, stride, padding, dilation, extra, groups)
    else:
        y = g.op("convolution", x, w, padding=padding, stride=stride, dilation=dilation, group=groups)
    return y if bias is None else g.op("add", y, g.broadcast_axis(bias, 1, y))


def _transposed(
    g: AtenBuilder,
    x: Instruction,
    w: Instruction,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> Instruction:
    """Emit a transposed convolution; ``extra`` leaves more of the result at the ends of its axes."""
    ends = [p - e for p, e in zip(padding, extra)]
    cut = [*padding, *(max(0, n) for n in ends)]
    longer = [max(0, -n) for n in ends]
    if cut[: len(padding)] == cut[len(padding) :]:
        cut = cut[: len(padding)]
    attributes: dict[str, Any] = {"stride": tuple(stride), "dilation": tuple(dilation), "group": groups}
    y = g.op("convolution_backwards", x, w, padding=tuple(cut), **attributes)
    return g.op("pad", y, pads=(0,) * (rank(y) + 2) + tuple(longer)) if any(longer) else y


@register("conv_tbc")
def conv_tbc(
    g: AtenBuilder, node: AtenNode, x: Instruction, w: Instruction, bias: Instruction, pad: int = 0
) -> Instruction:
    """Emit the convolution of sequences [time, batch, channels] with weights [time, channels, outputs]."""
    images = g.transpose(x, [1, 2, 0])
    y = convolution(g, node, images, g.transpose(w, [2, 1, 0]), bias, 1, pad, 1, False, 0, 1)
    return g.transpose(y, [2, 0, 1])
