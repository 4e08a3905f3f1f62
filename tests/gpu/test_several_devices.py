"""Different devices in a machine, by a fake driver that records calls: each device has separate plans, code and
context."""

from __future__ import annotations

from pathlib import Path

from mgx_numba.codegen.gpu.architecture import lowering_on
from mgx_numba.codegen.gpu.driver import device as devices
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

from .two_devices import CONTEXTS, NAMES, OTHERS, Library


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
