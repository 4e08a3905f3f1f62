"""Detection of a model file's format by its first bytes, for the error messages of readers of another format."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ..errors import FormatError, ParseError

_ONNX, _MXR, _SAVED_MODEL = "an ONNX model", "an .mxr file", "a TensorFlow SavedModel"
_READERS = {_ONNX: "parse_onnx reads it", _MXR: "load reads it", _SAVED_MODEL: "parse_tf reads it"}
_MAGIC = {
    b"\x93NUMPY": "a NumPy array, such as an input",
    b"PK\x03\x04": "a zip archive, such as .npz, Keras's .keras or PyTorch's .pt: export the model to ONNX",
    b"\x89HDF\r\n": "an HDF5 file, such as Keras's .h5: export the model to ONNX",
    b"SQLite format 3": "a database, such as tuning records",
    b"\x80\x02": "a pickle, such as PyTorch's .pt: export the model to ONNX",
    b"\x80\x04": "a pickle: export the model to ONNX",
    b"version https://git-lfs": "a pointer of Git LFS in place of the file: git lfs pull brings it",
    b"\x7fELF": "a shared library, which C and C++ load",
    b"\x1f\x8b": "compressed by gzip: unpack it first",
    b"<": "HTML or XML, such as a web page that was saved in place of the file",
    b"{": "JSON; load(..., format='json') reads a program in JSON",
}
_AFTER_VERSION = b"\x12\x1a\x22\x2a\x32\x3a\x42"
"""Keys of the fields that may follow ``ir_version`` in an ONNX model (producer_name, ..., graph, opset_import)."""


@contextlib.contextmanager
def taken_for(filename: object, expected: str) -> Iterator[None]:
    """Add the detected format of a file to a reading error, unless it is ``expected`` (``onnx``, ``mxr`` or ``tf``)."""
    try:
        yield
    except (FormatError, ParseError) as error:
        kind = _kind(filename)
        wanted = {"onnx": _ONNX, "mxr": _MXR, "tf": _SAVED_MODEL}[expected]
        if not kind or kind == wanted:
            raise
        reader = f": {_READERS[kind]}" if kind in _READERS else ""
        raise type(error)(f"{error} (it looks like {kind}{reader})") from error


def _kind(filename: object) -> str:
    """Return a description of the format that the first bytes of a file show; empty if unknown."""
    if not isinstance(filename, (str, os.PathLike)) or not os.path.isfile(filename):
        return ""
    try:
        with open(filename, "rb") as file:
            start = file.read(32)
    except OSError:
        return ""
    for magic, kind in _MAGIC.items():
        if start.startswith(magic):
            return kind
    if start[:1] == b"\x08" and start[2:3] and start[2] in _AFTER_VERSION:
        return _SAVED_MODEL if start[1] == 1 else _ONNX
    is_map = start[:1] in (b"\xde", b"\xdf") or (start[:1] and 0x81 <= start[0] <= 0x8F)
    return _MXR if is_map else ""
