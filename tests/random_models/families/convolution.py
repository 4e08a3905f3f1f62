"""Convolutions, their transposes, and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Value
from .matmul import epilogue
from .registry import step

__all__ = ["image", "window"]


def image(b: Builder, accept: Any = lambda v: v.floating) -> Value:
    """Two images of one to three dimensions, of the pool or new."""

    def fits(v: Value) -> bool:
        return 3 <= v.rank <= 5 and v.array.size > 0 and accept(v)

    found = b.value(fits) if not b.chance(4) else None
    if found is not None:
        return found
    space = [b.pick((1, 3, 5, 7, 8, 9, 12)) for _ in range(b.pick((1, 2, 2, 2, 3)))]
    if len(space) == 3:
        space = [min(n, 5) for n in space]
    return b.new(
        (b.integer(1, 2), b.pick((1, 2, 3, 4, 8)), *space), b.pick((np.float32,) * 5 + (np.float64, np.float16))
    )


def window(b: Builder, kernel: list[int], limited: bool = False) -> dict[str, Any]:
    """Attributes of a window; pads of pooling must be less than its length."""
    rank = len(kernel)
    found: dict[str, Any] = {}
    if b.chance(2):
        found["strides"] = [b.integer(1, 3) for _ in kernel]
    if b.chance(3):
        found["auto_pad"] = b.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif not b.chance(3):
        found["pads"] = [b.integer(0, min(2, k - 1) if limited else 2) for k in kernel * 2][: 2 * rank]
    return found


@step(4)
def convolution(b: Builder) -> Any:
    """Filters are finite: whether padding times infinity is NaN is left open."""
    x = image(b)
    rank, c = x.rank - 2, x.lens[1]
    kernel = [b.integer(1, 3) for _ in range(rank)] if b.chance(2) else [b.pick((1, 3))] * rank
    attributes = window(b, kernel)
    if b.chance(3) and "auto_pad" not in attributes:
        attributes["dilations"] = [b.integer(1, 2) for _ in kernel]
    group = b.pick([g for g in (1, 1, 2, c) if c % g == 0])
    out = group * b.integer(1, 3) if group > 1 else b.pick((1, 2, 5, 8, 16, 20))
    if not b.shape_elements(x.lens[0], out, *x.lens[2:]):
        return None
    inputs = [
        x,
        b.new((out, c // group, *kernel), x.type, special=False),
        *([b.new((out,), x.type)] if b.chance(2) else []),
    ]
    return epilogue(b, b.node("Conv", inputs, group=group, kernel_shape=kernel if b.chance(2) else None, **attributes))


@step()
def transposed_convolution(b: Builder) -> Any:
    x = image(b)
    rank, c = x.rank - 2, x.lens[1]
    kernel = [b.integer(1, 3) for _ in range(rank)]
    attributes = window(b, kernel)
    strides = attributes.get("strides", [1] * rank)
    if b.chance(3) and "auto_pad" not in attributes:
        attributes["output_padding"] = [b.integer(0, s - 1) for s in strides]
    if b.chance(3):
        attributes["dilations"] = [b.integer(1, 2) for _ in kernel]
    group = b.pick([g for g in (1, 1, 2) if c % g == 0])
    out = b.integer(1, 4)
    reach = [k + (k - 1) * (d - 1) for k, d in zip(kernel, attributes.get("dilations", [1] * rank))]
    if attributes.get("auto_pad", "").startswith("SAME") and any(r < s for r, s in zip(reach, strides)):
        return None  # ONNX Runtime's result is shorter than the stride says
    inputs = [
        x,
        b.new((c, out, *kernel), x.type, special=False),
        *([b.new((out * group,), x.type)] if b.chance(2) else []),
    ]
    return epilogue(b, b.node("ConvTranspose", inputs, group=group, **attributes))


@step(3)
def pooling(b: Builder) -> Any:
    x = image(b, lambda v: v.floating and v.finite)
    if not x.finite:
        return None
    kernel = [min(b.integer(1, 3), n) for n in x.lens[2:]]
    op = b.pick(("MaxPool", "AveragePool", "AveragePool", "LpPool"))
    attributes: dict[str, Any] = {"kernel_shape": kernel, **window(b, kernel, limited=True)}
    # With VALID, shape inference goes by ceil_mode and ONNX Runtime does not.
    if attributes.get("auto_pad") != "VALID" and (op != "LpPool" or b.opset >= 18):
        attributes["ceil_mode"] = b.integer(0, 1)
    if op == "AveragePool":
        attributes["count_include_pad"] = b.integer(0, 1)
    if op == "LpPool":
        attributes["p"] = b.integer(1, 3)
    if b.chance(3) and "auto_pad" not in attributes and (op == "MaxPool" or b.opset >= 19):
        attributes["dilations"] = [b.integer(1, 2) for _ in kernel]
        if any((k - 1) * d >= n for k, d, n in zip(kernel, attributes["dilations"], x.lens[2:])):
            return None  # ONNX Runtime gives one element where the window does not fit
    if any(k < s for k, s in zip(kernel, attributes.get("strides", []))) and "SAME" in attributes.get("auto_pad", ""):
        return None  # ONNX Runtime leaves elements out before the first window
    if op == "MaxPool" and b.chance(3):
        return b.outputs(op, [x], 2, **attributes)
    return b.node(op, [x], **attributes)


@step()
def global_pooling(b: Builder) -> Any:
    x = image(b, lambda v: v.floating and v.finite)
    return b.node(b.pick(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")), [x]) if x.finite else None


@step()
def integer_convolution(b: Builder) -> Any:
    x = b.new((1, b.pick((1, 2, 4)), b.integer(3, 8), b.integer(3, 8)), np.uint8)
    w = b.new((b.pick((1, 3, 8)), x.lens[1], 3, b.pick((1, 3))), np.uint8)
    zeros = [None if b.chance(2) else b.constant(b.integer(0, 5), v.type) for v in (x, w)]
    return b.node("ConvInteger", [x, w, *zeros], **window(b, [3, w.lens[3]]))


@step()
def residual_block(b: Builder) -> Any:
    x = image(b, lambda v: v.type == np.float32 and v.rank == 4)
    if x.rank != 4 or x.type != np.float32:
        return None
    c = x.lens[1]
    y: Value | None = x
    for k in (3, b.pick((1, 3))):
        w = b.constant(b.rng.standard_normal((c, c, k, k)) / 4, x.type)
        y = y and b.node("Conv", [y, w, b.new((c,), x.type)], pads=[k // 2] * 4)
        y = y and (b.node("Relu", [y]) if k == 3 else y)
    return y and b.node("Add", [x, y])
