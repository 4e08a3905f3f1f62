"""Error messages for names of MIGraphX's interface that this package lacks, with alternatives."""

from __future__ import annotations

from collections.abc import Iterable

from ..nearest import did_you_mean

METHODS = {
    "annotate": "print(program) shows it",
    "debug_print": "print(program) shows it",
    "finish": "run returns when its results are complete",
    "get_modules": "get_main_module() gives the main one",
    "get_parameter": "get_parameter_names() and get_parameter_shapes() list the inputs",
    "get_parameter_shape": "get_parameter_shapes() gives them all, by name",
    "load": "mgx_numba.load(file) reads a program",
    "perf_report": "`mgx-numba-driver perf` reports on a file, kernels() shows the code",
    "print_cpp": "`mgx-numba-driver read --cpp` prints it",
    "print_graph": "`mgx-numba-driver read --graphviz` prints it",
    "print_py": "to_py() gives it",
    "quantize_bf16": "mgx_numba.quantize_bf16(program, ...) does it",
    "quantize_fp16": "mgx_numba.quantize_fp16(program, ...) does it",
    "quantize_int8": "mgx_numba.quantize_int8(program, ...) does it",
    "validate": "compile checks a program first",
}
"""Alternatives to methods of MIGraphX's C and C++ ``program``, and to other methods that users look for."""


def missing_name(name: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown name of ``mgx_numba``; ``known`` are its names."""
    return f"module 'mgx_numba' has no attribute {name!r}{_near(name, known)}"


def missing_method(name: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown attribute of ``program``; ``known`` are its attributes."""
    if name in METHODS:
        return f"program has no {name!r}: {METHODS[name]}"
    return f"'program' object has no attribute {name!r}{_near(name, known)}"


def _near(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, [k for k in known if not k.startswith("_")])
