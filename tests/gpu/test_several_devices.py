"""Devices of one machine that differ, by a driver that only takes notes: each has its own plans, code and context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mgx_numba.codegen.gpu import machine as machines
from mgx_numba.codegen.gpu.architecture import lowering_on
from mgx_numba.codegen.gpu.driver import device as devices
from mgx_numba.codegen.gpu.driver.library import Driver
from mgx_numba.codegen.gpu.machine import machine, multiprocessors
from mgx_numba.codegen.gpu.transfer import transfer_kernel
from mgx_numba.codegen.store import ObjectStore
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.cuda import CudaEngine
from mgx_numba.targets.gpu.lower import lowering, optimized
from mgx_numba.targets.lowering.job import LoweringJob
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.registry import target

A100, H200 = {16: 108, 75: 8, 76: 0, 38: 40 << 20}, {16: 132, 75: 9, 76: 0, 38: 50 << 20}
"""Attributes of cuda.h: multiprocessors, compute capability, L2."""
NAMES, CONTEXTS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H200"), (1000, 2000)
OTHERS = 5000
"""Context that another library has made current."""


class Library:
    """A libcuda with two devices; ``calls`` are the functions with the context that was current."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.modules: list[tuple[int, str]] = []
        self.current = OTHERS
        self._made = 0
        self._kept: Any = None

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu") or name == "cuFuncLoad":
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.calls.append((name, self.current))
            getattr(self, f"_{name}", self._new)(*arguments)
            return 0

        return function

    def _new(self, *arguments: Any) -> None:
        """Give a number to what a function makes."""
        if arguments and hasattr(arguments[0], "_obj"):
            self._made += 1
            arguments[0]._obj.value = self.current + self._made

    def _cuInit(self, flags: int) -> None: ...

    def _cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 13000

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 2

    def _cuDeviceGet(self, handle: Any, number: int) -> None:
        handle._obj.value = number

    def _cuDeviceGetName(self, name: Any, size: int, handle: Any) -> None:
        name.value = NAMES[handle.value].encode()

    def _cuDeviceGetAttribute(self, value: Any, number: int, handle: Any) -> None:
        value._obj.value = (A100, H200)[handle.value].get(number, 1)

    def _cuDevicePrimaryCtxRetain(self, context: Any, handle: Any) -> None:
        context._obj.value = CONTEXTS[handle.value]

    def _cuCtxGetCurrent(self, context: Any) -> None:
        context._obj.value = self.current or None

    def _cuCtxSetCurrent(self, context: Any) -> None:
        self.current = context.value or 0

    def _cuLinkAddData_v2(self, state: Any, kind: int, text: bytes, *rest: Any) -> None:
        self._kept = ctypes.create_string_buffer(b"\x7fELF" + text)

    def _cuLinkComplete(self, state: Any, data: Any, size: Any) -> None:
        data._obj.value, size._obj.value = ctypes.addressof(self._kept), len(self._kept)

    def _cuModuleLoadData(self, module: Any, code: bytes) -> None:
        target = code.split(b".target ")[1].split(b"\n")[0].decode()
        self.modules.append((self.current, target))
        self._new(module)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    driver = Driver(made)
    monkeypatch.delenv("MGX_GPU_ARCH", raising=False)
    monkeypatch.setattr(devices, "driver", lambda: driver)
    caches = (devices._opened, devices.architecture_of, machines._of_device)
    for cache in caches:
        cache.cache_clear()
    yield made
    for cache in caches:
        cache.cache_clear()


def test_plans_are_made_for_the_device_that_runs_them(library: Library) -> None:
    """Device 1 was planned for as if it were device 0."""
    program = Program()
    x, w = (program.main.add_parameter(name, Shape(Type.half_type, (4096, 4096))) for name in "xw")
    program.main.add_return([program.main.add_instruction("dot", [x, w])])
    labels = []
    for number, cores in enumerate((108, 132)):
        with lowering_on(number):
            assert multiprocessors() == cores and machine().name in NAMES[number]
            plan = lowering(LoweringJob(optimized(program, TargetOptions()), TargetOptions())).run()
        labels.append([step.label for step in plan.steps])
    assert labels == [["gpu::gemm_tensor_float16_kernel"], ["gpu::gemm_warpgroup_float16_kernel"]]
    assert multiprocessors() == 108


def test_a_kernel_has_an_object_for_each_architecture(library: Library, tmp_path: Path) -> None:
    """The object of device 0 was loaded on device 1, whose driver refuses it."""
    kernel, store = transfer_kernel(), ObjectStore(tmp_path)
    for number in (1, 0, 1):
        CudaEngine(devices.device(number)).load([kernel], None, store)
    assert library.modules == [(CONTEXTS[1], "sm_90a"), (CONTEXTS[0], "sm_80")]
    assert library.current == OTHERS


def test_all_that_a_device_owns_is_made_in_its_context(library: Library) -> None:
    engine = CudaEngine(devices.device(1))
    library.calls.clear()
    engine.free(engine.allocate(100, "memory"))
    engine.queue()
    engine.event()
    engine.synchronize()
    made = {name: context for name, context in library.calls if not name.startswith(("cuCtxGet", "cuCtxSet"))}
    assert {"cuMemAlloc_v2", "cuMemFree_v2", "cuStreamCreate", "cuEventCreate", "cuCtxSynchronize"} <= set(made)
    assert set(made.values()) == {CONTEXTS[1]} and library.current == OTHERS


def test_a_plan_file_is_for_the_model_of_its_own_device(library: Library) -> None:
    kinds = [target("gpu").machine(number) for number in (0, 1)]  # type: ignore[call-arg]
    assert [kind and kind["architecture"] for kind in kinds] == ["sm_80", "sm_90a"]
    assert [kind and kind["model"].split(",")[0] for kind in kinds] == list(NAMES)
