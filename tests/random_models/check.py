"""Compare one model, through the frontend, ``ref`` and ``cpu``, with ONNX Runtime.

How far rounding may move a result is measured by `tests.cpu.agreement`: the parsed program runs again with every
floating operation disturbed by a few units in the last place. Integers and bools must be equal to the bit unless that
noise changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx

from mgx_numba.api.program import program as api
from mgx_numba.core.shape import UNBOUNDED, DynamicDimension
from mgx_numba.errors import ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.targets.ref.interpreter import PASSES as REF_PASSES

from ..cpu.agreement import RUNS, Reference, reference, wrong_elements
from ..values import apart
from .generate import Case
from .oracle import OracleError, reference_evaluator, runtime

__all__ = ["CONFIGURATIONS", "Outcome", "check"]

CONFIGURATIONS: dict[str, dict[str, int | bool]] = {
    "cpu exact": {"fast_math": False, "num_threads": 1},
    "cpu fast": {"fast_math": True, "num_threads": 2},
    "cpu open": {"fast_math": False, "num_threads": 1},
}
OPEN = "cpu open"
"""The configuration in which every dimension of the inputs is open."""
MANY = 64
"""Disturbed runs that a difference is held to before it is believed. In few of them a value that lies on the edge
between two integers may stay on its side, or move with another one: a quotient with the zero point that is added to
it."""
ABSOLUTE = frozenset({"sigmoid"})
"""ONNX Runtime's sigmoid is half of a rational function, plus one half: small results have few correct digits."""


@dataclass(frozen=True)
class Outcome:
    """What came of a model.

    Attributes:
        kind: ``agrees``, ``overflows`` (values near the limits of their type decide nothing), ``oracle`` (ONNX Runtime
            refuses the model) or ``differs``.
        where: which of frontend, ref and the configurations differs.
        message: what is wrong.
        decided: part of the results' elements about which something can be said, whatever rounding does.
    """

    kind: str
    where: str = ""
    message: str = ""
    decided: float = 0.0

    @property
    def signature(self) -> tuple[str, str]:
        """Key that minimisation must keep: the differing configuration, and the error."""
        return self.where, self.message.split(":")[0] if self.message.startswith("raises") else "value"


def check(case: Case, configurations: Mapping[str, Mapping[str, int | bool]] | None = None) -> Outcome:
    """Compare all configurations on a model, also with each bool that it is given the other way round."""
    outcome = _check(case, CONFIGURATIONS if configurations is None else configurations)
    turned = {n: ~a for n, a in case.feeds.items() if a.dtype == np.bool_ and a.size == 1}
    if outcome.kind != "agrees" or not turned:
        return outcome
    other = _check(
        replace(case, feeds={**case.feeds, **turned}), CONFIGURATIONS if configurations is None else configurations
    )
    return other if other.kind == "differs" else outcome


def _check(case: Case, configurations: Mapping[str, Mapping[str, int | bool]]) -> Outcome:
    try:
        wanted = runtime(case.model, case.feeds)
    except OracleError as error:
        return Outcome("oracle", "onnxruntime", str(error))
    try:
        program = _parsed(case)
    except Exception as error:
        return Outcome("differs", "frontend", f"raises {type(error).__name__}: {error}")
    try:
        run_passes(program, REF_PASSES)
        wide = _ranked_reference(program, case, absolute=ABSOLUTE)
    except Exception as error:
        return Outcome("differs", "ref", f"raises {type(error).__name__}: {error}")
    if wide.overflows:
        return Outcome("overflows")
    message = _unexplained(wanted, lambda runs: _ranked_reference(program, case, absolute=ABSOLUTE, runs=runs))
    if message:
        message = message.replace("not", "but ref has", 1)
        return Outcome("differs", "ref", f"ONNX Runtime's {message}; {_second_opinion(case, wanted, wide)}")
    message = _wrong_indices(case, "ref", {})
    if message:
        return Outcome("differs", "ref", message)
    for name, options in configurations.items():
        fast = bool(options["fast_math"])
        if fast and not all(_finite(v) for v in (*case.feeds.values(), *_constants(case.model))):
            continue  # identities are used there that hold for finite numbers only
        measure = partial(_measured, program, case, fast)
        message = _run(_parsed(case, name), case, options, measure, [w.shape for w in wanted])
        message = message or _wrong_indices(case, "cpu", options, name)
        if message:
            return Outcome("differs", name, message)
    finite = [np.isfinite(a).ravel() for a in wide.allowed]
    return Outcome("agrees", decided=float(np.mean([f.mean() for f in finite if f.size] or [1.0])))


