"""Submodules with both symbolic lengths of the outer program and data-dependent lengths."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ...codegen.kernel import KernelSource
from ...core.device_array import lens_of
from ...core.dim import Dim, SymbolicLengthError, symbols_of
from ...graph.program import Program
from ...graph.substitution import lengths_of, settled
from ...runtime.gpu.engine import Queue
from ..base import Results

MOST_KNOWN = 16
"""Maximum number of sets of outer lengths for which a body keeps compiled programs."""


class OpenBody:
    """A submodule compiled for each set of values of the outer symbols, as a program with dynamic inputs."""

    def __init__(self, program: Program, compile: Callable[[Program], Any], examples: Mapping[Dim, int]) -> None:
        """Create the body; it is compiled at once for the values ``examples``, so that its kernels exist.

        Raises:
            SymbolicLengthError: a symbol is not the length of any of its inputs.
        """
        self._program, self._compile = program, compile
        self._sources: dict[Dim, tuple[str, int]] = {}
        for name, shape in program.parameter_shapes().items():
            for axis, length in enumerate(() if shape.is_dynamic else shape.lens):
                if isinstance(length, Dim) and symbols_of([length]) == [length]:
                    self._sources.setdefault(length, (name, axis))
        self._symbols = symbols_of(lengths_of(program))
        for symbol in self._symbols:
            if symbol not in self._sources:
                raise SymbolicLengthError(f"no input of a body tells the length {symbol}")
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._example = self._compiled_for(tuple([examples[symbol] for symbol in self._symbols]))

    def kernels(self) -> list[KernelSource]:
        """Return the kernels of the program that was compiled for the examples."""
        return self._example.kernels()  # type: ignore[no-any-return]

    def run_on(self, queue: Queue, inputs: Mapping[str, object]) -> Results:
        places = (self._sources[symbol] for symbol in self._symbols)
        key = tuple([lens_of(inputs[name])[axis] for name, axis in places])
        with self._lock:
            made = self._compiled_for(key)
        return made.run_on(queue, inputs)  # type: ignore[no-any-return]

    def _compiled_for(self, key: tuple[int, ...]) -> Any:
        found = self._known.pop(key, None)
        if found is None:
            found = self._compile(settled(self._program, dict(zip(self._symbols, key))))
        self._known[key] = found
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return found
