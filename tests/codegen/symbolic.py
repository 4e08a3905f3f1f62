"""Solutions for symbolic lengths, run also at lengths that were not samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mgx_numba.codegen.alternatives import alternatives, at_lengths, one_solution, served
from mgx_numba.codegen.launch import Launch, Solution
from mgx_numba.codegen.problems.cluster import Tensor
from mgx_numba.core.dim import Dim, Length, Scope, evaluate
from mgx_numba.core.types import Type, from_numpy
from tests.values import normal

from .launching import run_launch

__all__ = ["UNTRIED", "Plans", "array_of", "planned", "scope_of", "symbols", "tensor"]

UNTRIED = (1, 3, 5, 17, 40, 131)
"""Lengths at which solutions are run, most of which are no samples."""
SAMPLES = (1, 2, 3, 4, 16, 64, 300)


def scope_of(**ranges: tuple[int, int | None]) -> tuple[Scope, dict[str, Dim]]:
    """Return a scope with symbols of these ranges. Hints are primes; in each sample all symbols are equal."""
    scope = Scope()
    symbols = {
        name: scope.symbol(name, low, high, prime)
        for (name, (low, high)), prime in zip(ranges.items(), (37, 41, 43, 47))
    }
    scope.samples += [dict.fromkeys(symbols.values(), n) for n in SAMPLES]
    return scope, symbols


def planned(
    planner: Callable[..., Launch | Solution], *arguments: Any, most: int | None = None
) -> tuple[Solution, Length]:
    """Return the solution of a planner for all lengths, and the condition under which it serves lengths.

    ``most`` bounds the number of its alternatives.
    """

    def plan(own: tuple[Any, ...]) -> Solution:
        made = planner(*own)
        return Solution((made,)) if isinstance(made, Launch) else made

    found = alternatives(arguments, plan)
    assert most is None or len(found) <= most, [str(one.condition) for one in found]
    return one_solution(found), served(found)


def symbols(*names: str) -> list[Dim]:
    """Return symbols of a common scope with least value 1."""
    return [*scope_of(**dict.fromkeys(names, (1, None)))[1].values()]


class Plans:
    """A solution for symbolic lengths, and runs of it.

    Args:
        problem: the problem, with symbolic lengths.
        solve: plans the problem as one launch or a solution.
        most: most alternatives that the solution may have.
    """

    def __init__(self, problem: Any, solve: Callable[[Any], Launch | Solution], most: int = 2) -> None:
        self.solution, self.condition = planned(solve, problem, most=most)

    @property
    def texts(self) -> list[str]:
        """The texts of all kernels."""
        return [kernel.text for kernel in self.solution.kernels]

    def run(self, values: Mapping[Dim, int], operands: Mapping[str, np.ndarray]) -> None:
        """Run the launches at some lengths; arrays are changed in place."""
        assert evaluate(self.condition, values), values
        scratch = np.zeros(evaluate(self.solution.scratch, values) + 64, Type.uint8_type.numpy)
        for launch in self.solution.launches:
            assert run_launch(at_lengths(launch, values), {"scratch": scratch, **operands}) is None


def tensor(
    lens: Sequence[Length], order: Sequence[int] = (), dtype: Any = np.float32, once: Sequence[int] = ()
) -> Tensor:
    """Return a tensor whose memory has axes in an order, the outermost first; axes of ``once`` have stride 0."""
    strides: dict[int, Length] = {}
    step: Length = 1
    for axis in reversed(order or range(len(lens))):
        strides[axis] = 0 if axis in once else step
        step = step if axis in once else step * lens[axis]
    return Tensor(from_numpy(np.dtype(dtype)), tuple(lens), tuple(strides[a] for a in range(len(lens))))


def array_of(tensor: Tensor, values: Any, seed: int = 0) -> np.ndarray:
    """Return a random array with a tensor's lengths and strides."""
    lens = [evaluate(n, values) for n in tensor.lens]
    strides = [evaluate(s, values) for s in tensor.strides]
    memory = normal(1 + sum((n - 1) * s for n, s in zip(lens, strides)), seed=seed, dtype=tensor.type.numpy, scale=8)
    return np.lib.stride_tricks.as_strided(memory, lens, [s * memory.itemsize for s in strides])
