"""The interface between depthwise kernels and their inner-loop intrinsics. Needs neither llvmlite nor Numba."""

from __future__ import annotations

from ..records import Record, Word

RUNS = (8, 7, 6, 5, 4, 3, 2, 1)
"""Numbers of output pixels whose accumulators fit the registers."""

DEPTHWISE_SUMS = {"int8": "int32", "uint8": "int32", "bfloat16": "float32"}
"""Stored accumulator dtype, by the dtype of an input that is multiplied in float32."""

LINE_BLOCK = Record(
    "line",
    (
        Word("planes", "planes of taps"),
        Word("x_plane", "elements from one plane of taps to the next"),
        Word("w_plane", "the same of the weights"),
        Word("row0", "first row of taps"),
        Word("row1", "and the one after the last"),
        Word("x_row", "elements from one row of taps to the next"),
        Word("x_column", "elements from one column to the next"),
        Word("channels", "from the run's first on"),
        Word("stride", "(any taps) columns from one pixel to the next"),
        Word("taps", "(any taps) taps along the line"),
        Word("dilation", "(any taps) columns from one tap to the next"),
        Word("first", "column of the first tap of pixel 0, perhaps negative"),
        Word("columns", "columns of the input"),
    ),
)
"""The record that describes a line to `mgx_numba.codegen.cpu.microkernels.depthwise`."""