def _parsed(case: Case, configuration: str = "") -> Program:
    """The model for the lengths of its inputs (a length of 0 in a file alone would be an unknown one), or for any."""
    if configuration == OPEN:
        dims = {name: [DynamicDimension(0, UNBOUNDED)] * array.ndim for name, array in case.feeds.items()}
        return parse_onnx(case.model, map_dyn_input_dims=dims)
    return parse_onnx(case.model, map_input_dims={name: array.shape for name, array in case.feeds.items()})


def _wrong_indices(case: Case, target: str, options: Mapping[str, int | bool], configuration: str = "") -> str:
    """Run with indices out of range, one input at a time, which must be refused; return the problem."""
    if not case.wrong:
        return ""
    compiled = api.wrap(_parsed(case, configuration)).compile(target, **options)
    for name, array in case.wrong.items():
        try:
            runtime(case.model, {**case.feeds, name: array})
        except OracleError:
            try:
                compiled.run({**case.feeds, name: array})
            except ShapeError as error:
                if "out of range" not in str(error):
                    return f"raises {error} for an index out of range in {name}"
            except Exception as error:
                return f"raises {type(error).__name__}: {error} for an index out of range in {name}"
            else:
                return f"an index out of range in {name} has a value"
    return ""


def _run(
    program: Program,
    case: Case,
    options: Mapping[str, int | bool],
    measure: Callable[[int], Reference],
    lens: Sequence[tuple[int, ...]],
) -> str:
    try:
        compiled = api.wrap(program).compile("cpu", **options)
        got, again = (
            [np.asarray(r) for r in compiled.run(feeds)]
            for feeds in (case.feeds, {name: apart(a) for name, a in case.feeds.items()})
        )
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    for k, (first, second) in enumerate(zip(got, again)):
        if first.tobytes() != second.tobytes():
            return f"result {k} differs between runs, or inputs of other strides"
        if first.shape != lens[k]:
            return f"result {k} has lengths {list(first.shape)}, not {list(lens[k])}"
    return _unexplained(got, measure)


def _measured(program: Program, case: Case, fast_math: bool, runs: int) -> Reference:
    return _ranked_reference(program, case, fast_math=fast_math, runs=runs)


def _ranked_reference(program: Program, case: Case, **how: Any) -> Reference:
    """Return the reference results; scalars have no axes, although operators compute vectors of one element."""
    found = reference(program, case.feeds, **how)
    scalars = [s.without_axes for s in program.output_shapes()]
    results, allowed = (
        [a.reshape(()) if scalar else a for a, scalar in zip(arrays, scalars, strict=True)]
        for arrays in (found.results, found.allowed)
    )
    return replace(found, results=results, allowed=allowed)


def _unexplained(got: Sequence[np.ndarray], measure: Callable[[int], Reference]) -> str:
    """Return differences beyond rounding; ``measure`` gives the reference from a number of runs."""
    return _difference(got, measure(RUNS)) and _difference(got, measure(MANY))


def _difference(got: Sequence[np.ndarray], wanted: Reference) -> str:
    for k, (a, b) in enumerate(zip(got, wanted.results, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {k} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        message = wrong_elements(a, b, wanted.allowed[k])
        if message:
            return f"result {k}: {message}"
    return ""


def _second_opinion(case: Case, wanted: Sequence[np.ndarray], ref: Reference) -> str:
    """With whom ONNX's own evaluator agrees."""
    found = reference_evaluator(case.model, case.feeds)
    if found is None:
        return "ONNX's evaluator cannot say"
    if not _difference(found, ref):
        return "ONNX's evaluator agrees with ref"
    same = not _difference(found, Reference(list(wanted), ref.allowed))
    return f"ONNX's evaluator agrees with {'ONNX Runtime' if same else 'neither'}"


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _constants(model: onnx.ModelProto) -> list[np.ndarray]:
    return [onnx.numpy_helper.to_array(t) for t in model.graph.initializer]
