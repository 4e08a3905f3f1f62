"""A second back end and its target, as an example: pointwise clusters and copies as plain Python on one element.

Nothing outside of this file knows it but the two registries. A kernel's text is a function of one block of a grid,
which is one element; values are NumPy scalars and its words are those of the scalar protocol.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import ml_dtypes  # noqa: F401  (makes NumPy know narrow floats by name)
import numpy as np

from mgx_numba.codegen.backend import Progress, register
from mgx_numba.codegen.body import cluster_name, evaluate_scalar_module
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Grid, Launch, Operand, Solution
from mgx_numba.codegen.problems.cluster import CopyProblem, PointwiseProblem, Tensor
from mgx_numba.codegen.store import Store
from mgx_numba.core.types import Type, numpy_dtype
from mgx_numba.errors import OptionError, UnsupportedError
from mgx_numba.graph.passes import Options, run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.rewrite_log import RewriteLog
from mgx_numba.ops.scalar import NumpyScalar
from mgx_numba.runtime.plan import FallbackStep, Plan, Pointer, Region, Step, TensorView
from mgx_numba.targets import registry
from mgx_numba.targets.base import KeptPlan, Observer
from mgx_numba.targets.lowering.common import COMMON
from mgx_numba.targets.lowering.job import LoweringJob, Resources
from mgx_numba.targets.lowering.lowering import Lowering
from mgx_numba.targets.lowering.tuples import without_tuples
from mgx_numba.targets.options import TargetOptions

PASSES = ("fuse_pointwise", "dead_code_elimination")


class Printer:
    """Handler of the scalar protocol: a value is its name in the text and its type."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def emit(self, text: str, type: Type) -> tuple[str, Type]:
        self.lines.append(f"    v{len(self.lines)} = {text}")
        return f"v{len(self.lines) - 1}", type

    def dtype(self, x: tuple[str, Type]) -> Type:
        return x[1]

    def const(self, value: float | int | bool, dtype: Type) -> tuple[str, Type]:
        return self.emit(f"s.const(float({str(value)!r}), Type.{dtype.name})", dtype)

    def cast(self, x: tuple[str, Type], dtype: Type) -> tuple[str, Type]:
        return self.emit(f"s.cast({x[0]}, Type.{dtype.name})", dtype)

    cast_loosely = cast

    def where(self, condition: Any, a: Any, b: Any) -> tuple[str, Type]:
        return self.emit(f"s.where({condition[0]}, {a[0]}, {b[0]})", a[1])

    def __getattr__(self, name: str) -> Callable[..., tuple[str, Type]]:
        predicate = name in ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf") or name.startswith("logical")
        return lambda *x: self.emit(f"s.{name}({', '.join(v for v, _ in x)})", Type.bool_type if predicate else x[0][1])


