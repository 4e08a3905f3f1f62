"""Compilations with parameters and buffers as constants, each valid as long as these keep their values.

A tensor has kept its values if its address and its version counter are the same. Writing to its memory by way of
``tensor.data`` or of a NumPy array changes neither, and is not detected. A tensor made in inference mode has no
version counter, and is no constant.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

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

_version = torch.Tensor._version.__get__  # type: ignore[attr-defined]
_address = torch.Tensor.data_ptr


class _Variant(Generic[T]):
    """A compilation for one set of constants.

    Attributes:
        value: the result of the compilation.
        calls: number of calls that used it.
        gone: a constant has been deleted; another tensor may lie at its address.
    """

    def __init__(self, constants: Sequence[int], args: Sequence[Any], value: T) -> None:
        self.value, self.calls, self.gone = value, 0, False
        self._places = list(constants)
        self._all = _picker(constants)
        tensors = self._all(args)
        self._addresses = tuple(map(_address, tensors))
        self._versions = tuple(map(_version, tensors))
        own = weakref.ref(self)
        self._references = [weakref.ref(tensor, lambda _: _lost(own)) for tensor in tensors]

    def holds(self, args: Sequence[object]) -> bool:
        """Return whether the constants among a call's arguments have the values of the compilation."""
        if self.gone:
            return False
        tensors = self._all(args)
        return tuple(map(_address, tensors)) == self._addresses and tuple(map(_version, tensors)) == self._versions

    def changed(self, args: Sequence[object]) -> list[int]:
        """Return the positions of changed constants; empty unless ``args`` has the tensors of the compilation."""
        if any(args[place] is not own() for place, own in zip(self._places, self._references)):
            return []
        tensors = self._all(args)
        now = zip(map(_address, tensors), map(_version, tensors))
        before = zip(self._addresses, self._versions)
        return [place for place, old, new in zip(self._places, before, now) if old != new]


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

    def __init__(self, constants: Sequence[int], compile: Callable[[Sequence[Any], Sequence[int]], T]) -> None:
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
            self._leave_inference_tensors(args)
            made = _Variant(self._constants, args, self._compile(args, self._constants))
            self._variants.setdefault(self._address(args), []).append(made)
            self._current = made
            return made

    def _leave_inference_tensors(self, args: Sequence[Any]) -> None:
        """Let the tensors without a version counter be inputs from now on."""
        kept = [place for place in self._constants if not args[place].is_inference()]
        if len(kept) < len(self._constants):
            warn_once(_OF_INFERENCE)
            self._constants = kept

    def _address(self, args: Sequence[Any]) -> int:
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
