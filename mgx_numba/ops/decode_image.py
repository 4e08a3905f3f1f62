"""Images from the bytes of files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from ..errors import UnsupportedError
from .base import Operator, register

CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}  # by definition


@register
@dataclass(frozen=True)
class DecodeImage(Operator):
    """The pixels, uint8 [height, width, channels], of an image file's bytes (uint8 [n]).

    Pillow reads the file: BMP, JPEG, JPEG 2000, PNG, PNM, TIFF, WebP, as far as it is built for them.
    """

    name: ClassVar[str] = "decode_image"
    pixel_format: str = "RGB"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if inputs[0].ndim != 1 or inputs[0].type is not Type.uint8_type:
            raise self.fail(f"expected the bytes of a file (uint8 of one dimension), got {inputs[0]}")
        if self.pixel_format not in CHANNELS:
            raise self.fail(f"pixel_format is {self.pixel_format!r}, expected one of {', '.join(CHANNELS)}")
        length, channels = DynamicDimension(0, UNBOUNDED), CHANNELS[self.pixel_format]
        return Shape.dynamic(Type.uint8_type, [length, length, DynamicDimension(channels, channels)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        try:
            from PIL import Image
        except ImportError:
            raise UnsupportedError(f"{self.name}: reading images needs Pillow (the extra 'image')") from None
        try:
            with Image.open(io.BytesIO(np.ascontiguousarray(args[0]).tobytes())) as image:
                pixels = np.asarray(image.convert("L" if self.pixel_format == "Grayscale" else "RGB"))
        except OSError as error:
            raise self.fail(f"the bytes are no image: {error}") from None
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        return pixels[:, :, ::-1] if self.pixel_format == "BGR" else pixels
