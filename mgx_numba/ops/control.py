"""Control flow: operators that choose which submodule runs, or how often."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ..core.covering import covering
from ..core.dim import Dim
from ..core.shape import DynamicDimension, Shape
from ..core.types import Type, from_numpy
from ..dataclass import dataclass
from ..errors import MgxError, ShapeError
from .base import register
from .bodies import BodyOperator, RunModule, Submodule, SubmoduleValue, expect_bodies, expect_parameters, expect_runner

LONGEST = 65535
"""MIGraphX's default of ``limit_max_iterations``."""


def _carried_over(value: Any, result: SubmoduleValue, target: Shape) -> object:
    """Return a submodule's result as a value of shape ``target``; if that is unranked, the array has its true rank."""
    return value.reshape(()) if not target.ranked and result.shape.without_axes else value


def _as_declared(value: Any, target: Shape) -> Any:
    """Return an array of true rank as a value of shape ``target``: operators see scalars as arrays of shape (1,)."""
    return value.reshape(1) if target.without_axes else value


@register
@dataclass(frozen=True)
class If(BodyOperator):
    """The first submodule's results where the condition (one bool) is true, else the second's, as a tuple.

    Submodules use values of the enclosing modules directly; further inputs are their parameters. Both must
    give as many results, of the same types. Lengths that differ become ranges; a result of two ranks is unranked.
    """

    name: ClassVar[str] = "if"

    def compute_shape(self, inputs: Sequence[Shape], bodies: Sequence[Submodule] = ()) -> Shape:
        expect_bodies(self, bodies, 2)
        if not inputs or inputs[0].is_dynamic or inputs[0].elements != 1 or inputs[0].type is not Type.bool_type:
            raise self.fail(f"the condition must be one bool, got {inputs[0] if inputs else 'no input'}")
        first, second = ([r.shape for r in module.results()] for module in bodies)
        if len(first) != len(second):
            raise self.fail(f"branches give {len(first)} and {len(second)} results")
        return Shape.tuple(self._either(k, a, b) for k, (a, b) in enumerate(zip(first, second)))

    def _either(self, position: int, a: Shape, b: Shape) -> Shape:
        common = covering(a, b)
        if common is None:
            raise self.fail(f"result {position} is {a} in one branch and {b} in the other")
        return common

    def compute(self, output: Shape, args: Sequence[np.ndarray], run: RunModule | None = None) -> tuple[object, ...]:
        run, position = expect_runner(self, run), 0 if args[0].reshape(-1)[0] else 1
        try:
            values = run(position, args[1:])
        except MgxError as error:
            raise type(error)(f"{self.place(run.modules[position].name)}: {error}") from error
        return tuple(map(_carried_over, values, run.modules[position].results(), output.sub_shapes))

    def place(self, branch: str) -> str:
        """Return the prefix of error messages from inside a submodule."""
        return f"{self.name}: branch {branch!r}"


@register
@dataclass(frozen=True)
class IfShort(If):
    """`If` whose first submodule's results are right for either condition; the second gives them sooner."""

    name: ClassVar[str] = "if_short"


