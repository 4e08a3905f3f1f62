"""Safetensors: one file, or a folder of shards with an index; the files are memory-mapped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ..errors import FormatError, UnsupportedError
from .json_file import json_object, read_text

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
FLOATS: dict[str, DTypeLike] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
TYPES: dict[str, DTypeLike] = {
    **FLOATS, **{f"{k}{n}": f"{k.lower()}{n // 8}" for k in "IU" for n in (8, 16, 32, 64)},
    "BOOL": np.bool_, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
"""Element types by the names of the format."""
LONGEST_HEADER = 100_000_000
"""Most bytes of a header, by definition of the format."""


class Safetensors:
    """The tensors of a safetensors file, or of a folder's, by name.

    Attributes:
        files: path and status of each file by its name, as it was before it was read.
    """

    def __init__(self, path: str | os.PathLike[str], content: Mapping[str, memoryview] | None = None) -> None:
        """Read the headers of all files; ``content`` has the files' bytes by name, if they are in memory already.

        Raises:
            FormatError: a file is missing or malformed.
        """
        self._tensors: dict[str, tuple[str, np.ndarray, str, tuple[int, ...]]] = {}  # path, bytes, type, lengths
        self.files: dict[str, tuple[Path, os.stat_result]] = {}
        if content is not None:
            for name, held in content.items():
                self._read(name, np.frombuffer(held, np.uint8))
            return
        folder = Path(path)
        index = folder / INDEX
        if not folder.is_dir():
            folder, files = folder.parent, [folder.name]
        elif index.exists():
            files = _shards(index)
        elif (folder / SINGLE).exists():
            files = [SINGLE]
        else:
            files = sorted(path.name for path in folder.glob("*.safetensors"))
        if not files:
            raise FormatError(f"{folder} has no safetensors file")
        for name in files:
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

    def array(self, name: str, types: Mapping[str, DTypeLike] = TYPES) -> np.ndarray | None:
        """Return the tensor of this name, whose memory is the mapped file; None if there is none.

        Raises:
            FormatError: the tensor's bytes are not those of its type and lengths.
            UnsupportedError: the tensor's type is not among ``types``.
        """
        if name not in self._tensors:
            return None
        path, data, kind, lens = self._tensors[name]
        if kind not in types:
            raise UnsupportedError(f"{path}: tensor {name!r} is of type {kind!r}; supported are {', '.join(types)}")
        try:
            return np.asarray(data).view(types[kind]).reshape(lens)
        except ValueError as error:
            raise FormatError(f"{path}: tensor {name!r} has {len(data)} bytes, expected {kind} {list(lens)}") from error

    def _read(self, path: str, data: np.ndarray) -> None:
        length = int.from_bytes(data[:8].tobytes(), "little")
        if not 2 <= length <= min(LONGEST_HEADER, len(data) - 8):
            raise FormatError(f"{path}: a header of {length} bytes does not fit a file of {len(data)} bytes")
        content, end = data[8 + length :], 0
        entries = json_object(data[8 : 8 + length].tobytes(), path)
        entries.pop("__metadata__", None)
        described = [(*_described(entry, f"{path}: tensor {name!r}"), name) for name, entry in entries.items()]
        for first, last, kind, lens, name in sorted(described):
            if first < end:
                raise FormatError(f"{path}: tensor {name!r} begins at byte {first}, inside of the tensor before it")
            if last > len(content):
                raise FormatError(
                    f"{path}: tensor {name!r} ends at byte {last} of {len(content)}: the file is cut short"
                )
            self._tensors[name], end = (path, content[first:last], kind, lens), last


def _described(entry: Any, where: str) -> tuple[int, int, str, tuple[int, ...]]:
    """Return first byte, end, type and lengths of a tensor, as a header describes it.

    Raises:
        FormatError: the description is malformed; the message begins with ``where``.
    """
    try:
        kind, lens, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: expected an object with dtype, shape and two data_offsets") from error
    if not isinstance(kind, str) or not all(type(n) is int and n >= 0 for n in (*lens, first, last)) or first > last:
        raise FormatError(f"{where}: dtype {kind!r}, shape {list(lens)}, data_offsets {[first, last]} are malformed")
    return first, last, kind, lens


def _shards(index: Path) -> list[str]:
    """Return the names of the files of an index.

    Raises:
        FormatError: the index is malformed, or names a file outside of its folder.
    """
    names = json_object(read_text(index), index).get("weight_map")
    if not isinstance(names, dict):
        raise FormatError(f"{index}: weight_map is {type(names).__name__}, expected an object")
    for name in names.values():
        if not isinstance(name, str) or not name or os.path.basename(name) != name:
            raise FormatError(f"{index} names {name!r}, expected a file in its folder")
    return sorted(set(names.values()))
