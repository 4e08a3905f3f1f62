"""Options of ``compile`` and ``optimize``: parsing, validation, and warnings for options without effect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..dataclass import dataclass
from ..errors import OptionError
from ..messages import warn
from ..nearest import did_you_mean
from ..targets import registry
from ..targets.options import FLOAT32_PRECISIONS
from ..targets.registry import DEFAULT


@dataclass(frozen=True)
class CompileOptions:
    """Options of a compilation, with MIGraphX's defaults."""

    offload_copy: bool = True
    fast_math: bool = True
    exhaustive_tune: bool = False
    tune_budget: float | None = None
    problem_cache: tuple[str, ...] = ()
    num_threads: int = 0
    memory: str | None = None
    memory_reuse: bool = True
    disabled_passes: tuple[str, ...] = ()
    float32_matmul_precision: str | None = None
    device_id: int = 0
    plan_cache: bool = True


COMPILE_OPTIONS: dict[str, str] = {
    "offload_copy": "copy results to the host (True), or leave them on the device; the CPU shares its caller's memory",
    "fast_math": "transformations and functions that change rounding (True)",
    "exhaustive_tune": "measure every kernel choice that has no tuning record of this machine (False)",
    "tune_budget": "seconds that measuring may take; None for as long as it needs",
    "problem_cache": "file or files of tuning records, JSON or SQLite; the first takes new records",
    "num_threads": "threads of a run; 0 takes what the process may use",
    "memory": "low: products read large weights where they lie, without a copy that is packed; None: as is fastest",
    "memory_reuse": "memory colouring: values that are not alive at once share memory (True)",
    "aggressive_memory": "memory colouring is always as tight as it can be",
    "use_nhwc": "channels-last convolution layout; always chosen where it pays",
    "use_fp16": "compute in float16 (quantize_fp16)",
    "use_bf16": "compute in bfloat16 (quantize_bf16)",
    "use_int8": "contractions in 8-bit integers (quantize_int8)",
    "use_fp8": "contractions in float8 (quantize_fp8)",
    "use_int4_weights": "weights of contractions in 4 bits (quantize_int4_weights)",
    "calibration": "batches of inputs by name, for use_int8 and use_fp8",
    "device_id": "which device; the CPU is one",
    "target": "architecture name of a GPU; kernels are made for the device that is there",
    "float32_matmul_precision": "highest, high (three products in bfloat16 or TF32), medium (one); None: by fast_math",
    "disabled_passes": "names of passes to leave out",
    "wait": "return when the program is compiled (True); on the CPU False compiles in a thread while runs use NumPy",
    "plan_cache": "look for the compiled program in the cache folder, and keep it there (True)",
}
_OF_A_DEVICE = (
    "offload_copy",
    "aggressive_memory",
    "use_nhwc",
    "device_id",
    "target",
    "float32_matmul_precision",
    "memory",
)
"""Options that have no effect on a target unless its ``device_options`` name them."""
_QUANTIZATIONS = ("use_fp16", "use_bf16", "use_int8", "use_fp8", "use_int4_weights")
_OF_TUNING = ("exhaustive_tune", "tune_budget", "problem_cache")
_SILENT_DEFAULTS = {
    "offload_copy": True,
    "exhaustive_tune": False,
    "tune_budget": None,
    "problem_cache": (),
    "device_id": 0,
    "aggressive_memory": False,
    "use_nhwc": True,
    "float32_matmul_precision": None,
    "memory": None,
    "wait": True,
}
_FUSION_RULES: dict[str, str] = {
    "conv_bias_relu": "fuse_contraction",
    "conv_bias": "fuse_contraction",
    "conv_relu": "fuse_contraction",
    "dot_pointwise": "fuse_contraction",
    "attention": "fuse_attention",
    "reduce": "fuse_reduce",
    "layernorm": "fuse_reduce",
    "softmax": "fuse_reduce",
    "pointwise": "fuse_pointwise",
}
warned: set[str] = set()


