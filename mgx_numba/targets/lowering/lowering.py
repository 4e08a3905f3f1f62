"""Lower an optimised program to a plan, one instruction after the other.

Every instruction's value is a view of a buffer. Views of views are free. Concatenations and program results lend their
memory to the instructions that feed them, also through transposes and reshapes, so that these write in place. An
operator without a kernel runs by its NumPy meaning in a fallback step between native steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...codegen.alternatives import alternatives, has_lengths, modules_in, one_solution, served
from ...codegen.backend import Backend
from ...codegen.kernel import KernelSource
from ...codegen.launch import Launch, Solution
from ...codegen.problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
from ...core.dim import Dim, Length, SymbolicLengthError, all_of, known_equal
from ...core.shape import Shape
from ...core.types import Type
from ...environment import environment_flag
from ...errors import CompileError, MgxError, UnsupportedError
from ...graph.instruction import Instruction, Parameter, Return
from ...graph.passes.base import disabled_names
from ...graph.printer import format_instruction, instruction_names
from ...graph.program import Program
from ...graph.ranges import Ranges
from ...runtime.memory import view_of
from ...runtime.plan import (
    DeviceFunction,
    ParameterSpec,
    Plan,
    Region,
    TensorSpec,
    Use,
)
from .buffers import Buffer, View, color
from .caches import updates
from .fallback_values import (
    flatten,
    has_memory,
    is_on_host,
    made_by_fallback,
    no_kernels,
)  # fmt: skip
from .job import Draft, LoweringJob, Resources
from .output_aliasing import output_aliases, replaced, replaced_operand
from .plan_constants import PlanConstants, ReleasedConstants
from .rules import Body, LoweringRule
from .slow_steps import warn_if_slow
from .solutions import kept_answer, problem_key, with_origin
from .steps import PendingStep, name_results, referenced, resolved, resolved_jumps

if TYPE_CHECKING:
    from ...core.argument import Argument
    from ...graph.module import Module


P = TypeVar("P")
T = TypeVar("T")


class Lowering(PlanConstants):
    """One lowering; the target's rules call its methods, and add to its `draft`.

    Attributes:
        job: what the plan is for.
        resources: what the plan may use.
        draft: the plan under construction.
        values: view of each lowered instruction's result, or views of a tuple's members.
        output_aliases: memory lent to instructions for their results.
    """

    def __init__(self, job: LoweringJob, resources: Resources) -> None:
        super().__init__(resources.backend, job.options.packing_growth, job.weights, resources.load)
        self.job, self.resources, self.draft = job, resources, Draft()
        self.program, self.options, self.module = job.program, job.options, job.program.main
        self.rules, self.threads, self.solutions = resources.rules, resources.threads, resources.solutions
        self._texts: dict[Instruction, str] = {}
        self.values: dict[Instruction, Any] = {}
        self.output_aliases: dict[Instruction, View] = {}
        self.parameters = self.module.parameters()
        self._positions = {ins: index for index, ins in enumerate(self.parameters)}
        self.outputs: list[TensorSpec] = []
        self.hosted = 0
        self.ranges = Ranges()
        self._traces = environment_flag("MIGRAPHX_TRACE_FINALIZE")
        self._traces_pointwise = environment_flag("MIGRAPHX_TRACE_NARY")

    @np.errstate(all="ignore")
    def run(self) -> Plan:
        """Lower the whole program.

        ``MIGRAPHX_TRACE_FINALIZE`` prints each instruction with its steps, ``MIGRAPHX_TRACE_NARY`` the pointwise
        kernels, ``MIGRAPHX_DEBUG_MEMORY_COLORING`` the offsets of buffers.

        Raises:
            CompileError: an instruction cannot be lowered; the message has its text.
        """
        for ins in self.module.results():
            lens = None if is_on_host(ins.shape) and not has_memory(ins.shape) else ins.shape.array_lens
            self.outputs.append(TensorSpec(ins.shape.type.dtype_name, lens))
        self.output_aliases = output_aliases(self.module, self.rules, self.allocate)
        original = self.job.original
        released = None if original is None else ReleasedConstants(self, original)
        for ins in self.module:
            if isinstance(ins.op, Return):
                break
            before = len(self.draft.steps)
            try:
                self._lower(ins)
            except SymbolicLengthError:
                raise
            except Exception as error:
                what = error if isinstance(error, MgxError) else f"{type(error).__name__}: {error}"
                raise CompileError(f"lowering {self.text(ins)}: {what}") from error
            if self._traces:
                labels = ", ".join(step.label for step in self.draft.steps[before:])
                print(f"Finalize: {self.text(ins)} [{labels or 'no step'}]")
            if released is not None:
                released.lowered(ins)
        self._return_results()
        for settle in self.draft.finalizers:
            settle()
        self.resources = replace(self.resources, load=None, compile_body=None)  # steps may keep this object alive
        self._fill_all()
        return self._finish()

    def lowered(self, program: Program) -> Plan:
        """Return the plan of another program, such as a submodule, for the same target."""
        program.log.parent = self.program.log
        inner = Lowering(LoweringJob(program, self.options, self.job.scope, parent=self), self.resources)
        plan = inner.run()
        for condition in inner.draft.conditions:
            self.require(condition)
        self.program.log.close()
        return plan

    def lower_inside(self, module: Module, parameters: Sequence[View], results: Sequence[View]) -> list[View]:
        """Lower a submodule to steps of this plan, and return the views of its results.

        Args:
            module: the submodule, which may use values of the modules around it.
            parameters: values of its parameters.
            results: memory offered for its first results; the submodule need not use it.

        Raises:
            UnsupportedError: an instruction of the submodule needs a fallback step.
        """
        if module.first not in self._names:
            self._names.update(instruction_names(self.program.reachable_modules()))
        steps, settling, writers = len(self.draft.steps), len(self.draft.finalizers), self.draft.writers
        self.draft.writers = {}  # steps inside may be skipped, so parts are not passed in or out
        self.values.update(zip(module.parameters(), parameters, strict=True))
        self.output_aliases.update(output_aliases(module, self.rules, self.allocate, results))
        try:
            for ins in module:
                if isinstance(ins.op, Return):
                    break
                if not isinstance(ins.op, Parameter):
                    self._lower(ins)
                if any(step.launch is None for step in self.draft.steps[steps:]):
                    raise UnsupportedError(f"{self.text(ins)} is no kernel's")
            made = [self.values[ins] for ins in module.results()]
            if not all(isinstance(value, View) for value in made):
                raise UnsupportedError("a result is a tuple")
        except UnsupportedError:
            del self.draft.finalizers[settling:]
            self.draft.writers = writers
            raise
        self.draft.writers = writers | {Buffer(Region.ARENA): writer for writer in self.draft.writers.values()}
        return made

    def _lower(self, ins: Instruction) -> None:
        if isinstance(ins.op, Parameter):
            index = self._positions[ins]
            shape = ins.shape.to_standard()
            self.values[ins] = View(Buffer(Region.PARAMETER, index, shape.bytes), shape)
        elif ins.literal is not None:
            self.values[ins] = self._literal(ins.literal)
        else:
            rule = self.rules.get(ins.op.rule_name)
            reason = self._needs_host(ins, rule)
            if rule is None or reason:
                self.host(ins, reason or f"the target has no lowering rule for {ins.name}")
                return
            steps, requested, jumps = len(self.draft.steps), len(self.draft.requested), len(self.draft.jumps)
            try:
                rule.lower(self, ins)
            except UnsupportedError as error:
                del self.draft.steps[steps:], self.draft.requested[requested:], self.draft.jumps[jumps:]
                self.host(ins, str(error))
            else:
                if len(self.draft.steps) > steps:
                    name_results(self.draft.steps[-1], ins, self.values.get(ins))

    def derived(self, source: Instruction, make: Callable[[np.ndarray], View], how: Hashable) -> View:
        """Return the view that ``make`` derives from an instruction's constant value; ``how`` identifies the
        derivation.

        A constant that another plan of the program derived in the same way is reused.
        """
        shared, seen = self.shared, self.values[source]
        key = seen.shape, seen.offset, how
        known = None if shared is None else shared.made(self.owner_of(seen), key)
        if known is not None:
            array, shape, offset = known
            return View(self.constant(array).buffer, shape, offset)
        value = self.constant_value(source)
        assert value is not None
        view = make(value)
        if shared is not None:
            shared.note_made(self.owner_of(seen), key, (self.owner_of(view), view.shape, view.offset))
        return view

    def _needs_host(self, ins: Instruction, rule: LoweringRule | None) -> str:
        """Return why an instruction needs a fallback step whatever its rule does; empty if it does not."""
        if rule is not None and rule.hosted:
            return ""
        shapes = [ins.shape, *[i.shape for i in ins.inputs]]
        if not self.hosted:
            for shape in shapes:
                if not shape.plain:
                    break
            else:
                return ""
        reason = no_kernels(shapes)
        if reason:
            return reason
        if ins.shape.is_dynamic and not (rule is not None and rule.dynamic):
            return "lengths of its result are known at run time only"
        if any(i.shape.is_dynamic for i in ins.inputs):
            return "lengths of an input are known at run time only"
        hosted = self.hosted and any(made_by_fallback(self.values[i]) for i in ins.inputs)
        return "an input is made by a fallback step" if hosted else ""

    def _literal(self, literal: Argument) -> Any:
        if literal.array is None:
            return [self._literal(v) for v in literal.sub]
        return self.constant(literal.array, literal.shape)

    def constant_value(self, ins: Instruction) -> np.ndarray | None:
        """Return the array of a literal or of a view of a literal, with broadcast axes as views; None for other
        instructions."""
        view = self.values.get(ins)
        if not isinstance(view, View) or view.buffer.region is not Region.CONSTANT:
            return None
        return self.constant_of(view)

    def constant_of(self, view: View) -> np.ndarray | None:
        """Return the array of a view of a constant; None if its offset or lengths are symbolic."""
        if view.shape.symbolic or isinstance(view.offset, Dim):
            return None
        base = self.constants[view.buffer.index].reshape(-1)
        return view_of(base.view(np.uint8), view.lens, base.dtype, view.byte_offset, view.strides)

    def input(self, ins: Instruction, index: int) -> View:
        """Return the view of an instruction's input."""
        return self.values[ins.inputs[index]]

    def inputs(self, ins: Instruction) -> list[View]:
        """Return the views of all inputs."""
        return [self.values[i] for i in ins.inputs]

    def allocate(self, shape: Shape, behind: int = 0) -> View:
        """Return a view of a new arena buffer with the shape's strides and ``behind`` extra bytes at its end.

        A broadcast shape gets packed strides.
        """
        if shape.broadcasted and not known_equal(shape.elements, 1):
            shape = Shape(shape.type, shape.lens)
        return View(Buffer(Region.ARENA, 0, shape.bytes + behind), shape)

    def output(self, ins: Instruction) -> View:
        """Return and register the view for an instruction's result: the destination lent to it, else a new buffer."""
        view = self.output_aliases.get(ins) or self.allocate(ins.shape)
        self.values[ins] = view
        return view

    def outputs_of(self, ins: Instruction) -> list[View]:
        """Return and register the views for the results of an instruction, which may be a tuple."""
        if not ins.shape.sub_shapes:
            return [self.output(ins)]
        elements = {u.op.index: u for u in ins.users if u.name == "get_tuple_elem"}  # type: ignore[attr-defined]
        views = []
        for k, shape in enumerate(ins.shape.sub_shapes):
            donated = self.output_aliases.get(elements[k]) if k in elements else None
            views.append(donated or self.allocate(shape))
        self.values[ins] = views
        return views

    def launch(
        self,
        launch: Launch,
        operands: Mapping[str, View],
        ins: Instruction,
        label: str = "",
        checked_by: tuple[Instruction, ...] = (),
    ) -> None:
        """Append a native step; ``operands`` has a view for every operand name of the launch, ``checked_by`` the
        instruction of each of its checks, if ``ins`` is several in one."""
        if launch.empty:
            return
        if self.resources.finish is not None:
            launch = self.resources.finish(launch)
        label = label or f"{self.backend.name}::{launch.kernel.name}"
        self.draft.steps.append(PendingStep(launch, dict(operands), label, ins, checked_by=checked_by))
        if self.resources.on_kernels is not None:
            self.resources.on_kernels(launch.kernels)

    def launch_all(self, solution: Solution, operands: Mapping[str, View], ins: Instruction, *by: Instruction) -> None:
        """Append the launches of a solution, with the scratch memory that it needs unless it is among the operands;
        ``by`` is ``checked_by`` of `launch`."""
        if "scratch" not in operands and not known_equal(solution.scratch, 0):
            operands = {**operands, "scratch": self.allocate(Shape(Type.uint8_type, (solution.scratch,)))}
        for launch in solution.launches:
            self.launch(launch, operands, ins, checked_by=by)

    def compute(
        self,
        problem: PointwiseProblem | ReductionProblem | CopyProblem,
        inputs: Sequence[View],
        outputs: Sequence[View],
        ins: Instruction,
    ) -> None:
        """Append the steps that compute a problem over these tensors.

        Raises:
            UnsupportedError: the back end has no kernel for the problem.
        """
        solution = self.plan(problem)
        operands = {f"x{k}": v for k, v in enumerate(inputs)} | {f"out{k}": v for k, v in enumerate(outputs)}
        before = len(self.draft.steps)
        if self._traces_pointwise and isinstance(problem, PointwiseProblem):
            for launch in solution.launches:
                print(f"nary: {launch.kernel.name} -> {', '.join(str(v.shape) for v in outputs)}")
        self.launch_all(solution, operands, ins)
        if len(solution.launches) == 1 and len(self.draft.steps) > before:
            self.draft.steps[-1].problem = problem

    def plan(self, problem: PointwiseProblem | ReductionProblem | CopyProblem) -> Solution:
        """Return the launches of a problem; equal problems are planned once.

        Raises:
            UnsupportedError: the back end has no kernel for the problem.
        """
        own = self.solve(self.backend.plan, replace(problem, origin=""), key=("plan", problem_key(problem)))
        return with_origin(own, problem.origin)

    def solve(
        self,
        function: Callable[..., Solution | Launch],
        *arguments: object,
        key: Hashable | None = None,
        samples: Sequence[Mapping[Dim, int]] = (),
    ) -> Solution:
        """Return the solution that a planner makes of its arguments, which may hold symbolic lengths.

        With symbolic lengths the solution consists of alternatives (`codegen.alternatives`): conditions that the
        planner tests do not become guards of the program. The plan requires that some alternative serves.

        Args:
            function: the planner, which returns a `Solution` or a single `Launch`.
            arguments: arguments of the planner: problems, tensors, operators, numbers.
            key: identifies the planner and its arguments; equal keys are planned once. None: the solution is not
                cached.
            samples: values of all symbols to plan for, besides the samples of their scope.

        Raises:
            UnsupportedError: the planner has no kernel at the example lengths.
        """

        def planned(own: tuple[object, ...]) -> Solution:
            made = function(*own)
            return Solution((made,)) if isinstance(made, Launch) else made

        def open_solution(own: tuple[object, ...]) -> tuple[Solution, Length]:
            found = alternatives(own, planned, samples)
            return one_solution(found), served(found)

        def answer() -> tuple[Solution, Length]:
            if not has_lengths(arguments):
                return planned(arguments), 1
            modules = modules_in(arguments)
            if samples or any(
                ins.shape.symbolic for module in modules for ins in module
            ):  # no lengths are renamed there
                return open_solution(arguments)
            if key is None and (modules or not _is_pure(function, self.backend)):
                return open_solution(arguments)
            like = key
            if like is None:  # 0.0 is equal to -0.0, and True to 1, but their texts differ
                like = repr(arguments), *[tuple(one) if isinstance(one, list) else one for one in arguments]
            return self.kept(function, arguments, open_solution, like)

        solution, condition = answer() if key is None else self.solutions.of(key, answer)
        self.require(condition)
        return solution

    def kept(self, question: Hashable, problem: P, answer: Callable[[P], T], like: Hashable | None = None) -> T:
        """Return an answer that is kept for all programs; see `kept_answer`."""
        planner = self.resources.planner
        return answer(problem) if planner is None else kept_answer((planner, question), problem, answer, like)

    def require(self, condition: Length) -> None:
        """Restrict the plan to lengths for which a condition is 1."""
        if isinstance(condition, Dim):
            self.draft.conditions[condition] = None

    def text(self, ins: Instruction) -> str:
        """Return the instruction's text. It is cached: a concat may need as many steps as it has inputs."""
        if ins not in self._texts:
            self._texts[ins] = format_instruction(ins, self._names)
        return self._texts[ins]

    def origin(self, ins: Instruction) -> str:
        """Return the instruction's text with its submodules, as a comment for readers of kernels."""
        lines = [self.text(ins)]
        for module in ins.module_args:
            if module.first not in self._names:
                self._names.update(instruction_names(self.program.reachable_modules()))
            lines += [f"  {format_instruction(i, self._names)}" for i in module]
        return "\n".join(lines)

    @cached_property
    def _names(self) -> dict[Instruction, str]:
        return instruction_names([self.module])

    def copy(self, source: View, target: View, ins: Instruction) -> None:
        """Append a step that copies one tensor to another of the same lengths."""
        self.compute(CopyProblem(source.tensor, target.tensor, self.origin(ins)), [source], [target], ins)

    def materialized(self, view: View, strides: Sequence[int], ins: Instruction) -> View:
        """Return the view if it has these strides (except along axes of length 1), else a copy with them."""
        if all(known_equal(a, b) or known_equal(n, 1) for a, b, n in zip(view.strides, strides, view.lens)):
            return view
        return self.copied(view, strides, ins)

    def copied(self, view: View, strides: Sequence[int], ins: Instruction) -> View:
        """Return a copy of a view with the given strides, in new memory that is aligned to vectors."""
        target = self.allocate(Shape(view.type, view.lens, strides))
        self.copy(view, target, ins)
        return target

    def on_host(self, shape: Shape) -> View:
        """Return a view of a new value that a fallback step makes in each run."""
        self.hosted += 1
        return View(Buffer(Region.HOST, self.hosted - 1), shape)

    def host(
        self,
        ins: Instruction,
        reason: str,
        bodies: Mapping[Module, Body] | None = None,
        on_device: DeviceFunction | None = None,
        kernels: Sequence[KernelSource] = (),
    ) -> None:
        """Append a fallback step that computes the instruction by its NumPy meaning.

        Args:
            reason: why no kernel computes the instruction; also recorded in the program's log.
            bodies: executable forms of its submodules.
            on_device: function that computes the instruction on a device by launching kernels. Its inputs are the
                instruction's, then the captured values of its submodules.
            kernels: kernels that plans made by this step may need.
        """
        rule = self.rules.get(ins.op.rule_name)
        refused_by = "lowering" if rule is None else rule.lower.__name__
        self.program.log.refuse(refused_by, ins, reason)
        warn_if_slow(ins, reason)
        captured = [i for module in ins.module_args for i in module.captured()]
        sources = [*ins.inputs, *captured]
        flat: list[View] = []
        layout = [flatten(self.values[i], flat) for i in sources]
        from .fallback_call import FallbackCall  # late: kernels compute most programs

        call = FallbackCall(ins, layout, captured, bodies, self.resources.compile_node)
        if call.symbolic and ins.module_args and bodies is None and on_device is None:
            raise SymbolicLengthError(f"a fallback step would run submodules of {ins.name} that have symbolic lengths")
        shapes = ins.shape.flatten()
        views: list[View] = []
        for shape in shapes:
            if is_on_host(shape):
                views.append(self.on_host(shape))
            elif len(shapes) == 1 and ins in self.output_aliases:
                views.append(self.output_aliases[ins])
            else:
                views.append(self.allocate(shape))
        self.values[ins] = views if ins.shape.sub_shapes else views[0]
        plans = tuple(body.plan for body in bodies.values() if body.plan is not None) if bodies else ()
        needed = (*kernels, *(kernel for body in (bodies or {}).values() for kernel in body.kernels))
        label = f"{self.backend.name}::{ins.name}" if plans or needed or on_device else f"ref::{ins.name}"
        reason = f"{refused_by}: {reason}"
        step = PendingStep(None, {}, label, ins, call, flat, views, plans, reason, needed, on_device)
        step.bind, step.write = call.at if call.symbolic else None, None if on_device else call.write
        self.draft.steps.append(step)

    def _return_results(self) -> None:
        for k, ins in enumerate(self.module.results()):
            value = self.values[ins]
            if not isinstance(value, View):
                raise CompileError(f"result {k} is a tuple; add get_tuple_elem for its members")
            if value.buffer.region is Region.OUTPUT and value.buffer.index == k:
                continue
            if value.buffer.region is Region.HOST and (ins.shape.is_dynamic or self._is_result(value, ins.shape)):
                # the fallback step's array is the result
                value.buffer.region, value.buffer.index = Region.OUTPUT, k
                continue
            target = View(Buffer(Region.OUTPUT, k), ins.shape.to_standard())
            hosted = (
                "a fallback step made the value" if ins.shape.is_dynamic or value.buffer.region is Region.HOST else ""
            )
            if not hosted and ins.shape.type.coded:
                value, target = (v.with_shape(v.shape.with_type(Type.uint8_type)) for v in (value, target))
            reason = no_kernels([value.shape]) or hosted
            if not reason:
                try:
                    self.copy(value, target, ins)
                except UnsupportedError as error:
                    reason = str(error)
            if reason:
                from .fallback_call import ReturnCall

                call = ReturnCall(ins.shape)
                step = PendingStep(None, {}, "ref::@return", ins, call, [value], [target], reason=reason)
                step.bind, step.write = call.at if ins.shape.symbolic else None, call.write
                self.draft.steps.append(step)

    def _is_result(self, value: View, shape: Shape) -> bool:
        """Return whether a value of the host's types is an array of a fallback step that has the shape of a result."""
        if has_memory(shape) or shape.symbolic or shape.array_lens != shape.lens or value.shape != shape.to_standard():
            return False
        return any(value is output for step in self.draft.steps for output in step.outputs)

    def _finish(self) -> Plan:
        arena: dict[int, Buffer] = {}
        reuse = self.options.memory_reuse and "memory_coloring" not in disabled_names(self.options.disabled_passes)
        same_memory = updates(
            self.draft.cache_copies, self.draft.steps, resolved_jumps(self.draft.jumps, self.draft.steps)
        )
        if self.resources.join is not None and not self.draft.jumps:
            self.draft.steps = self.resources.join(self.draft.steps, self.draft.cache_copies)
        for number, step in enumerate(self.draft.steps):
            for view in [*step.operands.values(), *step.inputs, *step.outputs]:
                buffer = view.buffer
                if buffer.region is Region.ARENA:
                    buffer.touch(number)
                    arena[id(buffer)] = buffer
        jumps = resolved_jumps(self.draft.jumps, self.draft.steps)
        for jump in jumps:  # buffers written before a loop and read in it live until its end
            for buffer in arena.values() if jump.to <= jump.at else ():
                if buffer.first < jump.to <= buffer.last < jump.at:
                    buffer.last = jump.at - 1
        if reuse and self.options.tuning is not None:
            for request, _, operands, start, stop in self.draft.requested:
                name = replaced_operand(request.epilogue.moving, operands, start, stop - 1, {})
                if name:
                    self.options.tuning.in_place(request, name)
        homes = replaced([(step.launch, step.operands) for step in self.draft.steps]) if reuse else {}
        arena_bytes = color((b for b in arena.values() if b not in homes), reuse, self.threads)
        for buffer, home in homes.items():
            buffer.offset = home.offset
        if environment_flag("MIGRAPHX_DEBUG_MEMORY_COLORING"):
            for b in sorted(arena.values(), key=lambda b: b.first):
                print(f"Allocation: [{b.offset}, {b.offset + b.bytes}), steps {b.first} to {b.last}")
            print(f"Arena: {arena_bytes} bytes for {sum(b.bytes for b in arena.values())} bytes of buffers")
        steps = [resolved(step, number, self.text) for number, step in enumerate(self.draft.steps, 1)]
        scope = self.job.scope
        return Plan(
            steps=steps,
            arena_bytes=arena_bytes,
            constants=self.aligned_constants(referenced(self.draft.steps)),
            parameters=[
                ParameterSpec(i.op.parameter, i.shape.type.dtype_name, i.shape.array_lens)  # type: ignore[attr-defined]
                for i in self.parameters
            ],
            outputs=self.outputs,
            symbols=() if scope is None else tuple(scope.symbols),
            condition=1 if scope is None else all_of(scope.holds(), *self.draft.conditions),
            jumps=jumps,
            updates=same_memory,
            uses=tuple(Use(b.offset, b.bytes, b.first, b.last) for b in arena.values()),
        )


def _is_pure(planner: Callable[..., object], backend: Backend) -> bool:
    """Return whether a planner is a function of a module or a method of the back end, which depends on its arguments
    alone."""
    if isinstance(planner, MethodType):
        return planner.__self__ is backend
    return isinstance(planner, FunctionType) and planner.__closure__ is None and planner.__name__ != "<lambda>"
