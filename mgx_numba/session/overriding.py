"""`Overrides`: compiled variants of a model in which a run overrides initializers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ..api.program import program
from .reading import Source


class Overrides:
    """Compiled programs by the set of initializers that a run overrides.

    In each program the overridden initializers are inputs, and all other initializers are constants. A program is
    compiled when a run first overrides its set of initializers.

    Args:
        source: the source from which the model is read again.
        default: the compiled program without overridden initializers.
        compile: function that compiles a program for the session.
    """

    def __init__(self, source: Source, default: program, compile: Callable[[program], object]) -> None:
        self._source = source
        self._compile = compile
        self._programs: dict[frozenset[str], program] = {frozenset(): default}
        self._lock = threading.Lock()

    def program_for(self, feed: Mapping[str, object]) -> program:
        """Return the compiled program for the inputs of a run.

        Raises:
            MgxError: the model cannot be read or compiled with these initializers as inputs.
        """
        names = frozenset(name for name in self._source.defaults if name in feed)
        found = self._programs.get(names)
        if found is None:
            with self._lock:
                if names not in self._programs:
                    made = self._source.read_with_inputs(names)
                    self._compile(made)
                    self._programs[names] = made
                found = self._programs[names]
        return found
