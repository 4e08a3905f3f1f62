"""Inputs of subclasses of ``torch.Tensor`` that PyTorch's operators take as they are.

Dynamo traces the ``__torch_function__`` of such a class and restores the class of results. The operators of a call must
get plain tensors: the modes that are active in AOTAutograd's functions refuse other classes. AOTAutograd itself unwraps
classes with a ``__torch_dispatch__``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["with_plain_inputs"]


def with_plain_inputs(run: Callable[..., object], inputs: Sequence[object]) -> Callable[..., object]:
    """Return ``run`` with plain tensors in place of inputs whose class is a subclass; ``run`` if no input is one.

    The plain tensor of an input shares its memory and version counter, and is the same in each call: parameters and
    buffers are recognised by identity.

    Args:
        inputs: example inputs; later inputs have the same classes, which Dynamo guards.
    """
    places = [place for place, value in enumerate(inputs) if _is_subclass(value)]
    if not places:
        return run
    known = WeakIdKeyDictionary()

    def plain(value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor | None = known.get(value)
        if found is None or found.data_ptr() != value.data_ptr():  # ``value.data`` has been replaced
            with torch._C.DisableTorchFunctionSubclass():
                found = known[value] = value.as_subclass(torch.Tensor)
        return found

    def call(*args: object) -> object:
        own = list(args)
        for place in places:
            own[place] = plain(own[place])  # type: ignore[arg-type]
        return run(*own)

    return call


def _is_subclass(value: object) -> bool:
    """Return whether a value has a subclass of `torch.Tensor` without a ``__torch_dispatch__`` as its class."""
    if not isinstance(value, torch.Tensor) or type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False
    return type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
