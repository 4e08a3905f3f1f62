"""Run a program in two stages where lengths depend on data; the second stage is compiled for the lengths that the first
found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.kernel import KernelSource
from .. import symbolic_split
from ..base import FastPath, Inputs, Results, Tree, grouped
from ..split_point import SplitCompiled, SplitPoint
from .compiled import LoweredProgram

if TYPE_CHECKING:
    from ...graph.program import Program
    from ...runtime.cpu.library.nodes import Node
    from ..base import ThreadSpan


class SplitProgram(SplitCompiled, LoweredProgram):
    """Runs the first stage, then the second on some of its results."""

    def __init__(
        self,
        head: LoweredProgram,
        tail: LoweredProgram,
        split_point: SplitPoint,
        trees: list[Tree] | None,
        whole: Callable[[], Program],
    ) -> None:
        """Connect two stages; ``trees`` groups the results of ``whole``, the program shown to users."""
        LoweredProgram.__init__(self, None, trees, whole)
        SplitCompiled.__init__(self, head, tail, split_point, trees)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[object]:
        return grouped(self.trees, self._in_stages(inputs, lambda stage, given: stage.run(given)))

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[FastPath | None], None] | None = None
    ) -> FastPath | None:
        """Return a fast path that runs the fast paths of both stages; see `LoweredProgram.direct`."""
        if result_type not in self._direct:
            self._direct[result_type] = None if self.trees is not None else self._both(result_type)
        return self._direct[result_type]

    def _both(self, result_type: type[np.ndarray]) -> FastPath | None:
        head, tail = self._head.direct(result_type), self._tail.direct(result_type)
        if head is None or tail is None:
            return None
        point = self._split_point
        ends = all(early for early, _ in point.results)  # the second stage computes nothing

        def run(inputs: Any) -> Results | None:
            first = head(inputs)
            if first is None:
                return None
            given = point.given(inputs, first)
            if ends:
                return point.together(first, [])
            for name, array in given.items():
                if array.dtype == np.uint8:  # the fast path takes no other class of arrays of bytes
                    given[name] = array.view(np.ndarray)
            second = tail(self._with_lengths(inputs, given))
            return None if second is None else point.together(first, second)

        return run

    def _with_lengths(self, inputs: Inputs, given: dict[str, Any]) -> Mapping[str, Any]:
        """Return the second stage's inputs with the lengths of the first stage's inputs that it takes."""
        return given

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[object], list[ThreadSpan]]:
        """Run both stages and return their spans; see `LoweredProgram.timeline`."""
        spans: list[ThreadSpan] = []

        def timed(stage: LoweredProgram, given: Mapping[str, np.ndarray]) -> list[object]:
            results, found = stage.timeline(given)
            spans.extend(found)
            return results

        return grouped(self.trees, self._in_stages(inputs, timed)), spans

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See `LoweredProgram.idle`. The second stage is left out: its inputs are known only by running the first."""
        self._head.idle(inputs)

    def kernels(self) -> list[KernelSource]:
        """Return the kernels of both stages, including kernels that the second may need; see
        `LoweredProgram.kernels`."""
        found = {kernel: kernel for part in self._parts() for kernel in part.kernels()}
        return list({**found, **{kernel: kernel for kernel in super().kernels()}}.values())

    def _parts(self) -> list[LoweredProgram]:
        return [self._head, self._tail]

    def library_node(self) -> Node:
        from ...runtime.cpu.library import nodes

        head, tail, point = self._head.library_node(), self._tail.library_node(), self._split_point
        first = len(nodes.outputs_of(head)) - len(point.inputs)
        return nodes.StagesNode(
            head,
            tail,
            point.results,
            point.completed,
            {name: first + k for k, name in enumerate(point.inputs)},
            frozenset(point.inputs[len(point.inputs) - point.sizes :]),
            point.shared,
            self._lengths(),
        )

    def _lengths(self) -> Mapping[str, tuple[str, int]]:
        """Return the input of the first stage, and its axis, that has each length that the second stage takes, by
        name."""
        return {}


class CpuSymbolicSplit(symbolic_split.SymbolicSplit, SplitProgram):
    """Two symbolic stages on the CPU; see `symbolic_split.SymbolicSplit`."""

    def _with_lengths(self, inputs: Inputs, given: dict[str, Any]) -> Mapping[str, Any]:
        return self._explicit(inputs, given)

    def _lengths(self) -> Mapping[str, tuple[str, int]]:
        return self._length_sources
