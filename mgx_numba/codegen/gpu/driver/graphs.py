"""CUDA graphs: sequences of kernels and copies that are launched together, with updatable arguments.

Graphs are built node by node rather than captured from a stream: other threads and libraries may use their streams
meanwhile, and node handles are known. A library call is captured from a private stream into a child graph. Structures
are those of cuda.h (CUDA 12.0).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Protocol

import numpy as np

from ....dataclass import dataclass
from ....errors import DeviceError
from ...launch import Grid
from .device import Device
from .library import Driver

_HOST, _DEVICE = 1, 2
"""CU_MEMORYTYPE_HOST and CU_MEMORYTYPE_DEVICE."""
_OF_ITS_OWN, _RELAXED = 1, 2
"""CU_STREAM_NON_BLOCKING, and CU_STREAM_CAPTURE_MODE_RELAXED: a library may load kernels during capture."""


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2. ``words`` is the argument block, which `Graph.change` reads again."""

    _fields_ = (
        ("function", c_void_p),
        ("blocks", c_uint * 3),
        ("threads", c_uint * 3),
        ("shared", c_uint),
        ("parameters", ctypes.POINTER(c_void_p)),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )
    words: np.ndarray
    cooperative: bool

    @classmethod
    def of(cls, function: int, words: np.ndarray, geometry: Grid, shared: int) -> KernelNode:
        """Return the node of a launch; ``shared`` is its dynamic shared memory in bytes."""
        self = cls(function, geometry.blocks, geometry.threads, shared)
        self.words, self.cooperative = words, geometry.cooperative
        self.parameters = (c_void_p * 1)(words.__array_interface__["data"][0])
        return self


def _end(side: str) -> tuple[tuple[str, type], ...]:
    """Return the fields of one end of a copy, except for the order of the last ones."""
    names = ("x", "y", "z", "level")
    return (
        *((f"{side}_{n}", c_size_t) for n in names),
        (f"{side}_kind", c_uint),
        *((f"{side}_{n}", c_void_p) for n in ("host", "device", "array", "reserved")),
        (f"{side}_pitch", c_size_t),
        (f"{side}_height", c_size_t),
    )


class CopyNode(ctypes.Structure):
    """CUDA_MEMCPY3D_v2."""

    _fields_ = (*_end("source"), *_end("target"), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t))

    @classmethod
    def of(cls, target: int, source: int, size: int, to_device: bool, from_device: bool) -> CopyNode:
        """Return the node of a copy of ``size`` bytes."""
        self = cls(width=size, height=1, depth=1)
        for side, address, on_device in (("source", source, from_device), ("target", target, to_device)):
            setattr(self, f"{side}_kind", _DEVICE if on_device else _HOST)
            setattr(self, f"{side}_{'device' if on_device else 'host'}", address)
            setattr(self, f"{side}_pitch", size)
            setattr(self, f"{side}_height", 1)
        return self


class StreamWork(Protocol):
    """Something that enqueues work on a stream, given an argument block."""

    def enqueue(self, words: np.ndarray, stream: int) -> None:
        """Enqueue the work."""


@dataclass(frozen=True)
class CallNode:
    """A library call with its argument block, which `Graph.change` reads again."""

    call: StreamWork
    words: np.ndarray

    def captured(self, driver: Driver) -> c_void_p:
        """Return a new graph with the call's work.

        Raises:
            DeviceError: the library or the driver reports an error.
        """
        stream, graph = c_void_p(), c_void_p()
        driver.call("cuStreamCreate", byref(stream), c_uint(_OF_ITS_OWN))
        try:
            driver.call("cuStreamBeginCapture_v2", stream, c_uint(_RELAXED))
            try:
                self.call.enqueue(self.words, stream.value or 0)
            finally:
                ended = driver.succeeds("cuStreamEndCapture", stream, byref(graph))
            if not ended or not graph.value:
                raise DeviceError("cuStreamEndCapture: a library's call cannot be captured")
            return graph
        finally:
            driver.call("cuStreamDestroy_v2", stream)


