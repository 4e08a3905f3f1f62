"""BackendOptions of the Dynamo backend, as ``torch.compile(..., options={...})`` passes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from ..api.options import COMPILE_OPTIONS, parse_compile_options
from ..dataclass import dataclass
from ..errors import OptionError
from ..nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

_QUANTIZATIONS = {"fp16": "use_fp16", "bf16": "use_bf16", "int8": "use_int8", "fp8": "use_fp8"}
_QUANTIZATIONS["int4_weights"] = "use_int4_weights"
_OWN = {
    "target": "cpu, gpu or ref; None: that of the device of the tensors",
    "quantize": f"a quantisation, or several: {', '.join(_QUANTIZATIONS)}",
    "memory": "file: large parameters move to a file, and only packed weights stay in memory; low: see compile",
    "min_acc_module_size": "least number of operators of a subgraph that is compiled, where a graph is divided",
    "fp16": "as quantize='fp16'; bf16, int8 likewise",
    "bf16": "see fp16",
    "int8": "see fp16",
}
_LEFT_OUT = frozenset(("target", "offload_copy", "calibration", "device_id"))
"""Compile options that the backend sets itself."""
_MODES = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"exhaustive_tune": True},
    "max-autotune-no-cudagraphs": {"exhaustive_tune": True},
}
_CALIBRATED = frozenset(("use_int8", "use_fp8"))
MIN_MODULE_SIZE = 3
"""Operators of the smallest subgraph that is compiled: entering and leaving one costs as much as two of PyTorch's."""


@dataclass(frozen=True)
class BackendOptions:
    """BackendOptions of one graph's compilation.

    Attributes:
        target: name of the target; None for the target of the tensors' device.
        min_size: least number of operators of a subgraph, where a graph is divided.
        compile: keywords of ``program.compile``.
        calibrates: a quantisation needs inputs to observe ranges.
        parks: large parameters move to a file; see `region`.
    """

    target: str | None = None
    min_size: int = MIN_MODULE_SIZE
    compile: Mapping[str, Any] = field(default_factory=dict)
    calibrates: bool = False
    parks: bool = False


def parse_options(given: Mapping[str, Any] | None, mode: str | None = None) -> BackendOptions:
    """Return the options for ``torch.compile``'s ``options`` and ``mode``.

    Without ``float32_matmul_precision`` the one of `torch.get_float32_matmul_precision` applies if it has been lowered.

    Raises:
        OptionError: an option or a mode is unknown, or a value has the wrong kind.
    """
    if mode is not None and mode not in _MODES:
        raise OptionError(f"unknown mode {mode!r}; known: {', '.join(_MODES)}")
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"options must be a mapping of names to values, got {type(given).__name__}")
    compile_options: dict[str, Any] = {**_precision(), **_MODES[mode or "default"]}
    known = sorted({*_OWN, *COMPILE_OPTIONS} - (_LEFT_OUT - set(_OWN)))
    target, size, parks = None, MIN_MODULE_SIZE, False
    for name, value in (given or {}).items():
        if not isinstance(name, str):
            raise OptionError(f"names of options must be strings, got {name!r}")
        if name == "target":
            if value not in (None, "cpu", "gpu", "ref"):
                raise OptionError(f"option target must be cpu, gpu, ref or None, got {value!r}")
            target = value
        elif name == "min_acc_module_size":
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"option min_acc_module_size must be an integer from 1 on, got {value!r}")
            size = value
        elif name == "memory" and value == "file":
            parks = True
        elif name == "memory":
            compile_options[name] = value
        elif name == "quantize":
            compile_options.update(dict.fromkeys(_quantizations(value), True))
        elif name in _OWN:
            compile_options[_QUANTIZATIONS[name]] = value
        elif name in known:
            compile_options[name] = value
        else:
            listed = ", ".join(known)
            raise OptionError(f"unknown option {name!r}{did_you_mean(name, known) or ';'} known: {listed}")
    parse_compile_options(compile_options, target or "cpu")
    asked = {name for name, value in compile_options.items() if value is True}
    return BackendOptions(target, size, compile_options, not _CALIBRATED.isdisjoint(asked), parks)


def _quantizations(value: str | Sequence[str] | None) -> list[str]:
    """Return the compile options of the quantisations that the option ``quantize`` names."""
    names = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) and n in _QUANTIZATIONS for n in names):
        raise OptionError(f"option quantize must be of {', '.join(_QUANTIZATIONS)}, or a list of these, got {value!r}")
    return [_QUANTIZATIONS[name] for name in names]


def _precision() -> dict[str, str]:
    precision = torch.get_float32_matmul_precision()
    return {} if precision == "highest" else {"float32_matmul_precision": precision}
