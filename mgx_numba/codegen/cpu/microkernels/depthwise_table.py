"""What depthwise kernels and the intrinsics of their inner loops agree on. Needs neither llvmlite nor Numba."""

from __future__ import annotations

__all__ = ["DEPTHWISE_SLOTS", "RUNS"]

RUNS = (8, 7, 6, 5, 4, 3, 2, 1)
"""Output pixels whose sums can be kept in registers."""

DEPTHWISE_SLOTS = (
    "planes",
    "x_plane",  # elements from one plane of taps to the next
    "w_plane",
    "row0",  # first row of taps
    "row1",  # and the one after the last
    "x_row",  # elements from one row of taps to the next
    "x_column",  # elements from one column to the next
    "channels",  # from the run's first on
    "stride",  # (one tap) columns from one pixel to the next
    "taps",  # (one tap) taps along the line
    "dilation",  # (one tap) columns from one tap to the next
    "first",  # column of the first tap of pixel 0, perhaps negative
    "columns",  # columns of the input
)
"""Words of the block that describes a line to `mgx_numba.codegen.cpu.microkernels.depthwise`."""
