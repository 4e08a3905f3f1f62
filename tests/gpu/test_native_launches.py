"""The native loops that run the kernels of a symbolic plan, with stand-ins for NVIDIA's driver functions."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections import Counter
from ctypes import CFUNCTYPE, c_int, c_int64, c_uint32, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.driver.graphs import KernelNode
from mgx_numba.codegen.gpu.open_grids import cluster_of, open_axes
from mgx_numba.codegen.launch import Grid
from mgx_numba.core.types import Type
from mgx_numba.errors import DeviceError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu import cuda_batch
from mgx_numba.runtime.gpu.cuda_batch import CudaBatch
from mgx_numba.runtime.gpu.open_plan import LaunchNumbers, OpenLengths, PlanLaunches
from mgx_numba.runtime.plan import Pointer, Region

from .symbolic import SymbolicPlan, open_shape

ADDRESSES = {Region.ARENA: 1 << 20, Region.CONSTANT: 1 << 21, Region.PARAMETER: 1 << 22, Region.OUTPUT: 1 << 23}
STREAM = 77
QUEUE = SimpleNamespace(stream=STREAM)
LAYERS = 3


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("blocks", c_uint32 * 3), ("threads", c_uint32 * 3), ("shared", c_uint32), ("stream", c_void_p),
        ("attributes", c_void_p), ("count", c_uint32),
    )  # fmt: skip


Seen = tuple[int, tuple[int, ...], list[int]]


class Driver:
    """Stands in for the engine, its device and its driver; notes the kernels that run.

    Attributes:
        seen: the kernels that have run.
        attributes: attribute of each launch without a graph; 0 for none.
        calls: number of calls of each function.
        graphs: kernels of the nodes of each graph, by handle.
        early: nodes that may start before the preceding node ends.
    """

    def __init__(self, fails: str = "", overlaps: bool = True) -> None:
        self.device = self.driver = self
        self.fails, self.overlaps = fails, overlaps
        self.seen: list[Seen] = []
        self.attributes: list[int] = []
        self.calls: Counter[str] = Counter()
        self.tensors: list[tuple[int, list[int], list[int]]] = []
        self.words: dict[int, int] = {}
        self.graphs: dict[int, list[Seen]] = {}
        self.early: set[int] = set()
        tensor = (c_int, c_uint32, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int)
        self._native = {
            "cuLaunchKernelEx": CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)(self._launch),
            "cuTensorMapEncodeTiled": CFUNCTYPE(c_int, c_void_p, *tensor)(self._tiled),
            "cuGraphExecKernelNodeSetParams_v2": CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)(self._update),
            "cuGraphLaunch": CFUNCTYPE(c_int, c_void_p, c_void_p)(self._start),
            "cuGraphAddKernelNode_v2": CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_void_p)(self._add),
            "cuGraphAddDependencies_v2": CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_uint64)(self._join),
        }

    def use(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def allow_shared(self, function: int, size: int) -> None:
        assert function and size

    def address(self, name: str) -> int:
        return ctypes.cast(self._native[name], c_void_p).value or 0 if name in self._native else 0

    def describe(self, name: str, status: int) -> str:
        return f"{name} failed: {status}"

    def bound(self, name: str) -> None:
        """Return nothing: the native loop launches and updates graphs."""

    def call(self, name: str, *arguments: Any) -> None:
        """Make, instantiate and destroy graphs; a node's handle is 1000 times its graph's, and its number."""
        first = arguments[0]
        if name == "cuGraphCreate":
            first._obj.value = 1 + max(self.graphs, default=0)
            self.graphs[first._obj.value] = []
        elif name == "cuGraphInstantiateWithFlags":
            first._obj.value = arguments[1].value
        elif name == "cuGraphUpload":
            assert first.value in self.graphs and arguments[1] == STREAM
            self.calls[name] += 1
        else:
            assert name in ("cuGraphExecDestroy", "cuGraphDestroy"), name

    def _add(self, node: int, graph: int, before: int | None, count: int, parameters: int) -> int:
        nodes = self.graphs[graph]
        handle = c_uint64.from_address(node)
        handle.value = 1000 * graph + len(nodes)
        assert not nodes or c_uint64.from_address(before or 0).value == handle.value - 1
        assert count == (bool(nodes) and not self.overlaps)
        nodes.append(self._node(parameters))
        return self._status("cuGraphAddKernelNode_v2")

    def _join(self, graph: int, before: int, node: int, edge: int, count: int) -> int:
        first, second = (c_uint64.from_address(place).value for place in (before, node))
        assert second == first + 1 and second // 1000 == graph and count == 1
        assert (ctypes.c_ubyte * 3).from_address(edge)[:] == [1, 0, 1]
        self.early.add(second)
        return self._status("cuGraphAddDependencies_v2")

    def _node(self, parameters: int) -> Seen:
        own = KernelNode.from_address(parameters)
        assert own.function is not None
        return own.function, (*own.blocks, *own.threads), self._words(own.function, own.parameters[0] or 0)

    def _words(self, function: int, block: int) -> list[int]:
        return list((c_int64 * self.words[function]).from_address(block))

    def _status(self, name: str) -> int:
        self.calls[name] += 1
        return 9 if name == self.fails else 0

    def _update(self, graph: int, node: int, parameters: int) -> int:
        assert node // 1000 == graph
        self.graphs[graph][node % 1000] = self._node(parameters)
        return self._status("cuGraphExecKernelNodeSetParams_v2")

    def _start(self, graph: int, stream: int) -> int:
        assert stream == STREAM
        self.seen += self.graphs[graph]
        return self._status("cuGraphLaunch")

    def _launch(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        own = Config.from_address(config)
        assert not extra and own.stream == STREAM
        attribute = list((c_uint32 * 3).from_address(own.attributes)) if own.count else [0, 0, 1]
        assert own.count in (0, 1) and attribute[1:] == [0, 1]
        self.attributes.append(attribute[0])
        (block,) = (c_uint64 * 1).from_address(parameters)
        self.seen.append((function, (*own.blocks, *own.threads), self._words(function, block)))
        return self._status("cuLaunchKernelEx")

    def _tiled(self, place: int, type: int, rank: int, address: int, lens: int, strides: int, *rest: int) -> int:
        assert rank == 4 and place % 64 == 0 and rest[2:] == (0, 3, 3, 0)
        self.tensors.append(
            (address, list((c_uint64 * 4).from_address(lens)), list((c_uint64 * 3).from_address(strides)))
        )
        (c_int64 * 16).from_address(place)[:] = [address + k for k in range(16)]
        return 0


def launches_of(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, cooperative: tuple[int, ...] = ()
) -> tuple[OpenLengths, PlanLaunches, CudaBatch]:
    """Products of open rows, by tensor cores of warpgroups where there are many, and softmaxes."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program, rng = Program(), np.random.default_rng(0)
    y = program.main.add_parameter("x", open_shape(Type.half_type, "s", 256))
    for _ in range(LAYERS):
        w = program.main.add_literal(rng.standard_normal((256, 256)).astype(np.float16))
        y = program.main.add_instruction("softmax", [program.main.add_instruction("dot", [y, w])], axis=1)
    program.main.add_return([y])
    plan = SymbolicPlan(program).plan
    lengths = OpenLengths(plan)
    numbers = LaunchNumbers(plan, lengths, lambda step: 1 + plan.steps.index(step), address)
    numbers.load(lengths)
    for k in cooperative:
        numbers.geometries[k] = dataclasses.replace(numbers.geometries[k], cooperative=True)
    driver.words = {1 + k: max(1, len(step.args)) for k, step in enumerate(numbers.steps)}
    launches = PlanLaunches(numbers)
    return lengths, launches, CudaBatch(driver, launches, driver.overlaps)  # type: ignore[arg-type]


