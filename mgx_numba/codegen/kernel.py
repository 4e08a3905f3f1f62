"""A kernel as source text, and the identity under which its machine code is kept.

Neither this nor computing an identity needs Numba.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import field

from ..dataclass import dataclass
from .backend import backend

__all__ = ["KernelSource"]


@dataclass(frozen=True)
class KernelSource:
    """Python source of one kernel.

    ``text`` defines a function ``kernel`` in the language of the back end called ``backend``. ``name`` is for readers,
    in MIGraphX's style (``mul_add_relu_kernel``). ``origin`` holds the printed instructions it was made from; neither
    of them changes the machine code.
    """

    backend: str
    name: str
    text: str
    origin: str = field(default="", compare=False)

    def identity(self) -> dict[str, str]:
        """Everything that the machine code depends on, by field name; equal identities have equal objects."""
        return {"source": hashlib.sha256(self.text.encode()).hexdigest(), **backend(self.backend).identity()}

    @functools.cached_property
    def symbol(self) -> str:
        """Exported symbol and name in the object store: ``mgx_`` and 24 hexadecimal digits."""
        lines = "".join(f"{key}={value}\n" for key, value in sorted(self.identity().items()))
        # 96 bits: two of the kernels of all users together do not meet by chance.
        return "mgx_" + hashlib.sha256(lines.encode()).hexdigest()[:24]
