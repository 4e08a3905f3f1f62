"""Kernels of a plan as NVIDIA's driver launches them, all of a range by one native loop."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint32
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.gpu.driver.tensor_maps import data_type
from ...codegen.launch import DYNAMIC_ALIGNMENT, TensorMap
from ...errors import DeviceError
from ..host.driver_calls import Batch, Described, Launched, launching
from ..memory import address_of
from .open_plan import MapNumbers, PlanLaunches

if TYPE_CHECKING:
    from .cuda import CudaEngine

__all__ = ["CudaBatch"]

_CONFIG = np.dtype(
    [("blocks", "<u4", 3), ("threads", "<u4", 3), ("shared", "<u4"), ("", "<u4"), ("stream", "<u8"),
     ("attributes", "<u8"), ("count", "<u4"), ("", "<u4")]
)  # fmt: skip
"""CUlaunchConfig of cuda.h."""
_ATTRIBUTE = np.dtype([("id", "<u4"), ("", "<u4"), ("value", "<i4"), ("rest", "V60")])
"""CUlaunchAttribute of cuda.h, of whose union this is an int."""
_COOPERATIVE, _OVERLAPPING = 2, 6
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE and CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
_ALIGNMENT = 64
"""Bytes that the driver wants the description of a tensor at a multiple of."""


class CudaBatch:
    """The kernels of one context; `launch` takes their blocks and grids as they are then."""

    def __init__(self, engine: CudaEngine, launches: PlanLaunches, overlaps: bool) -> None:
        """``overlaps``: a kernel's blocks may come before the end of the kernel before, for which they wait."""
        numbers = launches.numbers
        self._engine, self._launches = engine, launches
        count = len(numbers.steps)
        self._attributes = np.zeros(2, _ATTRIBUTE)
        self._attributes["id"], self._attributes["value"] = (_COOPERATIVE, _OVERLAPPING), 1
        self._configs = np.zeros(count, _CONFIG)
        self._early = np.zeros(count, bool)
        for k, geometry in enumerate(numbers.geometries):
            shared = geometry.shared_bytes
            if shared:
                shared += DYNAMIC_ALIGNMENT  # kernels round up to it: the driver aligns to less
                engine.device.allow_shared(numbers.functions[k], shared)
            self._configs[k]["threads"], self._configs[k]["shared"] = geometry.threads, shared
            if geometry.cooperative:
                self._configs[k]["attributes"], self._configs[k]["count"] = address_of(self._attributes), 1
            self._early[k] = overlaps and not geometry.cooperative
        self._cooperative = np.array([geometry.cooperative for geometry in numbers.geometries], bool)
        starts = np.array(numbers.starts[:-1], np.int64)
        self._parameters = address_of(launches.slots) + 8 * starts  # each points to one parameter, the argument block
        ends = np.array(numbers.map_ends, np.int64)
        self._records = np.zeros((count, Launched.WORDS), np.int64)
        self._records[:, Launched.CONFIG] = address_of(self._configs) + _CONFIG.itemsize * np.arange(count)
        self._records[:, Launched.FUNCTION] = numbers.functions
        self._records[:, Launched.PARAMETERS] = address_of(self._parameters) + 8 * np.arange(count)
        self._records[1:, Launched.FIRST_MAP] = ends[:-1]
        self._records[:, Launched.END_MAP] = ends
        self._kept: list[object] = []
        self._strides = np.ascontiguousarray(launches.strides[:, 1:])
        rows = [self._described(k, one) for k, one in enumerate(numbers.maps)]
        self._maps = np.array(rows, np.int64).reshape(-1, Described.WORDS)
        scratch = np.zeros(TensorMap.WORDS * 8 + _ALIGNMENT, np.uint8)
        self._kept.append(scratch)
        self._block = block = np.zeros(Batch.WORDS, np.int64)
        block[Batch.SCRATCH] = address_of(scratch) + -address_of(scratch) % _ALIGNMENT
        block[Batch.RECORDS], block[Batch.MAPS] = address_of(self._records), address_of(self._maps)
        block[Batch.LAUNCH], block[Batch.TILED], block[Batch.WINDOWS] = engine.launch_functions
        self._address = address_of(block)
        self._launching = launching()

    def launch(self, stream: int, begin: int, end: int) -> None:
        """Ask a stream for a range of kernels.

        Raises:
            DeviceError: the driver refuses.
        """
        launches, records, configs = self._launches, self._records, self._configs
        runs = launches.blocks[:, 0] > 0
        records[:, Launched.RUNS] = runs
        configs["blocks"] = launches.blocks
        configs["stream"] = stream
        self._maps[:, Described.ADDRESS] = launches.addresses
        self._strides[:] = launches.strides[:, 1:]
        self._overlap(np.flatnonzero(runs[begin:end]) + begin)
        self._launching(self._address, begin, end)
        status = int(self._block[Batch.STATUS])
        if status:
            step = launches.numbers.steps[int(self._block[Batch.FAILED])]
            name = "cuTensorMapEncode" if self._block[Batch.DESCRIBING] else "cuLaunchKernelEx"
            raise DeviceError(f"{step.label}: {self._engine.driver.describe(name, status)}")

    def _overlap(self, running: np.ndarray) -> None:
        """Let kernels come early behind kernels that are not cooperative."""
        early = np.zeros(len(self._early), bool)
        behind, before = running[1:], running[:-1]
        early[behind] = self._early[behind] & ~self._cooperative[before]
        single = address_of(self._attributes) + _ATTRIBUTE.itemsize
        plain = ~self._cooperative
        self._configs["attributes"][plain] = np.where(early, single, 0)[plain]
        self._configs["count"][plain] = early[plain]

    def _described(self, k: int, one: MapNumbers) -> list[int]:
        layout, windows, launches = one.layout, one.layout.windows, self._launches
        row = [0] * Described.WORDS
        row[Described.TARGET] = address_of(launches.slots) + 8 * one.slot
        row[Described.TYPE] = data_type(layout.dtype)
        row[Described.LENS] = address_of(launches.lens) + 32 * k
        row[Described.STRIDES] = address_of(self._strides) + 24 * k
        row[Described.BOX] = self._keep((c_uint32 * 4)(*layout.box))
        steps = (1, 1, 1) if windows is None else (1, *windows.steps)
        row[Described.STEPS] = self._keep((c_uint32 * 4)(*steps, 1))
        if windows is not None:
            row[Described.LOWER] = self._keep((c_int * 2)(*windows.lower))
            row[Described.UPPER] = self._keep((c_int * 2)(*windows.upper))
            row[Described.CHANNELS], row[Described.POSITIONS] = layout.box[:2]
        return row

    def _keep(self, array: ctypes.Array[c_uint32] | ctypes.Array[c_int]) -> int:
        self._kept.append(array)
        return ctypes.addressof(array)
