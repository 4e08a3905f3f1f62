"""Weights that are not constant: a kernel packs them where packing only moves elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.packing import TASK, packing_launch, packing_places
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from ..codegen.launching import run_launch
from ..values import normal
from .programs import program_of

Make = Callable[[Module, list[Instruction]], Instruction]


def convolution(module: Module, p: list[Instruction], name: str = "convolution", **attributes: object) -> Instruction:
    y = module.add_instruction(name, p[:2], **attributes)
    return module.add_instruction("relu", [y])


def turned(module: Module, p: list[Instruction], **attributes: object) -> Instruction:
    """A convolution whose weights are a transposed view."""
    weights = module.add_instruction("transpose", [p[1]], permutation=[3, 2, 0, 1])
    return convolution(module, [p[0], weights], **attributes)


def layer(module: Module, p: list[Instruction], name: str, hidden: int, functions: list[str]) -> Instruction:
    return module.add_instruction(name, p, hidden_size=hidden, actv_func=functions, direction=0, clip=0.0)


def attributes(rank: int, group: int = 1) -> dict[str, object]:
    return {"padding": [1] * rank, "stride": [1] * rank, "dilation": [1] * rank, "group": group}


CASES: dict[str, tuple[Make, list[tuple[int, ...]]]] = {
    "1x1": (partial(convolution, **attributes(2) | {"padding": [0, 0]}), [(2, 5, 9, 11), (13, 5, 1, 1)]),
    "3x3": (partial(convolution, **attributes(2)), [(1, 32, 28, 29), (40, 32, 3, 3)]),
    "one axis": (partial(convolution, **attributes(1)), [(2, 6, 37), (7, 6, 3)]),
    "three axes": (partial(convolution, **attributes(3)), [(1, 3, 7, 9, 8), (4, 3, 3, 3, 3)]),
    "groups": (partial(convolution, **attributes(2, 2)), [(1, 8, 9, 9), (10, 4, 3, 3)]),
    "depthwise": (partial(convolution, **attributes(2, 16)), [(1, 16, 19, 17), (16, 1, 3, 3)]),
    "transposed": (
        partial(convolution, name="convolution_backwards", **attributes(2) | {"stride": [2, 2]}),
        [(1, 6, 9, 8), (6, 11, 3, 3)],
    ),
    "strided weights": (partial(turned, **attributes(2)), [(1, 12, 9, 9), (3, 3, 12, 21)]),
    "rnn": (partial(layer, name="rnn", hidden=11, functions=["tanh"]), [(7, 2, 9), (1, 11, 9), (1, 11, 11)]),
    "gru": (
        partial(layer, name="gru", hidden=12, functions=["sigmoid", "tanh"]), [(7, 1, 9), (1, 36, 9), (1, 36, 12)],
    ),
    "lstm": (
        partial(layer, name="lstm", hidden=10, functions=["sigmoid", "tanh", "tanh"]),
        [(7, 3, 9), (1, 40, 9), (1, 40, 10)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_weights_are_packed_by_a_kernel(case: str, dtype: type) -> None:
    make, shapes = CASES[case]
    inputs = [normal(*lens, seed=k, dtype=dtype) for k, lens in enumerate(shapes)]
    program = program_of(inputs, make)
    options = TargetOptions(fast_math=False)
    plan = lower(optimize(program, options), options)
    assert not [step for step in plan.steps if isinstance(step, FallbackStep)]
    executable = Executable(plan, 2)
    order = [parameter.name for parameter in plan.parameters]
    for scale in (1, -2):  # other weights in the next run
        given = {f"p{k}": array * dtype(scale) for k, array in enumerate(inputs)}
        wanted = evaluate(program, given)
        for got, one in zip(executable.run([given[name] for name in order]), wanted, strict=True):
            np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(one).max())))


def test_places_of_packed_elements() -> None:
    weights = normal(5, 7)

    def pack(array: np.ndarray) -> np.ndarray:
        return np.pad(array, ((0, 1), (2, 0))).T.copy()

    places = packing_places(pack, (5, 7), (1, 6), np.dtype(np.float32))
    assert places is not None
    memory = np.zeros((7, 6), np.float32)
    memory[:, :5] = weights.T  # strides (1, 6)
    np.testing.assert_array_equal(np.append(0, memory).astype(np.float32)[places], pack(weights))


@pytest.mark.parametrize(
    "pack",
    [
        lambda array: array * 2,
        lambda array: array.astype(np.float16),
        lambda array: np.append(array, array.sum()),
        lambda array: array + np.float32(0.5),
        lambda array: np.round(array),
        lambda array: -array,
    ],
)
def test_packing_that_computes_has_no_places(pack: Callable[[np.ndarray], np.ndarray]) -> None:
    assert packing_places(pack, (3, 4), (4, 1), np.dtype(np.float32)) is None


@pytest.mark.parametrize("count", [0, 1, TASK, 2 * TASK + 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elements_are_moved_by_tasks(count: int, dtype: type) -> None:
    weights, out = normal(100, dtype=dtype), np.full(count, np.nan, dtype)
    places = np.random.default_rng(0).integers(0, 101, count).astype(np.int32)
    run_launch(packing_launch(count, np.dtype(dtype).name), {"w": weights, "places": places, "out": out})
    np.testing.assert_array_equal(out, np.append(0, weights)[places])
