"""The copies of a program with dynamic inputs for given lengths, as targets begin with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..graph.numbers import Numbered
from ..graph.passes import run_passes
from ..graph.passes.base import Options
from ..graph.program import Program
from ..graph.settling import Settled
from .options import TargetOptions
from .passes import SETTLED_PASSES
from .tracing import is_watched

__all__ = ["settling"]


def settling(
    source: Program, options: TargetOptions, settings: Options
) -> Callable[[Mapping[str, Sequence[int]]], Numbered]:
    """What gives the copy for lengths of the dynamic inputs, by name; most are had by substitution.

    Args:
        source: the program, which stays as it is.
        options: what was asked for.
        settings: what passes may assume.
    """

    def rewrite(settled: Program) -> None:
        run_passes(settled, SETTLED_PASSES, settings, disabled=options.disabled_passes)

    copies = Settled(source, rewrite)
    return lambda lens: Numbered.of(copies.made(lens)) if is_watched() else copies.of(lens)