class _Edge(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = (("from_port", ctypes.c_ubyte), ("to_port", ctypes.c_ubyte), ("kind", ctypes.c_ubyte),
                ("reserved", ctypes.c_ubyte * 5))  # fmt: skip


_COOPERATIVE = 2
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttributeValue: a union of 64 bytes, here an int."""

    _fields_ = (("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


_PROGRAMMATIC = 1
"""CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC and CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC."""
OVERLAPPING = _Edge(from_port=_PROGRAMMATIC, kind=_PROGRAMMATIC)
ADD_EDGE = "cuGraphAddDependencies_v2"
"""Driver function, from CUDA 12.3 on."""


class GraphInMaking:
    """A graph under construction: each node depends on the previous one.

    With ``overlaps`` consecutive kernels use programmatic dependent launch: blocks start early and wait for their
    predecessors, see `Architecture.overlaps`. Cooperative kernels run alone.
    """

    def __init__(self, device: Device, overlaps: bool) -> None:
        self._device, self._driver = device, device.driver
        self._graph = c_void_p()
        self._driver.call("cuGraphCreate", byref(self._graph), c_uint(0))
        self._last: c_void_p | None = None
        self._kernel: KernelNode | None = None  # what the last one launches
        self._overlaps = overlaps and hasattr(self._driver.library, ADD_EDGE)
        self._add_kernel = self._driver.bound("cuGraphAddKernelNode_v2")
        self._add_edge = self._driver.bound(ADD_EDGE) if self._overlaps else None
        self._updatable_nodes: list[tuple[c_void_p, KernelNode | CallNode]] = []

    def kernel(self, parameters: KernelNode) -> None:
        """Add a kernel launch."""
        self._updatable_nodes.append((self._launched(parameters), parameters))

    def transfer(self, parameters: KernelNode) -> None:
        """Add a launch that performs a copy; `Graph.change` skips it."""
        self._launched(parameters)

    def _launched(self, parameters: KernelNode) -> c_void_p:
        before, kernel = self._last, self._kernel
        early = self._overlaps and kernel is not None and not (kernel.cooperative or parameters.cooperative)
        if early:
            self._last = None
        node = self._add(self._add_kernel, byref(parameters))
        self._kernel = parameters
        if parameters.cooperative:
            told = byref(_Attribute(1))
            self._driver.call("cuGraphKernelNodeSetAttribute", node, c_uint(_COOPERATIVE), told)
        if self._add_edge is not None and early and before is not None:
            self._add_edge(self._graph, byref(before), byref(node), byref(OVERLAPPING), c_size_t(1))
        return node

    def call(self, node: CallNode) -> None:
        """Add a library call."""
        graph = node.captured(self._driver)
        try:
            self._updatable_nodes.append((self._add(self._driver.bound("cuGraphAddChildGraphNode"), graph), node))
        finally:
            self._driver.call("cuGraphDestroy", graph)

    def copy(self, parameters: CopyNode) -> None:
        """Add a memory copy."""
        self._add(self._driver.bound("cuGraphAddMemcpyNode"), byref(parameters), self._device.context)

    def _add(self, function: Callable[..., None], *parameters: object) -> c_void_p:
        node = c_void_p()
        before = None if self._last is None else byref(self._last)
        count = c_size_t(0 if self._last is None else 1)
        function(byref(node), self._graph, before, count, *parameters)
        self._last, self._kernel = node, None
        return node

    def finish(self) -> Graph:
        """Instantiate the graph; nothing can be added afterwards."""
        executable = c_void_p()
        self._driver.call("cuGraphInstantiateWithFlags", byref(executable), self._graph, c_ulonglong(0))
        return Graph(self._device, self._graph, executable, self._updatable_nodes)

    def discard(self) -> None:
        """Destroy an unfinished graph."""
        self._driver.call("cuGraphDestroy", self._graph)


class Graph:
    """An instantiated CUDA graph; its launches run in order."""

    def __init__(
        self,
        device: Device,
        graph: c_void_p,
        executable: c_void_p,
        updatable_nodes: list[tuple[c_void_p, KernelNode | CallNode]],
    ) -> None:
        self._device = device
        self._graph, self._executable = graph, executable
        self._updatable_nodes = updatable_nodes
        self._launch = device.driver.bound("cuGraphLaunch")
        self._set = device.driver.bound("cuGraphExecKernelNodeSetParams_v2")

    def upload(self, stream: c_void_p) -> None:
        """Copy the graph to the device in a stream of the current context, so that its first launch need not."""
        self._device.driver.call("cuGraphUpload", self._executable, stream)

    def launch(self, stream: c_void_p) -> None:
        """Launch the graph on a stream of the current context."""
        self._launch(self._executable, stream)

    def change(self, number: int) -> None:
        """Update the arguments of kernel or call ``number`` from its argument block, for later launches in the current
        context."""
        node, parameters = self._updatable_nodes[number]
        if isinstance(parameters, CallNode):
            driver = self._device.driver
            graph = parameters.captured(driver)
            try:
                driver.call("cuGraphExecChildGraphNodeSetParams", self._executable, node, graph)
            finally:
                driver.call("cuGraphDestroy", graph)
            return
        self._set(self._executable, node, byref(parameters))

    def __del__(self) -> None:
        with contextlib.suppress(DeviceError), self._device.use():
            self._device.driver.call("cuGraphExecDestroy", self._executable)
            self._device.driver.call("cuGraphDestroy", self._graph)
