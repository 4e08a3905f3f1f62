"""A program in which lengths depend on data, as two programs: the second is made for what the first has found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, TypeVar

import numpy as np

from ...codegen.kernel import KernelSource
from ...core.dim import Dim
from ...runtime.told_lengths import told_lengths
from ..base import Kept, KeptStages, Stage, Tree, grouped
from ..seam import Seam, TwoStages
from .compiled import LoweredProgram

if TYPE_CHECKING:
    from ...graph.program import Program
    from ...runtime.plan import Plan
    from ..base import Observer, ThreadSpan

__all__ = ["Lens", "StagedProgram", "SymbolicStages", "UnservedLengths"]

T = TypeVar("T")
Lens = Mapping[str, Sequence[int]]


class UnservedLengths(Exception):
    """A stage's plan does not serve lengths that the stages before it have found: ``late`` has them, stage by stage."""

    def __init__(self, late: list[Lens]) -> None:
        super().__init__("lengths that no plan serves")
        self.late = late


class StagedProgram(TwoStages, LoweredProgram):
    """Runs the first stage, then the second on some of its results."""

    several_plans: ClassVar[str] = "lengths inside of it depend on the values of its inputs"

    _given: ClassVar[bool] = False

    def __init__(
        self,
        head: LoweredProgram,
        tail: LoweredProgram,
        seam: Seam,
        trees: list[Tree] | None,
        whole: Callable[[], Program],
    ) -> None:
        """``trees`` groups the results of ``whole``, which is shown."""
        LoweredProgram.__init__(self, None, trees, whole)
        TwoStages.__init__(self, head, tail, seam)

    def kept_plan(self) -> Kept | None:
        """See `LoweredProgram.kept_plan`."""
        head, tail = self._head.kept_plan(), self._tail.kept_plan()
        return None if head is None or tail is None else KeptStages(head, tail, self._seam, self.trees, self._given)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """See `LoweredProgram.run`."""
        return grouped(self.trees, self._in_stages(inputs, lambda stage, given: stage.run(given)))

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        """See `LoweredProgram.observe`: the steps of both stages."""
        return grouped(self.trees, self._in_stages(inputs, lambda stage, given: stage.observe(given, observer)))

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[Any], list[ThreadSpan]]:
        """See `LoweredProgram.timeline`: that of both stages."""
        spans: list[ThreadSpan] = []

        def timed(stage: LoweredProgram, given: Mapping[str, np.ndarray]) -> list[Any]:
            results, found = stage.timeline(given)
            spans.extend(found)
            return results

        return grouped(self.trees, self._in_stages(inputs, timed)), spans

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """See `LoweredProgram.trace`: the steps of both stages."""
        return grouped(self.trees, self._in_stages(inputs, lambda stage, given: stage.trace(given, level, out)))

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See `LoweredProgram.idle`; what the second stage takes is known only by running the first, so it is left
        out."""
        self._head.idle(inputs)

    def kernels(self) -> list[KernelSource]:
        """See `LoweredProgram.kernels`; those that the second stage may need, too."""
        found = {kernel: kernel for part in self._parts() for kernel in part.kernels()}
        return list({**found, **{kernel: kernel for kernel in super().kernels()}}.values())

    def _parts(self) -> list[LoweredProgram]:
        return [self._head, self._tail]


class SymbolicStages(StagedProgram):
    """Two stages of a program with symbols; the second has symbols for lengths that the first one finds, too."""

    _given: ClassVar[bool] = True

    def serves(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """Return whether the first stage serves the inputs; the second stage is asked in the run."""
        return self._head.serves(inputs)

    def symbol_values(self, inputs: Mapping[str, np.ndarray]) -> dict[Dim, int] | None:
        """See `LoweredProgram.symbol_values`: of the symbols that are known before the run."""
        return self._head.symbol_values(inputs)

    def first_plan(self) -> Plan:
        """See `LoweredProgram.first_plan`."""
        return self._head.first_plan()

    def _in_stages(self, inputs: Mapping[str, Any], run: Callable[[Any, Mapping[str, Any]], list[Any]]) -> list[Any]:
        return self._seam.run(inputs, partial(run, self._head), lambda given: self._later(inputs, given, run))

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        """See `Planned.stages`."""
        return self._seam.stages(inputs, self._head, _Later(partial(self._later, inputs)))

    def _later(self, inputs: Mapping[str, Any], given: Mapping[str, Any], use: Callable[[Any, Any], T]) -> T:
        """Return what ``use`` gives for the second stage and its inputs, with the lengths of those of the first.

        Raises:
            UnservedLengths: the second stage's plan does not serve them.
        """
        values = self._head.symbol_values(inputs)
        assert values is not None
        lens: Lens = {name: value.shape for name, value in given.items()}
        told = {**given, **told_lengths(self._tail.first_plan(), values)}
        if not self._tail.serves(told):
            raise UnservedLengths([lens])
        try:
            return use(self._tail, told)
        except UnservedLengths as error:
            raise UnservedLengths([lens, *error.late]) from None


class _Later:
    """A later stage as `Seam.stages` wants it: ``use`` calls a function of it and its inputs."""

    def __init__(self, use: Callable[[Mapping[str, Any], Callable[[Any, Any], Any]], Any]) -> None:
        self._use = use

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Run the stage."""
        return self._use(inputs, lambda stage, told: stage.run(told))  # type: ignore[no-any-return]

    def stages(self, inputs: Mapping[str, Any]) -> list[Stage]:
        """See `Planned.stages`."""
        return self._use(inputs, lambda stage, told: stage.stages(told))  # type: ignore[no-any-return]
