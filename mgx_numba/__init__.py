"""An inference compiler with MIGraphX's interface, whose kernels are Python source compiled by Numba.

``import mgx_numba as migraphx`` runs a MIGraphX script. Names are loaded on first use, so that importing the package is
quick and imports neither numba nor onnx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from .api.argument import (
        argument,
        create_argument,
        fill_argument,
        generate_argument,
        literal,
    )
    from .api.as_migraphx import install_as_migraphx, uninstall_as_migraphx
    from .api.custom import custom_kernel, register_custom_op, unregister_custom_op
    from .api.device import (
        allocate_gpu,
        argument_from_pointer,
        device_argument,
        from_gpu,
        gpu_sync,
        gpudata_to_argument,
        to_gpu,
    )
    from .api.functions import (
        check_onnx,
        from_torch,
        get_onnx_operators,
        get_tf_operators,
        optimize,
        parse_onnx,
        parse_onnx_buffer,
        parse_tf,
        parse_tf_buffer,
    )
    from .api.loading import load, load_buffer
    from .api.module import instruction_ref, macro, module, op
    from .api.program import program
    from .api.quantization import (
        autocast_fp8,
        calibrate,
        quantize_bf16,
        quantize_fp8,
        quantize_fp16,
        quantize_int4_weights,
        quantize_int8,
    )
    from .api.saving import save, save_buffer
    from .api.shape import dynamic_dimension, shape
    from .api.target import get_gpu_context, get_target, target
    from .api.traced_run import trace_info
    from .errors import MgxError

_HOMES = {
    "api.argument": "argument create_argument fill_argument generate_argument literal",
    "api.as_migraphx": "install_as_migraphx uninstall_as_migraphx",
    "api.custom": "custom_kernel register_custom_op unregister_custom_op",
    "api.device": ("allocate_gpu argument_from_pointer device_argument from_gpu gpu_sync gpudata_to_argument to_gpu"),
    "api.functions": (
        "check_onnx from_torch get_onnx_operators get_tf_operators optimize parse_onnx parse_onnx_buffer parse_tf "
        "parse_tf_buffer"
    ),
    "api.loading": "load load_buffer",
    "api.module": "instruction_ref macro module op",
    "api.program": "program",
    "api.quantization": (
        "autocast_fp8 calibrate quantize_bf16 quantize_fp16 quantize_fp8 quantize_int4_weights quantize_int8"
    ),
    "api.saving": "save save_buffer",
    "api.shape": "dynamic_dimension shape",
    "api.target": "get_gpu_context get_target target",
    "api.traced_run": "trace_info",
    "errors": "MgxError",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "MgxError",
    "__version__",
    "allocate_gpu",
    "argument",
    "argument_from_pointer",
    "autocast_fp8",
    "calibrate",
    "check_onnx",
    "create_argument",
    "custom_kernel",
    "device_argument",
    "dynamic_dimension",
    "fill_argument",
    "from_gpu",
    "from_torch",
    "generate_argument",
    "get_gpu_context",
    "get_onnx_operators",
    "get_target",
    "get_tf_operators",
    "gpu_sync",
    "gpudata_to_argument",
    "install_as_migraphx",
    "instruction_ref",
    "literal",
    "load",
    "load_buffer",
    "macro",
    "module",
    "op",
    "optimize",
    "parse_onnx",
    "parse_onnx_buffer",
    "parse_tf",
    "parse_tf_buffer",
    "program",
    "quantize_bf16",
    "quantize_fp8",
    "quantize_fp16",
    "quantize_int4_weights",
    "quantize_int8",
    "register_custom_op",
    "save",
    "save_buffer",
    "shape",
    "target",
    "to_gpu",
    "trace_info",
    "uninstall_as_migraphx",
    "unregister_custom_op",
]


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            if name.startswith("_"):
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            from .api.missing import missing_name

            raise AttributeError(missing_name(name, __all__))
        from .interrupts import whole_module

        value = getattr(whole_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
