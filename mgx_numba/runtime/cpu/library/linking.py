"""Link libraries with the system's C and C++ compilers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ....errors import CompileError
from . import CPP_PREFIX

_COMPILERS = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}
_SHOWN = 2000  # characters shown of the compiler's output, from its end


def compiler(variable: str = "CC") -> list[str] | None:
    """Return the command of the C compiler: ``CC``, else the first available of ``cc``, ``gcc`` and ``clang``; None if
    there is none. The variable ``CXX`` stands for the C++ compiler."""
    chosen = shlex.split(os.environ.get(variable, ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS[variable]]:
        if shutil.which(command[0]):
            return command
    return None


def link_library(command: Sequence[str], folder: Path, include: Path, name: str) -> Path:
    """Compile the C sources in ``folder``, link them with the objects there, and return the library, in the same
    folder.

    ``CFLAGS`` and ``LDFLAGS`` are passed on.

    Raises:
        CompileError: the compiler fails; the message has its output.
    """
    library = folder / f"lib{name}.so"
    call = [
        *command,
        *("-shared", "-fPIC", "-O2", "-std=gnu11", "-fvisibility=hidden", "-pthread", f"-I{include}", "-I."),
        *shlex.split(os.environ.get("CFLAGS", "")),
        *sorted(path.name for path in folder.glob("*.[co]")),
        *("-Wl,--version-script=exports.map", f"-Wl,-soname,{library.name}", "-Wl,-z,noexecstack"),
        *shlex.split(os.environ.get("LDFLAGS", "")),
        *("-lm", "-ldl", "-o", library.name),
    ]
    _call("export_library", command, call, folder)
    return library


def link_c_interface(folder: Path) -> Path:
    """Compile MIGraphX's C interface and return the library ``libmigraphx_c.so`` in ``folder``.

    ``CXXFLAGS`` and ``LDFLAGS`` are passed on.

    Raises:
        CompileError: there is no C++ compiler, or it fails; the message has its output.
    """
    command = compiler("CXX")
    if command is None:
        raise CompileError("migraphx_c: there is no C++ compiler (c++, g++, clang++, or what CXX names)")
    library = folder / "libmigraphx_c.so"
    call = [
        *command,
        *("-shared", "-fPIC", "-O1", "-std=c++11", "-fvisibility=hidden", "-pthread"),
        *shlex.split(os.environ.get("CXXFLAGS", "")),
        *(str(CPP_PREFIX / "include" / "migraphx" / "migraphx.cpp"), f"-Wl,-soname,{library.name}"),
        *shlex.split(os.environ.get("LDFLAGS", "")),
        *("-ldl", "-o", library.name),
    ]
    _call("migraphx_c", command, call, folder)
    return library


def _call(title: str, command: Sequence[str], call: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(call, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        raise CompileError(f"{title}: {command[0]} cannot be started: {error.strerror or error}") from error
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()[-_SHOWN:]
        raise CompileError(f"{title}: {shlex.join(command)} failed with status {done.returncode}:\n{said}")
