"""Kernels that gather what they compute with, and scatters that compute their updates: messages of graph networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.data import scatter
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.errors import ShapeError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import assert_agrees, reference
from ..values import small
from .operators import hosted
from .programs import compiled, labels

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")

NODES, EDGES = 7, 40


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "MOST_SEARCHED", 0)


def values(*lens: int, dtype: Any = np.float32, special: bool = False) -> np.ndarray:
    return small(dtype, lens, np.random.default_rng(len(lens)), quarters=True, special=special)


def edges(*lens: int, nodes: int = NODES, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-nodes, nodes, lens)


class Network:
    """A program of messages, with its inputs."""

    def __init__(self) -> None:
        self.program = Program()
        self.module = self.program.main
        self.feed: dict[str, np.ndarray] = {}

    def given(self, array: np.ndarray) -> Any:
        name = f"p{len(self.feed)}"
        self.feed[name] = array
        return self.module.add_parameter(name, Shape(from_numpy(array.dtype), array.shape))

    def op(self, name: str, *inputs: Any, **attributes: Any) -> Any:
        return self.module.add_instruction(name, list(inputs), **attributes)

    def wide(self, x: Any, axes: tuple[int, ...], lens: tuple[int, ...]) -> Any:
        return self.op("multibroadcast", self.op("unsqueeze", x, axes=axes), out_lens=lens)

    def check(self, on: Engine, *results: Any, fused: int = 1) -> list[str]:
        self.module.add_return(list(results))
        made = compiled(self.program, on, fast_math=True)
        assert not hosted(made)
        assert_agrees(made.run(self.feed), reference(self.program, self.feed))
        found = [x for x in labels(made) if "_scatter_" in x or ("gather_" in x and not x.endswith("gather_kernel"))]
        assert len(found) == fused, labels(made)
        assert made.executable is not None
        self.made = made
        return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.float64])
@pytest.mark.parametrize("combine", ["add", "mul", "min", "max"])
def test_messages(combine: str, dtype: Any, on: Engine) -> None:
    n, lens = Network(), (EDGES, 6)
    x, weights = n.given(values(NODES, 6, dtype=dtype, special=combine != "mul")), n.given(values(EDGES, dtype=dtype))
    source, target = n.given(edges(EDGES)), n.given(edges(EDGES, seed=1))
    messages = n.op("mul", n.op("gather", x, source, axis=0), n.wide(weights, (1,), lens))
    data = n.given(values(NODES, 6, dtype=dtype))
    n.check(on, n.op(f"scatter_{combine}", data, n.wide(target, (1,), lens), messages, axis=0))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("width", [8, 6, 3, 1])
def test_neighbours_are_added_together(width: int, arch: str, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", arch)
    n, lens = Network(), (EDGES, width)
    x, source, target = n.given(values(NODES, width)), n.given(edges(EDGES)), n.given(edges(EDGES, seed=1))
    data = n.given(values(NODES, width))
    n.check(on, n.op("scatter_add", data, n.wide(target, (1,), lens), n.op("gather", x, source, axis=0), axis=0))
    text = "".join(assembly(kernel, ARCHITECTURES[arch]) for kernel in n.made.kernels())
    lanes = next(k for k in (4, 2, 1) if width % k == 0)
    assert (f"red.relaxed.gpu.global.add.v{lanes}.f32" in text) == (arch == "sm_90a" and lanes > 1)


def test_several_values_are_gathered(on: Engine) -> None:
    """Of the last axis, by indices of two axes, of another type, and of a column that all features share."""
    n, lens = Network(), (2, 5, 8, 4)
    first, second = n.given(values(2, NODES, 4)), n.given(values(2, 5, 8, 3, dtype=np.float16))
    a = n.op("gather", first, n.given(edges(5, 8)), axis=1)
    b = n.op("gather", second, n.given(edges(4, nodes=3).astype(np.int32)), axis=3)
    column = n.wide(n.op("gather", n.given(values(9)), n.given(edges(8, nodes=9)), axis=0), (0, 1, 3), lens)
    updates = n.op("add", n.op("mul", a, n.op("convert", b, target_type="float_type")), column)
    at = n.wide(n.given(edges(5, nodes=6)), (0, 2, 3), lens)
    n.check(on, n.op("scatter_max", n.given(values(2, 6, 8, 4)), at, updates, axis=1))


def test_values_that_others_read_stay(on: Engine) -> None:
    n, lens = Network(), (EDGES, 4)
    x, source, target = n.given(values(NODES, 4)), n.given(edges(EDGES)), n.given(edges(EDGES, seed=1))
    gathered, at = n.op("gather", x, source, axis=0), n.wide(target, (1,), lens)
    n.check(on, n.op("scatter_add", x, at, n.op("sqrt", n.op("abs", gathered)), axis=0), gathered)
    n = Network()
    x, at = n.given(values(NODES, 4)), n.given(edges(EDGES, 4))
    updates = n.op("exp", n.given(values(EDGES, 4)))
    n.check(on, n.op("scatter_add", x, at, updates, axis=0), n.op("scatter_max", x, at, updates, axis=0), fused=0)


def test_indices_out_of_range(on: Engine) -> None:
    """A gather reports an index out of range; a scatter that skips such indices drops their updates."""
    for far, skipped in ((True, False), (False, True)):
        n, lens = Network(), (EDGES, 4)
        source, target = edges(EDGES), edges(EDGES, seed=1)
        (source if far else target)[3] = NODES + 2
        messages = n.op("gather", n.given(values(NODES, 4)), n.given(source), axis=0)
        at = n.wide(n.given(target), (1,), lens)
        result = n.op("scatter_add", n.given(values(NODES, 4)), at, messages, axis=0, skip_out_of_bounds=skipped)
        if not far:
            n.check(on, result)
            continue
        n.module.add_return([result])
        with pytest.raises(
            ShapeError, match=f"^gather: index {NODES + 2} is out of range for axis 0 of length {NODES}"
        ):
            compiled(n.program, on, fast_math=True).run(n.feed)


def test_gathered_data_is_not_updated_in_place(on: Engine) -> None:
    """A run may have the data of a scatter and its result in the same memory, but not where the kernel gathers it."""
    for other in (False, True):
        n, lens = Network(), (EDGES, 4)
        x, source, target = n.given(values(NODES, 4)), n.given(edges(EDGES)), n.given(edges(EDGES, seed=1))
        read = n.given(values(NODES, 4, dtype=np.float32) + 1) if other else x
        n.check(on, n.op("scatter_add", x, n.wide(target, (1,), lens), n.op("gather", read, source, axis=0), axis=0))
        assert n.made.executable is not None
        assert bool(n.made.executable.plan.updates) == other


def test_gathered_values_are_written_into_a_concatenation(on: Engine) -> None:
    n = Network()
    parts = [
        n.op("relu", n.op("add", n.op("gather", n.given(values(NODES, 4)), n.given(edges(EDGES)), axis=0), b))
        for b in (n.given(values(EDGES, 4)), n.given(values(EDGES, 4) + 1))
    ]
    n.check(on, n.op("concat", *parts, axis=1))  # one launch of both
    assert not any("cop" in label or "concat" in label for label in labels(n.made)), labels(n.made)


def test_sums_stay_in_order_without_fast_math(on: Engine) -> None:
    n, lens = Network(), (EDGES, 4)
    x, source, target = n.given(values(NODES, 4)), n.given(edges(EDGES)), n.given(edges(EDGES, seed=1))
    messages = n.op("gather", x, source, axis=0)
    n.module.add_return([n.op("scatter_add", x, n.wide(target, (1,), lens), messages, axis=0)])
    made = compiled(n.program, on)
    assert not any("gather_scatter" in label or "atomic" in label for label in labels(made))
    assert_agrees(made.run(n.feed), reference(n.program, n.feed))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("lens", [(5, 8), (3, 7), (1, 1), (2, 64)])
def test_gathered_values_are_computed_with(lens: tuple[int, int], dtype: Any, on: Engine) -> None:
    n, (rows, width) = Network(), lens
    table = n.given(values(NODES, width, dtype=dtype, special=True))
    token, bias = n.op("gather", table, n.given(edges(2, rows)), axis=0), n.given(values(width, dtype=dtype))
    wide = n.op("multibroadcast", bias, out_lens=(2, rows, width))
    n.check(on, n.op("relu", n.op("add", token, wide)))


def test_gathers_of_columns_and_of_transposed_values(on: Engine) -> None:
    n = Network()
    turned = n.op("transpose", n.given(values(6, NODES)), permutation=(1, 0))
    rows = n.op("gather", turned, n.given(edges(4)), axis=0)
    columns = n.op("gather", n.given(values(4, 9)), n.given(edges(6, nodes=9)), axis=1)
    one = n.op("gather", n.given(values(3, 4, 6)), n.given(np.array(-2)), axis=0)
    n.check(on, n.op("mul", n.op("sub", rows, columns), one))


def test_a_gather_of_one_element(on: Engine) -> None:
    n = Network()
    one = n.op("gather", n.given(values(3)), n.given(np.array([1])), axis=0)
    n.check(on, n.op("exp", one))
