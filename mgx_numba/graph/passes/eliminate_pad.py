"""Merge padding into the following convolution or pooling."""

from __future__ import annotations

import numpy as np

from ...core.dim import is_symbolic
from ...core.types import finfo
from ...ops.pad import PadMode
from ...ops.pooling import PoolingMode
from ...ops.window import PaddingMode
from ..instruction import Instruction
from .build import RewriteBuilder
from .match import Match, op, rule, some
from .rewriter import rule_pass


def _spatial_pads(pad: Instruction) -> tuple[list[int], list[int]] | str:
    """Return the padding before and after each spatial axis, or the reason why it cannot be merged."""
    attributes = pad.op.attributes()
    pads, rank = attributes["pads"], pad.shape.ndim
    before, after = list(pads[:rank]), list(pads[rank:])
    if attributes["mode"] is not PadMode.constant:
        return "padding is not constant"
    if any(map(is_symbolic, pads)):
        return "how much is padded is known when the program runs"
    if any(before[:2] + after[:2]) or min(pads, default=0) < 0:
        return "padding is not only around spatial axes"
    return before[2:], after[2:]


def _joined(own: tuple[int, ...], before: list[int], after: list[int]) -> tuple[int, ...]:
    spatial = len(before)
    pairs = (own, own) if len(own) == spatial else (own[:spatial], own[spatial:])
    return (*(a + b for a, b in zip(pairs[0], before)), *(a + b for a, b in zip(pairs[1], after)))


@rule("pad_conv", op("convolution quant_convolution", op("pad", some("x"), bind="pad"), some("w")), exact=True)
def pad_of_convolution(m: Match, b: RewriteBuilder) -> object:
    pads = _spatial_pads(m.pad)
    attributes = m.ins.op.attributes()
    if isinstance(pads, str):
        return pads
    if m.pad.op.attributes()["value"] != 0 or attributes["padding_mode"] is not PaddingMode.default_:
        return "the padding value is not 0, or the convolution computes its own padding"
    padding = _joined(attributes["padding"], *pads)
    return b.op(m.ins.op.with_attributes(padding=padding), m.x, m.w)  # conv(pad(x), w) -> conv[padding](x, w)


@rule("pad_pooling", op("pooling", op("pad", some("x"), bind="pad")), exact=True)
def pad_of_pooling(m: Match, b: RewriteBuilder) -> object:
    return _padded_pooling(m, b, -np.inf)  # pool(pad(x)) -> pool[padding](x)


@rule("pad_pooling", op("pooling", op("pad", some("x"), bind="pad")), exact=False)
def low_pad_of_pooling(m: Match, b: RewriteBuilder) -> object:
    """``pool(pad(x)) -> pool[padding](x)`` for a maximum padded with the least finite number; no finite element is
    less."""
    if not m.x.shape.type.is_floating:
        return "the values are no floats"
    return _padded_pooling(m, b, float(finfo(m.x.shape.type.numpy).min))


def _padded_pooling(m: Match, b: RewriteBuilder, lowest: float) -> Instruction | str:
    pads = _spatial_pads(m.pad)
    attributes = m.ins.op.attributes()
    if isinstance(pads, str):
        return pads
    if attributes["ceil_mode"] or attributes["dyn_global"] or attributes["padding_mode"] is not PaddingMode.default_:
        return "the pooling computes its own windows"
    changes: dict[str, object] = {"padding": _joined(attributes["padding"], *pads)}
    value = m.pad.op.attributes()["value"]
    if attributes["mode"] is PoolingMode.max:
        if not m.x.shape.type.is_floating or value > lowest:
            return "padding may be the largest element"
    elif value != 0:
        return "the padding value is not 0"
    elif attributes["mode"] is PoolingMode.average:
        if any(attributes["padding"]) and not attributes["count_include_pad"]:
            return "some padding counts for the mean and some does not"
        changes["count_include_pad"] = True
    return b.op(m.ins.op.with_attributes(**changes), m.x)


EliminatePad = rule_pass("eliminate_pad", pad_of_convolution, pad_of_pooling, low_pad_of_pooling)
