"""Rough times from floating-point operations and bytes, for choosing between solvers before anything is measured."""

from __future__ import annotations

from ..machine import machine
from ..microkernels.register_tile import RegisterTile

__all__ = ["peak_flops", "seconds"]

EFFICIENCY = 0.9
"""Part of the peak that is reckoned with: the same for all solvers, so that it weighs arithmetic against memory. What
the estimates lose by all their constants is measured by `bench.choices`."""


def peak_flops(tile: RegisterTile) -> float:
    """Operations per second of one thread that runs the tile."""
    return 2.0 * tile.lanes * tile.packing.k_interleave / tile.cycles * machine().clock


def seconds(tile: RegisterTile, flops: float, moved: float, threads: int) -> float:
    """Time of work that overlaps arithmetic, spread evenly over threads, with memory traffic, which they share."""
    return max(flops / (EFFICIENCY * peak_flops(tile) * max(threads, 1)), moved / machine().bytes_per_second)
