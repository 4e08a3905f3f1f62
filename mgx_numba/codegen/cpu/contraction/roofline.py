"""Estimate times from floating-point operations and bytes, to choose between solvers before measurements exist."""

from __future__ import annotations

from ..machine import machine
from ..microkernels.register_tile import RegisterTile

EFFICIENCY = 0.9
"""Fraction of peak arithmetic throughput that is assumed for all solvers, to weigh arithmetic against memory.
`bench.choices` measures what the estimates' constants lose."""


def peak_flops(tile: RegisterTile) -> float:
    """Return the peak operations per second of one thread that runs the tile."""
    return 2.0 * tile.lanes * tile.packing.k_interleave / tile.cycles * machine().clock


def seconds(tile: RegisterTile, flops: float, moved: float, threads: int) -> float:
    """Return the time (s) of arithmetic, spread evenly over threads, overlapped with memory traffic, whose bandwidth
    threads share."""
    return max(flops / (EFFICIENCY * peak_flops(tile) * max(threads, 1)), moved / machine().bandwidth(threads))
