"""Cache folders of tests: what is compiled is the same wherever it is kept, so that all of them share the kernels."""

from __future__ import annotations

from pathlib import Path

from mgx_numba.codegen.files import default_folder

__all__ = ["with_kernels"]


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
