"""Forms of Winograd's minimal filtering, and the filter transform at compile time."""

from __future__ import annotations

import numpy as np

from .....dataclass import dataclass

# By the side of an input tile: interpolation points beside infinity, and the scale of all filter values. The output
# transform applies the remaining scales of the points.
_POINTS = {4: (0, 1, -1), 6: (0, 1, -1, 2, -2)}
_SCALES = {4: 1 / 2, 6: -1 / 6}


@dataclass(frozen=True)
class Form:
    """The form F(out x out, taps x taps). With ``stored``, filters are transformed at compile time."""

    out: int
    taps: int
    stored: bool = False

    @property
    def side(self) -> int:
        """Return the side of an input tile, and of the block of points."""
        return self.out + self.taps - 1

    @property
    def points(self) -> int:
        """Return the multiplications per tile and channel."""
        return self.side**2

    @property
    def name(self) -> str:
        return f"conv_winograd_{self.out}x{self.out}" + ("" if self.taps == 3 else f"_{self.taps}x{self.taps}")

    @property
    def scale(self) -> float:
        """Return the factor of filters before they are transformed."""
        return _SCALES[self.side] ** 2

    def filter_matrix(self) -> np.ndarray:
        """Return the float64 matrix ``[taps * taps, points]`` that transforms a scaled filter with taps in row-major
        order."""
        finite = [[float(point**k) for k in range(self.taps)] for point in _POINTS[self.side]]
        line = np.array([*finite, [0.0] * (self.taps - 1) + [1.0]])
        return np.einsum("ia,jb->abij", line, line).reshape(self.taps**2, self.points)
