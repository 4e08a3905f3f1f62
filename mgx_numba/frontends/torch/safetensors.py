"""Tensors of safetensors files as arrays over mapped memory."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import numpy as np

from ...core.types import Type
from ...errors import FormatError

_TYPES = {
    "BOOL": Type.bool_type,
    "U8": Type.uint8_type,
    "I8": Type.int8_type,
    "U16": Type.uint16_type,
    "I16": Type.int16_type,
    "U32": Type.uint32_type,
    "I32": Type.int32_type,
    "U64": Type.uint64_type,
    "I64": Type.int64_type,
    "F16": Type.half_type,
    "BF16": Type.bf16_type,
    "F32": Type.float_type,
    "F64": Type.double_type,
    "F8_E4M3": Type.fp8e4m3fn_type,
    "F8_E5M2": Type.fp8e5m2_type,
}
"""Element types by the names of the format."""


def tensors_of(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file, or of all in a folder, by name; their memory is the mapped file.

    Raises:
        FormatError: there is no such file, or it is malformed.
    """
    given = Path(path)
    files = sorted(given.glob("*.safetensors")) if given.is_dir() else [given]
    if not files:
        raise FormatError(f"{given} has no file whose name ends in .safetensors")
    found: dict[str, np.ndarray] = {}
    for file in files:
        try:
            found.update(_read(file))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{file} is no safetensors file that can be read: {error}") from error
    return found


def _read(file: Path) -> dict[str, np.ndarray]:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > file.stat().st_size:
            raise ValueError(f"its header would have {size} bytes")
        header = json.loads(stream.read(size))
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, (first, last) = _TYPES[entry["dtype"]].numpy, entry["data_offsets"]
        shape = tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        if last - first != count * dtype.itemsize:
            raise ValueError(f"tensor {name!r} has {last - first} bytes for lengths {list(shape)}")
        flat = np.frombuffer(data, np.uint8, last - first, 8 + size + first)
        found[name] = (flat.view(dtype) if count else np.empty(0, dtype)).reshape(shape)
    return found
