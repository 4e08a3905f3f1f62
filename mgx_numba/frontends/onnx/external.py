"""External tensor data: files beside the model, read into memory, never outside of the model's folder.

ONNX `ExternalData.md`: ``location`` is a path relative to the model, ``offset`` and ``length`` are in bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import numpy as np

from ...errors import FormatError, ParseError
from ...graph.content import FileContent

if TYPE_CHECKING:
    from onnx import TensorProto

__all__ = ["ExternalData"]


class ExternalData:
    """Reads external data below ``folder`` (``None``: the model came without a folder, external data is an
    error).
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._read: weakref.WeakValueDictionary[tuple[Path, int, int], np.ndarray] = weakref.WeakValueDictionary()

    def __call__(self, tensor: TensorProto, length: int) -> np.ndarray:
        """``length`` bytes of ``tensor``'s data, read-only; the same memory for the same bytes of a file.

        Raises:
            ParseError: no folder, an illegal or absent path, or a range beyond the end of the file.
        """
        where = f"tensor {tensor.name!r}"
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if self.folder is None:
            raise ParseError(
                f"{where} has its data in {entries.get('location', '')!r}: give"
                " external_data_path, the folder of that file"
            )
        path = _resolve(self.folder, entries.get("location", ""), where)
        offset = _number(entries, "offset", 0, where)
        stated = _number(entries, "length", length, where)
        if stated != length:
            raise ParseError(
                f"{where}: external data has length {stated}, expected {length} for its type and dimensions"
            )
        data = self._read.get((path, offset, length))
        if data is None:
            self._read[path, offset, length] = data = _read(path, offset, length, where)
        return data


def _read(path: Path, offset: int, length: int, where: str) -> np.ndarray:
    try:
        content = FileContent(path)
        if offset + length > content.size:
            raise ParseError(
                f"{where}: external data is bytes {offset} to {offset + length}"
                f" of {path.name!r}, which has {content.size}"
            )
        return content.array(offset, length)
    except (OSError, FormatError) as error:
        raise ParseError(f"{where}: external data file {path.name!r} cannot be read: {error}") from error


def _resolve(folder: Path, location: str, where: str) -> Path:
    if not location or "\0" in location:
        raise ParseError(f"{where}: external data has no location, or one that is no path: {location!r}")
    for kind in (PurePosixPath, PureWindowsPath):
        pure = kind(location)
        if pure.is_absolute() or pure.drive or pure.root or ".." in pure.parts:
            raise ParseError(f"{where}: external data at {location!r} would leave the model's folder")
    folder = folder.resolve()
    path = (folder / location).resolve()
    if not path.is_relative_to(folder):
        raise ParseError(f"{where}: external data at {location!r} leaves the model's folder through a link")
    if not path.is_file():
        raise ParseError(f"{where}: external data file {location!r} does not exist in {str(folder)!r}")
    return path


def _number(entries: Mapping[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ParseError(f"{where}: external data has {key} {text!r}, expected a number of bytes")
    return int(text)
