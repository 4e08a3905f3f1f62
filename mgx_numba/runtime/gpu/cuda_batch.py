"""Run the kernels of a symbolic plan through NVIDIA's driver, a range in one native loop, as graphs updated in
place."""

from __future__ import annotations

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
from ..host.driver_calls import MOST_X, Launched, LaunchLoop, TensorMapArguments, loops
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
_SEND, _ADD = 1, 2
"""Numbers of the loops of `loops`."""
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
MOST_SERIES = 48
"""Maximum number of series of graphs of a context."""
FEW_BLOCKS, MOST_SPARE = 64, 1 << 11
"""Least number of blocks of a node, and most blocks more than its kernel needs. On an H200 blocks without work take
1.2 ns each. To change a node's grid takes the driver 4 us."""
MOST_IDLE = 1 << 14
"""Number of blocks without work that a series may have in any case, 20 us in all; more are at most half of the blocks
with work."""


@dataclass(frozen=True)
class _Series:
    """Graphs of the same kernels: words of `Launched` from ``NODE`` to ``NODE_Z``, and the graphs in order."""

    columns: np.ndarray
    graphs: list[Graph]


@dataclass
class _Choice:
    """The series for one choice of kernels, with grids for other lengths each.

    Attributes:
        kernels: numbers of the kernels.
        series: the series.
        blocks: for each series the grids of its nodes.
        counts: for each series the numbers of blocks.
    """

    kernels: np.ndarray
    series: list[_Series]
    blocks: np.ndarray
    counts: np.ndarray

    def best(self, needed: np.ndarray) -> _Series | None:
        """Return the series with the fewest blocks without work for the grids that kernels need; None if no series
        serves them."""
        working = needed.prod(axis=1)
        idle = self.counts - working
        totals = idle.sum(axis=1)
        serves = (needed <= self.blocks).all(axis=(1, 2)) & (idle <= 2 * MOST_SPARE).all(axis=1)
        serves &= totals <= max(MOST_IDLE, int(working.sum()) // 2)
        return self.series[int(np.where(serves, totals, MOST_X).argmin())] if serves.any() else None

    def add(self, series: _Series, blocks: np.ndarray) -> None:
        """Add a series whose nodes have these grids."""
        self.series.append(series)
        self.blocks = np.concatenate([self.blocks, blocks[None]])
        self.counts = np.concatenate([self.counts, blocks.prod(axis=1)[None]])


class CudaBatch:
    """The kernels of one context, as nodes of graphs.

    Kernels whose grids must have exactly the blocks that lengths need are launched between graphs, such as cooperative
    kernels.
    """

    def __init__(self, engine: CudaEngine, launches: PlanLaunches, overlaps: bool) -> None:
        """Prepare the launches; ``overlaps``: a kernel's blocks may start before the preceding kernel ends, and then
        wait for it."""
        numbers = launches.numbers
        self._engine, self._launches = engine, launches
        self._choices: dict[tuple[int, bytes], _Choice] = {}
        self._current: dict[int, _Series] = {}
        self._sent: dict[int, object] = {}
        count, each = len(numbers.steps), np.arange(len(numbers.steps))
        self._attribute = np.zeros(1, _ATTRIBUTE)
        self._attribute["id"], self._attribute["value"] = _COOPERATIVE, 1
        # Each array holds a pointer to the only parameter, the argument block.
        self._parameters = address_of(launches.slots) + 8 * np.array(numbers.starts[:-1], np.int64)
        self._nodes, self._configs = np.zeros(count, _NODE), np.zeros(count, _CONFIG)
        self._configs["attributes"] = address_of(self._attribute)
        self._configs["count"] = [geometry.cooperative for geometry in numbers.geometries]
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
        self._alone = (is_open & ~self._spare).any(axis=1) | (self._configs["count"] != 0)
        self._clusters = np.array([cluster_of(step.kernel) for step in numbers.steps], np.int64)
        configs, nodes = (address_of(table) + table.itemsize * each for table in (self._configs, self._nodes))
        records[:, Launched.CONFIG] = np.where(self._alone, configs, nodes)
        self._kept: list[object] = []
        for k, one in enumerate(numbers.maps):
            self._describe(launches.maps[k], one.slot, one.layout)
        scratch = np.zeros(TensorMap.WORDS * 8 + _ALIGNMENT, np.uint8)
        self._kept.append(scratch)
        block = launches.block
        block[LaunchLoop.SCRATCH] = address_of(scratch) + -address_of(scratch) % _ALIGNMENT
        for word, name in _FUNCTIONS.items():
            block[word] = engine.driver.address(name)
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
            self._call(_SEND, begin, end)
        else:
            launches.write(begin, end)
            if self._assigned(begin, end):
                self._call(_SEND, begin, end)
            else:
                self._make(begin, end, sends=True)
        self._sent[begin] = wanted

    def prepare(self, begin: int, end: int) -> None:
        """Make the graphs for a range of kernels, with the numbers that were passed to `PlanLaunches.settle`."""
        self._launches.write(begin, end)
        if not self._assigned(begin, end):
            self._make(begin, end, sends=False)

    def _call(self, loop: int, begin: int, end: int) -> None:
        launches, block = self._launches, self._launches.block
        loops()[loop](launches.block_address, begin, end)
        status = int(block[LaunchLoop.STATUS])
        if status:
            step = launches.numbers.steps[int(block[LaunchLoop.FAILED])]
            name = _FUNCTIONS[int(block[LaunchLoop.CALLED])]
            raise DeviceError(f"{step.label}: {self._engine.driver.describe(name, status)}")

    def _key(self, begin: int, end: int) -> tuple[int, bytes]:
        return begin, self._launches.records[begin:end, Launched.RUNS].tobytes()

    def _assigned(self, begin: int, end: int) -> bool:
        """Use the nodes of the series that serves the grids best; return False if no series does."""
        records, best = self._launches.records, None
        choice = self._choices.get(self._key(begin, end))
        if choice is not None:
            best = choice.best(records[choice.kernels, Launched.GRID_X : Launched.GRID_Z + 1])
            if best is not None and self._current.get(begin) is not best:
                records[choice.kernels, Launched.NODE : Launched.NODE_Z + 1] = best.columns
                self._current[begin] = best
        return best is not None

    def _make(self, begin: int, end: int, sends: bool) -> None:
        """Make a series of graphs for the grids that kernels need; ``sends``: launch each graph when it is made."""
        records, graphs = self._launches.records, list[Graph]()
        self._current.pop(begin, None)
        running = begin + np.flatnonzero(records[begin:end, Launched.RUNS])
        kernels = running[~self._alone[running]]
        blocks = self._wider(kernels)
        records[running, Launched.NODE : Launched.LAST + 1] = 0
        records[kernels, Launched.NODE_X : Launched.NODE_Z + 1] = blocks
        for alone, group in groupby(running.tolist(), lambda kernel: bool(self._alone[kernel])):
            for part in [[kernel] for kernel in group] if alone else _parts(list(group), len(graphs)):
                if not alone:
                    graphs.append(self._graph(part))
                if sends:
                    self._call(_SEND, part[0], part[-1] + 1)
        made = _Series(records[kernels, Launched.NODE : Launched.NODE_Z + 1], graphs)
        if sum(len(choice.series) for choice in self._choices.values()) >= MOST_SERIES:
            self._choices.clear()
            self._current.clear()
            self._sent.clear()
        empty = np.empty((0, len(kernels), 3), np.int64)
        self._choices.setdefault(self._key(begin, end), _Choice(kernels, [], empty, empty[..., 0])).add(made, blocks)
        self._current[begin] = made

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
            self._call(_ADD, kernels[0], kernels[-1] + 1)
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