class PlainBackend:
    """Nothing is compiled: "machine code" is the text."""

    name = "plain"

    def __init__(self) -> None:
        self.functions: list[Callable[..., None]] = []

    def identity(self) -> Mapping[str, str]:
        return {"backend": self.name}

    def architecture(self) -> str:
        return ""

    def fingerprint(self) -> Any:
        raise OptionError("plain Python is not tuned")

    def family(self) -> str:
        return "plain"

    @property
    def solvers(self) -> PlainBackend:
        return self

    def choose(self, request: Any) -> Any:
        raise UnsupportedError("plain Python has no solvers")

    def revisions(self, request: Any) -> dict[str, int]:
        return {}

    def candidate_of(self, request: Any, record: Any) -> None:
        return None

    def plan(self, problem: Any) -> Solution:
        if isinstance(problem, CopyProblem):
            return self._launch("copy_kernel", [problem.source], [problem.target], [], ["x0"])
        if not isinstance(problem, PointwiseProblem):
            raise UnsupportedError(f"plain Python has no kernels for {type(problem).__name__}")
        printer = Printer()
        inputs = [(f"x{k}", t.type) for k, t in enumerate(problem.inputs)]
        results = evaluate_scalar_module(problem.module, printer, inputs)  # type: ignore[arg-type]
        name = cluster_name(problem.module, "pointwise")
        return self._launch(name, problem.inputs, problem.outputs, printer.lines, [v for v, _ in results])

    def _launch(
        self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], body: list[str], results: list[str]
    ) -> Solution:
        """The arguments are each operand's address and strides."""
        lens = outputs[0].lens
        names = [f"x{k}" for k in range(len(inputs))] + [f"out{k}" for k in range(len(outputs))]
        lines, args = ["def kernel(s, memory, args, index):"], []
        for n, t in zip(names, [*inputs, *outputs]):
            at = len(args)
            lines.append(f"    p_{n} = memory(args[{at}], {t.type.numpy.name!r})")
            lines.append(f"    i_{n} = sum(i * n for i, n in zip(index, args[{at + 1} : {at + 1 + len(lens)}]))")
            args += [Operand(n), *t.strides]
        lines += [f"    {n} = p_{n}[i_{n}, None][0]" for n in names[: len(inputs)]]
        lines += body
        lines += [f"    p_{n}[i_{n}] = {value}" for n, value in zip(names[len(inputs) :], results)]
        kernel = KernelSource(self.name, name, "\n".join(lines) + "\n")
        blocks = (*lens[:2], int(np.prod(lens[2:]))) if len(lens) > 2 else (*lens, 1, 1, 1)[:3]
        return Solution((Launch(kernel, (*args, *lens), Grid(blocks, (1, 1, 1))),))  # type: ignore[arg-type]

    def objects(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> dict[str, bytes]:
        return {source.symbol: source.text.encode() for source in sources}

    def loadable(self, source: KernelSource, data: bytes) -> bool:
        return data == source.text.encode()

    def load(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[int]:
        for source in sources:
            names: dict[str, Any] = {"Type": Type}
            exec(self.objects([source])[source.symbol], names)
            self.functions.append(names["kernel"])
        return list(range(len(self.functions) - len(sources), len(self.functions)))


class PlainProgram:
    """Runs a plan step by step, every block of a grid in turn."""

    def __init__(self, program: Program, options: TargetOptions) -> None:
        self.program, self.trees = without_tuples(program.clone())
        run_passes(self.program, PASSES, Options(fast_math=options.fast_math))
        self.plan: Plan = Lowering(LoweringJob(self.program, options), Resources(COMMON, BACKEND, 1)).run()
        self.handles = dict(zip(self.plan.kernels(), BACKEND.load(self.plan.kernels())))

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        outputs = [np.zeros(o.lens or (), numpy_dtype(o.dtype)) for o in self.plan.outputs]
        regions: dict[Region, list[np.ndarray]] = {
            Region.ARENA: [np.zeros(self.plan.arena_bytes, np.uint8)],
            Region.CONSTANT: self.plan.constants,
            Region.PARAMETER: [np.ascontiguousarray(inputs[p.name]) for p in self.plan.parameters],
            Region.OUTPUT: outputs,
        }

        def memory(place: Pointer, dtype: str) -> np.ndarray:
            whole = regions[place.region][place.index].reshape(-1).view(np.uint8)
            found = whole[place.offset :]
            return found[: found.size // numpy_dtype(dtype).itemsize * numpy_dtype(dtype).itemsize].view(
                numpy_dtype(dtype)
            )

        def tensor(view: TensorView) -> np.ndarray:
            flat = memory(view.pointer, view.dtype)
            strides = [s * flat.itemsize for s in view.strides]
            return np.lib.stride_tricks.as_strided(flat, view.lens, strides)

        for step in self.plan.steps:
            if isinstance(step, Step):
                function = BACKEND.functions[self.handles[step.kernel]]
                assert isinstance(step.geometry, Grid)
                rank = _rank(step)
                for index in itertools.product(*(range(n) for n in step.args[len(step.args) - rank :])):  # type: ignore[arg-type]
                    function(NumpyScalar(), memory, step.args, index)
            else:
                results = step.function([tensor(v) for v in step.inputs])
                for view, result in zip(step.outputs, results):
                    tensor(view)[...] = result
        return outputs

    def direct(self, result_type: type[np.ndarray], prefer: object = None) -> None:
        return None

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        return self.program

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        return self.run(inputs)

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        pass

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        return self.run(inputs)

    def kernels(self) -> list[Any]:
        return self.plan.kernels()

    def fallback_reasons(self) -> dict[str, str]:
        return {step.instruction: step.reason for step in self.plan.steps if isinstance(step, FallbackStep)}

    def rewrite_log(self) -> RewriteLog:
        return self.program.log

    def kept_plan(self) -> None:
        return None

    def machine_code(self) -> dict[str, Any]:
        raise OptionError("plain Python has no machine code")


def _rank(step: Step) -> int:
    """Every operand has an address and a stride for each axis, and the lengths follow."""
    operands = sum(isinstance(arg, Pointer) for arg in step.args)
    return (len(step.args) - operands) // (operands + 1)


class PlainTarget:
    name = "plain"
    backend = "plain"
    passes = PASSES
    tunes = False
    device_options = frozenset({"device_id"})

    def pass_options(self, options: TargetOptions) -> Options:
        return Options(fast_math=options.fast_math)

    def compile(self, program: Program, options: TargetOptions, progress: Any = None) -> PlainProgram:
        return PlainProgram(program, options)

    def machine(self, device_id: int = 0) -> None:
        return None

    def restore(self, kept: KeptPlan, options: TargetOptions, portable: Callable[[], Program]) -> PlainProgram:
        raise OptionError("plain Python keeps no plans")

    def limits(self, num_threads: int = 0, units: Any = ()) -> None:
        return None


BACKEND = PlainBackend()
register(BACKEND)
registry.register(PlainTarget())
