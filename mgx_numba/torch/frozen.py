"""Compilations with parameters and buffers as constants, each valid as long as these keep their values.

A tensor has kept its values if its address and its version counter are the same. Two writers of PyTorch's do not count
versions: fused optimizers, whose steps a hook reports, and batch normalisation in training mode, for which the contents
of its running statistics are compared (on the CPU). Writing to the memory of other tensors by way of ``tensor.data`` or
of a NumPy array is not detected. A tensor made in inference mode has no version counter, and the counter of one in
shared memory leaves out other processes' writes: these are no constants.
"""

from __future__ import annotations

import ctypes
import operator
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .logs import log_info, warn_once

T = TypeVar("T")

_FEW_CALLS = 16
"""Calls from which on a compilation was worth its time, although a constant then changes."""
_CHANGES = 3
"""Changes of one constant, each after few calls, after which the constant becomes an input."""

_OF_INFERENCE = (
    "parameters or buffers were made in torch.inference_mode(), where PyTorch does not count changes: each call reads "
    "them again, which takes longer than constants of a module that is made outside"
)
_SHARED = (
    "parameters or buffers lie in memory that processes share, whose changes PyTorch does not count: each call reads "
    "them again, which takes longer than constants of a copy of the module (copy.deepcopy) that no process changes"
)

_version = torch.Tensor._version.__get__  # type: ignore[attr-defined]
_address = torch.Tensor.data_ptr
_content = operator.attrgetter("raw")
_MOST_STATISTICS = 1 << 16
"""Most bytes of running statistics whose content each call compares: 16,384 channels of float32."""


class _Variant(Generic[T]):
    """A compilation for one set of constants.

    Attributes:
        value: the result of the compilation.
        calls: number of calls that used it.
        gone: a constant has been deleted; another tensor may lie at its address.
    """

    def __init__(self, constants: Sequence[int], args: Sequence[object], value: T) -> None:
        self.value, self.calls, self.gone = value, 0, False
        self._places = list(constants)
        self._all = _picker(constants)
        tensors = self._all(args)
        self._addresses = tuple(map(_address, tensors))
        self._versions = tuple(map(_version, tensors))
        own = weakref.ref(self)
        self._references = [weakref.ref(tensor, lambda _: _lost(own)) for tensor in tensors]
        self._states = list(map(_state, tensors))
        contents = [(address, content) for address, _, content in self._states if content]
        self._watched = [(ctypes.c_char * len(content)).from_address(address) for address, content in contents]
        self._contents = [content for _, content in contents]
        with _VARIANTS_LOCK:
            _VARIANTS.add(self)

    def holds(self, args: Sequence[object]) -> bool:
        """Return whether the constants among a call's arguments have the values of the compilation."""
        if self.gone:
            return False
        tensors = self._all(args)
        if tuple(map(_address, tensors)) != self._addresses or tuple(map(_version, tensors)) != self._versions:
            return False
        return list(map(_content, self._watched)) == self._contents

    def changed(self, args: Sequence[object]) -> list[int]:
        """Return the positions of changed constants; empty unless ``args`` has the tensors of the compilation."""
        if any(args[place] is not own() for place, own in zip(self._places, self._references)):
            return []
        now = map(_state, self._all(args))
        return [place for place, old, new in zip(self._places, self._states, now) if old != new]

    def forget(self, written: Collection[int]) -> None:
        """Mark the constants whose ``id`` is in ``written`` as changed."""
        for k, own in enumerate(self._references):
            if id(own()) in written:
                self._states[k], self._versions = (0, -1, b""), ()


_VARIANTS: weakref.WeakSet[_Variant[Any]] = weakref.WeakSet()
"""All compilations that exist."""
_VARIANTS_LOCK = threading.Lock()


