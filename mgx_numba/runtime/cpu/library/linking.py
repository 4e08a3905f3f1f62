"""Link libraries with the system's C and C++ compilers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ....errors import CompileError
from . import CPP_PREFIX

_COMPILERS = {"CC": ("C", ("cc", "gcc", "clang")), "CXX": ("C++", ("c++", "g++", "clang++"))}
_SHOWN = 2000  # characters shown of the compiler's output, from its end
_SHARED = ("-fPIC", "-fvisibility=hidden", "-pthread")

Compilers = Mapping[str, list[str]]
"""Commands, by the environment variable that names them: ``CC``, ``CXX``."""


def compilers(title: str, *variables: str) -> Compilers:
    """Return the commands of compilers, by variable: the variable's value, else the first available command.

    Raises:
        CompileError: there is none; the message begins with ``title``.
    """
    found = {}
    for variable in variables:
        language, known = _COMPILERS[variable]
        chosen = shlex.split(os.environ.get(variable, ""))
        for command in [chosen] if chosen else [[name] for name in known]:
            if shutil.which(command[0]):
                found[variable] = command
                break
        else:
            raise CompileError(
                f"{title}: there is no {language} compiler ({', '.join(known)}, or the command that {variable} names)"
            )
    return found


def link_library(commands: Compilers, folder: Path, include: Path, name: str) -> Path:
    """Compile the sources in ``folder``, link them with the objects there, and return the library, in the same folder.

    C++ sources, if there are any, are those of MIGraphX's C interface. ``CFLAGS``, ``CXXFLAGS`` and ``LDFLAGS`` are
    passed on.

    Raises:
        CompileError: the compiler fails; the message has its output.
    """
    library = folder / f"lib{name}.so"
    kinds = {"CC": ("*.c", "-std=gnu11", "-O2", "CFLAGS"), "CXX": ("*.cpp", "-std=c++11", "-O1", "CXXFLAGS")}
    passed = []
    for variable, command in commands.items():
        sources, standard, level, flags = kinds[variable]
        passed += shlex.split(os.environ.get(flags, ""))
        call = [*command, "-c", standard, level, *_SHARED, f"-I{include}", "-I.", *passed]
        _call("export_library", command, [*call, *sorted(path.name for path in folder.glob(sources))], folder)
    last = commands.get("CXX", commands["CC"])
    call = [
        *(*last, "-shared", *_SHARED, *passed, *sorted(path.name for path in folder.glob("*.o"))),
        *("-Wl,--version-script=exports.map", f"-Wl,-soname,{library.name}", "-Wl,-z,noexecstack"),
        *(*shlex.split(os.environ.get("LDFLAGS", "")), "-lm", "-ldl", "-o", library.name),
    ]
    _call("export_library", last, call, folder)
    return library


def link_c_interface(folder: Path) -> Path:
    """Compile MIGraphX's C interface and return the library ``libmigraphx_c.so`` in ``folder``.

    ``CXXFLAGS`` and ``LDFLAGS`` are passed on.

    Raises:
        CompileError: there is no C++ compiler, or it fails; the message has its output.
    """
    command = compilers("migraphx_c", "CXX")["CXX"]
    library = folder / "libmigraphx_c.so"
    call = [
        *(*command, "-shared", "-O1", "-std=c++11", *_SHARED, *shlex.split(os.environ.get("CXXFLAGS", ""))),
        *(str(CPP_PREFIX / "include" / "migraphx" / "migraphx.cpp"), f"-Wl,-soname,{library.name}"),
        *(*shlex.split(os.environ.get("LDFLAGS", "")), "-ldl", "-o", library.name),
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
