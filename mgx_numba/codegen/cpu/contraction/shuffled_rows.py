"""Text of a channel shuffle before a grouped 1x1 convolution.

A group reads its channels in runs, one run from each of the shuffled groups. Tiles that finish in registers read the
runs as taps of their own lengths. For the last rows, which other tiles compute, the runs are copied to a small buffer,
one behind the other. Weights are packed in the same order.

Copying all rows takes as long as a copy of the whole input: 12 us of 54 us for 28x28 pixels by 4 groups of 34 to 34
channels on Zen 5, where runs as taps take 5.
"""

from __future__ import annotations

import numpy as np

from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...statements import indent
from ..host import CACHE_LINE
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import MOST_RUNS
from .macro_kernel import MacroKernel, even_table

SCRATCH_BYTES = 65536
"""Stack memory (bytes) for the rows."""


def shuffled_order(problem: ConvProblem) -> np.ndarray:
    """Return for each group its channels in buffer order: int64 ``[groups, group_in]``."""
    channels = np.arange(problem.in_channels).reshape(problem.groups, problem.group_in)
    return np.argsort(channels % problem.shuffled, axis=1, kind="stable")


@dataclass
class ShuffledRows:
    """The rows of a convolution with a shuffled input, for evenly spaced pixels ``x_ld`` elements apart."""

    problem: ConvProblem
    tile: RegisterTile

    def _near_ld(self) -> int:
        """Return the elements of a buffer row: an odd number of cache lines, with room for a vector past the row."""
        line = CACHE_LINE // ITEMSIZE[self.tile.types.a]
        return (-(-(self.problem.group_in + self.tile.lanes) // line) | 1) * line

    def fits(self) -> bool:
        """Return whether the buffer and the table of runs have room for the rows of a tile."""
        rows = max(self.tile.variants())
        return (
            self.problem.shuffled <= MOST_RUNS and rows * self._near_ld() * ITEMSIZE[self.tile.types.a] <= SCRATCH_BYTES
        )

    def declare(self, macro: MacroKernel) -> None:
        """Set the macro-kernel's ``setup``, ``runs`` and, for tiles that do not finish in registers, ``table``."""
        problem, dtype, lanes = self.problem, self.tile.types.a, self.tile.lanes
        macro.arguments.integers(
            near_ld=self._near_ld(), shuffled=problem.shuffled, run_ld=problem.in_channels // problem.shuffled
        )
        macro.runs = {"taps": "shuffled", "depth": "idiv(depth + shuffled - 1, shuffled)", "runs": "runs"}
        macro.setup = [
            f"near = local_{dtype}({SCRATCH_BYTES // ITEMSIZE[dtype]})",
            f"runs = local_int64({2 * MOST_RUNS})",
            "filled = 0",
        ]
        macro.table = [
            *even_table("near_ld"),
            "near_place = 0",
            "for t in range(shuffled):",
            *indent([
                f"terms = runs[t + {MOST_RUNS}]",
                "place = row * x_ld + runs[t]",
                f"for c in range(0, terms, {lanes}):",
                f"    rest = imin(terms - c, {lanes})",
                "    for i in range(left):",
                f"        term = load_tail(x, place + i * x_ld + c, rest, 1, {lanes})",
                "        store(near, near_place + i * near_ld + c, term)",
                "near_place += terms",
            ]),
            *macro.block.fill(x="offset(near, 0)", taps=1, depth="depth_now"),
        ]  # fmt: skip

    def find_runs(self) -> list[str]:
        """Return statements for ``decode`` that compute the offsets of the runs of ``group``."""
        return [
            "x0 = group * depth",
            "for t in range(shuffled):",
            "    run = idiv(x0 + shuffled - 1 - t, shuffled)",
            "    runs[t] = t * run_ld + run",
            f"    runs[t + {MOST_RUNS}] = idiv(x0 + depth + shuffled - 1 - t, shuffled) - run",
            "x0 = 0",
        ]
