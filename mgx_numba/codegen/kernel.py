"""Kernel sources, and the identity under which their machine code is stored. Needs neither Numba nor LLVM."""

from __future__ import annotations

from dataclasses import field

from ..dataclass import dataclass
from .backends import registered

Environment = tuple[tuple[str, str], ...]
"""Everything beside a kernel's source that its machine code depends on: fields of `Backend.identity`."""


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
        symbols, environment = self._symbols(), self._environment()
        if environment not in symbols:
            symbols[environment] = _symbol(self.text, environment)
        return symbols[environment]

    def restore_symbol(self, symbol: str) -> None:
        """Record the symbol that a file from this machine holds, unless the symbol is known."""
        self._symbols().setdefault(self._environment(), symbol)

    def _symbols(self) -> dict[Environment, str]:
        symbols: dict[Environment, str] = self.__dict__.setdefault("_known_symbols", {})
        return symbols

    def _environment(self) -> Environment:
        return tuple(registered(self.backend).identity().items())


def _symbol(text: str, environment: Environment) -> str:
    import hashlib

    identity = {"source": hashlib.sha256(text.encode()).hexdigest(), **dict(environment)}
    lines = "".join(f"{key}={value}\n" for key, value in sorted(identity.items()))
    # 96 bits: collisions are negligible even over the kernels of all users.
    return "mgx_" + hashlib.sha256(lines.encode()).hexdigest()[:24]
