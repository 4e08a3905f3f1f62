"""One planned call of a kernel, with symbolic operands that the target replaces by addresses."""

from __future__ import annotations

from dataclasses import dataclass

from .kernel import KernelSource

__all__ = ["Launch", "Operand"]


@dataclass(frozen=True)
class Operand:
    """Address of a buffer that is not yet placed: ``offset`` bytes into the buffer called ``name``.

    Contractions use the names ``x`` (activations), ``w`` (packed weights, or the second activation operand), ``out``,
    ``scratch``, and ``e0``, ``e1``, ... for the operands of the epilogue.
    """

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Launch:
    """``kernel(args, begin, end)`` over the tasks 0 to ``tasks``, claimed ``grain`` at a time.

    ``args`` are the kernel's int64 slots. ``flops`` and ``bytes`` are what the whole launch computes and the least it
    must move. A launch may read what earlier launches of the same list wrote; its own tasks are independent.
    """

    kernel: KernelSource
    args: tuple[int | Operand, ...]
    tasks: int
    grain: int = 1
    flops: int = 0
    bytes: int = 0
