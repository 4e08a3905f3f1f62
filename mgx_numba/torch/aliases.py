"""Detection of calls whose inputs share memory otherwise than those for which a graph with writes was compiled.

AOTAutograd compiles a graph that writes to its inputs for the shared memory of the first call's inputs. Dynamo's guards
do not see where in a storage an input lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .logs import warn_once

Run = Callable[..., Any]
Place = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]
"""Of an input that shares memory: position, first element and bytes of its storage, lengths, strides."""


def with_alias_check(compiled: Run, eager: Run, example_inputs: Sequence[object]) -> Run:
    """Return a function that runs ``compiled``, and ``eager`` if inputs share memory otherwise than at the first call.

    Parameters are not compared: they stay the same tensors.
    """
    places = [k for k, x in enumerate(example_inputs) if isinstance(x, torch.Tensor) and _is_compared(x)]
    if len(places) < 2:
        return compiled
    first: list[frozenset[Place]] = []

    def run(*args: Any) -> Any:
        shared = _shared(args, places)
        if not first:
            first.append(shared)
        if shared == first[0]:
            return compiled(*args)
        warn_once("a call runs in eager mode: it writes to inputs that share memory otherwise than at the first call")
        return eager(*args)

    return run


def _is_compared(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and not isinstance(x, torch.nn.Parameter) and not is_traceable_wrapper_subclass(x)


def _shared(args: Sequence[Any], places: Sequence[int]) -> frozenset[Place]:
    """Return the inputs whose range of memory overlaps that of another one."""
    spans = sorted([(*_span(args[k]), k) for k in places])
    found: set[int] = set()
    last = spans[0]
    for span in spans[1:]:
        if span[0] < last[1]:
            found |= {last[2], span[2]}
        last = max(last, span, key=lambda s: s[1])
    return frozenset(_place(k, args[k]) for k in found) if found else _NONE


_NONE: frozenset[Place] = frozenset()


def _span(x: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and of the byte behind its last one."""
    start = x.data_ptr()
    if x.is_contiguous() or not x.numel():
        return start, start + x.nbytes
    reach = 1 + sum((length - 1) * stride for length, stride in zip(x.shape, x.stride()))
    return start, start + reach * x.element_size()


def _place(place: int, x: torch.Tensor) -> Place:
    return place, x.storage_offset(), x.untyped_storage().nbytes(), tuple(x.shape), x.stride()