def checked_device(number: object) -> int:
    """Validate a device number and return it.

    Raises:
        OptionError: ``number`` is not an integer from 0 on.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise OptionError(f"device_id must be the number of a device, from 0 on, got {number!r}")
    return number


def parse_compile_options(given: Mapping[str, Any], target: str = DEFAULT) -> CompileOptions:
    """Return the compile options for a target from keywords and mappings.

    An option without effect on the target warns, once per process.

    Raises:
        OptionError: an option is unknown (the message lists the known options), or a value has the wrong kind.
    """
    known = ", ".join(COMPILE_OPTIONS)
    chosen = registry.target(target)
    for key, value in given.items():
        if key not in COMPILE_OPTIONS:
            raise OptionError(
                f"unknown compile option {key!r}{did_you_mean(key, COMPILE_OPTIONS) or ';'} known: {known}"
            )
        without_effect = (key in _OF_A_DEVICE and key not in chosen.device_options) or (
            key in _OF_TUNING and not chosen.tunes
        )
        without_effect = without_effect or (key == "wait" and target != DEFAULT)
        if without_effect and value != _SILENT_DEFAULTS.get(key, object()):
            _warn_once(key, value)
    requested_quantizations(given)
    _flag("wait", given.get("wait", True))
    names = ("offload_copy", "fast_math", "memory_reuse", "exhaustive_tune", "plan_cache")
    flags = {name: _flag(name, given[name]) for name in names if name in given}
    threads = given.get("num_threads", 0)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise OptionError(f"num_threads must be an integer from 0 on, got {threads!r}")
    disabled = given.get("disabled_passes", ())
    if isinstance(disabled, str) or not all(isinstance(n, str) for n in disabled):
        raise OptionError(f"disabled_passes must be a sequence of pass names, got {disabled!r}")
    precision = given.get("float32_matmul_precision")
    if precision not in (None, *FLOAT32_PRECISIONS):
        raise OptionError(
            f"float32_matmul_precision must be {', '.join(FLOAT32_PRECISIONS)} or None, got {precision!r}"
        )
    if given.get("memory") not in (None, "low"):
        raise OptionError(f"memory must be 'low' or None, got {given['memory']!r}")
    return CompileOptions(
        memory=given.get("memory"),
        device_id=checked_device(given.get("device_id", 0)),
        float32_matmul_precision=precision,
        num_threads=threads,
        disabled_passes=tuple(disabled),
        tune_budget=_budget(given.get("tune_budget")),
        problem_cache=_paths(given.get("problem_cache", ())),
        **flags,
    )


def requested_quantizations(given: Mapping[str, object]) -> tuple[str, ...]:
    """Return the members of `quantizing.KINDS` that the options ``use_<kind>`` request.

    Raises:
        OptionError: a value is neither True nor False.
    """
    named = {key.removeprefix("use_"): value for key, value in given.items() if key in _QUANTIZATIONS}
    return tuple(kind for kind, value in named.items() if _flag(f"use_{kind}", value))


def parse_optimize_options(given: Mapping[str, object]) -> tuple[int, tuple[str, ...]]:
    """Return the level (0 to 2) and the passes that are disabled by fusion rules set to False.

    The options are ``level`` or ``aggressiveness`` (2 allows changes of rounding), ``fusion_rules`` (a mapping of rule
    names to bool), and the quantisations (see `requested_quantizations`). A pass that implements several rules stays
    enabled while one of the rules in the mapping is True.

    Raises:
        OptionError: an option, level or rule is unknown.
    """
    level = 1
    disabled: list[str] = []
    for key, value in given.items():
        if key in ("level", "aggressiveness"):
            if value not in (0, 1, 2):
                raise OptionError(f"{key} must be 0, 1 or 2, got {value!r}")
            level = int(value)
        elif key == "fusion_rules":
            if not isinstance(value, Mapping):
                raise OptionError(f"fusion_rules must map rule names to bool, got {value!r}")
            wanted: dict[str, bool] = {}
            for rule, on in value.items():
                if rule not in _FUSION_RULES:
                    raise OptionError(f"unknown fusion rule {rule!r}; known: {', '.join(_FUSION_RULES)}")
                pass_name = _FUSION_RULES[rule]
                wanted[pass_name] = wanted.get(pass_name, False) or _flag(f"fusion rule {rule}", on)
            disabled += [name for name, on in wanted.items() if not on]
        elif key not in (*_QUANTIZATIONS, "calibration"):
            known = ", ".join(("level", "aggressiveness", "fusion_rules", *_QUANTIZATIONS, "calibration"))
            raise OptionError(f"unknown optimize option {key!r}; known: {known}")
    return level, tuple(disabled)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise OptionError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _budget(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise OptionError(f"tune_budget must be a number of seconds from 0 on, or None, got {value!r}")
    return float(value)


def _paths(value: object) -> tuple[str, ...]:
    if isinstance(value, (str, os.PathLike)):
        value = (value,)
    if not isinstance(value, (list, tuple)) or not all(isinstance(p, (str, os.PathLike)) for p in value):
        raise OptionError(f"problem_cache must be a path or a sequence of paths, got {value!r}")
    return tuple(os.fspath(p) for p in value)


def _warn_once(key: str, value: object) -> None:
    if key not in warned:
        warned.add(key)
        warn(f"compile option {key}={value!r} has no effect on this target: {COMPILE_OPTIONS[key]}")


def trace_level() -> int:
    """Return the level of ``MIGRAPHX_TRACE_EVAL``, 0 to 3; a compiled program keeps the level of its compilation.

    Raises:
        OptionError: the variable has another value.
    """
    level = os.environ.get("MIGRAPHX_TRACE_EVAL") or "0"
    if level not in ("0", "1", "2", "3"):
        raise OptionError(f"environment variable MIGRAPHX_TRACE_EVAL: expected 0, 1, 2 or 3, got {level!r}")
    return int(level)
