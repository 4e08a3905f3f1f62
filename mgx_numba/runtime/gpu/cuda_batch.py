"""Run the kernels of a symbolic plan through NVIDIA's driver, a range in one native loop, as graphs updated in
place."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_uint32
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.gpu.driver.graphs import Graph, GraphInMaking, KernelNode
from ...codegen.gpu.driver.tensor_maps import data_type
from ...codegen.launch import DYNAMIC_ALIGNMENT, TensorLayout, TensorMap
from ...errors import DeviceError
from ...garbage import uncollected
from ..host.driver_calls import Launched, LaunchLoop, TensorMapArguments, loops
from ..memory import address_of
from .open_plan import PlanLaunches

if TYPE_CHECKING:
    from .cuda import CudaEngine

_NODE = np.dtype(
    [("function", "<u8"), ("blocks", "<u4", 3), ("threads", "<u4", 3), ("shared", "<u4"), ("", "<u4"),
     ("parameters", "<u8"), ("extra", "<u8"), ("kernel", "<u8"), ("context", "<u8")]
)  # fmt: skip
"""Layout of CUDA_KERNEL_NODE_PARAMS_v2 in cuda.h."""
_CONFIG = np.dtype(
    [("blocks", "<u4", 3), ("threads", "<u4", 3), ("shared", "<u4"), ("", "<u4"), ("stream", "<u8"),
     ("attributes", "<u8"), ("count", "<u8")]
)  # fmt: skip
"""Layout of CUlaunchConfig in cuda.h."""
_ATTRIBUTE = np.dtype([("id", "<u4"), ("", "<u4"), ("value", "<i4"), ("rest", "V60")])
"""Layout of CUlaunchAttribute in cuda.h, with the int member of its union."""
_COOPERATIVE = 2
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE."""
_ALIGNMENT = 64
"""Alignment (bytes) that the driver requires for a tensor map."""
_FUNCTIONS = {
    LaunchLoop.TILED: "cuTensorMapEncodeTiled",
    LaunchLoop.WINDOWS: "cuTensorMapEncodeIm2col",
    LaunchLoop.UPDATE: "cuGraphExecKernelNodeSetParams_v2",
    LaunchLoop.START: "cuGraphLaunch",
    LaunchLoop.LAUNCH: "cuLaunchKernelEx",
}
"""The driver's functions, by their words in the loop's block."""
FIRST_NODES = 4
"""Number of nodes of the first graph; each next one has twice as many. On an H200 a node is updated in 0.3 to 1.5 us,
while a kernel takes 1 us at least: so graphs are updated in time, but for the first. With 100 kernels of 1 us each, the
updates add 2 us to a run; with one graph they add 30."""
MOST_GRAPHS = 64
"""Number of graphs of a context above which all are made anew. Numbers of kernels differ only where lengths take other
kernels, and share their first graphs."""


