"""Programs of PyTorch modules beside PyTorch itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mgx_numba as mgx

torch = pytest.importorskip("torch", reason="PyTorch is not installed: tests of its frontend do not run")

__all__ = ["array", "check", "module_of", "results_of"]


def module_of(function: Callable[..., Any]) -> Any:
    """Return a module whose ``forward`` is a function."""

    class Called(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    return Called()


def array(tensor: Any) -> np.ndarray:
    """Return a tensor's elements."""
    plain = tensor.detach()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def results_of(program: Any, args: Sequence[Any]) -> list[np.ndarray]:
    """Return the results of a compiled program for tensors in the order of its inputs."""
    names = program.get_parameter_names()
    return [np.asarray(v) for v in program.run({n: array(x) for n, x in zip(names, args)})]


def check(
    model: Any,
    args: Sequence[Any],
    *more: Sequence[Any],
    dynamic: Any = None,
    target: str = "ref",
    tolerance: float = 1e-5,
) -> Any:
    """Check that the program of a module or function gives PyTorch's results; return the program.

    Args:
        model: the module or function.
        args: its inputs, for which it is exported.
        more: further inputs of other lengths.
        dynamic: ``dynamic_shapes`` of `from_torch`.
        target: the target.
        tolerance: largest difference, relative to the largest finite element.
    """
    module = model if isinstance(model, torch.nn.Module) else module_of(model)
    shapes = dynamic if dynamic is None or module is model else (dynamic,)  # a function's module takes *args
    program = mgx.from_torch(module.eval(), tuple(args), shapes)
    program.compile(mgx.get_target(target))
    for given in (args, *more):
        with torch.no_grad():
            expected = module(*given)
        wanted = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        found = results_of(program, given)
        assert len(found) == len(wanted)
        for own, theirs in zip(found, map(array, wanted)):
            assert (own.shape, own.dtype) == (theirs.shape, theirs.dtype)
            exact, own = theirs.astype(np.float64), own.astype(np.float64)
            finite = np.isfinite(exact)
            assert np.array_equal(own[~finite], exact[~finite], equal_nan=True)
            scale = np.abs(exact[finite]).max(initial=1e-6)
            np.testing.assert_allclose(own[finite], exact[finite], rtol=0, atol=tolerance * scale)
    return program
