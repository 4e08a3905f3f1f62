"""What all targets give: a compiled program that runs, traces and lists its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

import numpy as np

from ..errors import OptionError
from ..graph.program import Program

__all__ = ["Compiled", "Progress", "compile_for"]

Progress = Callable[[int, int, str], None]


class Compiled(Protocol):
    """A program compiled for a target."""

    program: Program

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Results for checked inputs by name."""

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """As ``run``, printing each instruction, its time (1), a summary (2) or all of its output (3)."""

    def kernels(self) -> list[Any]:
        """The distinct kernels, in order of first use."""


def compile_for(
    target: str,
    program: Program,
    *,
    fast_math: bool = True,
    num_threads: int = 0,
    memory_reuse: bool = True,
    disabled_passes: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Compiled:
    """Compile a copy of a program for the target of this name.

    Raises:
        OptionError: unknown target.
        CompileError: a pass or code generation failed.
    """
    if target == "ref":
        from .ref.target import RefProgram

        return RefProgram(program.clone())
    if target == "cpu":
        from .cpu.options import CpuOptions
        from .cpu.target import CpuProgram

        options = CpuOptions(
            fast_math=fast_math,
            num_threads=num_threads,
            memory_reuse=memory_reuse,
            disabled_passes=tuple(disabled_passes),
        )
        return CpuProgram(program, options, progress)
    raise OptionError(f"unknown target {target!r}; known: ref, cpu")