class CudaBatch:
    """The kernels of one context, as nodes of graphs.

    The k-th kernel that runs is the k-th node of a sequence of graphs, whichever kernel it is: a node takes any
    function. Cooperative kernels are launched between graphs.
    """

    def __init__(self, engine: CudaEngine, launches: PlanLaunches, overlaps: bool) -> None:
        """Prepare the launches; ``overlaps``: a kernel's blocks may start before the preceding kernel ends, and then
        wait for it."""
        numbers = launches.numbers
        self._engine, self._launches, self._overlaps = engine, launches, overlaps
        self._graphs: dict[tuple[int, int, int], Graph] = {}
        self._running: dict[int, bytes] = {}
        self._sent: dict[int, object] = {}
        count, each = len(numbers.steps), np.arange(len(numbers.steps))
        self._attribute = np.zeros(1, _ATTRIBUTE)
        self._attribute["id"], self._attribute["value"] = _COOPERATIVE, 1
        # Each array holds a pointer to the only parameter, the argument block.
        self._parameters = address_of(launches.slots) + 8 * np.array(numbers.starts[:-1], np.int64)
        self._nodes, self._configs = np.zeros(count, _NODE), np.zeros(count, _CONFIG)
        self._configs["attributes"], self._configs["count"] = address_of(self._attribute), 1
        for k, geometry in enumerate(numbers.geometries):
            shared = geometry.shared_bytes
            if shared:
                shared += DYNAMIC_ALIGNMENT  # kernels align to it themselves: the driver aligns to less
                engine.device.allow_shared(numbers.functions[k], shared)
            for table in (self._nodes, self._configs):
                table[k]["threads"], table[k]["shared"] = geometry.threads, shared
        records = launches.records
        self._nodes["function"] = records[:, Launched.FUNCTION] = numbers.functions
        self._nodes["parameters"] = records[:, Launched.PARAMETERS] = address_of(self._parameters) + 8 * each
        records[:, Launched.THREADS] = self._nodes["threads"][:, 0]
        self._alone = np.array([geometry.cooperative for geometry in numbers.geometries], bool)
        records[:, Launched.CONFIG] = np.where(
            self._alone,
            address_of(self._configs) + _CONFIG.itemsize * each,
            address_of(self._nodes) + _NODE.itemsize * each,
        )
        self._kept: list[object] = []
        for k, one in enumerate(numbers.maps):
            self._describe(launches.maps[k], one.slot, one.layout)
        scratch = np.zeros(TensorMap.WORDS * 8 + _ALIGNMENT, np.uint8)
        self._kept.append(scratch)
        block = launches.block
        block[LaunchLoop.SCRATCH] = address_of(scratch) + -address_of(scratch) % _ALIGNMENT
        for word, name in _FUNCTIONS.items():
            block[word] = engine.driver.address(name)

    def launch(self, stream: int, begin: int, end: int) -> None:
        """Run a range of kernels on a stream, with the numbers that were passed to `PlanLaunches.settle`.

        Raises:
            DeviceError: the driver refuses.
            MgxError: a number is too large.
        """
        launches, block = self._launches, self._launches.block
        wanted = launches.settled
        changed = self._sent.pop(begin, None) != wanted
        if changed:
            launches.write(begin, end)
            self._assign(begin, end)
        block[LaunchLoop.STREAM], block[LaunchLoop.CHANGED] = stream, changed
        loops()[1](launches.block_address, begin, end)
        status = int(block[LaunchLoop.STATUS])
        if status:
            step = launches.numbers.steps[int(block[LaunchLoop.FAILED])]
            name = _FUNCTIONS[int(block[LaunchLoop.CALLED])]
            raise DeviceError(f"{step.label}: {self._engine.driver.describe(name, status)}")
        self._sent[begin] = wanted

    def prepare(self, begin: int, end: int) -> None:
        """Make the graphs for a range of kernels, with the numbers that were passed to `PlanLaunches.settle`."""
        self._launches.write(begin, end)
        self._assign(begin, end)

    def _assign(self, begin: int, end: int) -> None:
        """Set the nodes of the kernels that run."""
        records = self._launches.records
        runs = records[begin:end, Launched.RUNS].tobytes()
        if self._running.get(begin) == runs:
            return
        if len(self._graphs) >= MOST_GRAPHS:
            self._graphs.clear()
            self._running.clear()
            self._sent.clear()
        kernels = (begin + np.flatnonzero(records[begin:end, Launched.RUNS])).tolist()
        for alone, numbered in groupby(enumerate(kernels), lambda one: bool(self._alone[one[1]])):
            group = list(numbered)
            if alone:
                continue
            position = group[0][0]
            for part in _parts([kernel for _, kernel in group]):
                graph = self._graph((begin, position, len(part)), part)
                records[part, Launched.NODE] = graph.nodes
                records[part, Launched.GRAPH] = graph.address
                records[part, Launched.LAST] = 0
                records[part[-1], Launched.LAST] = graph.address
                position += len(part)
        self._running[begin] = runs

    def _graph(self, key: tuple[int, int, int], kernels: Sequence[int]) -> Graph:
        """Return the graph with a key, for the range, the position among the kernels that run, and the number of
        nodes; a new one has the given kernels."""
        found = self._graphs.get(key)
        if found is None:
            with uncollected():  # a graph of hundreds of kernels makes as many objects as a plan
                found = self._graphs[key] = self._made(kernels)
        return found

    def _made(self, kernels: Sequence[int]) -> Graph:
        numbers, engine = self._launches.numbers, self._engine
        making = GraphInMaking(engine.device, self._overlaps)
        try:
            for k in kernels:
                words, shared = self._launches.words[k], int(self._nodes[k]["shared"])
                making.kernel(KernelNode.of(numbers.functions[k], words, self._launches.grid(k), shared))
            return making.finish()
        except BaseException:
            making.discard()
            raise

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


def _parts(kernels: Sequence[int]) -> Iterator[list[int]]:
    """Yield the kernels in parts of `FIRST_NODES`, twice as many, and so on; what is left in powers of two."""
    begin, size = 0, FIRST_NODES
    while begin < len(kernels):
        left = len(kernels) - begin
        if left < size:
            size = 1 << left.bit_length() - 1
            yield list(kernels[begin : begin + size])
            begin += size
        else:
            yield list(kernels[begin : begin + size])
            begin, size = begin + size, 2 * size
