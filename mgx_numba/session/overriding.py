"""`Overrides`: the programs of a model whose initializers a run gives other values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..api.checking import check
from ..api.program import program
from ..errors import UnsupportedError
from ..messages import INFO, tell
from .reading import Source

__all__ = ["Overrides"]

_MOST_VALUES = 8
"""Programs kept for values that must be constants; each has the memory of its weights. No figures kept."""


class Overrides:
    """Programs by which initializers a run overrides, compiled when a run first does.

    Initializers that nobody overrides stay constants. The overridden become inputs; where an operator must know such a
    value when it is compiled, there is a program for each value instead.

    Args:
        source: what the model is read from again.
        default: the program in which none is overridden.
        compile: compiles another in its place.
    """

    def __init__(self, source: Source, default: program, compile: Callable[[program], Any]) -> None:
        self._source = source
        self._default = default
        self._compile = compile
        self._open: dict[frozenset[str], program | None] = {frozenset(): default}
        self._of_values: OrderedDict[tuple[tuple[str, bytes], ...], program] = OrderedDict()
        self._lock = threading.Lock()

    def program_for(self, feed: dict[str, Any]) -> program:
        """Return the compiled program for a run; values that it has as constants are taken out of ``feed``.

        Raises:
            ParameterError: a value does not fit its initializer.
            MgxError: the model does not allow other values.
        """
        names = frozenset(name for name in self._source.defaults if name in feed)
        if not names:
            return self._default
        with self._lock:
            if names not in self._open:
                self._open[names] = self._opened(names)
            found = self._open[names]
        if found is not None:
            return found
        shapes = self._source.defaults
        values = {name: np.asarray(check(name, feed.pop(name), shapes[name], self._default)) for name in sorted(names)}
        key = tuple((name, value.tobytes()) for name, value in values.items())
        with self._lock:
            if key not in self._of_values:
                made = self._source.read_with_values(
                    {name: value.reshape(shapes[name].array_lens) for name, value in values.items()}
                )
                self._compile(made)
                self._of_values[key] = made
                if len(self._of_values) > _MOST_VALUES:
                    self._of_values.popitem(last=False)
            self._of_values.move_to_end(key)
            return self._of_values[key]

    def _opened(self, names: frozenset[str]) -> program | None:
        """The program with these initializers as inputs; None if it cannot be."""
        try:
            found = self._source.read_with_inputs(names)
            self._compile(found)
        except UnsupportedError as error:
            tell("session", INFO, "%s: compiled for each value, as %s", ", ".join(sorted(names)), error)
            return None
        return found
