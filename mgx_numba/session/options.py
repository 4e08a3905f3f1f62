"""`SessionOptions` and `RunOptions`: translation to compile options, and warnings for options without effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dataclass import dataclass
from ..errors import MgxError, OptionError, UnsupportedError
from ..messages import warn
from ..nearest import did_you_mean
from .enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, OrtExecutionProviderDevicePolicy
from .epdevices import Delegate, OrtEpDevice, providers_by_policy
from .exceptions import Fail, error_of
from .logs import level_of
from .values import OrtValue

__all__ = ["RunOptions", "SessionOptions"]

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""Session configuration entry with the folder of external data, for a model given as bytes."""

_EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
_EXTERNAL_SMALLEST = "session.optimized_model_external_initializers_min_size_in_bytes"
"""Entry with the least size of an initializer that ``optimized_model_filepath`` stores in a separate file."""

_PLAN_CACHE = "mgx_numba.plan_cache"
"""Entry, ``0`` or ``1``, that disables or enables the plan cache."""

_WITH_EFFECT = (EXTERNAL_DATA_FOLDER, _EXTERNAL_FILE, _EXTERNAL_SMALLEST, _PLAN_CACHE)

_NO_OTHER_RESULT = (
    "session.disable_prepacking",
    "session.dynamic_block_base",
    "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop",
    "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning",
    "session.intra_op_thread_affinities",
    "session.load_model_format",
    "session.qdq_matmulnbits_accuracy_level",
    "session.save_model_format",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.use_memory_mapped_ort_model",
    "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers",
    "session.x64quantprecision",
)
"""Configuration entries that do not affect results; they are ignored without a warning."""


