"""What all targets give: a compiled program that runs, traces and lists its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import numpy as np

from ..errors import OptionError

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..codegen.tuning.session import Tuning
    from ..graph.program import Program

__all__ = ["Compiled", "Observation", "Progress", "compile_for"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Observation:
    """One step of a run.

    Attributes:
        instruction: printed text of the instruction that it serves.
        label: what ran, in MIGraphX's style (``cpu::mul_add_kernel``, ``ref::topk``).
        seconds: how long it took.
        outputs: gives the arrays that it wrote; valid until the observer returns.
        flops: operations that it computed, 0 if not known.
        bytes: the least that it must move, 0 if not known.
    """

    instruction: str
    label: str
    seconds: float
    outputs: Callable[[], list[np.ndarray]]
    flops: int = 0
    bytes: int = 0


Observer = Callable[[Observation], None]


class Compiled(Protocol):
    """A program compiled for a target."""

    @property
    def program(self) -> Program:
        """The program as it runs; passes are applied if its lengths are known."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Results for checked inputs by name. Inputs have the lengths of their shapes; results have the model's rank,
        that is `Shape.array_lens`."""

    def direct(self, result_type: type[np.ndarray]) -> Callable[[Any], list[Any] | None] | None:
        """A quick form of ``run``, if there is one: it takes what a caller gave, unchecked, and returns new arrays of
        this type, or None, having done nothing, where that is for ``run``."""

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        """The program as it runs on these inputs: dynamic lengths are settled, passes applied."""

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        """As ``run``, one step after the other, telling the observer of each."""

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """What ``run`` does besides its steps: the cost of a call."""

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """As ``run``, printing each instruction, its time (1), a summary (2) or all of its output (3)."""

    def kernels(self) -> list[Any]:
        """The distinct kernels, in order of first use."""

    def machine_code(self) -> dict[str, Any]:
        """The kernels' objects as a value tree.

        Raises:
            OptionError: the target makes none.
        """


def compile_for(
    target: str,
    program: Program,
    *,
    fast_math: bool = True,
    num_threads: int = 0,
    memory_reuse: bool = True,
    disabled_passes: tuple[str, ...] = (),
    progress: Progress | None = None,
    tuning: Tuning | None = None,
    store: Store | None = None,
) -> Compiled:
    """Compile a copy of a program for the target of this name.

    ``tuning`` gives the records that the cpu target goes by, and takes those that it makes. ``store`` is where it looks
    for compiled kernels, by default the user's object store.

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
            tuning=tuning,
            store=store,
        )
        return CpuProgram(program, options, progress)
    raise OptionError(f"unknown target {target!r}; known: ref, cpu")
