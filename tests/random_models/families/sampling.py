"""Image positions: patches, regions, unpooling; and spectra."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder
from .convolution import image
from .registry import step

__all__ = []


@step()
def columns_to_image(b: Builder) -> Any:
    kernel, space = [b.integer(1, 3) for _ in range(2)], [b.pick((4, 6)) for _ in range(2)]
    pads = [b.integer(0, 1)] * 4
    strides = [b.integer(1, 2) for _ in range(2)]
    blocks = np.prod([(n + 2 * pads[0] - k) // s + 1 for n, k, s in zip(space, kernel, strides)])
    if b.opset < 18:
        return None
    x = b.new((b.integer(1, 2), b.integer(1, 2) * int(np.prod(kernel)), int(blocks)), np.float32, special=False)
    return b.node("Col2Im", [x, b.ints(space), b.ints(kernel)], pads=pads, strides=strides)


@step()
def regions(b: Builder) -> Any:
    x = image(b, lambda v: v.type == np.float32 and v.rank == 4 and v.finite)
    if x.rank != 4 or x.type != np.float32 or not x.finite or b.opset < 16:
        return None
    corners = b.rng.uniform(0, 3, (b.integer(1, 3), 2))
    boxes = b.constant(np.concatenate([corners, corners + b.rng.uniform(1, 4, corners.shape)], 1), np.float32)
    batch = b.constant(b.rng.integers(0, x.lens[0], len(corners)), np.int64)
    sizes = {"output_height": b.integer(1, 3), "output_width": b.integer(1, 3), "sampling_ratio": b.integer(1, 2)}
    mode = b.pick(("avg", "max")) if sizes["sampling_ratio"] == 1 else "avg"  # else ONNX Runtime warns of its own error
    coordinates = b.pick(("half_pixel", "output_half_pixel"))
    scale = b.pick((0.5, 1.0))
    return b.node(
        "RoiAlign",
        [x, boxes, batch],
        spatial_scale=scale,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        **sizes,
    )


@step()
def unpooling(b: Builder) -> Any:
    x = image(b, lambda v: v.type == np.float32 and v.rank == 4 and v.finite)
    if x.rank != 4 or x.type != np.float32 or not x.finite or min(x.lens[2:]) < 2:
        return None
    made = b.outputs("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2])
    if not made:
        return None
    over = x.lens[2] % 2 or x.lens[3] % 2  # indices reach beyond what the windows cover
    lens = [b.ints(x.lens)] if over or b.integer(0, 1) else []
    return b.node("MaxUnpool", [*made, *lens], kernel_shape=[2, 2], strides=[2, 2])


@step()
def spectrum(b: Builder) -> Any:
    if b.opset < 17:
        return None
    inverse = b.integer(0, 1)
    x = b.new((b.integer(1, 2), b.pick((4, 5, 8)), 2 if inverse else b.integer(1, 2)), np.float32, special=False)
    axis = {"axis": 1} if b.opset < 20 else {}
    given = [x, None, b.ints(1)] if b.opset >= 20 else [x]
    whole = 0 if inverse else b.integer(0, 1)
    made = b.node("DFT", given, inverse=inverse, onesided=whole, keep=False, **axis)
    # ONNX Runtime's sines are off by units in the last place of 1, so that what is zero is not.
    return b.node("Add", [made, b.constant(1, x.type)]) if made else None


@step()
def affine_positions(b: Builder) -> Any:
    if b.opset < 20:
        return None
    n, space = b.integer(1, 2), [b.integer(2, 4) for _ in range(b.integer(2, 3))]
    theta = b.new((n, len(space), len(space) + 1), np.float32, special=False)
    return b.node("AffineGrid", [theta, b.ints([n, 1, *space])], align_corners=b.integer(0, 1))


@step()
def cropped_or_padded(b: Builder) -> Any:
    x = b.tensor(lambda v: v.rank > 0)
    if b.opset < 18:
        return None
    axes = b.subset(x.rank)
    return b.node("CenterCropPad", [x, b.ints([b.integer(1, 6) for _ in axes])], axes=axes)


@step()
def compressed(b: Builder) -> Any:
    """A condition that the model holds, which is all that lengths may depend on."""
    x = b.tensor(lambda v: v.rank > 0)
    axis = b.integer(0, x.rank - 1)
    condition = b.constant(b.rng.integers(0, 2, x.lens[axis]), np.bool_)
    return b.node("Compress", [x, condition], axis=axis)
