"""Symbolic programs compared with `specialize` of the same program for a run's lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mgx_numba.api.program import program as public_program
from mgx_numba.core.dim import Dim, Scope, evaluate
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.specialize import specialize
from mgx_numba.graph.substitution import settled
from mgx_numba.graph.symbolic import symbolic_program
from mgx_numba.graph.validate import validate
from mgx_numba.targets.passes import SOURCE_PASSES

__all__ = ["SETTLED", "assert_like_specialized", "bound", "simplified", "symbolic"]


SETTLED = ("dead_code_elimination", "propagate_constant")
"""Passes after which arithmetic on known lengths is gone."""


def simplified(program: Program) -> Program:
    """Do to a parsed program what `compile` does before lengths are regarded."""
    run_passes(program, SOURCE_PASSES)
    return program


def symbolic(program: Program, lens: Mapping[str, tuple[int, ...]] | None = None) -> tuple[Program, Scope]:
    """Return the symbolic program of a simplified program, and its scope; it is validated."""
    scope = Scope()
    made = symbolic_program(program, scope, lens)
    run_passes(made, SETTLED)
    validate(made)
    return made, scope


def bound(program: Program, scope: Scope, feeds: Mapping[str, np.ndarray]) -> dict[Dim, int] | None:
    """Return the values of the symbols for inputs; None if the program does not serve these."""
    shapes = program.parameter_shapes()
    values = {
        s: n for s in scope.symbols for name, a in feeds.items() for n, d in zip(a.shape, shapes[name].lens) if d is s
    }
    assert len(values) == len(scope.symbols), "a symbol is no input's length"
    if any(not (s.low or 0) <= n or (s.high is not None and n > s.high) for s, n in values.items()):
        return None
    if any(tuple(evaluate(d, values) for d in shapes[name].array_lens) != a.shape for name, a in feeds.items()):
        return None
    return values if evaluate(scope.holds(), values) else None


def assert_like_specialized(program: Program, made: Program, values: Mapping[Dim, int], feeds: dict) -> None:
    """Check a symbolic program with numbers in it: shape rules give its shapes, and it gives the results of the
    program that is specialised for these inputs."""
    numbers = settled(made, values)
    for module in numbers.modules:
        for ins in module:
            copies = ins.name == "reshape" and 0 in ins.op.dims  # a length that happens to be 0 copies none
            if not ins.name.startswith("@") and not copies:
                rule = ins.op.result_shape([i.shape for i in ins.inputs], ins.module_args)
                for wanted, shape in zip(rule.flatten(), ins.shape.flatten(), strict=True):
                    assert wanted.type is shape.type and shape.rank in (None, wanted.rank), ins
                    assert shape.is_dynamic or wanted.lens == shape.lens, ins
    lens = {name: feeds[name].shape for name, s in program.parameter_shapes().items() if s.is_dynamic}
    results, expected = _run(numbers, feeds), _run(specialize(program, lens), feeds)
    for result, wanted in zip(results, expected, strict=True):
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
        if result.dtype.kind in "fcV":
            largest = np.abs(wanted[np.isfinite(wanted)].astype(np.float64)).max(initial=1e-6)
            result, wanted = result.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4 * largest)
        else:
            np.testing.assert_array_equal(result, wanted)


def _run(program: Program, feeds: dict) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in public_program.wrap(program).compile("ref").run(feeds)]
