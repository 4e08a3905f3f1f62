"""GGUF files: metadata and tensors of one file, which is memory-mapped.

The format is ggml's (versions 2 and 3, little-endian): a header, metadata by key, descriptions of tensors, and their
data. Lengths of a tensor are stored with the innermost axis first.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from ...errors import FormatError, ShapeError, UnsupportedError
from ...garbage import uncollected
from ...ops.block_layouts import LAYOUTS
from ..weights import Weight

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

MAGIC = b"GGUF"
# Numbers of types in metadata and of tensors: by definition (``gguf.h`` and ``ggml.h``).
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
FLOATS: dict[int, DTypeLike] = {0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16, 28: np.float64}
BLOCKS = {2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 12: "q4_k", 13: "q5_k", 14: "q6_k"}
MOST_AXES = 4
"""Most axes of a tensor, by definition (``GGML_MAX_DIMS``)."""


class _TensorEntry(NamedTuple):
    """Lengths with the outermost axis first, type number and offset (bytes) of a tensor."""

    lens: tuple[int, ...]
    kind: int
    offset: int


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Return whether the file begins as GGUF files do."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class GgufFile:
    """A GGUF file.

    Attributes:
        metadata: values by key: numbers, strings, NumPy arrays of numbers, and lists of strings.
        names: names of the tensors.
    """

    def __init__(self, path: str | os.PathLike[str], data: memoryview | None = None) -> None:
        """Map a file and read its header; ``data`` is its content, if that is in memory already.

        Raises:
            FormatError: the file is no GGUF file, or ends too early.
        """
        self.path = os.fspath(path)
        self._data: np.ndarray = np.empty(0, np.uint8)  # a file without bytes cannot be mapped
        if data is not None:
            self._data = np.frombuffer(data, np.uint8)
        elif os.path.getsize(self.path):
            self._data = np.memmap(self.path, np.uint8, "r")
        self._bytes = self._data.data
        self._at = len(MAGIC)
        self.metadata: dict[str, Any] = {}
        self._tensors: dict[str, _TensorEntry] = {}
        try:
            with uncollected():
                self._read_header()
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise FormatError(f"{self.path}: the GGUF file is damaged at byte {self._at}: {error}") from error

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def weight(self, name: str) -> Weight | None:
        """Return the tensor of this name; None if there is none.

        Raises:
            FormatError: the data lie outside of the file, or a length is 0 or no whole number of blocks.
            UnsupportedError: no reader is for the tensor's type.
        """
        found = self._tensors.get(name)
        if found is None:
            return None
        where = f"{self.path}: tensor {name!r}"
        if not found.lens or 0 in found.lens:
            raise FormatError(f"{where} has lengths {list(found.lens)}, expected at least one, all positive")
        if found.kind in FLOATS:
            dtype = np.dtype(FLOATS[found.kind])
            size = int(np.prod(found.lens, dtype=object)) * dtype.itemsize
            return Weight(self._part(where, found.offset, size).view(dtype).reshape(found.lens))
        if found.kind not in BLOCKS:
            known = ", ".join(["F32", "F16", "BF16", *(name.upper() for name in BLOCKS.values())])
            raise UnsupportedError(f"{where} has ggml's type number {found.kind}; supported are {known}")
        layout = BLOCKS[found.kind]
        *outer, depth = found.lens
        try:
            lens = (*outer, LAYOUTS[layout].row_bytes(depth))
        except ShapeError as error:
            raise FormatError(f"{where}: {error}") from error
        size = int(np.prod(lens, dtype=object))
        return Weight(self._part(where, found.offset, size).reshape(lens), layout)

    def _part(self, where: str, offset: int, size: int) -> np.ndarray:
        start = self._start + offset
        if start + size > len(self._data):
            raise FormatError(f"{where} ends at byte {start + size} of a file of {len(self._data)} bytes")
        return np.asarray(self._data[start : start + size])

    def _read_header(self) -> None:
        if bytes(self._bytes[: len(MAGIC)]) != MAGIC:
            raise FormatError(f"{self.path} is no GGUF file")
        version, tensors, keys = self._unpack("<IQQ")
        if version not in (2, 3):
            raise FormatError(f"{self.path} has version {version} of GGUF; supported are 2 and 3")
        for _ in range(keys):
            key = self._string()
            self.metadata[key] = self._value(*self._unpack("<I"))
        for _ in range(tensors):
            name = self._string()
            (axes,) = self._unpack("<I")
            if axes > MOST_AXES:
                raise FormatError(f"{self.path}: tensor {name!r} has {axes} axes, expected at most {MOST_AXES}")
            lens = self._unpack(f"<{axes}Q")
            kind, offset = self._unpack("<IQ")
            self._tensors[name] = _TensorEntry(lens[::-1], kind, offset)
        alignment = self.metadata.get("general.alignment", 32)  # the default, by definition
        if not isinstance(alignment, int) or alignment < 1:
            raise FormatError(f"{self.path}: general.alignment is {alignment!r}, expected a positive number")
        self._start = -(-self._at // alignment) * alignment

    def _unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._bytes, self._at)
        self._at += struct.calcsize(form)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        end = self._at + length
        if end > len(self._bytes):
            raise ValueError(f"a string of {length} bytes ends beyond the file")
        text = str(self._bytes[self._at : end], "utf-8", "replace")
        self._at = end
        return text

    def _strings(self, count: int) -> list[str]:
        """Return an array of strings, such as a vocabulary of hundreds of thousands, with few calls for each."""
        short = self._short_strings(count)
        if short is not None:
            return short
        data, at, found = self._bytes, self._at, []
        lengths = struct.Struct("<Q").unpack_from
        for _ in range(count):
            end = at + 8 + lengths(data, at)[0]
            if end > len(data):
                raise ValueError(f"an array of {count} strings ends beyond the file")
            found.append(str(data[at + 8 : end], "utf-8", "replace"))
            at = end
        self._at = at
        return found

    def _short_strings(self, count: int) -> list[str] | None:
        """Return an array of strings of 1 to 255 bytes without zeros, by vector operations; None for other strings.

        A length is a byte before seven zeros. If each string found so begins where the one before ends, none is missed.
        """
        room = 24 * count
        while True:
            data = self._data[self._at : self._at + room]
            lasts = len(data) - 7
            places = data[: max(lasts, 0)] != 0
            for k in range(1, 8):
                places &= data[k : k + len(places)] == 0
            starts = np.flatnonzero(places)[:count]
            if len(starts) == count or len(data) < room:
                break
            room *= 4
        ends = starts + 8 + data[starts]
        if not 0 < count == len(starts) or starts[0] or ends[-1] > len(data) or (starts[1:] != ends[:-1]).any():
            return None
        texts = np.array(data[: ends[-1]])
        texts[starts] = 0
        if np.count_nonzero(texts == 0) != 8 * count:
            return None
        self._at += int(ends[-1])
        return texts.tobytes().decode("utf-8", "replace").split("\0" * 8)[1:]

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._unpack("<" + SCALARS[kind])[0]
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ValueError(f"there is no type {kind} of metadata")
        member, count = self._unpack("<IQ")
        if member not in SCALARS:
            if count > len(self._bytes):
                raise ValueError(f"an array of {count} members is longer than the file")
            return self._strings(count) if member == STRING else [self._value(member) for _ in range(count)]
        dtype = np.dtype(SCALARS[member]).newbyteorder("<")
        end = self._at + count * dtype.itemsize
        values = np.frombuffer(self._bytes[self._at : end], dtype)
        if len(values) != count:
            raise ValueError(f"an array of {count} members ends beyond the file")
        self._at = end
        return values
