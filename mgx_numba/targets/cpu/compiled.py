"""A program lowered to a plan: run, observe and show it; in two stages where lengths depend on data. Loading such a
program imports no pass and no operator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ...codegen.kernel import KernelSource
from ...codegen.store import default_store
from ...core.copying import row_major
from ...core.dim import Dim
from ...core.output_buffers import OUTPUT_BUFFERS, output_buffer
from ...errors import UnsupportedError
from ...interrupts import whole_module
from ...runtime.cpu.executor import COMMON_KERNELS, Executable, executor_kernels
from ...runtime.cpu.native_call import Entry
from ...runtime.plan import FallbackStep, Plan, Step
from .. import symbolic_split
from ..base import FastPath, Inputs, Kept, KeptPlan, Results, Stage, Tree, grouped, step_observer, without_buffers
from ..split_point import SplitCompiled, SplitPoint

if TYPE_CHECKING:
    from pathlib import Path

    from ...codegen.store import Store
    from ...graph.program import Program
    from ...graph.rewrite_log import RewriteLog
    from ...runtime.cpu.library.nodes import Node
    from ...runtime.library_form import LibraryForm
    from ..base import Observer, ThreadSpan


class LoweredProgram:
    """A compiled program: its executable, the trees that group its results into tuples, and the program it was lowered
    from."""

    def __init__(
        self,
        executable: Executable | None,
        trees: list[Tree] | None,
        optimized: Callable[[], Program],
        store: Store | None = None,
    ) -> None:
        """Create the program.

        Args:
            executable: the plan's executable; None for a program of several plans.
            trees: group the results into tuples; None: no result is a tuple.
            optimized: returns the program that was lowered; called once, when the program is to be shown.
            store: object store of the kernels; None: the user's.
        """
        self.executable = executable
        self.trees = trees
        self._optimized = optimized
        self._store = store
        self._idle: LoweredProgram | None = None
        self._direct: dict[type[np.ndarray], Entry | None] = {}

    @functools.cached_property
    def program(self) -> Program:
        """The optimised program."""
        return self._optimized()

    def _for(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        """Return the program that runs for the lengths of ``inputs``."""
        return self

    def serves(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """Return whether the plan serves the inputs' lengths."""
        assert self.executable is not None
        return self.executable.serves(self.arrays(inputs))

    def symbol_values(self, inputs: Mapping[str, np.ndarray]) -> dict[Dim, int] | None:
        """Return the values of the plan's symbols; None if the inputs' lengths do not match the parameters' symbolic
        shapes."""
        assert self.executable is not None
        return self.executable.values(self.arrays(inputs))

    def first_plan(self) -> Plan:
        """Return the plan that takes the program's inputs."""
        assert self.executable is not None
        return self.executable.plan

    def own_plans(self) -> list[Plan]:
        """Return the plans of all stages."""
        return [part.executable.plan for part in self._all() if part.executable is not None]

    def _parts(self) -> list[LoweredProgram]:
        """Return the programs that run for this program: its stages, or its plans made so far."""
        return []

    def _all(self) -> list[LoweredProgram]:
        """Return this program and all programs that run for it, directly or not."""
        return [self, *(one for part in self._parts() for one in part._all())]

    def run(self, inputs: Mapping[str, np.ndarray]) -> Results:
        """Return the results for checked inputs, by name.

        Entries named by `output_buffer` are memory for results, which the run uses where it can.
        """
        target = self._for(inputs)
        if target is not self:
            return target.run(inputs)
        assert target.executable is not None
        outputs = None
        if target.trees is None and any(name.startswith(OUTPUT_BUFFERS) for name in inputs):
            outputs = [inputs.get(output_buffer(k)) for k in range(len(target.executable.plan.outputs))]
        results = target.executable.run(target.arrays(inputs), outputs)
        return results if target.trees is None else grouped(target.trees, results)

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[FastPath | None], None] | None = None
    ) -> FastPath | None:
        """Return the executable's fast path (`Executable.direct`), cached by type; None also if results are tuples."""
        if self.executable is None or self.trees is not None:
            return None
        if result_type not in self._direct:
            self._direct[result_type] = self.executable.direct(result_type)
        return self._direct[result_type]

    def arrays(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the inputs in the plan's order, C-contiguous. Inputs with one element may have another rank than the
        plan's."""
        assert self.executable is not None
        return [row_major(inputs[p.name]) for p in self.executable.plan.parameters]

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        """Return the optimised program for the lengths of ``inputs``."""
        return self._for(inputs)._shown(inputs)[0]

    def _shown(self, inputs: Mapping[str, np.ndarray]) -> tuple[Program, Callable[[str], str]]:
        """Return the program with the inputs' lengths, and a function that maps an instruction's text in the plan to
        its text there."""
        from ..shown import with_lengths  # late: few programs are shown

        return with_lengths(self.program, None if self.executable is None else self.symbol_values(inputs))

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[object]:
        """Run step by step, call the observer after each step, and return the results."""
        target = self._for(inputs)
        if target is not self:
            return target.observe(inputs, observer)
        assert target.executable is not None
        note = step_observer(observer, target._shown(inputs)[1])
        return grouped(target.trees, target.executable.run_traced(target.arrays(inputs), note))

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        target = self._for(inputs)
        if target is not self:
            return target.stages(inputs)
        assert target.executable is not None
        program, text = target._shown(inputs)
        plan = target.executable.plan_for(target.arrays(inputs))
        if program is not target.program:
            from ..shown import renamed

            plan.steps = [renamed(step, text) for step in plan.steps]
        return [Stage(program, plan)]

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[object], list[ThreadSpan]]:
        from ..base import ThreadSpan

        target = self._for(inputs)
        if target is not self:
            return target.timeline(inputs)
        assert target.executable is not None
        steps = target.executable.plan.steps
        _, text = target._shown(inputs)
        results, found = target.executable.run_timed(target.arrays(inputs))
        return grouped(target.trees, results), [
            ThreadSpan(text(step.instruction), step.label, s.thread, s.start, s.end, getattr(step, "reason", ""))
            for s in found
            for step in (steps[s.step],)
        ]

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Do a run with the same inputs and outputs, without its steps."""
        target = self._for(inputs)
        if target is not self:
            target.idle(inputs)
            return
        executable = target.executable
        assert executable is not None
        if target._idle is None:
            plan = dataclasses.replace(executable.plan, steps=[], arena_bytes=0, constants=[])
            outputs = [o for o in plan.outputs if o.lens is not None]
            empty = Executable(dataclasses.replace(plan, outputs=outputs), num_threads=executable.num_threads)
            target._idle = LoweredProgram(empty, None, self._optimized)
        entry = target._idle.direct(np.ndarray)
        if entry is None or entry(inputs) is None:
            target._idle.run(inputs)

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[object]:
        """Run step by step, printing each step like MIGraphX's ``MIGRAPHX_TRACE_EVAL``, and return the results."""
        from ..tracing import traced  # late: few programs are traced

        return traced(lambda observer: self.observe(inputs, observer), level, out)

    def kernels(self) -> list[KernelSource]:
        """Return the distinct kernels, in order of first use; the origin of each has all instructions that run it."""
        plans = [program.executable.plan for program in self._all() if program.executable is not None]
        return list(kernels_of(plans).values())

    def fallback_reasons(self) -> dict[str, str]:
        """See `Compiled.fallback_reasons`; empty with dynamic inputs, where each plan has reasons of its own."""
        steps = self.executable.plan.steps if self.executable is not None else []
        return {step.instruction: step.reason for step in steps if isinstance(step, FallbackStep)}

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`; for a plan from a file the passes run again to make the log."""
        return self.program.log

    def kept_plan(self) -> Kept | None:
        if self.executable is None:
            return None
        plan = self.executable.plan
        if plan.symbols:  # needs expressions, which a reader of the file lacks
            plan = dataclasses.replace(plan, parallel=self.executable.shares)
        return KeptPlan(plan, self.trees, [kernel.symbol for kernel in executor_kernels(plan)])

    def keep_growth(self, keep: Callable[[object], None]) -> None:
        """See `Growing`: programs of submodules may make further plans."""
        for step in () if self.executable is None else self.executable.plan.steps:
            bodies = getattr(step.function, "bodies", None) if isinstance(step, FallbackStep) else None
            for body in (bodies or {}).values():
                body.keep_growth(lambda _: keep(self))

    def machine_code(self) -> dict[str, object]:
        """Return the objects of all kernels that the program has so far, as `EmbeddedStore` reads them.

        Kernels that are in no store are compiled.
        """
        from ...codegen.embedding import embed  # late: few programs are saved with machine code

        return embed(self._all_kernels(), self._store)

    def stored_objects(self) -> dict[str, bytes]:
        """See `KeepsObjects`."""
        store = self._store or default_store()
        return {kernel.symbol: data for kernel in self._all_kernels() if (data := store.get(kernel)) is not None}

    def _all_kernels(self) -> list[KernelSource]:
        """Return `kernels`, and the kernels that run the plans."""
        others = (kernel for plan in self.own_plans() for kernel in executor_kernels(plan))
        return [*self.kernels(), *dict.fromkeys((*COMMON_KERNELS, *others))]

    def export_library(self, folder: Path, name: str, output_names: Sequence[str], form: LibraryForm) -> Path:
        """See `Exportable`; the members of a tuple ``t`` are outputs ``t.0``, ``t.1`` and so on."""
        whole_module("mgx_numba.runtime.cpu.library.writer")
        from ...runtime.cpu.library.writer import write_library

        given = self.result_trees()
        trees = range(len(output_names)) if given is None else given
        found = dict(leaf for pair in zip(output_names, trees, strict=True) for leaf in _named(*pair))
        names = [found[k] for k in range(len(found))]
        return write_library(self.library_node(), folder, name, names, form, self._store)

    def result_trees(self) -> list[Tree] | None:
        """Return the trees that group the results into tuples; None: no result is a tuple."""
        return self.trees

    def library_node(self) -> Node:
        """Return what an exported library runs.

        Raises:
            UnsupportedError: a plan is made in the first run.
        """
        from ...runtime.cpu.library.nodes import PlanNode

        if self.executable is None:
            raise UnsupportedError(
                "export_library: a plan of the program is made in its first run: run the program, then export it"
            )
        return PlanNode(self.executable)


def compile_node(
    compile: Callable[[Program], LoweredProgram], program: Program
) -> Callable[[Mapping[str, np.ndarray]], list]:
    """Return a function that computes the results (arrays) of a deferred node's program, which ``compile`` compiles,
    for arrays by parameter name."""
    made = compile(program)
    enter, lens = made.direct(np.ndarray), [value.shape.lens for value in program.main.results()]

    def run(inputs: Mapping[str, np.ndarray]) -> list:
        results = None if enter is None else enter(inputs)
        if results is None:
            results = made.run(inputs)
        return [result.reshape(n) for result, n in zip(results, lens, strict=True)]

    return run


def kernels_of(plans: Iterable[Plan]) -> dict[KernelSource, KernelSource]:
    """Return the distinct kernels of plans, in order of first use, each with all instructions that run it as origin."""
    origins: dict[KernelSource, dict[str, None]] = {}
    for plan in plans:
        for step in plan.all_steps():
            own = step.kernels if isinstance(step, FallbackStep) else ()
            if isinstance(step, Step):
                own = (step.kernel, *(a for a in step.args if isinstance(a, KernelSource)))
            origin = own[0].origin or step.instruction if own else ""
            for kernel in own:
                origins.setdefault(kernel, {})[kernel.origin or origin] = None
    return {kernel: dataclasses.replace(kernel, origin="\n".join(texts)) for kernel, texts in origins.items()}


def _named(name: str, tree: Tree) -> Iterator[tuple[int, str]]:
    """Yield the positions of the arrays in a tree, with a name for each."""
    if isinstance(tree, int):
        yield tree, name
    else:
        for k, member in enumerate(tree):
            yield from _named(f"{name}.{k}", member)


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
        buffers = {self._head: {}, self._tail: self._split_point.buffers(inputs)}
        return grouped(self.trees, self._in_stages(inputs, lambda stage, given: stage.run({**given, **buffers[stage]})))

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
            first = head(without_buffers(inputs))
            if first is None:
                return None
            given = point.given(inputs, first)
            if ends:
                return point.together(first, [])
            for name, array in given.items():
                if array.dtype == np.uint8:  # the fast path takes no other class of arrays of bytes
                    given[name] = array.view(np.ndarray)
            second = tail({**self._with_lengths(inputs, given), **point.buffers(inputs)})
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
