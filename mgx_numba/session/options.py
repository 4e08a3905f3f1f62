"""`SessionOptions` and `RunOptions`: what of them has an effect here, and a word about the rest."""

from __future__ import annotations

from dataclasses import field, fields
from enum import IntEnum
from typing import Any

from ..dataclass import dataclass
from ..errors import OptionError
from ..messages import warn
from ..nearest import did_you_mean

__all__ = ["ExecutionMode", "GraphOptimizationLevel", "RunOptions", "SessionOptions"]

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The session configuration entry that says where the external data of a model given as bytes lies."""


class GraphOptimizationLevel(IntEnum):
    """``ORT_DISABLE_ALL`` means ``fast_math=False``; the others do not differ here."""

    # ONNX Runtime's numbers
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Every step of a run is shared by all threads, in either mode."""

    # ONNX Runtime's numbers
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass
class SessionOptions:
    """How a session is made; names and defaults are ONNX Runtime's.

    Attributes:
        intra_op_num_threads: threads of a run; 0 takes what the process may use.
        graph_optimization_level: see `GraphOptimizationLevel`.
        enable_mem_reuse: values that are not alive at once share memory.
        optimized_model_filepath: where to save the compiled program, an ``.mxr`` file; empty for nowhere.

    The others have no effect: what is changed of them is told in a `RuntimeWarning` when a session is made.
    """

    intra_op_num_threads: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    enable_mem_reuse: bool = True
    optimized_model_filepath: str = ""
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    inter_op_num_threads: int = field(default=0, metadata={"why": "all threads work on one step at a time"})
    execution_mode: int = field(
        default=ExecutionMode.ORT_SEQUENTIAL, metadata={"why": "all threads work on one step at a time"}
    )
    enable_profiling: bool = field(
        default=False, metadata={"why": "`mgx-numba-driver perf` measures every step of a model"}
    )
    profile_file_prefix: str = field(default="onnxruntime_profile_", metadata={"why": "nothing is profiled"})
    enable_cpu_mem_arena: bool = field(default=True, metadata={"why": "the values of a run lie in one arena"})
    enable_mem_pattern: bool = field(default=True, metadata={"why": "the values of a run lie in one arena"})
    use_deterministic_compute: bool = field(default=False, metadata={"why": "results do not change from run to run"})

    def __setattr__(self, name: str, value: Any) -> None:
        known = type(self).__dataclass_fields__
        if name not in known and not name.startswith("_"):
            hint = did_you_mean(name, known)
            raise AttributeError(f"SessionOptions has no {name!r}{hint or '; it has: ' + ', '.join(known)}")
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._free_dimensions: dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Note a configuration entry; the folder of external data of a model given as bytes is the one with effect."""
        self._entries[str(key)] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        """The value of an entry.

        Raises:
            OptionError: it was not added.
        """
        if key not in self._entries:
            raise OptionError(
                f"no session configuration entry {key!r}; added are: {', '.join(self._entries) or 'none'}"
            )
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give the symbolic dimension ``name`` of the model's inputs a length."""
        self._free_dimensions[str(name)] = int(size)

    def free_dimensions(self) -> dict[str, int]:
        """The lengths given by symbol."""
        return dict(self._free_dimensions)

    def external_data_folder(self) -> str:
        """Where the external data of a model given as bytes lies; empty if that was not said."""
        return self._entries.get(EXTERNAL_DATA_FOLDER, "")

    def compile_options(self) -> dict[str, Any]:
        """What is asked for of ``program.compile``; what has no effect is told.

        Raises:
            OptionError: a value that cannot be.
        """
        found: dict[str, Any] = {}
        if self.intra_op_num_threads:
            found["num_threads"] = self.intra_op_num_threads
        if not self.enable_mem_reuse:
            found["memory_reuse"] = False
        if self.graph_optimization_level not in list(GraphOptimizationLevel):
            levels = ", ".join(level.name for level in GraphOptimizationLevel)
            raise OptionError(
                f"graph_optimization_level is {self.graph_optimization_level!r}, expected one of {levels}"
            )
        if self.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
            found["fast_math"] = False
        for option in fields(self):
            if "why" in option.metadata and getattr(self, option.name) != option.default:
                _tell(option.name, option.metadata["why"])
        for key in self._entries:
            if key != EXTERNAL_DATA_FOLDER:
                _tell(key, "no such entry is known here")
        return found


@dataclass
class RunOptions:
    """Options of one run; they are ONNX Runtime's, and have no effect."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    training_mode: bool = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Take a configuration entry; none has an effect."""


def _tell(name: str, why: str) -> None:
    warn(f"session option {name!r} has no effect: {why}", RuntimeWarning)