@register
@dataclass(frozen=True)
class Loop(BodyOperator):
    """ONNX Loop. Inputs are the trip count, the condition (bool) and the carried values.

    The submodule's parameters are the number of the iteration (int64), the condition and the carried values;
    its results the condition for the next iteration, the carried values and one element for each scan output.
    The result is a tuple: the carried values, then the scan outputs. These are [max_iterations, ...] with zeros where
    no iteration ran, as in MIGraphX, or with ``use_dyn_output`` as long as there were iterations.
    ``scan_output_directions[k]`` 1 fills the k-th of them from its end. More than ``max_iterations`` are an error; a
    loop without scan outputs, which need the room, may run `LONGEST` iterations even so. Elements of no iteration have
    the lengths that the first would have given them. A carried value whose rank changes is unranked in the submodule.
    """

    name: ClassVar[str] = "loop"
    true_ranks: ClassVar[bool] = True
    max_iterations: int = 10
    scan_output_directions: tuple[int, ...] = ()
    use_dyn_output: bool = False

    def compute_shape(self, inputs: Sequence[Shape], bodies: Sequence[Submodule] = ()) -> Shape:
        expect_bodies(self, bodies, 1)
        if len(inputs) < 2:
            raise self.fail(f"got {len(inputs)} inputs, expected trip count, condition and carried values")
        results = [r.shape for r in bodies[0].results()]
        carried = len(inputs) - 2
        if len(bodies[0].parameters()) != carried + 2 or len(results) < carried + 1:
            raise self.fail(
                f"module {bodies[0].name!r} has {len(bodies[0].parameters())} parameters"
                f" and {len(results)} results, expected {carried + 2} and at least {carried + 1}"
            )
        parameters = [p.shape for p in bodies[0].parameters()[2:]]
        shapes = []
        for k, (given, kept, inside) in enumerate(zip(inputs[2:], results[1:], parameters)):
            after = covering(given, kept)
            if after is None or not (after.ranked or not inside.ranked or after.rank == inside.rank):
                raise self.fail(f"carried value {k} enters as {given} and leaves an iteration as {kept}")
            shapes.append(after.row_major())
        count = DynamicDimension(0 if self.use_dyn_output else self.max_iterations, self.max_iterations)
        shapes += [
            Shape.dynamic(s.type, [count, *s.dims]) if s.ranked else Shape.unranked(s.type)
            for s in results[carried + 1 :]
        ]
        return Shape.tuple(shapes)

    def compute(self, output: Shape, args: Sequence[np.ndarray], run: RunModule | None = None) -> tuple[object, ...]:
        run = expect_runner(self, run)
        trips = int(args[0].reshape(-1)[0])
        inside = [p.shape for p in run.modules[0].parameters()[2:]]
        condition, carried = args[1].reshape(1), list(map(_as_declared, args[2:], inside))
        shapes = output.sub_shapes[len(carried) :]
        scans: list[list[np.ndarray]] = [[] for _ in shapes]
        most = self.most_iterations(bool(shapes))
        directions = [*self.scan_output_directions, *[0] * len(shapes)]
        kept = run.modules[0].results()[1:]
        iteration = 0
        place = partial(self.place, run.modules[0].name)
        goes = trips > 0 and condition.reshape(-1)[0]
        done = run.repeat(0, min(trips, most), condition, carried, place) if goes else None
        if done is not None:
            (condition, *carried), rows = done
            if trips <= most or not condition.reshape(-1)[0]:
                return (*carried, *map(self._placed, rows, directions))
            iteration = most
        while iteration < trips and condition.reshape(-1)[0]:
            if iteration >= most:
                raise self.too_long(bool(shapes), trips)
            try:
                results = run(0, [np.array([iteration], np.int64), condition, *carried])
                for scan, value in zip(scans, results[len(carried) + 1 :]):
                    scan.append(value)
                    self.check_row(scan[0].shape, value.shape)
            except MgxError as error:
                raise type(error)(f"{place(iteration)}: {error}") from error
            condition, *carried = results[0], *map(_carried_over, results[1:], kept, inside)
            iteration += 1
        # The body's lengths may be symbols, whose values are not told here.
        known = (s.ranked and all(d.is_fixed and not isinstance(d.min, Dim) for d in s.dims[1:]) for s in shapes)
        if not iteration and not all(known):
            shapes = self._measured(run, [condition, *carried], shapes)
        carried = list(map(_as_declared, carried, output.sub_shapes))
        return (*carried, *(self._stack(*row) for row in zip(scans, shapes, directions)))

    def place(self, body: str, iteration: int) -> str:
        """Return the prefix of error messages from inside an iteration."""
        return f"{self.name}: iteration {iteration} (from 0) of {body!r}"

    @staticmethod
    def check_row(first: Sequence[int], lens: Sequence[int]) -> None:
        """Check that an iteration's element of a scan output has the lengths of the first one.

        Raises:
            ShapeError: they differ.
        """
        if lens != first:
            raise ShapeError(f"elements of a scan output have lengths {list(first)} and {list(lens)}")

    def most_iterations(self, scans: bool) -> int:
        """Return the most iterations; scan outputs limit them to ``max_iterations``."""
        return self.max_iterations if scans else max(self.max_iterations, LONGEST)

    def too_long(self, scans: bool, trips: int | str) -> MgxError:
        """Return the error for exceeding `most_iterations`."""
        most = self.most_iterations(scans)
        why = f"max_iterations={most}, for which scan outputs have room" if scans else f"{most} iterations"
        return self.fail(f"runs longer than {why} (trip count {trips}); parse with a larger limit_max_iterations")

    @staticmethod
    def _measured(run: RunModule, given: list[np.ndarray], shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Return the shapes of scan outputs without iterations: elements have the lengths that the first iteration
        would have produced, if it can run."""
        try:
            elements = run(0, [np.zeros(1, np.int64), *given])[len(given) :]
        except MgxError:
            return shapes
        return tuple(Shape(s.type, (0, *element.shape)) for s, element in zip(shapes, elements))

    def _placed(self, rows: np.ndarray, direction: int) -> np.ndarray:
        """Return the scan output for the elements of all iterations."""
        ordered = rows[::-1] if direction else rows
        if self.use_dyn_output:
            return np.ascontiguousarray(ordered)
        result = np.zeros((self.max_iterations, *rows.shape[1:]), rows.dtype)
        result[self.max_iterations - len(rows) if direction else 0 :][: len(rows)] = ordered
        return result

    def _stack(self, values: Sequence[np.ndarray], shape: Shape, direction: int) -> np.ndarray:
        lens = values[0].shape if values else tuple(d.min for d in shape.dims[1:])
        if self.use_dyn_output:
            ordered = values[::-1] if direction else values
            return np.stack(ordered) if values else np.zeros((0, *lens), shape.type.numpy)
        result = np.zeros((self.max_iterations, *lens), shape.type.numpy)
        for k, value in enumerate(values):
            result[self.max_iterations - 1 - k if direction else k] = value
        return result


@register
@dataclass(frozen=True)
class RunOnTarget(BodyOperator):
    """The submodule's results, as a tuple.

    The inputs are the values of the submodule's parameters, sorted by name, as in MIGraphX. ``target_id`` is the
    position of a target among those that MIGraphX compiled the program for; here the program's one target runs all.
    """

    name: ClassVar[str] = "run_on_target"
    target_id: int = 0

    @staticmethod
    def order(body: Submodule) -> list[int]:
        """Return, for each parameter of the submodule in order of declaration, the position of its input."""
        names = [p.op.parameter for p in body.parameters()]
        return [sorted(names).index(name) for name in names]

    def compute_shape(self, inputs: Sequence[Shape], bodies: Sequence[Submodule] = ()) -> Shape:
        expect_bodies(self, bodies, 1)
        if len(bodies[0].parameters()) == len(inputs):  # else refused by the next check
            inputs = [inputs[k] for k in self.order(bodies[0])]
        expect_parameters(self, bodies[0], inputs)
        for parameter, given in zip(bodies[0].parameters(), inputs):
            wanted = parameter.shape
            if not given.is_dynamic and not wanted.is_dynamic and given.lens != wanted.lens:
                raise self.fail(f"module {bodies[0].name!r}: {parameter.op} is {wanted}, got {given}")
        return Shape.tuple(r.shape for r in bodies[0].results())

    def compute(self, output: Shape, args: Sequence[np.ndarray], run: RunModule | None = None) -> tuple[object, ...]:
        run = expect_runner(self, run)
        return tuple(run(0, [args[k] for k in self.order(run.modules[0])]))


NOTHING = Shape.tuple(())


@register
@dataclass(frozen=True)
class SelectModule(BodyOperator):
    """Runs the submodule whose parameters have exactly the inputs' types and lengths; its results as a tuple.

    ``output_dyn_shapes`` is the tuple shape that holds the results of every submodule.
    """

    name: ClassVar[str] = "select_module"
    output_dyn_shapes: Shape = NOTHING

    def compute_shape(self, inputs: Sequence[Shape], bodies: Sequence[Submodule] = ()) -> Shape:
        if not inputs:
            raise self.fail("got no input")
        return self.output_dyn_shapes

    def compute(self, output: Shape, args: Sequence[np.ndarray], run: RunModule | None = None) -> tuple[object, ...]:
        run = expect_runner(self, run)
        given = [(from_numpy(a.dtype), a.shape) for a in args]
        for position, module in enumerate(run.modules):
            if [(p.shape.type, p.shape.lens) for p in module.parameters()] == given:
                return tuple(run(position, args))
        listed = ", ".join(f"{type.name} {list(lens)}" for type, lens in given)
        raise self.fail(f"no submodule takes {listed}")
