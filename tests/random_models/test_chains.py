"""Chains of arithmetic with extreme constants keep their meaning; ``python -m tests.random_models.chains``."""

from __future__ import annotations

import numpy as np
import pytest

from .chain_steps import Chain, Step, chain
from .chain_values import evaluated
from .chains import compare, compiled, described, rewritten, written

BATCHES, BATCH = 8, 30
ON_CPU = (3, 8, 21, 34)
"""Seeds whose kernels are compiled: a vector, rows and images, in float32 and in float16."""
DECIDED = 0.5
"""Least fraction of the results' elements that the comparison must decide, so that the test has an effect."""


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_rewritten_chains_keep_their_bits_or_the_bound(batch: int, fast_math: bool) -> None:
    decided = []
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        case = chain(seed)
        outcome = compare(case, fast_math)
        assert not outcome.message, f"seed {seed}: {outcome.message}\n{described(case)}"
        decided.append(outcome.decided)
    assert np.mean(decided) >= DECIDED


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("seed", ON_CPU)
def test_kernels_of_chains_keep_their_bits_or_the_bound(seed: int, fast_math: bool) -> None:
    outcome = compare(chain(seed), fast_math, "cpu")
    assert not outcome.message, f"{outcome.message}\n{described(chain(seed))}"


def of(dtype: type, x: list[float], *steps: tuple[str, float | None]) -> Chain:
    """Return a chain of operators, each on a value and a constant; ``r`` before a name exchanges the operands."""
    case = Chain(dtype, feeds={"x0": np.array(x, dtype)})
    value = "x0"
    for k, (op, constant) in enumerate(steps):
        inputs = [value]
        if constant is not None:
            case.constants[f"c{k}"] = np.array(constant, dtype)
            inputs = [f"c{k}", value] if op.startswith("r") else [value, f"c{k}"]
        value = f"v{k}"
        case.steps.append(Step(op.lstrip("r"), tuple(inputs), value))
    case.results = [value]
    return case


F, H = np.float32, np.float16
WRITTEN = {
    "(x * 1e-30) * 1e-30": of(F, [1e38, 3e37], ("Mul", 1e-30), ("Mul", 1e-30)),
    "x by 1e-45 and by 1e45 in five steps": of(F, [1, 2], *[("Mul", 1e-15)] * 3, ("Mul", 1e30), ("Mul", 1e15)),
    "(x * 1e-4) * 1e-4 in float16": of(H, [60000, 50000], ("Mul", 1e-4), ("Mul", 1e-4)),
    "(x / 1e30) / 1e30": of(F, [1e38, 3e38], ("Div", 1e30), ("Div", 1e30)),
    "(x + 1) * 1e-25 * 1e-25": of(F, [1e38, 3e38], ("Add", 1), ("Mul", 1e-25), ("Mul", 1e-25)),
    "(x + 1.5 * 2**23) - 1.5 * 2**23": of(F, [0.3, 1.7, -2.5], ("Add", 12582912), ("Sub", 12582912)),
    "(x - 1e6) * 0.1": of(F, [1e6 + 0.25, 1e6 + 0.5], ("Sub", 1e6), ("Mul", 0.1)),
    "(x - 1e8) * 3": of(F, [1e8 + 8, 1e8 + 16], ("Sub", 1e8), ("Mul", 3)),
    "(x - 200) * 300 in float16": of(H, [300, 290], ("Sub", 200), ("Mul", 300)),
    "(x - 2000) * .1 in float16": of(H, [2001, 2002], ("Sub", 2000), ("Mul", 0.1)),
    "1 / (x + 0)": of(F, [-0.0, 0.0], ("Add", 0.0), ("Reciprocal", None)),
    "1 / (0 - x)": of(F, [-0.0, 0.0], ("rSub", 0.0), ("Reciprocal", None)),
    "1 / (x * -1)": of(F, [-0.0, 0.0], ("Mul", -1), ("Reciprocal", None)),
    "1 / (-x * 2)": of(F, [0.0, -0.0], ("Neg", None), ("Mul", 2), ("Reciprocal", None)),
    "floor(x / 3)": of(F, [3, 9, 27], ("Div", 3), ("Floor", None)),
    "floor(x * .1 * 10)": of(F, [3, 7, 9], ("Mul", 0.1), ("Mul", 10), ("Floor", None)),
    "max(x, 0)": of(F, [np.nan, -1, 2], ("Max", 0.0)),
    "0 * x": of(F, [np.nan, np.inf, -1], ("Mul", 0.0)),
    "log(exp(x))": of(F, [200, -200, 1], ("Exp", None), ("Log", None)),
    "(x + 1e8) - 1e8": of(F, [1e8, 1], ("Add", 1e8), ("Add", -1e8)),
    "pow(x, .5)": of(F, [-np.inf, -0.0, 4], ("Pow", 0.5)),
}


KERNELS = ("(x * 1e-30) * 1e-30", "(x - 200) * 300 in float16", "1 / (x + 0)", "(x + 1.5 * 2**23) - 1.5 * 2**23")
"""Chains that are compiled, too."""
EXACT = ("1 / (x + 0)", "1 / (0 - x)", "pow(x, .5)", "x by 1e-45 and by 1e45 in five steps")
"""Chains that fast_math changes: signs of zeros, roots of -inf, and bits that denormals lose."""


@pytest.mark.parametrize("name", WRITTEN)
def test_results_are_those_of_the_written_order(name: str) -> None:
    """After the passes and in kernels; with fast_math, too, but for what it does not keep."""
    case = WRITTEN[name]
    wanted = written(case)[0]
    settings = (False,) if name in EXACT else (False, True)
    runs = [rewritten(case, fast_math) for fast_math in settings]
    if name in KERNELS:
        runs += [compiled(case, fast_math) for fast_math in settings]
    for found in runs:
        np.testing.assert_allclose(found[0].astype(float), wanted.astype(float), rtol=1e-3 if case.dtype is H else 1e-6)
        np.testing.assert_array_equal(np.signbit(found[0]), np.signbit(wanted))


@pytest.mark.parametrize("name", EXACT)
def test_what_fast_math_changes_stays_within_the_bound(name: str) -> None:
    outcome = compare(WRITTEN[name], True)
    assert not outcome.message


def test_what_breaks_the_bound_is_found() -> None:
    """A merged factor that underflows, an offset that cancels, and a rounding to integers that is lost."""
    for name, wrong in (("(x * 1e-30) * 1e-30", 0.0), ("(x - 200) * 300 in float16", np.inf), ("log(exp(x))", np.nan)):
        case = WRITTEN[name]
        (value,) = (evaluated(case)[n] for n in case.results)
        plain = written(case)[0]
        assert not value.beyond_bound(plain, plain).any()
        assert value.beyond_bound(np.full_like(plain, wrong), plain).any()
    (value,) = (evaluated(WRITTEN["(x - 1e8) * 3"])[n] for n in ("v1",))
    plain = written(WRITTEN["(x - 1e8) * 3"])[0]
    assert value.beyond_bound(plain + np.float32(3e4), plain).all()
