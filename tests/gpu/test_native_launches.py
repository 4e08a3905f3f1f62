"""The native loop that launches the kernels of a symbolic plan, with stand-ins for NVIDIA's driver functions."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, c_int, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.launch import Grid
from mgx_numba.core.types import Type
from mgx_numba.errors import DeviceError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.cuda_batch import CudaBatch
from mgx_numba.runtime.gpu.open_plan import LaunchNumbers, OpenLengths, PlanLaunches
from mgx_numba.runtime.plan import Pointer, Region

from .symbolic import SymbolicPlan, open_shape

ADDRESSES = {Region.ARENA: 1 << 20, Region.CONSTANT: 1 << 21, Region.PARAMETER: 1 << 22, Region.OUTPUT: 1 << 23}
STREAM = 77


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("blocks", c_uint32 * 3), ("threads", c_uint32 * 3), ("shared", c_uint32), ("stream", c_void_p),
        ("attributes", c_void_p), ("count", c_uint32),
    )  # fmt: skip


class Driver:
    """Stands in for the engine, its device and its driver; notes what is launched."""

    def __init__(self, fails_at: int = -1) -> None:
        self.device = self.driver = self
        self.seen: list[tuple[int, tuple[int, ...], list[int], int]] = []
        self.tensors: list[tuple[int, list[int], list[int]]] = []
        self.words: dict[int, int] = {}
        self.fails_at = fails_at
        self._kept = [
            CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)(self._launch),
            CFUNCTYPE(
                c_int, c_void_p, c_int, c_uint32, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int,
                c_int,
            )(self._tiled),
        ]  # fmt: skip

    def allow_shared(self, function: int, size: int) -> None:
        assert function and size

    def address(self, name: str) -> int:
        places = {"cuLaunchKernelEx": 0, "cuTensorMapEncodeTiled": 1}
        return ctypes.cast(self._kept[places[name]], c_void_p).value or 0 if name in places else 0

    def describe(self, name: str, status: int) -> str:
        return f"{name} failed: {status}"

    def _launch(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        assert not extra
        own = Config.from_address(config)
        assert own.stream == STREAM
        (block,) = (c_uint64 * 1).from_address(parameters)
        words = list((c_int64 * self.words[function]).from_address(block))
        attributes = [c_uint32.from_address(own.attributes).value] if own.count else []
        assert own.count in (0, 1)
        self.seen.append((function, (*own.blocks, *own.threads), words, *(attributes or [0])))
        return 9 if len(self.seen) == self.fails_at else 0

    def _tiled(self, place: int, type: int, rank: int, address: int, lens: int, strides: int, *rest: int) -> int:
        assert rank == 4 and place % 64 == 0 and rest[2:] == (0, 3, 3, 0)
        self.tensors.append(
            (address, list((c_uint64 * 4).from_address(lens)), list((c_uint64 * 3).from_address(strides)))
        )
        (c_int64 * 16).from_address(place)[:] = [address + k for k in range(16)]
        return 0


def launches_of(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> tuple[OpenLengths, PlanLaunches, CudaBatch]:
    """A product of open rows, by tensor cores of warpgroups where there are many, and a softmax."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program, rng = Program(), np.random.default_rng(0)
    x = program.main.add_parameter("x", open_shape(Type.half_type, "s", 256))
    w = program.main.add_literal(rng.standard_normal((256, 256)).astype(np.float16))
    y = program.main.add_instruction("dot", [x, w])
    program.main.add_return([program.main.add_instruction("softmax", [y], axis=1)])
    plan = SymbolicPlan(program).plan
    lengths = OpenLengths(plan)
    numbers = LaunchNumbers(plan, lengths, lambda step: 1 + plan.steps.index(step), address)
    numbers.load(lengths)
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
        self.seen: list[tuple[int, tuple[int, ...], list[int]]] = []

    def tensor_map(self, layout: Any, at: int) -> np.ndarray:
        return np.arange(at, at + 16)

    def launch(self, function: int, words: np.ndarray, geometry: Grid) -> None:
        self.seen.append((function, (*geometry.blocks, *geometry.threads), words.tolist()))


def test_kernels_are_launched_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    lengths, launches, batch = launches_of(driver, monkeypatch)
    assert launches.numbers.maps
    taken = set()
    for rows in (1, 37, 512, 4096, 2):
        settle(launches, lengths, rows)
        wanted = OneByOne()
        launches.launch_each(wanted, wanted, 0, len(launches.numbers.steps))  # type: ignore[arg-type]
        driver.seen.clear()
        driver.tensors.clear()
        batch.launch(STREAM, 0, len(launches.numbers.steps))
        assert [one[:3] for one in driver.seen] == wanted.seen
        # the first is behind other work, those behind it may come early (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_...)
        assert [one[3] for one in driver.seen] == [0] + [6] * (len(wanted.seen) - 1)
        taken.add(tuple(one[0] for one in driver.seen))
        for at, lens, strides in driver.tensors:
            assert at % 16 == 0 and 256 in lens and all(stride % 16 == 0 for stride in strides)
    assert len(taken) > 1


def test_a_refused_launch_is_an_error_that_names_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(fails_at=1)
    lengths, launches, batch = launches_of(driver, monkeypatch)
    settle(launches, lengths, 37)
    with pytest.raises(DeviceError, match="gpu::.*: cuLaunchKernelEx failed: 9"):
        batch.launch(STREAM, 0, len(launches.numbers.steps))
    assert len(driver.seen) == 1
