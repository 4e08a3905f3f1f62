"""Convolutions with ONNX's attributes."""

from __future__ import annotations

from collections.abc import Sequence

from ...ops.window import PaddingMode, auto_padding
from ..instruction import Instruction
from .base import MacroBuilder, macro

_AUTO = {"SAME_UPPER": PaddingMode.same_upper, "SAME_LOWER": PaddingMode.same_lower}


@macro(
    "convolution",
    "quant_convolution",
    inputs=(2, 3),
    auto_pad="NOTSET",
    paddings=(),
    strides=(),
    dilations=(),
    group=1,
    padding_mode=0,
)
def convolution(
    e: MacroBuilder,
    x: Instruction,
    w: Instruction,
    bias: Instruction | None = None,
    *,
    auto_pad: str,
    paddings: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
    padding_mode: int,
) -> Instruction:
    """Convolution, plus a bias along axis 1.

    ``auto_pad`` is ONNX's. Lengths that are known give paddings as numbers, dynamic ones a ``padding_mode``.
    Absent ``paddings`` are 0, absent ``strides`` and ``dilations`` 1.
    """
    axes = x.shape.ndim - 2
    strides, dilations = strides or (1,) * axes, dilations or (1,) * axes
    mode = PaddingMode(padding_mode)
    if auto_pad not in ("NOTSET", "VALID", *_AUTO):
        raise e.fail(f"auto_pad is {auto_pad!r}, expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if auto_pad != "NOTSET" and any(paddings):
        raise e.fail(f"auto_pad is {auto_pad} and paddings are given: {list(paddings)}")
    if auto_pad in _AUTO:
        mode, paddings = _same(e, x, w, _AUTO[auto_pad], strides, dilations)
    attributes = {
        "padding": paddings or (0,) * axes,
        "stride": strides,
        "dilation": dilations,
        "group": group,
    }
    result = e.op(e.name, x, w, padding_mode=mode, **attributes)
    if bias is None:
        return result
    return e.pointwise("add", result, e.broadcast_axis(bias, 1, result))


def _same(
    e: MacroBuilder,
    x: Instruction,
    w: Instruction,
    mode: PaddingMode,
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[PaddingMode, tuple[int, ...]]:
    if x.shape.is_dynamic:
        return mode, ()
    kernel = e.lens(w)[2:]
    if not len(x.shape.lens) - 2 == len(kernel) == len(strides) == len(dilations):
        raise e.fail(f"{len(kernel)} kernel axes, {len(strides)} strides and {len(dilations)} dilations for {x.shape}")
    pairs = auto_padding(mode, x.shape.lens[2:], kernel, strides, dilations)
    return PaddingMode.default_, tuple(p[0] for p in pairs) + tuple(p[1] for p in pairs)
