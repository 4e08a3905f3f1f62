"""Kernel sources, and the identity under which their machine code is stored. Needs neither Numba nor LLVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ..dataclass import dataclass
from .backends import registered


@dataclass(frozen=True)
class KernelSource:
    """Python source of one kernel.

    ``text`` defines a function ``kernel`` in the language of back end ``backend``. ``name`` is for display, in
    MIGraphX's style (``mul_add_relu_kernel``); ``origin`` holds the printed instructions it was generated from. Neither
    affects the machine code.
    """

    backend: str
    name: str
    text: str
    origin: str = field(default="", compare=False)

    def identity(self) -> dict[str, str]:
        """Return everything that the machine code depends on, by field; equal identities have equal objects."""
        import hashlib  # late: it loads OpenSSL, which kernels of a cached plan do not need

        return {"source": hashlib.sha256(self.text.encode()).hexdigest(), **registered(self.backend).identity()}

    @property
    def symbol(self) -> str:
        """Return the exported symbol and store key: ``mgx_`` and 24 hexadecimal digits. It differs between the
        architectures of a back end."""
        symbols, architecture = self._symbols(), registered(self.backend).architecture()
        if architecture not in symbols:
            symbols[architecture] = _symbol(self.identity())
        return symbols[architecture]

    def restore_symbol(self, symbol: str) -> None:
        """Record the symbol that a file from this machine holds, unless the symbol is known."""
        self._symbols().setdefault(registered(self.backend).architecture(), symbol)

    def _symbols(self) -> dict[str, str]:
        symbols: dict[str, str] = self.__dict__.setdefault("_known_symbols", {})
        return symbols


def _symbol(identity: Mapping[str, str]) -> str:
    import hashlib

    lines = "".join(f"{key}={value}\n" for key, value in sorted(identity.items()))
    # 96 bits: collisions are negligible even over the kernels of all users.
    return "mgx_" + hashlib.sha256(lines.encode()).hexdigest()[:24]
