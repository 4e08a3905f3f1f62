"""Operators outside clusters, lowered once for symbolic lengths: NumPy's results at any lengths, without guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from mgx_numba.core.dim import minimum
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import FallbackStep
from tests.codegen.symbolic import scope_of

from .symbolic_plans import Lens, SymbolicCase

FLOAT, INT, BOOL = Type.float_type, Type.int64_type, Type.bool_type
Attributes = Callable[[Any, Any], dict[str, Any]]


class Case(NamedTuple):
    """An operator of inputs whose shapes follow from a batch and a length.

    ``below``: integers that inputs are drawn from. ``results``: members of a tuple, 0 for none. ``empty``: whether
    it takes inputs without elements.
    """

    operator: str
    shapes: Callable[[Any, Any], Sequence[tuple[Type, tuple[Any, ...]]]]
    attributes: Attributes = lambda b, s: {}
    below: int = 1
    results: int = 0
    empty: bool = True


CASES = {
    "gather of fixed rows": Case(
        "gather", lambda b, s: [(FLOAT, (50, 8)), (INT, (b, s))], lambda b, s: {"axis": 0}, below=50
    ),
    "gather along the length": Case(
        "gather", lambda b, s: [(FLOAT, (b, s, 8)), (INT, (2,))], lambda b, s: {"axis": 1}, empty=False
    ),
    "gather_elements": Case(
        "gather_elements", lambda b, s: [(FLOAT, (b, s)), (INT, (b, 3))], lambda b, s: {"axis": 1}, empty=False
    ),
    "gathernd": Case(
        "gathernd", lambda b, s: [(FLOAT, (b, s, 4)), (INT, (b, 5, 1))], lambda b, s: {"batch_dims": 1}, empty=False
    ),
    "scatter": Case(
        "scatter_none", lambda b, s: [(FLOAT, (b, s)), (INT, (b, 1)), (FLOAT, (b, 1))], lambda b, s: {"axis": 1},
        empty=False,
    ),
    "scatternd": Case(
        "scatternd_add", lambda b, s: [(FLOAT, (b, s, 4)), (INT, (1, 1)), (FLOAT, (1, s, 4))], empty=False
    ),
    "onehot": Case(
        "onehot", lambda b, s: [(INT, (b, s)), (FLOAT, (2,))], lambda b, s: {"axis": -1, "depth": 7}, below=7
    ),
    "argmax along a fixed axis": Case("argmax", lambda b, s: [(FLOAT, (b, s, 33))], lambda b, s: {"axis": 2}),
    "argmax along the length": Case("argmax", lambda b, s: [(FLOAT, (b, s))], lambda b, s: {"axis": 1}, empty=False),
    "argmin across rows": Case("argmin", lambda b, s: [(FLOAT, (b, s, 5))], lambda b, s: {"axis": 1}, empty=False),
    "topk": Case(
        "topk", lambda b, s: [(FLOAT, (b, s + 20))], lambda b, s: {"k": 20, "axis": 1, "largest": 1}, results=2
    ),
    "topk of at most all": Case(
        "topk", lambda b, s: [(FLOAT, (b, s))], lambda b, s: {"k": minimum(20, s), "axis": 1, "largest": 0}, results=2
    ),
    "topk of all, of any length": Case(
        "topk", lambda b, s: [(FLOAT, (b, s))], lambda b, s: {"k": s, "axis": 1, "largest": 1}, results=2
    ),
    "topk across rows": Case(
        "topk", lambda b, s: [(FLOAT, (b, s + 3, 4))], lambda b, s: {"k": 3, "axis": 1, "largest": 0}, results=2
    ),
    "running sum": Case("prefix_scan_sum", lambda b, s: [(INT, (b, s))], lambda b, s: {"axis": 1}, below=5),
    "running sum across rows": Case(
        "prefix_scan_sum", lambda b, s: [(FLOAT, (b, s, 6))], lambda b, s: {"axis": 1, "exclusive": 1, "reverse": 1}
    ),
    "pooling": Case(
        "pooling", lambda b, s: [(FLOAT, (b, 3, s + 4, s + 6))],
        lambda b, s: {"mode": "max", "padding": (1, 1, 1, 1), "stride": (2, 2), "lengths": (3, 3)},
    ),
    "padding": Case("pad", lambda b, s: [(FLOAT, (b, s, 3))], lambda b, s: {"pads": (0, 1, 2, 0, 3, 0)}),
    "padding by the length": Case("pad", lambda b, s: [(FLOAT, (b, 3))], lambda b, s: {"pads": (0, s, 0, 1)}),
    "reflection": Case(
        "pad", lambda b, s: [(FLOAT, (b, s + 4))], lambda b, s: {"pads": (0, 2, 0, 3), "mode": "reflect"}
    ),
    "resize of fixed images": Case(
        "resize", lambda b, s: [(FLOAT, (b, 2, 4, 4))],
        lambda b, s: {"sizes": (b, 2, 8, 7), "mode": "linear"},
    ),
    "resize along the length": Case(
        "resize", lambda b, s: [(FLOAT, (b, s))], lambda b, s: {"sizes": (b, 3 * s), "mode": "linear"}
    ),
    "reverse": Case("reverse", lambda b, s: [(FLOAT, (b, s, 3))], lambda b, s: {"axes": (1,)}),
    "lrn": Case("lrn", lambda b, s: [(FLOAT, (b, 6, s, 3))], lambda b, s: {"size": 3, "alpha": 0.1}),
    "sum over the length": Case("reduce_sum", lambda b, s: [(FLOAT, (b, s, 3))], lambda b, s: {"axes": (1,)}),
    "largest of rows": Case("reduce_max", lambda b, s: [(FLOAT, (b, 3, s))], lambda b, s: {"axes": (2,)}),
    "mean of all": Case("reduce_mean", lambda b, s: [(FLOAT, (b, 3, s))], lambda b, s: {"axes": (0, 1, 2)}),
    "concat": Case(
        "concat", lambda b, s: [(FLOAT, (b, s)), (FLOAT, (b, 5)), (FLOAT, (b, s))], lambda b, s: {"axis": 1}
    ),
    "pooling of regions": Case(
        "roialign", lambda b, s: [(FLOAT, (2, 3, s + 1, 5)), (FLOAT, (b, 4)), (INT, (b,))],
        lambda b, s: {"output_height": 2, "output_width": 3, "sampling_ratio": 2}, below=2,
    ),
    "suppression": Case(
        "nonmaxsuppression", lambda b, s: [(FLOAT, (b, s + 2, 4)), (FLOAT, (b, 3, s + 2)), (INT, (1,)), (FLOAT, (1,))],
        lambda b, s: {"use_dyn_output": False}, below=3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    given = CASES[name]

    def shapes(n: Lens) -> list[Shape]:
        return [Shape(type_, lens) for type_, lens in given.shapes(n["batch"], n["seq"])]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction | list[Instruction]:
        whole = m.add_instruction(given.operator, p, **given.attributes(n["batch"], n["seq"]))
        members = [m.add_instruction("get_tuple_elem", [whole], index=k) for k in range(given.results)]
        return members or whole

    def made(k: int, shape: Shape) -> np.ndarray | None:
        return np.random.default_rng(k).integers(0, given.below, shape.lens) if shape.type is INT else None

    case = SymbolicCase(*scope_of(batch=(0, None), seq=(0, None)), shapes, build)
    assert case.guards == []
    assert not any(isinstance(step, FallbackStep) for step in case.plan.steps)
    for batch, seq in ((1, 1), (3, 1), (2, 17), (1, 131)):
        case.check(2e-4, made, batch=batch, seq=seq)
    for batch, seq in ((0, 5), (2, 0)) if given.empty else ():  # what the plan does not serve gets one of its own
        if case.serves(batch=batch, seq=seq):
            case.check(2e-4, made, batch=batch, seq=seq)


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_all"])
@pytest.mark.parametrize("type_", [FLOAT, INT, Type.half_type])
def test_reductions_over_axes_without_elements(name: str, type_: Type) -> None:
    """The plan was not for such lengths; a run without findings made another one."""
    layouts: list[tuple[tuple[int, ...], Callable[[Lens], tuple[Any, ...]]]] = [
        ((1,), lambda n: (n["batch"], n["seq"], 3)),
        ((2,), lambda n: (n["batch"], 3, n["seq"])),
        ((0, 1), lambda n: (n["seq"], 40)),
        ((0, 2), lambda n: (n["seq"], 2, n["batch"])),
    ]
    for axes, lens in layouts:

        def shapes(n: Lens, lens: Callable[[Lens], tuple[Any, ...]] = lens) -> list[Shape]:
            return [Shape(type_, lens(n))]

        def build(m: Module, p: list[Instruction], n: Lens, axes: tuple[int, ...] = axes) -> Instruction:
            return m.add_instruction(name, p, axes=axes)

        case = SymbolicCase(*scope_of(batch=(0, None), seq=(0, None)), shapes, build)
        assert not any(isinstance(step, FallbackStep) for step in case.plan.steps)
        for batch, seq in ((2, 0), (0, 0), (0, 5), (2, 5)):
            case.check(1e-2, batch=batch, seq=seq)
