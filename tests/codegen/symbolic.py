"""Solutions for symbolic lengths, run at lengths of which some were no sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from mgx_numba.codegen.alternatives import alternatives, one_solution, served
from mgx_numba.codegen.launch import Launch, Solution
from mgx_numba.codegen.problems.cluster import Tensor
from mgx_numba.core.dim import Dim, Length, Scope, evaluate
from mgx_numba.core.types import Type, from_numpy
from tests.values import normal

from .launching import run_launch

__all__ = ["UNTRIED", "Plans", "array_of", "at", "scope_of", "tensor"]

SAMPLES = (1, 2, 16, 100)
UNTRIED = (1, 3, 5, 17, 40, 131)
"""Lengths at which solutions are run, most of which are no samples."""


def scope_of(*names: str, low: int = 1, samples: Sequence[int] = SAMPLES) -> tuple[Scope, list[Dim]]:
    """Return a scope with these symbols, and the symbols; each has the samples, the others having their hints."""
    scope = Scope()
    symbols = [scope.symbol(name, low, None, hint) for name, hint in zip(names, (37, 41, 43, 47))]
    scope.samples = [{**scope.hints(), s: n} for s in symbols for n in samples]
    scope.samples += [dict.fromkeys(symbols, n) for n in samples]
    return scope, symbols


def at(value: Any, values: Mapping[Dim, int]) -> Any:
    """Return a value with numbers in the place of symbolic lengths."""
    if isinstance(value, Dim):
        return evaluate(value, values)
    if isinstance(value, (tuple, list)):
        return type(value)([at(one, values) for one in value])
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: at(getattr(value, f.name), values) for f in fields(value)}
        changed = {name: new for name, new in own.items() if new is not getattr(value, name)}
        return dataclasses.replace(value, **changed) if changed else value  # type: ignore[type-var]
    return value


class Plans:
    """One solution for symbolic lengths, and runs of it.

    Args:
        problem: what is to be planned, with symbolic lengths in it.
        solve: plans it, as one launch or a solution.
        most: alternatives that it may have.
    """

    def __init__(self, problem: Any, solve: Callable[[Any], Launch | Solution], most: int = 2) -> None:
        def solved(problem: Any) -> Solution:
            made = solve(problem)
            return Solution((made,)) if isinstance(made, Launch) else made

        found = alternatives(problem, solved)
        assert len(found) <= most, [str(one.condition) for one in found]
        self.condition: Length = served(found)
        self.solution = one_solution(found)

    @property
    def texts(self) -> list[str]:
        """The texts of all kernels."""
        return [kernel.text for kernel in self.solution.kernels]

    def run(self, values: Mapping[Dim, int], operands: Mapping[str, np.ndarray], served: bool = True) -> None:
        """Run the launches at some lengths; arrays are changed in place."""
        assert bool(evaluate(self.condition, values)) or not served, values
        scratch = np.zeros(evaluate(self.solution.scratch, values) + 64, Type.uint8_type.numpy)
        for launch in self.solution.launches:
            assert run_launch(at(launch, values), {"scratch": scratch, **operands}) is None


def tensor(
    lens: Sequence[Length], order: Sequence[int] = (), dtype: Any = np.float32, once: Sequence[int] = ()
) -> Tensor:
    """Return a tensor whose axes lie in an order, the outermost first; those of ``once`` are repeated."""
    strides: dict[int, Length] = {}
    step: Length = 1
    for axis in reversed(order or range(len(lens))):
        strides[axis] = 0 if axis in once else step
        step = step if axis in once else step * lens[axis]
    return Tensor(from_numpy(np.dtype(dtype)), tuple(lens), tuple(strides[a] for a in range(len(lens))))


def array_of(tensor: Tensor, values: Any, seed: int = 0) -> np.ndarray:
    """Return an array that lies like a tensor at some lengths."""
    lens = [evaluate(n, values) for n in tensor.lens]
    strides = [evaluate(s, values) for s in tensor.strides]
    memory = normal(1 + sum((n - 1) * s for n, s in zip(lens, strides)), seed=seed, dtype=tensor.type.numpy, scale=8)
    return np.lib.stride_tricks.as_strided(memory, lens, [s * memory.itemsize for s in strides])
