"""PyTorch's side: the Dynamo backend ``mgx_numba``, and torch_migraphx's names.

``torch.compile(model, backend="mgx_numba")`` needs no import. ``import mgx_numba.torch as torch_migraphx`` runs scripts
that were written for torch_migraphx, whose backend is called ``migraphx``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .backend import mgx_numba, register

if TYPE_CHECKING:
    from . import fx
    from .module import MGXModule

__all__ = ["MGXModule", "fx", "mgx_numba"]

register()


def __getattr__(name: str) -> Any:
    """Import ``fx`` or ``MGXModule`` at its first use: the backend runs without the exporter."""
    if name == "fx":
        return importlib.import_module(f"{__name__}.fx")
    if name == "MGXModule":
        return importlib.import_module(f"{__name__}.module").MGXModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
