"""Operators that compute a submodule as one kernel; passes create them, code generation compiles them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.dim import maximum
from ..core.shape import Shape, find_permutation
from ..dataclass import dataclass
from .base import Operator, pointwise_shape, register
from .bodies import BodyOperator, RunModule, Submodule, expect_bodies, expect_parameters, expect_runner
from .dims import any_dynamic, meet_dim


def tuple_of(shapes: Sequence[Shape]) -> Shape:
    """Return the only shape, or the tuple of several."""
    return shapes[0] if len(shapes) == 1 else Shape.tuple(shapes)


@dataclass(frozen=True)
class ModuleOperator(BodyOperator):
    """Base: runs one submodule on the inputs, in its parameters' order; several results make a tuple."""

    def compute_shape(self, inputs: Sequence[Shape], bodies: Sequence[Submodule] = ()) -> Shape:
        expect_bodies(self, bodies, 1)
        expect_parameters(self, bodies[0], inputs)
        return tuple_of([r.shape for r in bodies[0].results()])

    def compute(
        self, output: Shape, args: Sequence[np.ndarray], run: RunModule | None = None
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        results = expect_runner(self, run)(0, args)
        return results[0] if len(results) == 1 else tuple(results)


@register
@dataclass(frozen=True)
class PointwiseModule(ModuleOperator):
    """A submodule of pointwise operators, applied to each element of inputs of equal lengths.

    The submodule's parameters are scalars. Results have the pointwise shape of the inputs.
    """

    name: ClassVar[str] = "pointwise"
    pointwise: ClassVar[bool] = True

    def compute_shape(self, inputs: Sequence[Shape], bodies: Sequence[Submodule] = ()) -> Shape:
        expect_bodies(self, bodies, 1)
        expect_parameters(self, bodies[0], inputs)
        if not inputs:
            raise self.fail("got no input")
        shape = pointwise_shape(self, inputs)
        return tuple_of([shape.with_type(r.shape.type) for r in bodies[0].results()])

    def compute(
        self, output: Shape, args: Sequence[np.ndarray], run: RunModule | None = None
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        lens = args[0].shape
        results = [
            np.broadcast_to(r.reshape(()) if r.size == 1 else r, lens) for r in expect_runner(self, run)(0, args)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return inputs[0].elements


@register
@dataclass(frozen=True)
class FusedReduce(ModuleOperator):
    """A submodule of reductions over ``axes`` and the pointwise operators around them."""

    name: ClassVar[str] = "fused_reduce"
    reduction: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return maximum(*(s.elements for s in inputs))


@register
@dataclass(frozen=True)
class SplitFusedReduce(ModuleOperator):
    """``fused_reduce`` that several workers share, each adding its part to the result as ``assign`` says."""

    name: ClassVar[str] = "split_fused_reduce"
    reduction: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()
    assign: str = "assign_add"


@register
@dataclass(frozen=True)
class FusedContraction(ModuleOperator):
    """A submodule of one contraction and the pointwise operators that lead to its input and follow it."""

    name: ClassVar[str] = "fused_contraction"


@register
@dataclass(frozen=True)
class FusedAttention(ModuleOperator):
    """A submodule of ``attention`` and the pointwise operators that follow it."""

    name: ClassVar[str] = "fused_attention"


@register
@dataclass(frozen=True)
class FusedGather(ModuleOperator):
    """A submodule of gathers, and of the pointwise operators that read them."""

    name: ClassVar[str] = "fused_gather"


@register
@dataclass(frozen=True)
class FusedScatter(ModuleOperator):
    """A submodule of one scatter, and the gathers and the pointwise operators that compute its updates."""

    name: ClassVar[str] = "fused_scatter"


@register
@dataclass(frozen=True)
class Group(ModuleOperator):
    """A submodule kept together for a purpose that ``tag`` names, ``attention`` for instance."""

    name: ClassVar[str] = "group"
    tag: str = ""


@register
@dataclass(frozen=True)
class FusedConcat(BodyOperator):
    """Concatenation along ``axis`` of computed values, then pointwise operators.

    Each submodule but the last is pointwise over the next inputs, as many as it has parameters, and gives one
    part. The last one takes the concatenated value as its first parameter and the remaining inputs as the
    others.
    """

    name: ClassVar[str] = "fused_concat"
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    axis: int = 0

    def _split(
        self, bodies: Sequence[Submodule], values: Sequence[object]
    ) -> tuple[list[Sequence[Any]], Sequence[Any]]:
        """Return the values for each part, and those left for the last submodule."""
        if len(bodies) < 2:
            raise self.fail(f"got {len(bodies)} submodules, expected at least 2")
        parts, start = [], 0
        for module in bodies[:-1]:
            stop = start + len(module.parameters())
            parts.append(values[start:stop])
            start = stop
        if len(values) - start != len(bodies[-1].parameters()) - 1 or not all(parts):
            raise self.fail(f"{len(values)} inputs do not match the parameters of its {len(bodies)} submodules")
        return parts, values[start:]

    def compute_shape(self, inputs: Sequence[Shape], bodies: Sequence[Submodule] = ()) -> Shape:
        if any_dynamic(inputs):
            raise self.fail("needs static lengths")
        parts, rest = self._split(bodies, inputs)
        shapes = [pointwise_shape(self, part) for part in parts]
        axis = self.resolve_axis(self.axis, shapes[0].ndim)
        lens = list(shapes[0].lens)
        for k, column in enumerate(zip(*(s.dims for s in shapes))):
            if k == axis:
                lens[k] = sum(d.min for d in column)
            else:
                meet_dim(self, f"lengths of axis {k} of the parts", *column)
        whole = Shape.from_permutation(shapes[0].type, lens, find_permutation(shapes))
        shape = pointwise_shape(self, [whole, *rest])
        return tuple_of([shape.with_type(r.shape.type) for r in bodies[-1].results()])

    def compute(
        self, output: Shape, args: Sequence[np.ndarray], run: RunModule | None = None
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        run = expect_runner(self, run)
        parts, rest = self._split(run.modules, args)
        values = [np.broadcast_to(run(k, part)[0], part[0].shape) for k, part in enumerate(parts)]
        results = run(len(parts), [np.concatenate(values, self.axis), *rest])
        return results[0] if len(results) == 1 else tuple(results)


@register
@dataclass(frozen=True)
class GetTupleElem(Operator):
    """Member ``index`` of a tuple."""

    name: ClassVar[str] = "get_tuple_elem"
    view: ClassVar[bool] = True
    index: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        members = inputs[0].sub_shapes
        if not members:
            raise self.fail(f"input must be a tuple, got {inputs[0]}")
        if not 0 <= self.index < len(members):
            raise self.fail(f"index {self.index} is out of range for a tuple of {len(members)}")
        return members[self.index]

    def compute(self, output: Shape, args: Sequence[Any]) -> Any:
        return args[0][self.index]
