"""Show programs with symbolic lengths with the numbers of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..core.dim import Dim
from ..runtime.plan import PlannedStep

if TYPE_CHECKING:
    from ..graph.program import Program


def with_lengths(program: Program, values: Mapping[Dim, int] | None) -> tuple[Program, Callable[[str], str]]:
    """Return the program with its symbols replaced by ``values``, and a function that maps an instruction's symbolic
    text to its text in that program.

    Without ``values`` the program is returned unchanged.
    """
    if not values:
        return program, str
    from ..graph.printer import program_lines  # late: few programs are printed
    from ..graph.substitution import settled

    numbered = settled(program, values)
    lines = zip(program_lines(program), program_lines(numbered), strict=True)
    texts = {symbolic: plain for (symbolic, _), (plain, _) in lines}
    return numbered, lambda text: texts.get(text, text)


def renamed(step: PlannedStep, text: Callable[[str], str]) -> PlannedStep:
    """Return the step with ``text`` applied to the text of its instruction."""
    return dataclasses.replace(step, instruction=text(step.instruction))
