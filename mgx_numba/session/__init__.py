"""ONNX Runtime's session interface: code written for ONNX Runtime changes only its import.

``import mgx_numba.session as onnxruntime``, or ``from mgx_numba.session import InferenceSession``. Packages that import
``onnxruntime`` themselves use these sessions after `install_as_onnxruntime`. ``__version__`` is the version of ONNX
Runtime whose interface is implemented, as callers expect; ``mgx_numba.__version__`` is this package's version.
"""

from __future__ import annotations

from ..garbage import uncollected

with uncollected():
    from . import capi
    from .alias import install_as_onnxruntime, uninstall_as_onnxruntime
    from .binding import IOBinding
    from .devices import (
        OrtArenaCfg,
        OrtDevice,
        OrtMemoryInfo,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from .enums import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        OrtAllocatorType,
        OrtDeviceMemoryType,
        OrtDeviceVendorId,
        OrtExecutionProviderDevicePolicy,
        OrtHardwareDeviceType,
        OrtMemoryInfoDeviceType,
        OrtMemType,
        OrtSparseFormat,
    )
    from .epdevices import OrtEpDevice, OrtHardwareDevice, get_ep_devices
    from .inference import InferenceSession
    from .model import ModelMetadata, NodeArg
    from .options import RunOptions, SessionOptions
    from .process import (
        API_VERSION,
        cuda_version,
        disable_telemetry_events,
        enable_telemetry_events,
        get_build_info,
        get_version_string,
        has_collective_ops,
        package_name,
        preload_dlls,
        print_debug_info,
        register_execution_provider_library,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
        unregister_execution_provider_library,
    )
    from .providers import get_all_providers, get_available_providers, get_device
    from .sparse import SparseTensor
    from .values import OrtValue, OrtValueVector, copy_tensors

__all__ = [
    "API_VERSION",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "SessionOptions",
    "SparseTensor",
    "__version__",
    "capi",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "cuda_version",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "install_as_onnxruntime",
    "package_name",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "uninstall_as_onnxruntime",
    "unregister_execution_provider_library",
    "version",
]

__version__ = version = API_VERSION
