"""The names of ONNX Runtime's extension module."""

from __future__ import annotations

from mgx_numba.session.devices import (
    OrtArenaCfg,
    OrtDevice,
    OrtMemoryInfo,
    create_and_register_allocator,
    create_and_register_allocator_v2,
)
from mgx_numba.session.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from mgx_numba.session.exceptions import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from mgx_numba.session.inference import InferenceSession
from mgx_numba.session.model import ModelMetadata, NodeArg
from mgx_numba.session.options import RunOptions, SessionOptions
from mgx_numba.session.process import (
    API_VERSION,
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_version_string,
    has_collective_ops,
    register_execution_provider_library,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from mgx_numba.session.providers import get_all_providers, get_available_providers, get_device
from mgx_numba.session.sparse import SparseTensor
from mgx_numba.session.values import OrtValue, OrtValueVector, copy_tensors

__all__ = [
    "API_VERSION",
    "DeviceReset",
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelMetadata",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotFound",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
    "SparseTensor",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_default_session_options",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
]

get_default_session_options = SessionOptions
