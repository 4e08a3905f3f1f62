"""Folders of safetensors files: one file, or shards with an index; the files are memory-mapped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import FormatError, UnsupportedError
from ..weights import Weight

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
TYPES: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
LONGEST_HEADER = 100_000_000
"""Most bytes of a header, by definition of the format."""


class SafetensorsFolder:
    """The tensors of a folder's safetensors files, by name.

    Attributes:
        files: path and status of each file by its name, as it was before it was read.
    """

    def __init__(self, folder: str | os.PathLike[str], content: Mapping[str, memoryview] | None = None) -> None:
        """Read the headers of all files; ``content`` has the files' bytes by name, if they are in memory already.

        Raises:
            FormatError: a file is missing or malformed.
        """
        self._tensors: dict[str, tuple[str, np.ndarray, dict[str, Any]]] = {}
        self.files: dict[str, tuple[Path, os.stat_result]] = {}
        if content is not None:
            for name, held in content.items():
                self._read(name, np.frombuffer(held, np.uint8))
            return
        folder = Path(folder)
        index = folder / INDEX
        if index.exists():
            files = sorted(set(_json(index.read_bytes(), str(index), "weight_map").values()))
        elif (folder / SINGLE).exists():
            files = [SINGLE]
        else:
            files = sorted(path.name for path in folder.glob("*.safetensors"))
        if not files:
            raise FormatError(f"{folder} has no safetensors file")
        for name in files:
            if os.path.basename(name) != name:
                raise FormatError(f"{index} names {name!r}, expected a file in its folder")
            path = folder / name
            try:
                self.files[name] = path, path.stat()
                data = np.memmap(path, np.uint8, "r")
            except (OSError, ValueError) as error:
                raise FormatError(f"{path} cannot be read: {error}") from error
            self._read(str(path), data)

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def weight(self, name: str) -> Weight | None:
        """Return the tensor of this name; None if there is none.

        Raises:
            FormatError: the description or the data of the tensor are malformed.
            UnsupportedError: the tensor is of no floating-point type.
        """
        if name not in self._tensors:
            return None
        path, data, entry = self._tensors[name]
        try:
            kind, lens, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if kind not in TYPES:
                raise UnsupportedError(f"{path}: tensor {name!r} is of type {kind}; supported are {', '.join(TYPES)}")
            if not 0 <= start <= end <= len(data):
                raise FormatError(f"{path}: tensor {name!r} lies outside of the file")
            return Weight(np.asarray(data[start:end]).view(TYPES[kind]).reshape(lens))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}: tensor {name!r} is malformed: {error}") from error

    def _read(self, path: str, data: np.ndarray) -> None:
        length = int.from_bytes(data[:8].tobytes(), "little")
        if not 2 <= length <= min(LONGEST_HEADER, len(data) - 8):
            raise FormatError(f"{path}: a header of {length} bytes does not fit a file of {len(data)} bytes")
        for name, entry in _json(data[8 : 8 + length].tobytes(), path).items():
            if name != "__metadata__":
                self._tensors[name] = (path, data[8 + length :], entry)


def _json(data: bytes, path: str, member: str | None = None) -> dict[str, Any]:
    """Return a JSON object, or a member that is one."""
    try:
        found = json.loads(data)
        found = found if member is None else found[member]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is no JSON object with what is expected: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path} holds {type(found).__name__}, expected a JSON object")
    return found
