"""Reader of external tensor data, from files in the model's folder (never outside), or from the caller's memory.

ONNX `ExternalData.md`: ``location`` is a path relative to the model, ``offset`` and ``length`` are in bytes. A model
reached through a link has two folders, the link's and the file's. Data may be in either folder, as in ONNX Runtime. The
cache of Hugging Face is an example: ``snapshots/<revision>`` links to ``blobs``.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import numpy as np

from ...errors import FormatError, ParseError
from ...graph.content import FileContent

if TYPE_CHECKING:
    from onnx import TensorProto


class ExternalData:
    """A reader of external data.

    Args:
        folders: folders to search, in order; with none, files are an error.
        files: contents in memory by location, which take precedence over files.

    Attributes:
        opened: path of each file that was read, by location, and its status before reading.
    """

    def __init__(self, folders: Sequence[Path], files: Mapping[str, memoryview] | None = None) -> None:
        self._folders = folders
        self._files = files or {}
        self.opened: dict[str, tuple[Path, os.stat_result]] = {}
        self._read: weakref.WeakValueDictionary[tuple[Path, int, int], np.ndarray] = weakref.WeakValueDictionary()

    def __call__(self, tensor: TensorProto, length: int) -> np.ndarray:
        """Return ``length`` bytes of ``tensor``'s data, read-only; the same memory for the same bytes of a file.

        Raises:
            ParseError: there is no folder, the path is illegal or absent, or the range exceeds the file.
        """
        where = f"tensor {tensor.name!r}"
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not self._folders and location not in self._files:
            given = f"; in memory are: {', '.join(map(repr, self._files))}" if self._files else ""
            raise ParseError(
                f"{where} has its data in {location!r}: give external_data_path, the folder of that file{given}"
            )
        offset = _number(entries, "offset", 0, where)
        stated = _number(entries, "length", length, where)
        if stated != length:
            raise ParseError(
                f"{where}: external data has length {stated}, expected {length} for its type and dimensions"
            )
        if location in self._files:
            content = self._files[location]
            _check_range(offset, length, len(content), location, where)
            found = np.frombuffer(content[offset : offset + length], np.uint8)
            aligned = found.__array_interface__["data"][0] % 8 == 0  # the widest element of ONNX
            return found if aligned and content.readonly else found.copy()
        path = _resolve(self._folders, location, where)
        data = self._read.get((path, offset, length))
        if data is None:
            self._read[path, offset, length] = data = self._read_file(path, offset, length, location, where)
        elif location not in self.opened:
            self.opened[location] = next(found for found in self.opened.values() if found[0] == path)
        return data

    def _read_file(self, path: Path, offset: int, length: int, location: str, where: str) -> np.ndarray:
        try:
            content = FileContent(path)
            self.opened.setdefault(location, (path, content.status()))
            _check_range(offset, length, content.size, path.name, where)
            return content.array(offset, length)
        except (OSError, FormatError) as error:
            raise ParseError(f"{where}: external data file {path.name!r} cannot be read: {error}") from error


def _check_range(offset: int, length: int, size: int, name: str, where: str) -> None:
    if offset + length > size:
        raise ParseError(f"{where}: external data is bytes {offset} to {offset + length} of {name!r}, which has {size}")


def _resolve(folders: Sequence[Path], location: str, where: str) -> Path:
    if not location or "\0" in location:
        raise ParseError(f"{where}: external data has no location, or one that is no path: {location!r}")
    for kind in (PurePosixPath, PureWindowsPath):
        pure = kind(location)
        if pure.is_absolute() or pure.drive or pure.root or ".." in pure.parts:
            raise ParseError(f"{where}: external data at {location!r} would leave the model's folder")
    roots = [folder.resolve() for folder in folders]
    for root in roots:
        path = (root / location).resolve()
        if not path.is_file():
            continue
        if not any(path.is_relative_to(allowed) for allowed in roots):
            raise ParseError(f"{where}: external data at {location!r} leaves the model's folder through a link")
        return path
    searched = " or ".join(dict.fromkeys(repr(str(root)) for root in roots))
    raise ParseError(f"{where}: external data file {location!r} does not exist in {searched}")


def _number(entries: Mapping[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ParseError(f"{where}: external data has {key} {text!r}, expected a number of bytes")
    return int(text)
