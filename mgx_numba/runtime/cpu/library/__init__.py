"""Export plans as shared libraries for C and C++: data, machine code and a small C runtime, without Python."""

from __future__ import annotations

from pathlib import Path

from ....dataclass import dataclass

__all__ = ["CPP_PREFIX", "LibraryForm"]

CPP_PREFIX = Path(__file__).with_name("files")
"""Folder with ``include/migraphx`` for compilers, the CMake package ``migraphx``, and the C sources of all
libraries."""


@dataclass(frozen=True)
class LibraryForm:
    """How a library is written.

    Attributes:
        embed_weights: put the weights inside the library, not beside it.
        link: None: link if there is a compiler; True: raise an error if there is none; False: write objects.
        c_interface: put MIGraphX's C interface, the functions of ``migraphx.h``, into the library.
    """

    embed_weights: bool = False
    link: bool | None = None
    c_interface: bool = False