def _state(tensor: torch.Tensor) -> tuple[int, int, bytes]:
    """Return a tensor's address and version, and the content of what may be running statistics."""
    statistics = tensor.dim() == 1 and tensor.is_floating_point() and not isinstance(tensor, torch.nn.Parameter)
    is_read = (
        statistics and tensor.nbytes <= _MOST_STATISTICS and tensor.device.type == "cpu" and tensor.is_contiguous()
    )
    content = ctypes.string_at(_address(tensor), tensor.nbytes) if is_read else b""
    return _address(tensor), _version(tensor), content


def _uncounted(tensor: torch.Tensor) -> str:
    """Return why PyTorch does not count all changes of a tensor; "" if it counts them."""
    if tensor.is_inference():
        return _OF_INFERENCE
    return _SHARED if tensor.device.type == "cpu" and tensor.is_shared() else ""


def _optimizer_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Note that an optimizer has written to its parameters."""
    with _VARIANTS_LOCK:
        variants = list(_VARIANTS)
    if variants:
        written = {id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        for variant in variants:
            variant.forget(written)


register_optimizer_step_post_hook(_optimizer_step)


def _lost(own: weakref.ref[_Variant[Any]]) -> None:
    variant = own()
    if variant is not None:
        variant.gone = True


class Frozen(Generic[T]):
    """Compilations of one graph, one for each set of constants that calls pass.

    Blocks of one class share a graph, each with its own parameters. If a parameter changes, the graph is compiled
    again; if the parameter changes often, it becomes an input.

    Args:
        constants: positions of the arguments that are constants.
        compile: compiles for arguments, with those at the given positions as constants.
    """

    def __init__(self, constants: Sequence[int], compile: Callable[[Sequence[torch.Tensor], Sequence[int]], T]) -> None:
        self._constants = list(constants)
        self._compile = compile
        self._variants: dict[int, list[_Variant[T]]] = {}  # by the address of the first constant
        self._current: _Variant[T] | None = None
        self._changes: dict[int, int] = {}
        self._lock = threading.Lock()

    def find(self, args: Sequence[object]) -> T:
        """Return the compilation for a call's arguments; compile if there is none."""
        current = self._current
        if current is None or not current.holds(args):
            current = self._other(args)
        current.calls += 1
        return current.value

    def _other(self, args: Sequence[object]) -> _Variant[T]:
        with self._lock:
            for variant in self._variants.get(self._address(args), ()):
                if variant.holds(args):
                    self._current = variant
                    return variant
            self._drop(args)
            self._leave_uncounted(args)
            made = _Variant(self._constants, args, self._compile(args, self._constants))
            self._variants.setdefault(self._address(args), []).append(made)
            self._current = made
            return made

    def _leave_uncounted(self, args: Sequence[object]) -> None:
        """Treat tensors whose changes PyTorch does not count as inputs from now on."""
        reasons = {place: _uncounted(args[place]) for place in self._constants}
        for reason in sorted({*reasons.values()} - {""}):
            warn_once(reason)
        self._constants = [place for place, reason in reasons.items() if not reason]

    def _address(self, args: Sequence[torch.Tensor]) -> int:
        return int(args[self._constants[0]].data_ptr()) if self._constants else 0

    def _drop(self, args: Sequence[object]) -> None:
        """Delete compilations with deleted tensors, or with other values of the tensors in ``args``."""
        kept: dict[int, list[_Variant[T]]] = {}
        for address, variants in self._variants.items():
            for variant in variants:
                changed = [] if variant.gone else variant.changed(args)
                if changed:
                    self._note(changed, variant.calls)
                elif not variant.gone:
                    kept.setdefault(address, []).append(variant)
        self._variants = kept

    def _note(self, changed: Sequence[int], calls: int) -> None:
        log_info("%s parameters have changed since the graph was compiled; it is compiled again", len(changed))
        if calls >= _FEW_CALLS:
            return
        for place in changed:
            self._changes[place] = self._changes.get(place, 0) + 1
            if self._changes[place] >= _CHANGES and place in self._constants:
                self._constants.remove(place)


def _picker(places: Sequence[int]) -> Callable[[Sequence[object]], tuple[object, ...]]:
    """Return a function that takes the members at some places of a sequence."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    only = list(places)
    return lambda values: tuple(values[place] for place in only)
