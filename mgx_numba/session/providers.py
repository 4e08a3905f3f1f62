"""Execution providers: maps ONNX Runtime's provider names to targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..api.options import COMPILE_OPTIONS
from ..errors import OptionError
from ..messages import warn
from ..targets.registry import DEFAULT, missing
from .exceptions import error_of

__all__ = ["get_all_providers", "get_available_providers", "get_device"]

CPU = "CPUExecutionProvider"
"""Provider of sessions for which no other requested provider is available."""

_GPU = "gpu"
_TARGETS = {
    "MIGraphXExecutionProvider": _GPU,
    "ROCMExecutionProvider": _GPU,
    "TensorrtExecutionProvider": _GPU,
    "CUDAExecutionProvider": _GPU,
    CPU: DEFAULT,
}
"""Target of each provider. Every GPU provider stands for the target ``gpu``."""


_NO_OTHER_RESULT = frozenset(
    """
    arena_extend_strategy cudnn_conv1d_pad_to_nc1d cudnn_conv_algo_search cudnn_conv_use_max_workspace
    do_copy_in_default_stream enable_cuda_graph gpu_mem_limit migraphx_mem_limit prefer_nhwc
    trt_builder_optimization_level trt_context_memory_sharing_enable trt_cuda_graph_enable trt_detailed_build_log
    trt_engine_cache_enable trt_engine_cache_path trt_engine_cache_prefix trt_force_sequential_engine_build
    trt_max_partition_iterations trt_max_workspace_size trt_min_subgraph_size trt_timing_cache_enable
    trt_timing_cache_path tunable_op_enable tunable_op_tuning_enable use_arena use_ep_level_unified_stream
    """.split()
)
"""Provider options for memory, caching and kernel search; they are ignored without a warning."""


def get_all_providers() -> list[str]:
    """Return the provider names that a session accepts, whether their devices are available or not."""
    return list(_TARGETS)


def get_available_providers() -> list[str]:
    """Return the names of the providers whose devices are available."""
    return [name for name, target in _TARGETS.items() if not missing(target)]


def get_device() -> str:
    """Return ``GPU`` if this process has a GPU that programs can be compiled for, else ``CPU``."""
    return "CPU" if missing(_GPU) else "GPU"


def target_of(provider: str) -> str:
    """Return the name of the target of an available provider."""
    return _TARGETS[provider]


def chosen_provider(
    providers: Sequence[object] | None, options: Sequence[object] | None
) -> tuple[str, dict[str, object]]:
    """Return the first available provider, and its compile options.

    Unavailable providers, and options that ``program.compile`` does not have, are skipped with a `RuntimeWarning`.

    Args:
        providers: names, or pairs of a name and its options; None for the CPU.
        options: mappings in the order of ``providers``, which then has names only.

    Raises:
        OptionError: an argument has another form.
    """
    if isinstance(providers, str):
        raise OptionError(f"providers is {providers!r}, expected a sequence of names: [{providers!r}]")
    asked = [_pair(entry) for entry in providers or ()]
    if options is not None:
        if len(options) != len(asked) or any(given for _, given in asked):
            raise OptionError(
                f"provider_options has {len(options)} entries, expected one for each of {len(asked)} providers given by"
                " name alone"
            )
        asked = [(name, _pair((name, given))[1]) for (name, _), given in zip(asked, options)]
    for name, given in asked:
        known = missing(_TARGETS[name]) if name in _TARGETS else "there is none of this name"
        if not known:
            return name, _compile_options(name, given)
        available = ", ".join(get_available_providers())
        warn(f"provider {name!r} is not available: {known}; available are: {available}", RuntimeWarning)
    return CPU, {}


def refuse_unknown(providers: Sequence[object] | None) -> None:
    """Raise if a provider name is unknown; unavailable providers are accepted.

    Raises:
        OptionError: a name is unknown.
    """
    for name, _ in map(_pair, () if isinstance(providers, str) else providers or ()):
        if name not in _TARGETS:
            known = ", ".join(_TARGETS)
            raise error_of(RuntimeError, OptionError, f"Unknown Provider Type: {name}; known are: {known}")


def _pair(entry: object) -> tuple[str, Mapping[str, object]]:
    name, given = entry if isinstance(entry, (tuple, list)) and len(entry) == 2 else (entry, {})
    if not isinstance(name, str) or not isinstance(given, Mapping):
        raise OptionError(f"a provider is {entry!r}, expected a name, or a pair of a name and a mapping of options")
    return name, given


def _compile_options(provider: str, given: Mapping[str, Any]) -> dict[str, object]:
    given = {name: value for name, value in given.items() if name not in _NO_OTHER_RESULT}
    if str(given.get("device_id", "")).isdecimal():
        given["device_id"] = int(given["device_id"])
    unused = [name for name in given if name not in COMPILE_OPTIONS]
    if unused:
        warn(
            f"options of provider {provider!r} without effect: {', '.join(map(str, unused))};"
            f" known are those of program.compile: {', '.join(COMPILE_OPTIONS)}",
            RuntimeWarning,
        )
    return {name: value for name, value in given.items() if name in COMPILE_OPTIONS}
