"""The native loops that run the kernels of a symbolic plan, with stand-ins for NVIDIA's driver functions."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
from collections import Counter
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.driver.graphs import KernelNode
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
        calls: number of calls of each function.
        graphs: kernels of the nodes of each graph, by handle.
        early: nodes that may start before the preceding node ends.
    """

    def __init__(self, fails: str = "") -> None:
        self.device = self.driver = self.library = self
        self.context = None
        self.fails = fails
        self.seen: list[Seen] = []
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
        }

    def use(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def allow_shared(self, function: int, size: int) -> None:
        assert function and size

    def address(self, name: str) -> int:
        return ctypes.cast(self._native[name], c_void_p).value or 0 if name in self._native else 0

    def describe(self, name: str, status: int) -> str:
        return f"{name} failed: {status}"

    def bound(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.call(name, *arguments)

    cuGraphAddDependencies_v2 = True  # the library has it

    def call(self, name: str, *arguments: Any) -> None:
        """Build, instantiate and destroy graphs; a node's handle is 1000 times its graph's, and its number."""
        first = arguments[0]
        if name == "cuGraphCreate":
            assert not gc.isenabled()  # a graph of hundreds of nodes makes many objects
            first._obj.value = 1 + max(self.graphs, default=0)
            self.graphs[first._obj.value] = []
        elif name == "cuGraphAddKernelNode_v2":
            nodes = self.graphs[arguments[1].value]
            first._obj.value = 1000 * arguments[1].value + len(nodes)
            nodes.append(self._node(ctypes.addressof(arguments[4]._obj)))
        elif name == "cuGraphAddDependencies_v2":
            assert arguments[2]._obj.value == arguments[1]._obj.value + 1
            self.early.add(arguments[2]._obj.value)
        elif name == "cuGraphInstantiateWithFlags":
            first._obj.value = arguments[1].value
        else:
            assert name in ("cuGraphExecDestroy", "cuGraphDestroy"), name

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
        assert not extra and own.stream == STREAM and own.count == 1
        assert list((c_uint32 * 3).from_address(own.attributes)) == [2, 0, 1]  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
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
    return lengths, launches, CudaBatch(driver, launches, True)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("cooperative", [(), (0, 4, 5, 7)], ids=["graphs", "some are cooperative"])
def test_kernels_run_as_one_by_one(cooperative: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_batch, "FIRST_NODES", 2)
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch, cooperative)
    assert launches.numbers.maps
    taken, end = set(), len(launches.numbers.steps)
    for rows in (1, 37, 512, 4096, 2, 37, 37):
        settle(launches, lengths, rows)
        wanted = OneByOne()
        launches.launch_each(wanted, wanted, 0, end)  # type: ignore[arg-type]
        driver.seen.clear()
        driver.tensors.clear()
        batch.launch(STREAM, 0, end)
        assert driver.seen == wanted.seen
        taken.add(tuple(one[0] for one in driver.seen))
        for at, lens, strides in driver.tensors:
            assert at % 16 == 0 and 256 in lens and all(stride % 16 == 0 for stride in strides)
    assert len(taken) > 1 and bool(driver.calls["cuLaunchKernelEx"]) == bool(cooperative)


def test_graphs_serve_other_kernels_and_are_updated_for_other_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch)
    end, made = len(launches.numbers.steps), []
    settle(launches, lengths, 5)
    batch.prepare(0, end)
    for rows in (5, 512, 6, 700, 6, 6):
        settle(launches, lengths, rows)
        driver.calls.clear()
        batch.launch(STREAM, 0, end)
        updates, kernels = driver.calls["cuGraphExecKernelNodeSetParams_v2"], len(driver.seen)
        made.append((len(driver.graphs), updates))
        assert driver.calls["cuGraphLaunch"] == 2  # of four nodes, and of two
        driver.seen.clear()
    assert made == [(2, kernels)] * 5 + [(2, 0)]
    nodes = [1000 * graph + k for graph, own in driver.graphs.items() for k in range(1, len(own))]
    assert driver.early == set(nodes)  # all but the first of each graph


def test_graphs_that_are_too_many_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_batch, "MOST_GRAPHS", 1)
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch)
    end = len(launches.numbers.steps)
    for rows in (3, 600, 4, 600):
        settle(launches, lengths, rows)
        wanted = OneByOne()
        launches.launch_each(wanted, wanted, 0, end)  # type: ignore[arg-type]
        driver.seen.clear()
        batch.launch(STREAM, 0, end)
        assert driver.seen == wanted.seen
    assert len(driver.graphs) == 8


@pytest.mark.parametrize("name", ["cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch", "cuLaunchKernelEx"])
def test_a_refused_launch_is_an_error_that_names_the_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(name)
    lengths, launches, batch = launches_of(driver, monkeypatch, (0, 1, 2) if name == "cuLaunchKernelEx" else ())
    settle(launches, lengths, 37)
    for _ in range(2):
        with pytest.raises(DeviceError, match=f"gpu::.*: {name} failed: 9"):
            batch.launch(STREAM, 0, len(launches.numbers.steps))
    assert driver.calls[name] == 2
    driver.fails = ""
    driver.seen.clear()
    batch.launch(STREAM, 0, len(launches.numbers.steps))
    assert len(driver.seen) == 2 * LAYERS
