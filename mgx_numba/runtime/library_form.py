"""`LibraryForm`: options of a program's export as a shared library."""

from __future__ import annotations

from ..dataclass import dataclass


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
