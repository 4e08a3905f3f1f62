"""Launch the kernels of a plan through NVIDIA's driver, a range in one native loop."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint32
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.gpu.driver.tensor_maps import data_type
from ...codegen.launch import DYNAMIC_ALIGNMENT, TensorLayout, TensorMap
from ...errors import DeviceError
from ..host.driver_calls import Launched, LaunchLoop, TensorMapArguments
from ..memory import address_of
from .open_plan import PlanLaunches

if TYPE_CHECKING:
    from .cuda import CudaEngine

_CONFIG = np.dtype(
    [("blocks", "<u4", 3), ("threads", "<u4", 3), ("shared", "<u4"), ("", "<u4"), ("stream", "<u8"),
     ("attributes", "<u8"), ("count", "<u8")]
)  # fmt: skip
"""Layout of CUlaunchConfig in cuda.h."""
_ATTRIBUTE = np.dtype([("id", "<u4"), ("", "<u4"), ("value", "<i4"), ("rest", "V60")])
"""Layout of CUlaunchAttribute in cuda.h, with the int member of its union."""
_COOPERATIVE, _OVERLAPPING = 2, 6
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE and CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
_ALIGNMENT = 64
"""Alignment (bytes) that the driver requires for a tensor map."""


class CudaBatch:
    """The kernels of a context, prepared for the native launch loop."""

    def __init__(self, engine: CudaEngine, launches: PlanLaunches, overlaps: bool) -> None:
        """Prepare the launches; ``overlaps``: a kernel's blocks may start before the preceding kernel ends, and then
        wait for it."""
        numbers = launches.numbers
        self._engine, self._launches = engine, launches
        names = ("cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col")
        self._functions = [engine.driver.address(name) for name in names]
        self._attributes = np.zeros(2, _ATTRIBUTE)
        self._attributes["id"], self._attributes["value"] = (_COOPERATIVE, _OVERLAPPING), 1
        self._configs = configs = np.zeros(len(numbers.steps), _CONFIG)
        records = launches.records
        for k, geometry in enumerate(numbers.geometries):
            shared = geometry.shared_bytes
            if shared:
                shared += DYNAMIC_ALIGNMENT  # kernels align to it themselves: the driver aligns to less
                engine.device.allow_shared(numbers.functions[k], shared)
            configs[k]["threads"], configs[k]["shared"] = geometry.threads, shared
            if geometry.cooperative:
                configs[k]["attributes"], configs[k]["count"] = address_of(self._attributes), 1
            records[k, Launched.THREADS] = geometry.threads[0]
            records[k, Launched.EARLY] = records[k, Launched.YIELDS] = overlaps and not geometry.cooperative
        # Each array holds a pointer to the only parameter, the argument block.
        self._parameters = address_of(launches.slots) + 8 * np.array(numbers.starts[:-1], np.int64)
        each = np.arange(len(numbers.steps))
        records[:, Launched.CONFIG] = address_of(configs) + _CONFIG.itemsize * each
        records[:, Launched.FUNCTION] = numbers.functions
        records[:, Launched.PARAMETERS] = address_of(self._parameters) + 8 * each
        self._kept: list[object] = []
        for k, one in enumerate(numbers.maps):
            self._describe(launches.maps[k], one.slot, one.layout)
        scratch = np.zeros(TensorMap.WORDS * 8 + _ALIGNMENT, np.uint8)
        self._kept.append(scratch)
        block = launches.block
        block[LaunchLoop.SCRATCH] = address_of(scratch) + -address_of(scratch) % _ALIGNMENT
        block[LaunchLoop.EARLY] = address_of(self._attributes) + _ATTRIBUTE.itemsize

    def launch(self, stream: int, begin: int, end: int) -> None:
        """Launch a range of kernels on a stream, with the numbers that were passed to `PlanLaunches.settle`.

        Raises:
            DeviceError: the driver refuses.
            MgxError: a number is too large.
        """
        block = self._launches.block
        block[LaunchLoop.STREAM] = stream
        block[LaunchLoop.LAUNCH], block[LaunchLoop.TILED], block[LaunchLoop.WINDOWS] = self._functions
        try:
            self._launches.write(begin, end)
        finally:
            block[LaunchLoop.LAUNCH] = 0
        status = int(block[LaunchLoop.STATUS])
        if status:
            step = self._launches.numbers.steps[int(block[LaunchLoop.FAILED])]
            name = "cuTensorMapEncode" if block[LaunchLoop.DESCRIBING] else "cuLaunchKernelEx"
            raise DeviceError(f"{step.label}: {self._engine.driver.describe(name, status)}")

    def _describe(self, row: np.ndarray, slot: int, layout: TensorLayout) -> None:
        windows = layout.windows
        row[TensorMapArguments.TARGET] = address_of(self._launches.slots) + 8 * slot
        row[TensorMapArguments.TYPE] = data_type(layout.dtype)
        row[TensorMapArguments.BOX] = self._keep((c_uint32 * 4)(*layout.box))
        steps = (1, 1, 1) if windows is None else (1, *windows.steps)
        row[TensorMapArguments.STEPS] = self._keep((c_uint32 * 4)(*steps, 1))
        if windows is not None:
            row[TensorMapArguments.LOWER] = self._keep((c_int * 2)(*windows.lower))
            row[TensorMapArguments.UPPER] = self._keep((c_int * 2)(*windows.upper))
            row[TensorMapArguments.CHANNELS], row[TensorMapArguments.POSITIONS] = layout.box[:2]

    def _keep(self, array: ctypes.Array[c_uint32] | ctypes.Array[c_int]) -> int:
        self._kept.append(array)
        return ctypes.addressof(array)
