"""ONNX Runtime's enumerations, with ONNX Runtime's values."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "OrtAllocatorType",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
]


class GraphOptimizationLevel(IntEnum):
    """Optimisation levels: ``ORT_DISABLE_ALL`` sets ``fast_math=False``; the other levels are equivalent here."""

    # ONNX Runtime's numbers
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Execution modes; in either mode all threads work on one step at a time."""

    # ONNX Runtime's numbers
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Orders of the steps of a run; without effect, since the compiler chooses the order."""

    # ONNX Runtime's numbers
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(IntEnum):
    """Kinds of allocators; without effect, since a plan keeps its intermediate values in one arena."""

    # ONNX Runtime's numbers
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    """Kinds of memory of a device; ``CPU`` and ``CPU_OUTPUT`` have the same value."""

    # ONNX Runtime's numbers
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(IntEnum):
    """Memory of the device itself, or host memory that the device can access."""

    # ONNX Runtime's numbers
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(IntEnum):
    """Kinds of devices."""

    # ONNX Runtime's numbers
    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtHardwareDeviceType(IntEnum):
    """Kinds of devices that providers run models on."""

    # ONNX Runtime's numbers
    CPU = 0
    GPU = 1
    NPU = 2


class OrtExecutionProviderDevicePolicy(IntEnum):
    """Preferred device of a session: a GPU if a GPU or maximum performance is requested, otherwise the CPU."""

    # ONNX Runtime's numbers
    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtDeviceVendorId(IntEnum):
    """Vendors of devices."""

    # the PCI numbers of vendors
    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtSparseFormat(IntEnum):
    """Index formats of a `SparseTensor`."""

    # ONNX Runtime's numbers
    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4