def address(place: Pointer) -> int:
    return ADDRESSES[place.region] + place.offset


def settle(launches: PlanLaunches, lengths: OpenLengths, rows: int) -> None:
    places = [ADDRESSES[region] for region, _ in launches.numbers.bases]
    launches.settle(lengths.expected(((rows, 256),)), places)


class OneByOne:
    """Notes what `PlanLaunches.launch_each` asks for; an engine and its queue."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def tensor_map(self, layout: Any, at: int) -> np.ndarray:
        return np.arange(at, at + 16)

    def launch(self, function: int, words: np.ndarray, geometry: Grid) -> None:
        self.seen.append((function, (*geometry.blocks, *geometry.threads), words.tolist()))


def agree(seen: list[Seen], wanted: list[Seen], launches: PlanLaunches) -> None:
    """Check that the wanted kernels ran, in grids that may have more blocks where these do nothing."""
    assert [(function, words) for function, _, words in seen] == [(function, words) for function, _, words in wanted]
    kernels = {1 + k: step.kernel for k, step in enumerate(launches.numbers.steps)}
    for (function, grid, _), (_, least, _) in zip(seen, wanted):
        assert grid[3:] == least[3:]
        for axis, is_open in enumerate(open_axes(kernels[function])):
            more = grid[axis] - least[axis]
            assert 0 <= more <= max(cuda_batch.FEW_BLOCKS, cuda_batch.MOST_SPARE) if is_open else more == 0
        assert grid[0] % cluster_of(kernels[function]) == 0


def one_by_one(launches: PlanLaunches) -> list[Seen]:
    found = OneByOne()
    launches.launch_each(found, found, 0, len(launches.numbers.steps))  # type: ignore[arg-type]
    return found.seen


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("cooperative", [(), (0, 4, 5, 7)], ids=["graphs", "some are cooperative"])
def test_kernels_run_as_one_by_one(
    cooperative: tuple[int, ...], overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_batch, "FIRST_NODES", 2)
    driver = Driver(overlaps=overlaps)
    lengths, launches, batch = launches_of(driver, monkeypatch, cooperative)
    assert launches.numbers.maps
    taken = set()
    for rows in (1, 37, 512, 4096, 2, 37, 37):
        settle(launches, lengths, rows)
        wanted = one_by_one(launches)
        driver.seen.clear()
        driver.tensors.clear()
        batch.launch(STREAM, 0, len(launches.numbers.steps))
        agree(driver.seen, wanted, launches)
        taken.add(tuple(one[0] for one in driver.seen))
        for at, lens, strides in driver.tensors:
            assert at % 16 == 0 and 256 in lens and all(stride % 16 == 0 for stride in strides)
    assert len(taken) > 1 and bool(driver.early) == overlaps
    assert set(driver.attributes) == {0, *[2] * bool(cooperative), *[6] * overlaps}  # CU_LAUNCH_ATTRIBUTE_...


def test_graphs_are_updated_for_other_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch)
    end, found = len(launches.numbers.steps), []
    settle(launches, lengths, 5)
    batch.prepare(0, end, QUEUE)
    assert driver.calls["cuGraphUpload"] == len(driver.graphs) > 0
    for rows in (5, 4000, 6, 4001, 5, 4002, 4002):
        settle(launches, lengths, rows)
        driver.calls.clear()
        driver.seen.clear()
        batch.launch(STREAM, 0, end)
        names = ("cuLaunchKernelEx", "cuGraphExecKernelNodeSetParams_v2", "cuGraphAddKernelNode_v2", "cuGraphLaunch")
        found.append([driver.calls[name] for name in names])
    many = len(driver.seen)
    few = found[0][1]
    # The first lengths with other kernels launch these; graphs, of 4 nodes and more, are made when they come again.
    assert found == [
        [0, few, 0, 2], [many, 0, 0, 0], [0, few, 0, 2], [many, 0, many, 0], [0, few, 0, 2], [0, many, 0, 2],
        [0, 0, 0, 2],
    ]  # fmt: skip


def test_a_series_of_graphs_serves_the_lengths_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """New lengths need no new graphs, though their grids have other numbers of blocks."""
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch)
    end, grids = len(launches.numbers.steps), set()
    for rows in range(2500, 4000, 50):
        settle(launches, lengths, rows)
        wanted = one_by_one(launches)
        driver.seen.clear()
        batch.launch(STREAM, 0, end)
        agree(driver.seen, wanted, launches)
        grids.add(tuple(grid for _, grid, _ in wanted))
    assert len(grids) > 20 and len(driver.graphs) <= 8 and driver.calls["cuGraphLaunch"] > 40


@pytest.mark.parametrize("rows", [1, 5, 600, 4000])
def test_a_series_serves_the_grids_for_which_it_was_made(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many nodes it has, each with blocks without work: a large model has thousands."""
    monkeypatch.setattr(cuda_batch, "MOST_IDLE", 0)
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch)
    for _ in range(2):
        settle(launches, lengths, rows)
        batch.launch(STREAM, 0, len(launches.numbers.steps))
    made = len(driver.graphs)
    settle(launches, lengths, rows + 1)
    batch.launch(STREAM, 0, len(launches.numbers.steps))
    settle(launches, lengths, rows)
    driver.calls.clear()
    batch.launch(STREAM, 0, len(launches.numbers.steps))
    assert made and driver.calls["cuGraphLaunch"] and not driver.calls["cuLaunchKernelEx"]


