"""PyTorch's side: the Dynamo backend ``mgx_numba``, and torch_migraphx's names.

``torch.compile(model, backend="mgx_numba")`` needs no import. ``import mgx_numba.torch as torch_migraphx`` runs scripts
that were written for torch_migraphx, whose backend is called ``migraphx``.
"""

from __future__ import annotations

from . import fx
from .backend import mgx_numba, register
from .module import MGXModule

__all__ = ["MGXModule", "fx", "mgx_numba"]

register()
