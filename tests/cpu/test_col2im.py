"""Windows added up at their places in images: the kernel, and what replaces it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.ops.col2im import Col2Im
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..codegen.symbolic import scope_of
from ..ops.running import call
from ..values import normal
from .programs import FUSION, check, program_of
from .symbolic_plans import Lens, SymbolicCase

CASES: dict[str, tuple[tuple[int, ...], ...]] = {  # size, kernel, stride, dilation, padding before, after
    "overlapping": ((9, 34), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "stride": ((11, 40), (3, 4), (2, 2), (1, 1), (1, 0), (0, 2)),
    "gaps": ((10, 33), (2, 1), (3, 4), (1, 1), (0, 1), (0, 0)),
    "dilation": ((17, 41), (3, 3), (2, 3), (3, 4), (2, 5), (1, 0)),
    "side by side": ((8, 9), (2, 3), (2, 3), (1, 1), (0, 0), (0, 0)),
    "one axis": ((70,), (9,), (3,), (2,), (5,), (5,)),
    "rows in parts": ((3, 4500), (2, 5), (1, 3), (1, 2), (0, 4), (0, 0)),
    "three axes": ((4, 5, 18), (2, 3, 2), (1, 2, 2), (2, 1, 3), (1, 0, 2), (0, 1, 0)),
    "much padding": ((4, 4), (3, 3), (1, 1), (1, 1), (7, 9), (6, 8)),
    "widest stride": ((2, 200), (1, 70), (1, 64), (1, 1), (0, 3), (0, 0)),
}


def operator(size: Any, kernel: Any, stride: Any, dilation: Any, begin: Any, end: Any) -> Col2Im:
    numbers = zip(size, kernel, stride, dilation, begin, end)
    steps = tuple((n + a + b - d * (k - 1) - 1) // s + 1 for n, k, s, d, a, b in numbers)
    return Col2Im(size, kernel, stride, dilation, begin, steps)


def windows(op: Col2Im, n: int, c: int, dtype: Any) -> np.ndarray:
    x = normal(n, c * prod(op.kernel), prod(op.steps)) * 50
    x.flat[3] = np.inf if np.dtype(dtype).kind == "f" else 0
    return x.astype(dtype)


def definition(op: Col2Im, x: np.ndarray, c: int) -> np.ndarray:
    """Add every element of every window where it belongs."""
    out = np.zeros((x.shape[0], c, *op.size), x.dtype)
    parts = x.reshape(x.shape[0], c, *op.kernel, *op.steps)
    rank = len(op.size)
    for place in np.ndindex(*op.kernel, *op.steps):
        at = [
            y * s + k * d - p for k, y, s, d, p in zip(place[:rank], place[rank:], op.stride, op.dilation, op.padding)
        ]
        if all(0 <= i < n for i, n in zip(at, op.size)):
            out[(slice(None), slice(None), *at)] += parts[(slice(None), slice(None), *place)]
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("case", CASES)
def test_each_element_is_added_where_it_belongs(case: str, dtype: Any) -> None:
    op = operator(*CASES[case])
    x = windows(op, 2, 3, dtype)
    np.testing.assert_allclose(call(op.name, x, **op.attributes()), definition(op, x, 3), rtol=1e-5, atol=1e-4)

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        alone = m.add_instruction(op, [p[0]])
        turned = m.add_instruction("transpose", [p[1]], permutation=(0, 2, 1))
        return [alone, m.add_instruction("relu", [alone]), m.add_instruction(op, [turned])]

    given = [x, np.ascontiguousarray(x.swapaxes(1, 2))]
    check(given, build)
    plan = lower(program_of(given, build), TargetOptions())
    assert not [s.label for s in plan.steps if isinstance(s, FallbackStep)]


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8])
def test_narrow_types_and_wide_strides_run_on_the_host(dtype: Any) -> None:
    for given in (CASES["stride"], ((2, 300), (1, 70), (1, 65), (1, 1), (0, 3), (0, 0))):
        op = operator(*given)
        check([windows(op, 1, 2, dtype)], lambda m, p, op=op: m.add_instruction(op, [p[0]]))


def test_images_of_open_lengths() -> None:
    def shapes(n: Lens) -> list[Shape]:
        return [Shape(Type.float_type, (n["batch"], 2 * 12, n["height"] * n["width"]))]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        steps = n["height"], n["width"]
        size = 2 * n["height"] + 3, 3 * n["width"] - 1
        return m.add_instruction(Col2Im(size, (4, 3), (2, 3), (1, 1), (0, 1), steps), p)

    case = SymbolicCase(*scope_of(batch=(0, None), height=(1, None), width=(1, None)), shapes, build, FUSION)
    assert case.guards == []
    for batch, height, width in ((1, 1, 1), (0, 3, 2), (2, 5, 40), (1, 2, 1500)):
        case.check(1e-5, batch=batch, height=height, width=width)
