"""Which kernels the ranges of a dynamic program need: found once by lowering it for many lengths, then kept in the
cache folder.

A list is for one program (its text: weights do not change kernels), the options that choose kernels, this package and
the machine. The folder is trusted, as it is for objects.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from ..codegen.backend import Backend
from ..codegen.files import default_folder, make_folder, package_state, read_trusted, replace_file
from ..codegen.kernel import KernelSource
from ..errors import DeviceError
from ..graph.program import Program
from .options import TargetOptions
from .tracing import is_watched

__all__ = ["find", "keep"]

MOST = 256
"""Lists; those written first go first. One has some hundred kilobytes."""


def find(program: Program, options: TargetOptions, of: Backend, threads: int) -> list[KernelSource] | None:
    """The kernels of a back end for a program's ranges, in plans for so many threads; None if nobody has looked for
    them here."""
    path = _path(program, options, of, threads)
    try:
        entries = json.loads(read_trusted(path)) if path is not None else None
        return None if entries is None else [KernelSource(*(str(part) for part in entry)) for entry in entries]
    except (OSError, ValueError, TypeError):
        return None


def keep(program: Program, options: TargetOptions, of: Backend, threads: int, kernels: Iterable[KernelSource]) -> None:
    """Keep the kernels of a program's ranges; a failure to write is no error."""
    path = _path(program, options, of, threads)
    if path is None:
        return
    entries = [[kernel.backend, kernel.name, kernel.text, kernel.origin] for kernel in kernels]
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        replace_file(path, json.dumps(entries).encode())
        found = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(path.parent))
        for _, name in found[:-MOST]:
            os.unlink(name)


def _path(program: Program, options: TargetOptions, of: Backend, threads: int) -> Path | None:
    if is_watched():
        return None
    try:
        machine = [of.fingerprint().key, *sorted(of.identity().items())]
    except DeviceError:  # none is there, nor named: plans are the interpreter's
        return None
    chosen = (options.fast_math, options.precision, options.memory_reuse, threads, options.disabled_passes)
    mine = sorted((name, value) for name, value in os.environ.items() if name.startswith("MGX_"))
    text = f"{package_state()}\n{machine}\n{mine}\n{chosen} {options.packing_growth}\n{program}"
    return default_folder() / "ranges" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
