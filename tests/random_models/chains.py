"""Chains of arithmetic with constants of extreme size: ``python -m tests.random_models.chains --seeds 0:10000``.

A chain is a small ONNX model in float32 or float16 whose intermediate values may have several readers. The passes of
the targets rewrite it, and ``ref`` evaluates the rewritten program. Without ``fast_math`` it must give what the written
operators give, to the bit; with ``fast_math`` it must keep the bound of `mgx_numba.graph.passes.rules.merging`.
``--targets cpu`` runs the kernels, too. The exit status is 1 if a chain differs.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from mgx_numba.api.program import program as api
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.passes import run_passes
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.passes import PASSES
from mgx_numba.targets.ref.interpreter import evaluate

from .chain_steps import Chain, chain
from .chain_values import Known, evaluated

__all__ = ["Outcome", "compare", "written"]

PROGRESS = 1000
"""Number of chains between two lines of progress."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a chain in one configuration.

    Attributes:
        message: description of the error; "" if the results agree.
        decided: fraction of the results' elements that the comparison can decide.
    """

    message: str
    decided: float


def written(case: Chain) -> list[np.ndarray]:
    """Return the results of the model as written, each operator rounded to its type."""
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in evaluate(parse_onnx(case.model), case.feeds)]


def rewritten(case: Chain, fast_math: bool) -> list[np.ndarray]:
    """Return the results of the program after the passes of compiled targets, evaluated by ``ref``."""
    program = parse_onnx(case.model)
    with np.errstate(all="ignore"):
        run_passes(program, PASSES, pass_options(TargetOptions(fast_math=fast_math, num_threads=1)))
        return [np.asarray(r) for r in evaluate(program, case.feeds)]


def compiled(case: Chain, fast_math: bool) -> list[np.ndarray]:
    """Return the results of the CPU's kernels."""
    program = api.wrap(parse_onnx(case.model)).compile("cpu", fast_math=fast_math, num_threads=1)
    return [np.asarray(r) for r in program.run(case.feeds)]


RUNS = {"passes": rewritten, "cpu": compiled}


def compare(case: Chain, fast_math: bool, run: str = "passes") -> Outcome:
    """Compare the results of a chain in one configuration with the chain as written."""
    plain, known = written(case), evaluated(case)
    try:
        found = RUNS[run](case, fast_math)
    except Exception as error:
        return Outcome(f"raises {type(error).__name__}: {error}", 0.0)
    decided = []
    for name, wanted, got in zip(case.results, plain, found):
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return Outcome(f"{name}: {got.dtype}{got.shape} for {wanted.dtype}{wanted.shape}", 0.0)
        value = known[name]
        if fast_math:
            wrong, looked_at = value.beyond_bound(got, wanted), value.in_range
        elif value.is_exact and not (run == "cpu" and case.has_functions):
            looked_at = np.broadcast_to(~np.asarray(value.any_zero), got.shape)
            wrong = _differ(got, wanted) & looked_at
        else:
            wrong, looked_at = value.beyond_rounding(got, wanted), value.in_range
        if wrong.any():
            return Outcome(_described(name, wrong, got, wanted, value), 0.0)
        decided.append(float(looked_at.mean()))
    return Outcome("", float(np.mean(decided)))


def _differ(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where the bits of two arrays differ; all NaN are equal."""
    bits = f"u{got.itemsize}"
    same = np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(wanted).view(bits)
    return ~(same | (np.isnan(got) & np.isnan(wanted)))


def _described(name: str, wrong: np.ndarray, got: np.ndarray, wanted: np.ndarray, value: Known) -> str:
    at = tuple(int(i[0]) for i in np.nonzero(wrong))
    numbers = f"{got[at]!r}, as written {wanted[at]!r}, float64 {value.value[at]!r}, largest {value.largest[at]!r}"
    return f"{name}{list(at)} is {numbers}; {int(wrong.sum())} of {wrong.size} differ"


def described(case: Chain) -> str:
    """Return the chain and its inputs as text."""
    inputs = "\n".join(f"{name} = {array.ravel()[:12].tolist()}" for name, array in case.feeds.items())
    return f"{onnx.printer.to_text(case.model)}\n{inputs}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_models.chains", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first and one past the last, or one seed (default: 0:1000)")
    parser.add_argument("--targets", default="passes", help="passes, cpu or both, by commas (default: passes)")
    parser.add_argument("--print", action="store_true", help="print every chain that differs")
    given = parser.parse_args(arguments)
    first, _, end = given.seeds.partition(":")
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    decided: list[float] = []
    started = time.process_time()
    for seed in range(int(first), int(end or int(first) + 1)):
        case = chain(seed)
        for run in given.targets.split(","):
            for fast_math in (False, True):
                outcome = compare(case, fast_math, run)
                counts["differ" if outcome.message else "agree"] += 1
                decided.append(outcome.decided)
                if outcome.message:
                    print(f"seed {seed} {run} {'fast' if fast_math else 'exact'}: {outcome.message}", flush=True)
                    if given.print:
                        print(described(case), flush=True)
        if (seed + 1) % PROGRESS == 0:
            print(f"up to seed {seed}: {dict(counts)}", flush=True)
    print(f"{dict(counts)}, {np.mean(decided):.1%} of elements decided, {time.process_time() - started:.0f} s of CPU")
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
