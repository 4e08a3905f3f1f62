"""Libraries loaded into this process through their C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mgx_numba.core.types import Type, from_numpy

Size = ctypes.c_size_t


class Tensor(ctypes.Structure):
    """``mgx_tensor``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("rank", Size),
        ("lens", ctypes.POINTER(Size)),
        ("data", ctypes.c_void_p),
    )


Tensors = ctypes.POINTER(Tensor)


class Results(ctypes.Structure):
    """``mgx_results``."""

    _fields_ = (("count", Size), ("tensors", Tensors))


MadeResults = ctypes.POINTER(Results)
NEEDS_VALUES = 9


class Functions(ctypes.Structure):
    """``mgx_library``."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("parameter_count", Size),
        ("output_count", Size),
        ("parameters", Tensors),
        ("outputs", Tensors),
        ("load", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, Tensors, Size, Tensors, Size)),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("output_lens", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, Tensors, Size, ctypes.POINTER(Size))),
        ("compute", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, Tensors, Size, ctypes.POINTER(MadeResults))),
        ("free_results", ctypes.CFUNCTYPE(None, MadeResults)),
    )


class Loaded:
    """A program of a library."""

    def __init__(self, path: Path) -> None:
        get: Any = ctypes.CDLL(str(path)).mgx_get_library
        get.restype = ctypes.POINTER(Functions)
        self.library = get().contents
        self.program = ctypes.c_void_p()
        assert not self.library.load(None, ctypes.byref(self.program)), self.library.error()

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run with outputs of the lengths that the library tells; with lengths from data, as `compute` does."""
        library, program = self.library, self.program
        inputs = (Tensor * len(feeds))(*(tensor(array, name) for name, array in feeds.items()))
        ranks = [library.outputs[k].rank for k in range(library.output_count)]
        lens = (Size * (sum(ranks) + 1))()
        status = library.output_lens(program, inputs, len(feeds), lens)
        if status == NEEDS_VALUES:
            return self.compute(feeds)
        self._check(status)
        left = iter(lens)
        arrays = [
            np.empty([next(left) for _ in range(rank)], Type(library.outputs[k].type).numpy)
            for k, rank in enumerate(ranks)
        ]
        outputs = (Tensor * len(arrays))(*map(tensor, arrays))
        self._check(library.run(program, inputs, len(feeds), outputs, len(arrays)))
        return arrays

    def compute(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run with results whose memory the library takes; then again, with outputs of the same lengths."""
        library, program = self.library, self.program
        inputs = (Tensor * len(feeds))(*(tensor(array, name) for name, array in feeds.items()))
        made = MadeResults()
        self._check(library.compute(program, inputs, len(feeds), ctypes.byref(made)))
        arrays = []
        for k in range(made.contents.count):
            result = made.contents.tensors[k]
            arrays.append(np.empty(result.lens[: result.rank], Type(result.type).numpy))
            ctypes.memmove(arrays[-1].ctypes.data, result.data, arrays[-1].nbytes)
            assert result.name == library.outputs[k].name and result.data % 64 == 0
        library.free_results(made)
        again = list(map(np.zeros_like, arrays))
        outputs = (Tensor * len(arrays))(*map(tensor, again))
        self._check(library.run(program, inputs, len(feeds), outputs, len(arrays)))
        for array, other in zip(arrays, again, strict=True):
            np.testing.assert_array_equal(array, other)
        return arrays

    def _check(self, status: int) -> None:
        if status:
            raise ValueError(self.library.error().decode())


def tensor(array: np.ndarray, name: str = "") -> Tensor:
    """An array, which the caller keeps."""
    assert array.flags.c_contiguous
    lens = (Size * max(1, array.ndim))(*array.shape)
    made = Tensor(name.encode(), int(from_numpy(array.dtype)), array.ndim, lens, array.ctypes.data)
    made.kept = lens  # type: ignore[attr-defined]
    return made
