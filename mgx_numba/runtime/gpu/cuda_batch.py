"""Run the kernels of a symbolic plan through NVIDIA's driver, a range in one native loop, as graphs updated in
place."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int, c_uint, c_uint32, c_ulonglong, c_void_p
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.gpu.driver.graphs import ADD_EDGE, OVERLAPPING, Graph
from ...codegen.gpu.driver.tensor_maps import data_type
from ...codegen.gpu.open_grids import cluster_of, open_axes
from ...codegen.launch import DYNAMIC_ALIGNMENT, MOST_PLANES, TensorLayout, TensorMap
from ...core.dim import Dim
from ...dataclass import dataclass
from ...errors import DeviceError
from ..host.driver_calls import MOST_X, GraphSeries, Launched, LaunchLoop, Loop, TensorMapArguments, loops
from ..memory import address_of
from .open_plan import PlanLaunches

if TYPE_CHECKING:
    from .cuda import CudaEngine, CudaQueue

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
_COOPERATIVE, _OVERLAPPING = 2, 6
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE and CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
_ALIGNMENT = 64
"""Alignment (bytes) that the driver requires for a tensor map."""
_FUNCTIONS = {
    LaunchLoop.TILED: "cuTensorMapEncodeTiled",
    LaunchLoop.WINDOWS: "cuTensorMapEncodeIm2col",
    LaunchLoop.UPDATE: "cuGraphExecKernelNodeSetParams_v2",
    LaunchLoop.START: "cuGraphLaunch",
    LaunchLoop.LAUNCH: "cuLaunchKernelEx",
    LaunchLoop.ADD: "cuGraphAddKernelNode_v2",
    LaunchLoop.JOIN: ADD_EDGE,
}
"""The driver's functions, by their words in the loops' block."""
FIRST_NODES = 4
"""Number of nodes of the first graph; each next one has twice as many. On an H200 a node is updated in 0.3 to 0.5 us,
and a kernel takes 1 us at least: so graphs are updated in time, but for the first. With 100 kernels of 1 us each, the
updates add 2 us to a run; with one graph they add 30."""
MOST_SERIES = 64
"""Maximum number of series of graphs of a context; the least recently used is dropped. To make a series takes a
millisecond."""
MOST_PREPARED, MOST_PREPARED_NODES = 48, 4096
"""Maximum number of series that are made before the first run, and number of nodes from which no other series is made.
On an H200 a node takes 13 to 18 us."""
MOST_MISSED = 256
"""Maximum number of choices of kernels without graphs that are remembered."""
FEW_BLOCKS, MOST_SPARE = 64, 1 << 11
"""Least number of blocks of a node, and most blocks more than its kernel needs. On an H200 blocks without work take
1.2 ns each. To change a node's grid takes the driver 4 us."""
MOST_IDLE = 1 << 14
"""Number of blocks without work that a series may have in any case, 20 us in all; `FEW_BLOCKS` for each node and as
many as the blocks with work come on top, so that a series serves the grids for which it was made."""


@dataclass(eq=False)
class _Series:
    """Graphs of some kernels.

    Attributes:
        kernels: numbers of the kernels.
        columns: their words of `Launched` from ``NODE`` to ``NODE_Z``.
        graphs: the graphs, in order.
        turn: number of the last use.
    """

    kernels: np.ndarray
    columns: np.ndarray
    graphs: list[Graph]
    turn: int


