"""Cache folders of tests, which share compiled kernels and data computed once for all runs."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mgx_numba.codegen.files import default_folder, replace_file

__all__ = ["kept_folder", "stored", "with_kernels"]

T = TypeVar("T")


def with_kernels(folder: Path) -> Path:
    """The folder, made if need be, as a cache folder that has the compiled kernels of the present one and nothing else.

    Raises:
        OSError: the present one or this one cannot be written.
    """
    objects = default_folder() / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "objects").symlink_to(objects.resolve(), target_is_directory=True)
    return folder


def kept_folder() -> Path:
    """Return the folder, beside the compiled kernels, in which tests keep data that does not change between runs."""
    return (default_folder() / "objects").resolve().parent / "tests"


def stored(name: str, make: Callable[[], T]) -> T:
    """Return the result of ``make``, cached in a file of this name in `kept_folder`.

    The name must identify everything that the value depends on. Exceptions of ``make`` pass through.
    """
    path = kept_folder() / f"{name}.pickle"
    with contextlib.suppress(Exception):  # missing, unreadable, or of classes that are no more: made again
        return pickle.loads(path.read_bytes())
    made = make()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, pickle.dumps(made))
    return made
