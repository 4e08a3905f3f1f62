"""Windows added up at their places in images: ONNX's Col2Im, and the last step of a transposed convolution."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ..core.dim import known_equal
from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator, register
from .window import check_window


@register
@dataclass(frozen=True)
class Col2Im(Operator):
    """Images [n, c, size...] to which windows add up; elements in the padding are dropped.

    The input is [n, c * prod(kernel), prod(steps)]: one element of all windows a row. Lengths may be symbolic.

    Attributes:
        size: lengths of an image.
        kernel, stride, dilation: lengths of a window, and distances of windows and of their elements.
        padding: elements before each axis that the image leaves out.
        steps: windows along each axis.
    """

    name: ClassVar[str] = "col2im"
    size: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def apart(self) -> bool:
        """Return whether windows cover the image side by side, so that nothing is added."""
        numbers = zip(self.kernel, self.stride, self.dilation, self.steps)
        dense = all((k == s or known_equal(m, 1)) and (d == 1 or k == 1) for k, s, d, m in numbers)
        return (
            dense
            and not any(self.padding)
            and all(known_equal(n, k * m) for n, k, m in zip(self.size, self.kernel, self.steps))
        )

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (x,) = self.expect_inputs(inputs, 1)
        check_window(self, len(self.size), kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        if not self.size or not len(self.padding) == len(self.steps) == len(self.size):
            raise self.fail(f"padding {self.padding} and steps {self.steps} do not fit a size of {self.size}")
        if x.is_dynamic or x.ndim != 3 or x.lens[1] % prod(self.kernel) or x.lens[2] != prod(self.steps):
            raise self.fail(f"{x} has no windows of {self.kernel} at {self.steps} places")
        return Shape(x.type, (x.lens[0], x.lens[1] // prod(self.kernel), *self.size))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        (x,) = args
        wide = output.type.compute.numpy
        lens: Sequence[int] = (*output.lens[:2], *self.kernel, *self.steps)
        parts = x.reshape(lens).astype(wide, copy=False)
        result = np.zeros(output.lens, wide)
        for tap in itertools.product(*map(range, self.kernel)):
            own, image = list[Any](), list[Any]()
            for k, d, s, pad, n, count in zip(tap, self.dilation, self.stride, self.padding, self.size, self.steps):
                first = max(0, -((k * d - pad) // s))
                last = min(count, -((k * d - pad - n) // s))
                own.append(slice(first, max(first, last)))
                begin = first * s + k * d - pad
                image.append(slice(begin, begin + max(0, last - first) * s, s))
            place: Any = (..., *image)
            result[place] += parts[(slice(None), slice(None), *tap, *own)]
        return result.astype(output.type.numpy, copy=False)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return inputs[0].elements
