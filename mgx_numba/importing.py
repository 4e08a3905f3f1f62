"""Quick imports of this package's modules, some 500 in a process that compiles.

For each module importlib looks for extension modules, joins paths and checks the header of the bytecode file in Python:
0.06 ms beyond this finder (Zen 4), a sixth of all that importing the modules takes. The finder handles only modules
whose bytecode file in ``__pycache__`` belongs to the source file as it is. It leaves all others to importlib.
"""

from __future__ import annotations

import _imp
import importlib.util
import marshal
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

PREFIX = f"{__package__}."
_HEADER = importlib.util.MAGIC_NUMBER + bytes(4)
"""First bytes of a bytecode file that is checked by the source's time and size (PEP 552)."""


class _BytecodeLoader(SourceFileLoader):
    """Takes a module's code from the bytes of its bytecode file; afterwards an ordinary loader, for tools."""

    def __init__(self, name: str, path: str, data: bytes) -> None:
        super().__init__(name, path)
        self._data: bytes | None = data

    def get_code(self, fullname: str) -> CodeType | None:
        data, self._data = self._data, None
        if data is None:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(memoryview(data)[16:])
        _imp._fix_co_filename(code, self.path)  # type: ignore[attr-defined]  # as importlib does
        return code


class _Spec(ModuleSpec):
    """A module's description, with its package as a plain attribute: each relative import reads it."""

    parent: Any = ""


class Finder:
    """Finds modules of this package by their bytecode files. An entry of ``sys.meta_path``."""

    ending = f".{sys.implementation.cache_tag}.pyc"

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the description of a module; None to leave it to the finders that follow."""
        if not name.startswith(PREFIX) or not path or sys.pycache_prefix is not None:
            return None
        package, _, stem = name.rpartition(".")
        folder = f"{path[0]}/"
        return cls._found(name, package, folder, stem) or cls._found(name, name, f"{folder}{stem}/", "__init__")

    @classmethod
    def _found(cls, name: str, package: str, folder: str, stem: str) -> ModuleSpec | None:
        source, cached = f"{folder}{stem}.py", f"{folder}__pycache__/{stem}{cls.ending}"
        try:
            with open(cached, "rb", 0) as file:
                data = file.read()
            status = os.stat(source)
        except OSError:
            return None
        words = (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
        if data[:16] != _HEADER + b"".join([word.to_bytes(4, "little") for word in words]):
            return None
        spec = _Spec(name, _BytecodeLoader(name, source, data), origin=source)
        spec.has_location = True  # type: ignore[misc]  # importlib itself sets it
        spec.cached, spec.parent = cached, package
        if package == name:
            spec.submodule_search_locations = [folder[:-1]]
        return spec


def install() -> None:
    """Put the finder before importlib's finder of files, unless bytecode files have another name or place."""
    if sys.implementation.name != "cpython" or sys.flags.optimize or Finder in sys.meta_path:
        return
    if PathFinder in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder)  # type: ignore[arg-type]
