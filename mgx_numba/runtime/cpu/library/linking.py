"""Link a library with the system's C compiler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ....errors import CompileError

_COMPILERS = ("cc", "gcc", "clang")
_SHOWN = 2000  # characters shown of the compiler's output, from its end


def compiler() -> list[str] | None:
    """Return the command of the C compiler: ``CC``, else the first available of ``cc``, ``gcc`` and ``clang``; None if
    there is none."""
    chosen = shlex.split(os.environ.get("CC", ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
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
    try:
        done = subprocess.run(call, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        raise CompileError(f"export_library: {command[0]} cannot be started: {error.strerror or error}") from error
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()[-_SHOWN:]
        raise CompileError(f"export_library: {shlex.join(command)} failed with status {done.returncode}:\n{said}")
    return library