class CudaBatch:
    """The kernels of one context, as nodes of graphs.

    Kernels whose grids must have exactly the blocks that lengths need, such as cooperative kernels, are launched
    between graphs. All kernels are launched where no graphs serve their grids; graphs are made if they come again.
    """

    def __init__(self, engine: CudaEngine, launches: PlanLaunches, overlaps: bool) -> None:
        """Prepare the launches; ``overlaps``: a kernel's blocks may start before the preceding kernel ends, and then
        wait for it."""
        numbers = launches.numbers
        self._engine, self._launches = engine, launches
        self._series: list[_Series] = []
        self._turn = 0
        self._table = np.zeros((0, GraphSeries.WORDS), np.int64)
        self._missed: set[tuple[int, bytes]] = set()
        self._sent: dict[int, object] = {}
        count, each = len(numbers.steps), np.arange(len(numbers.steps))
        self._attributes = np.zeros(2, _ATTRIBUTE)
        self._attributes["id"], self._attributes["value"] = (_COOPERATIVE, _OVERLAPPING), 1
        # Each array holds a pointer to the only parameter, the argument block.
        self._parameters = address_of(launches.slots) + 8 * np.array(numbers.starts[:-1], np.int64)
        self._nodes, self._configs = np.zeros(count, _NODE), np.zeros(count, _CONFIG)
        cooperative = np.array([geometry.cooperative for geometry in numbers.geometries], bool)
        self._configs["attributes"], self._configs["count"] = address_of(self._attributes), cooperative
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
        self._spare = np.array([open_axes(step.kernel) for step in numbers.steps], bool).reshape(-1, 3)
        is_open = np.array([[isinstance(n, Dim) for n in g.blocks] for g in numbers.geometries], bool).reshape(-1, 3)
        self._clusters = np.array([cluster_of(step.kernel) for step in numbers.steps], np.int64)
        records[:, Launched.ALONE] = (is_open & ~self._spare).any(axis=1) | cooperative
        records[:, Launched.OVERLAPS] = overlaps & ~cooperative
        for word, table in ((Launched.CONFIG, self._configs), (Launched.NODE_CONFIG, self._nodes)):
            records[:, word] = address_of(table) + table.itemsize * each
        self._kept: list[object] = []
        for k, one in enumerate(numbers.maps):
            self._describe(launches.maps[k], one.slot, one.layout)
        scratch = np.zeros(TensorMap.WORDS * 8 + _ALIGNMENT, np.uint8)
        self._kept.append(scratch)
        block = launches.block
        block[LaunchLoop.SCRATCH] = address_of(scratch) + -address_of(scratch) % _ALIGNMENT
        for word, name in _FUNCTIONS.items():
            block[word] = engine.driver.address(name)
        block[LaunchLoop.EARLY] = address_of(self._attributes) + _ATTRIBUTE.itemsize
        block[LaunchLoop.SPARE], block[LaunchLoop.IDLE] = 2 * MOST_SPARE, MOST_IDLE
        block[LaunchLoop.FEW] = FEW_BLOCKS
        block[LaunchLoop.EDGE] = ctypes.addressof(OVERLAPPING) if overlaps and block[LaunchLoop.JOIN] else 0

    def launch(self, stream: int, begin: int, end: int) -> None:
        """Run a range of kernels on a stream, with the numbers that were passed to `PlanLaunches.settle`.

        Raises:
            DeviceError: the driver refuses.
            MgxError: a number is too large.
        """
        launches, block = self._launches, self._launches.block
        wanted = launches.settled
        block[LaunchLoop.STREAM], block[LaunchLoop.CHANGED] = stream, 1
        if self._sent.pop(begin, None) == wanted:
            block[LaunchLoop.CHANGED] = 0
            self._call(loops().send, begin, end)
        elif self._written(begin, end):
            self._call(loops().send, begin, end)
        else:
            launches.records[begin:end, Launched.NODE : Launched.LAST + 1] = 0
            self._call(loops().send, begin, end)
            key = begin, launches.records[begin:end, Launched.RUNS].tobytes()
            if key in self._missed:
                with contextlib.suppress(DeviceError):  # the kernels run; others are launched again
                    self._make(begin, end)
            elif len(self._missed) < MOST_MISSED:
                self._missed.add(key)
            return
        self._sent[begin] = wanted

    def prepare(self, begin: int, end: int, queue: CudaQueue) -> None:
        """Make the graphs for a range of kernels, with the numbers that were passed to `PlanLaunches.settle`, unless
        there are many series already; they are copied to the device in ``queue``."""
        nodes = sum(len(series.kernels) for series in self._series)
        if len(self._series) < MOST_PREPARED and nodes < MOST_PREPARED_NODES and not self._written(begin, end):
            self._make(begin, end)
            for graph in self._series[-1].graphs:
                graph.upload(queue.stream)

    def _written(self, begin: int, end: int) -> bool:
        """Write the numbers of a range of kernels, and use the nodes of the series with the fewest blocks without work;
        return False if no series serves the grids."""
        self._launches.write(begin, end)
        loops().choose(self._launches.block_address, begin, end)
        chosen = int(self._launches.block[LaunchLoop.CHOSEN])
        if chosen >= 0:
            self._turn += 1
            self._series[chosen].turn = self._turn
        return chosen >= 0

    def _call(self, loop: Loop, begin: int, end: int) -> None:
        launches, block = self._launches, self._launches.block
        loop(launches.block_address, begin, end)
        status = int(block[LaunchLoop.STATUS])
        if status:
            step = launches.numbers.steps[int(block[LaunchLoop.FAILED])]
            name = _FUNCTIONS[int(block[LaunchLoop.CALLED])]
            raise DeviceError(f"{step.label}: {self._engine.driver.describe(name, status)}")

    def _make(self, begin: int, end: int) -> None:
        """Make a series of graphs for the grids that kernels need."""
        records, graphs = self._launches.records, list[Graph]()
        running = begin + np.flatnonzero(records[begin:end, Launched.RUNS])
        kernels = running[records[running, Launched.ALONE] == 0]
        records[running, Launched.NODE : Launched.LAST + 1] = 0
        records[kernels, Launched.NODE_X : Launched.NODE_Z + 1] = self._wider(kernels)
        for alone, group in groupby(running.tolist(), lambda kernel: bool(records[kernel, Launched.ALONE])):
            for part in () if alone else _parts(list(group), len(graphs)):
                graphs.append(self._graph(part))
        if len(self._series) >= MOST_SERIES:
            self._series.remove(min(self._series, key=lambda series: series.turn))
            self._sent.clear()  # its nodes may be among these
        self._turn += 1
        columns = records[kernels, Launched.NODE : Launched.NODE_Z + 1]
        self._series.append(_Series(kernels, columns, graphs, self._turn))
        rows = [(len(one.kernels), address_of(one.kernels), address_of(one.columns)) for one in self._series]
        self._table = np.array(rows, np.int64)
        block = self._launches.block
        block[LaunchLoop.SERIES], block[LaunchLoop.COUNT] = address_of(self._table), len(rows)

    def _wider(self, kernels: np.ndarray) -> np.ndarray:
        """Return grids for nodes, which also serve lengths that need half as many blocks more."""
        blocks = self._launches.records[kernels, Launched.GRID_X : Launched.GRID_Z + 1].copy()
        steps = np.ones_like(blocks)
        steps[:, 0] = self._clusters[kernels]
        for axis in range(3):
            others = blocks.prod(axis=1) // blocks[:, axis]
            more = np.minimum(blocks[:, axis] // 2, MOST_SPARE // others)
            wide = np.maximum(blocks[:, axis] + more, FEW_BLOCKS // others)
            wide = -(-wide // steps[:, axis]) * steps[:, axis]
            most = MOST_X if axis == 0 else MOST_PLANES
            serves = self._spare[kernels, axis] & (wide <= most) & (wide > blocks[:, axis])
            blocks[:, axis] = np.where(serves, wide, blocks[:, axis])
        return blocks

    def _graph(self, kernels: Sequence[int]) -> Graph:
        """Return a graph of kernels that run one after another, and set their words of `Launched`."""
        driver, records, block = self._engine.driver, self._launches.records, self._launches.block
        graph, executable = c_void_p(), c_void_p()
        driver.call("cuGraphCreate", byref(graph), c_uint(0))
        block[LaunchLoop.GRAPH] = graph.value or 0
        try:
            self._call(loops().add, kernels[0], kernels[-1] + 1)
            driver.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_ulonglong(0))
        except BaseException:
            driver.call("cuGraphDestroy", graph)
            raise
        records[kernels, Launched.GRAPH] = records[kernels[-1], Launched.LAST] = executable.value or 0
        return Graph(self._engine.device, graph, executable, [])

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


def _parts(kernels: Sequence[int], before: int) -> Iterator[list[int]]:
    """Yield the kernels of graphs, of which each has twice as many as the preceding graph; ``before``: number of graphs
    that precede."""
    begin, size = 0, FIRST_NODES << before
    while begin < len(kernels):
        yield list(kernels[begin : begin + size])
        begin, size = begin + size, 2 * size
