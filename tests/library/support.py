"""Small models, results of their exported libraries, and builds of C++ programs."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.core.types import from_numpy

from ..caches import kept_folder

__all__ = ["CC", "CXX", "build", "exported", "finished", "needs_compiler", "run_library", "with_driver"]


def _compiler(variable: str, *commands: str) -> str | None:
    """Return a script that calls a compiler and keeps what it makes for later runs; None if there is no compiler."""
    chosen = os.environ.get(variable)
    found = next(filter(None, map(shutil.which, [chosen] if chosen else commands)), None)
    if found is None or Path(found).parent == kept_folder() / "compilers":
        return found
    made = kept_folder() / "compiled"
    command = [sys.executable, "-E", "-S", str(Path(__file__).with_name("kept_compiler.py")), str(made), found]
    text = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'.encode()
    script = kept_folder() / "compilers" / hashlib.sha256(text).hexdigest()[:16]  # each checkout has its own
    try:
        for folder in (made, script.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if not script.exists():
            part = script.with_suffix(f".{os.getpid()}")
            part.write_bytes(text)
            part.chmod(0o755)
            part.replace(script)
    except OSError:
        return found
    return str(script)


CC = _compiler("CC", "cc", "gcc")
CXX = _compiler("CXX", "c++", "g++")
needs_compiler = pytest.mark.skipif(CXX is None, reason="no C++ compiler")
_SECONDS = 120.0  # for a compiler on a machine that does much else


def finished(command: Sequence[object], **options: object) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=_SECONDS, check=False, **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, include: Path, program: Path, *flags: str) -> Path:
    """Compile a program of one source in C++11 against exported headers, without a warning."""
    warnings = ["-std=c++11", "-Wall", "-Wextra", "-Werror"]
    finished([CXX, *warnings, *flags, f"-I{include}", source, "-o", program, "-ldl", "-pthread"])
    return program


def with_driver(module: str = "mgx_numba.driver.main") -> dict[str, str]:
    """The environment of a C++ program whose compiler is a module of this Python's packages."""
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "MGX_DRIVER": shlex.join([sys.executable, "-m", module]), "PYTHONPATH": paths}


def exported(model: bytes, folder: Path, name: str = "model", **options: object) -> tuple[migraphx.program, Path]:
    """A compiled program and its library."""
    program = migraphx.parse_onnx_buffer(model)
    program.compile(migraphx.get_target("cpu"), num_threads=2)
    return program, program.export_library(folder, name, **options)  # type: ignore[arg-type]


def run_library(
    example: Path, library: Path, program: migraphx.program, feeds: Mapping[str, np.ndarray], folder: Path
) -> list[np.ndarray]:
    """Results of a library, which the example has written, under the names and with the shapes that the program
    says."""
    files, lines = [], []
    for k, name in enumerate(program.get_parameter_names()):
        files.append(folder / f"input{k}.bin")
        np.ascontiguousarray(feeds[name]).tofile(files[-1])
        lines.append(_line("parameter", name, feeds[name]))
    told = finished([example, library, *files], cwd=folder)
    results = []
    for k, (name, result) in enumerate(zip(program.get_output_names(), program.run(dict(feeds)), strict=True)):
        like = np.asarray(result)
        lines.append(_line("output", name, like))
        results.append(np.fromfile(folder / f"output{k}.bin", like.dtype).reshape(like.shape))
    assert told.splitlines() == lines
    return results


def _line(kind: str, name: str, like: np.ndarray) -> str:
    """Return the example's output line for a tensor."""
    lens = ", ".join(map(str, like.shape))
    return f"{kind} {name}: type {int(from_numpy(like.dtype))}, {{{lens}}}"
