"""Estimate times from floating-point operations and bytes, to choose between solvers before measurements exist."""

from __future__ import annotations

from ..machine import machine
from ..microkernels.register_tile import RegisterTile

EFFICIENCY = 0.9
"""Fraction of peak arithmetic throughput that is assumed for all solvers, to weigh arithmetic against memory.
`bench.choices` measures what the estimates' constants lose."""


def peak_flops(tile: RegisterTile) -> float:
    """Return the peak operations per second of one thread that runs the tile."""
    return _cycle_flops(tile) * machine().clock


def _cycle_flops(tile: RegisterTile) -> float:
    return 2.0 * tile.lanes * tile.packing.k_interleave / tile.cycles


def seconds(tile: RegisterTile, flops: float, moved: float, threads: int) -> float:
    """Return the time (s) of arithmetic, spread evenly over threads, overlapped with memory traffic, whose bandwidth
    threads share."""
    here = machine()
    peak = _cycle_flops(tile) * here.clock
    return max(flops / (EFFICIENCY * peak * max(threads, 1)), moved / here.bandwidth(threads))
