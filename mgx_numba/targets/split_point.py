"""The connection of two stages of a program, and programs that run in two stages. Importing this module
imports no pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ..core.output_buffers import output_buffer
from ..dataclass import dataclass
from ..runtime.completed import Counted, Spaced
from .base import Growing, Inputs, Kept, KeptSplit, Observer, Results, Stage, Tree, grouped, without_buffers

if TYPE_CHECKING:
    from ..graph.rewrite_log import RewriteLog

Run = Callable[[Inputs], Results]


LARGEST_SIZE = 1 << 40
"""Largest size that `size_array` holds, more than any length: the largest int64, which ends of slices may be, is taken
for it. A step of this size times the bytes between elements stays within int64."""


class _Part(Protocol):
    """The compiled program of a stage."""

    def run(self, inputs: Inputs) -> Results: ...
    def stages(self, inputs: Inputs) -> list[Stage]: ...


@dataclass(frozen=True)
class SplitPoint:
    """The connection of two stages of a program.

    Attributes:
        inputs: names of the second stage's inputs: the first stage's last results, in order.
        results: for each result of the program, whether the first stage computes it, and its number among that stage's
            results.
        completed: results of the first stage that take their lengths from others, between the stages.
        shared: names of the program's inputs that the second stage takes, too.
        sizes: number of the last of ``inputs`` that hold a size. The second stage takes arrays without elements in
            their place (`size_array`), so that the sizes are symbols of its plan.
    """

    inputs: tuple[str, ...]
    results: tuple[tuple[bool, int], ...]
    completed: tuple[Counted | Spaced, ...] = ()
    shared: tuple[str, ...] = ()
    sizes: int = 0

    def run(self, inputs: Inputs, head: Run, tail: Run) -> Results:
        """Run both stages and return the program's results."""
        first = head(inputs)
        given = self.given(inputs, first)
        return self.together(first, tail(given))

    def given(self, inputs: Inputs, first: Results) -> dict[str, Any]:
        """Return the second stage's inputs; complete the first stage's results ``first`` in place."""
        for one in self.completed:
            first[one.number] = one.value(first)
        given = dict(zip(self.inputs, first[len(first) - len(self.inputs) :], strict=True))
        for name in self.inputs[len(self.inputs) - self.sizes :]:
            given[name] = size_array(given[name])
        given.update((name, inputs[name]) for name in self.shared)
        return given

    def together(self, first: Results, second: Results) -> Results:
        """Return the program's results, picked from the results ``first`` and ``second`` of the stages."""
        return [(first if early else second)[k] for early, k in self.results]

    def buffers(self, inputs: Inputs) -> dict[str, Any]:
        """Return the memory that ``inputs`` have for results of the second stage.

        The first stage gets no such memory: where that is an input, too, the second stage may still read the input.
        """
        places = [(output_buffer(k), own) for k, (early, own) in enumerate(self.results) if not early]
        return {output_buffer(own): inputs[name] for name, own in places if name in inputs}

    def stages(self, inputs: Mapping[str, np.ndarray], head: _Part, tail: _Part) -> list[Stage]:
        """Return the stages that run on these inputs. The first stage is run, because the second's lengths depend on
        its results."""
        found: list[Stage] = []

        def note(part: _Part) -> Run:
            def run(given: Inputs) -> Results:
                own = part.stages(given)
                if found:
                    before = len(found[-1].program.main.results()) - len(self.inputs)
                    own[0] = replace(own[0], passed={name: before + k for k, name in enumerate(self.inputs)})
                found.extend(own)
                return part.run(given)

            return run

        self.run(inputs, note(head), note(tail))
        return found


def size_array(size: np.ndarray) -> np.ndarray:
    """Return an array without elements that holds a size: of lengths ``size + 1``, but 1 for one below 0, ``-size``,
    but 0 for one above 0, and 0.

    A length of 0 is a number in plans, which serve one sign of a size each. Larger sizes become `LARGEST_SIZE`. Arrays
    hold one size each, as NumPy limits the product of an array's lengths; in files of older versions they hold several.
    """
    values = [max(-LARGEST_SIZE, min(n, LARGEST_SIZE)) for n in np.asarray(size).reshape(-1).tolist()]
    above, below = [n + 1 if n > 0 else 1 for n in values], [-n if n < 0 else 0 for n in values]
    return np.empty([*above, *below, 0], np.bool_)


class SplitCompiled:
    """A compiled program of two stages, for any target. See `Compiled` for the methods."""

    _given: ClassVar[bool] = False

    def __init__(self, head: Any, tail: Any, split_point: SplitPoint, trees: list[Tree] | None) -> None:
        """Connect the compiled programs ``head`` and ``tail`` of the stages; ``trees`` groups the results."""
        self._head, self._tail, self._split_point, self._trees = head, tail, split_point, trees

    def _in_stages(self, inputs: Inputs, run: Callable[[Any, Inputs], Results]) -> list[object]:
        """Return the program's results, with ``run`` called on each stage and its inputs."""
        return self._split_point.run(without_buffers(inputs), partial(run, self._head), partial(run, self._tail))

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        """Return the stages of both programs; see `Planned.stages`. The first is run to find the second's lengths."""
        return self._split_point.stages(inputs, self._head, self._tail)

    def observe(self, inputs: Inputs, observer: Observer) -> list[object]:
        """Run and observe the steps of both stages; see `Compiled.observe`."""
        return grouped(self._trees, self._in_stages(inputs, lambda stage, given: stage.observe(given, observer)))

    def fallback_reasons(self) -> dict[str, str]:
        """Return the first stage's reasons; the second stage has a plan only when it runs."""
        return dict(self._head.fallback_reasons())

    def rewrite_log(self) -> RewriteLog:
        """Return the rewrite log of both stages."""
        from ..graph.rewrite_log import RewriteLog  # late: imports all operators

        log = RewriteLog()
        for stage in (self._head, self._tail):
            log.include(stage.rewrite_log())
        return log

    def kept_plan(self) -> Kept | None:
        head, tail = self._head.kept_plan(), self._tail.kept_plan()
        if head is None or tail is None:
            return None
        return KeptSplit(head, tail, self._split_point, self._trees, self._given)

    def keep_growth(self, keep: Callable[[object], None]) -> None:
        """See `Growing`: stages may make further plans."""
        for stage in (self._head, self._tail):
            if isinstance(stage, Growing):
                stage.keep_growth(lambda _: keep(self))
