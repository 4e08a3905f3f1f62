"""Operators that move, pool and order elements: lowered once for symbolic lengths, without guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from tests.codegen.symbolic import scope_of

from .symbolic_plans import Lens, SymbolicCase

FLOAT, INT = Type.float_type, Type.int64_type
LENGTHS = ((1, 1), (2, 3), (1, 40), (3, 17), (5, 130))
Case = tuple[Callable[[Any, Any], list[tuple[Any, ...]]], Callable[[Any, list[Instruction], Any, Any], Any]]


def op(name: str, **attributes: Any) -> Callable[[Any, list[Instruction], Any, Any], Any]:
    """Return what adds an operator over all parameters; attributes may be functions of the lengths."""

    def build(add: Any, p: list[Instruction], b: Any, s: Any) -> Any:
        return add(name, *p, **{k: v(b, s) if callable(v) else v for k, v in attributes.items()})

    return build


def numbers(add: Any, p: list[Instruction], b: Any, s: Any) -> Any:
    values = add("lengths", values=(s, b + s, 7), lens=(3,))
    return add("add", p[0], add("convert", values, target_type=FLOAT))


def positions(add: Any, p: list[Instruction], b: Any, s: Any) -> Any:
    counted = add("mul", add("iota", length=s), add("multibroadcast", add("lengths", values=(b,)), out_lens=(s,)))
    return add("add", p[0], add("multibroadcast", add("convert", counted, target_type=FLOAT), out_lens=(b, s)))


def image(b: Any, s: Any) -> list[tuple[Any, ...]]:
    return [(b, 6, s, s + 2)]


def resized(mode: str, how: str, order: str) -> Callable[[Any, list[Instruction], Any, Any], Any]:
    """Return a builder that resizes both axes of images: by factors, or to lengths with aligned corners."""

    def build(add: Any, p: list[Instruction], b: Any, s: Any) -> Any:
        across = (2.0, 0.75)
        given: dict[str, Any] = {"scales": (1.0, 1.0, *across) if order == "first" else (1.0, *across, 1.0)}
        if how == "align_corners":
            given = {"sizes": (b, 3, 2 * s, s + 4) if order == "first" else (b, 2 * s, s + 4, 5)}
        return add(
            "resize", *p, **given, mode=mode, coordinate_transformation_mode=how, nearest_mode="round_prefer_floor"
        )

    return build


CASES: dict[str, Case] = {
    "numbers": (lambda b, s: [(3,)], numbers),
    "positions": (lambda b, s: [(b, s)], positions),
    "addition": (lambda b, s: [(b, s, 24), (b, s, 24)], op("add")),
    "sum": (lambda b, s: [(b, s, 24)], op("reduce_sum", axes=[1])),
    "mean of all": (lambda b, s: [(b, s, 24)], op("reduce_mean", axes=[0, 1, 2])),
    "order": (lambda b, s: [(b, s, 3, 8)], op("transpose", permutation=(0, 2, 1, 3))),
    "gather": (lambda b, s: [(b, s, 8), (4,)], op("gather", axis=1)),
    "elements": (lambda b, s: [(b, s), (b, 3)], op("gather_elements", axis=1)),
    "scatter": (lambda b, s: [(b, s, 4), (b, 2, 4), (b, 2, 4)], op("scatter_none", axis=1)),
    "tuples": (lambda b, s: [(b, s, 4), (5, 1), (5, s, 4)], op("scatternd_add")),
    "pad": (lambda b, s: [(b, s, 4)], op("pad", pads=(0, 2, 0, 0, 1, 3), value=1.5)),
    "maxima": (image, op("pooling", mode="max", lengths=(3, 3), stride=(2, 2), padding=(1, 1))),
    "means": (image, op("pooling", mode="average", lengths=(3, 3), stride=(1, 1), padding=(1, 1))),
    "global": (image, op("pooling", mode="average", dyn_global=True)),
    "extreme": (lambda b, s: [(b, s, 6)], op("argmax", axis=1)),
    "running sum": (lambda b, s: [(b, s, 6)], op("prefix_scan_sum", axis=1, exclusive=False, reverse=False)),
    "one hot": (lambda b, s: [(b, s), (2,)], op("onehot", axis=-1, depth=9)),
    "neighbours": (image, op("lrn", size=3)),
    "concat": (lambda b, s: [(b, s, 6), (b, 4, 6), (b, s + b, 6)], op("concat", axis=1)),
    "slice": (lambda b, s: [(b, s + 4, 6)], op("slice", axes=[1], starts=[1], ends=lambda b, s: [s + 3])),
    "reversed": (lambda b, s: [(b, s, 6)], op("reverse", axes=[1])),
    "repeated": (lambda b, s: [(1, 1, 6)], op("multibroadcast", out_lens=lambda b, s: (b, s, 6))),
    "reshape": (lambda b, s: [(b, s, 12)], op("reshape", dims=lambda b, s: (b, s, 3, 4))),
    "reflected": (lambda b, s: [(b, s + 3, 6)], op("pad", pads=(0, 2, 1, 0, 3, 2), mode="reflect")),
    "edges": (lambda b, s: [(b, s, 6)], op("pad", pads=(0, 2, 0, 0, 3, 0), mode="edge")),
    "wrapped": (lambda b, s: [(b, s, s + 1)], op("pad", pads=(0, 2, 0, 0, 1, 1), mode="wrap")),
    **{
        f"{mode} {how} {order}": (
            lambda b, s, order=order: [(b, s + 1, s + 3, 5) if order == "last" else (b, 3, s + 1, s + 3)],
            resized(mode, how, order),
        )
        for mode in ("nearest", "linear", "cubic")
        for how in ("half_pixel", "align_corners")
        for order in ("first", "last")
    },
}
INDICES = {"gather": [1], "elements": [1], "scatter": [1], "tuples": [1], "one hot": [0]}


@pytest.mark.parametrize("name", CASES)
def test_one_plan_serves_all_lengths(name: str) -> None:
    shapes_of, make = CASES[name]

    def shapes(n: Lens) -> list[Shape]:
        lens = shapes_of(n["batch"], n["seq"])
        return [Shape(INT if k in INDICES.get(name, ()) else FLOAT, own) for k, own in enumerate(lens)]

    def build(m: Module, p: list[Instruction], n: Lens) -> Any:
        def add(name: str, *inputs: Instruction, **attributes: Any) -> Instruction:
            return m.add_instruction(name, list(inputs), **attributes)

        return make(add, p, n["batch"], n["seq"])

    case = SymbolicCase(*scope_of(batch=(1, None), seq=(1, None)), shapes, build)
    assert case.guards == []
    assert case.plan.condition == 1
    assert len(case.kernels) <= 5
    assert len(case.kernels) == len(case.plan.steps)  # the host does nothing

    def given(k: int, shape: Shape) -> np.ndarray | None:
        return np.arange(shape.elements).reshape(shape.lens) % 2 - 1 if shape.type is INT else None

    for batch, seq in LENGTHS:
        case.check(1e-4, given, batch=batch, seq=seq)