class _Entries:
    """Configuration entries: text by key."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        for text in (key, value):
            if not isinstance(text, str):
                raise error_of(TypeError, OptionError, f"a configuration entry is text, got {text!r}")
        self.values[key] = value

    def get(self, key: str) -> str:
        if key not in self.values:
            added = ", ".join(self.values) or "none"
            raise error_of(
                RuntimeError,
                OptionError,
                f"{self._what} does not have configuration with key: {key}; it has: {added}",
            )
        return self.values[key]


_VALUES: dict[str, type | tuple[type, ...]] = {"str": str, "int": (int, np.integer), "bool": (int, np.bool_)}
_VALUES.update((own.__name__, own) for own in (GraphOptimizationLevel, ExecutionMode, ExecutionOrder))
"""Types of the values that an attribute takes, by its annotation."""


class _Declared:
    """Base class that refuses attributes that its class does not declare, and values of other types."""

    def __setattr__(self, name: str, value: object) -> None:
        known = type(self).__annotations__
        if name not in known and not name.startswith("_"):
            hint = did_you_mean(name, known)
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}{hint or '; it has: ' + ', '.join(known)}", name=name, obj=self
            )
        kind = known.get(name, "")
        if not isinstance(value, _VALUES.get(kind, object)):
            raise error_of(TypeError, OptionError, f"{name} must be of type {kind}, got {type(value).__name__}")
        super().__setattr__(name, bool(value) if kind == "bool" else value)


@dataclass
class SessionOptions(_Declared):
    """Options of a session, with ONNX Runtime's names and defaults.

    Attributes:
        intra_op_num_threads: number of threads of a run; 0 for all CPUs that the process may use.
        graph_optimization_level: see `GraphOptimizationLevel`.
        enable_mem_reuse: values with disjoint lifetimes share memory.
        enable_profiling: record when each thread runs each step: see `InferenceSession.end_profiling`.
        profile_file_prefix: prefix of the profile's file name.
        optimized_model_filepath: file for the compiled program (``.mxr``) or the model as it was read (``.onnx``);
            empty for none.

    The other attributes select how ONNX Runtime computes the same results, and have no effect.
    """

    intra_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    enable_mem_reuse: bool = True
    optimized_model_filepath: str = ""
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    inter_op_num_threads: int = 0
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True

    def __post_init__(self) -> None:
        self._entries = _Entries("SessionOptions")
        self._free_dimensions: dict[str, int] = {}
        self._free_denotations: dict[str, int] = {}
        self._initializers: dict[str, OrtValue] = {}
        self._external: dict[str, OrtValue] = {}
        self._files: dict[str, memoryview] = {}
        self._providers: list[tuple[str, dict[str, str]]] = []
        self._policy: OrtExecutionProviderDevicePolicy | Delegate | None = None
        self._cancelled = False

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry.

        These entries have an effect: the folder of external data of a model given as bytes; file name and least size of
        external data of ``optimized_model_filepath``; and ``mgx_numba.plan_cache``, where ``0`` disables the plan
        cache.
        """
        self._entries.set(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return the value of a configuration entry.

        Raises:
            OptionError: the entry was not set.
        """
        return self._entries.get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Set the length of the symbolic dimension ``name`` of the model's inputs."""
        self._free_dimensions[str(name)] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Set the length of input dimensions with a denotation (``DATA_BATCH``, ...) in the model."""
        self._free_denotations[str(denotation)] = int(size)

    def add_initializer(self, name: str, ortvalue: OrtValue) -> None:
        """Replace the model's initializer ``name`` by a tensor of the same type and lengths.

        Raises:
            OptionError: the value is not an `OrtValue`, or the initializer was replaced already.
        """
        _note(self._initializers, name, ortvalue)

    def add_external_initializers(self, names: Sequence[str], ortvalues: Sequence[OrtValue]) -> None:
        """Replace initializers with external data by tensors.

        Raises:
            OptionError: the numbers of names and values differ, a value is not an `OrtValue`, or a name is repeated.
        """
        if len(names) != len(ortvalues):
            raise _refused(f"add_external_initializers was given {len(names)} names and {len(ortvalues)} values")
        for name, value in zip(names, ortvalues, strict=True):
            _note(self._external, name, value)

    def add_external_initializers_from_files_in_memory(
        self, file_names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Read external data from memory instead of files.

        Args:
            file_names: file names in the model.
            buffers: content of each file; it must not change until the session is made.
            lengths: number of bytes of each file.

        Raises:
            OptionError: the three lists differ in length, a member is not a buffer, or is shorter than its length.
        """
        if not len(file_names) == len(buffers) == len(lengths):
            raise _refused(
                "add_external_initializers_from_files_in_memory was given"
                f" {len(file_names)} names, {len(buffers)} buffers and {len(lengths)} lengths"
            )
        for name, buffer, length in zip(file_names, buffers, lengths, strict=True):
            try:
                content = memoryview(buffer).cast("B")
            except TypeError as error:
                raise _refused(f"the content of {name!r} is no buffer of bytes: {error}") from None
            if not 0 <= int(length) <= len(content):
                raise _refused(f"the content of {name!r} has {len(content)} bytes, but its length is {length}")
            self._files[str(name)] = content[: int(length)]

    def add_provider(self, provider: str, options: Mapping[str, Any]) -> None:
        """Append a provider to the list for sessions made without ``providers``."""
        self._providers.append((str(provider), dict(options)))

    def add_provider_for_devices(self, devices: Sequence[OrtEpDevice], options: Mapping[str, object]) -> None:
        """Append the provider of devices, as `add_provider` does.

        Raises:
            OptionError: the devices belong to several providers, or ``devices`` is empty.
        """
        names = {device.ep_name for device in devices}
        if len(names) != 1:
            raise _refused(f"add_provider_for_devices was given devices of {len(names)} providers, expected one")
        self.add_provider(names.pop(), options)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Set the policy that selects the provider of sessions made without ``providers``."""
        self._policy = OrtExecutionProviderDevicePolicy(policy)

    def set_provider_selection_policy_delegate(self, delegate: Delegate) -> None:
        """Set a function that selects among `get_ep_devices` for sessions made without ``providers``."""
        self._policy = delegate

    def has_providers(self) -> bool:
        """Return whether providers were added or a policy was set."""
        return bool(self._providers) or self._policy is not None

    def providers(self) -> list[Any]:
        """Return the added providers; if there are none, the providers that the policy prefers."""
        return list(self._providers) if self._policy is None or self._providers else providers_by_policy(self._policy)

    def set_load_cancellation_flag(self, cancel: bool) -> None:
        """Set whether sessions made with these options raise instead of loading their model."""
        self._cancelled = bool(cancel)

    def register_custom_ops_library(self, path: str) -> None:
        """Raise: libraries of kernels for ONNX Runtime cannot be loaded.

        Raises:
            UnsupportedError: always.
        """
        raise error_of(
            Fail,
            UnsupportedError,
            f"{path}: libraries of ONNX Runtime's custom operators are not supported; write the operator in Python"
            " (mgx_numba.register_custom_op)",
        )

    def free_dimensions(self) -> dict[str, int]:
        """Return the overridden lengths, by symbol."""
        return dict(self._free_dimensions)

    def external_data_folder(self) -> str:
        """Return the folder of external data for a model given as bytes; empty if not set."""
        return self._entries.values.get(EXTERNAL_DATA_FOLDER, "")

    def external_file(self) -> tuple[str, int]:
        """Return the name of an ONNX output's data file ("" for none), and the least size of initializers in it.

        Raises:
            OptionError: the least size is not a number.
        """
        least = self._entries.values.get(_EXTERNAL_SMALLEST, "1024")  # ONNX Runtime's default
        if not least.isdecimal():
            raise _refused(f"{_EXTERNAL_SMALLEST} is {least!r}, expected a number of bytes")
        return self._entries.values.get(_EXTERNAL_FILE, ""), int(least)

    def compile_options(self) -> dict[str, Any]:
        """Return the options of ``program.compile``; warn of configuration entries that have no effect.

        Raises:
            OptionError: an attribute has an invalid value.
        """
        found: dict[str, object] = {}
        if self.intra_op_num_threads:
            found["num_threads"] = int(self.intra_op_num_threads)
        if not self.enable_mem_reuse:
            found["memory_reuse"] = False
        if self.log_severity_level != -1:
            level_of(self.log_severity_level)
        if self.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
            found["fast_math"] = False
        if _PLAN_CACHE in self._entries.values:
            chosen = self._entries.values[_PLAN_CACHE]
            if chosen not in ("0", "1"):
                raise _refused(f"{_PLAN_CACHE} is {chosen!r}, expected 0 or 1")
            found["plan_cache"] = chosen == "1"
        for key in self._entries.values:
            if key not in (*_WITH_EFFECT, *_NO_OTHER_RESULT) and not key.startswith("optimization."):
                warn(f"session option {key!r} has no effect: no such entry is known here", RuntimeWarning)
        return found


@dataclass
class RunOptions(_Declared):
    """Options of one run, with ONNX Runtime's names.

    Attributes:
        terminate: make runs with these options raise: at the start, or for a run in progress at its end.

    The other attributes have no effect.
    """

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    training_mode: bool = False

    def __post_init__(self) -> None:
        self._entries = _Entries("RunOptions")

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry; no entry has an effect."""
        self._entries.set(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return the value of a configuration entry.

        Raises:
            OptionError: the entry was not set.
        """
        return self._entries.get(key)


def refuse_terminated(options: object) -> None:
    """Raise if the options of a run, or None, end the run.

    Raises:
        OptionError: ``options`` is neither None nor `RunOptions` (also a TypeError, as in ONNX Runtime), or its
            ``log_severity_level`` is not a severity.
        Fail: ``terminate`` is set.
    """
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise error_of(TypeError, OptionError, f"run_options must be RunOptions, got {type(options).__name__}")
    if options.log_severity_level != -1:
        level_of(options.log_severity_level, Fail)
    if options.terminate:
        raise Fail("the run was ended: RunOptions.terminate is set")


def _note(values: dict[str, OrtValue], name: str, value: OrtValue) -> None:
    if not isinstance(getattr(value, "_value", None), np.ndarray):
        kind = type(value).__name__
        raise _refused(f"initializer {name!r} is given as {kind}, expected an OrtValue on the host")
    if name in values:
        raise _refused(f"initializer {name!r} is given twice")
    values[str(name)] = value


def _refused(message: str) -> MgxError:
    return error_of(RuntimeError, OptionError, message)
