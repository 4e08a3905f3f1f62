"""Random programs through the whole cpu pipeline have the values of ref, for any sharing of memory and work."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.options import TargetOptions

from .agreement import assert_agrees, assert_identical, reference, run
from .random_programs import Builder, seeded

STEPS = 12
SEEDS = 40
OVERFLOWING = {2, 5, 10}
"""Seeds of programs whose values overflow with all inputs, so that they decide nothing: no more than a few."""
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def compare(builder: Builder) -> bool:
    """Check the builder's program in every configuration; returns whether some inputs keep clear of overflow.

    Programs are valid by construction: what ``ref`` raises is an error here. Of results that overflow, type, lengths
    and that they are the same again are checked.
    """
    batches = [builder.inputs(seed) for seed in (1, 2)]
    wanted = [reference(builder.program, inputs) for inputs in batches]
    optimized = optimize(builder.program, TargetOptions(fast_math=False), validate=True)
    for options in ({"num_threads": 1}, {"num_threads": 2, "memory_reuse": False}):
        first, other, again = run(optimized, [*batches, batches[0]], **options)
        assert_identical(first, again)
        for got, expected in zip((first, other), wanted):
            assert_agrees(got, expected)
    return not all(w.overflows for w in wanted)


@SETTINGS
@given(st.data())
def test_random_programs_have_the_values_of_ref(data: st.DataObject) -> None:
    builder = Builder(lambda low, high: data.draw(st.integers(low, high)))
    builder.build(STEPS)
    compare(builder)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seeded_programs_have_the_values_of_ref(seed: int) -> None:
    assert compare(seeded(seed, STEPS)) != (seed in OVERFLOWING)