def test_of_too_many_series_the_least_recently_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST_SERIES": 2, "MOST_IDLE": 0, "FEW_BLOCKS": 1}.items():
        monkeypatch.setattr(cuda_batch, name, value)
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch)
    graphs = []
    for rows in (3, 3, 1000, 1000, 3, 600, 600, 3, 1000, 1000, 1000):
        settle(launches, lengths, rows)
        wanted = one_by_one(launches)
        driver.seen.clear()
        driver.calls.clear()
        batch.launch(STREAM, 0, len(launches.numbers.steps))
        agree(driver.seen, wanted, launches)
        graphs.append(driver.calls["cuGraphLaunch"] > 0)
    assert graphs == [False, False, False, False, True, False, True, True, False, True, True]


@pytest.mark.parametrize("name", ["cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch", "cuLaunchKernelEx"])
def test_a_refused_launch_is_an_error_that_names_the_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch)
    end = len(launches.numbers.steps)
    settle(launches, lengths, 37)
    if name != "cuLaunchKernelEx":
        batch.prepare(0, end, QUEUE)
    driver.fails = name
    for _ in range(2):
        with pytest.raises(DeviceError, match=f"gpu::.*: {name} failed: 9"):
            batch.launch(STREAM, 0, end)
    assert driver.calls[name] == 2
    driver.fails = ""
    driver.seen.clear()
    batch.launch(STREAM, 0, end)
    agree(driver.seen, one_by_one(launches), launches)


@pytest.mark.parametrize("name", ["cuGraphAddKernelNode_v2", "cuGraphAddDependencies_v2"])
def test_kernels_are_launched_where_no_graph_can_be_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(name)
    lengths, launches, batch = launches_of(driver, monkeypatch)
    end = len(launches.numbers.steps)
    for rows in (37, 37, 38, 38):
        settle(launches, lengths, rows)
        wanted = one_by_one(launches)
        driver.seen.clear()
        batch.launch(STREAM, 0, end)
        agree(driver.seen, wanted, launches)
    assert driver.calls[name] == 3 and not driver.calls["cuGraphLaunch"]
    with pytest.raises(DeviceError, match=f"gpu::.*: {name} failed: 9"):
        batch.prepare(0, end, QUEUE)
