"""Compiling a model three times as large makes about three times as many calls, in every stage and graph form."""

from __future__ import annotations

import pytest

from bench.scaling import FORMS, CallCounter, measure, model_of

NODES = 60
FEW = 2e-3
"""Millions of calls; what a stage calls once shows in fewer."""
GROWTH = 6
"""Accepted growth; a quadratic cost grows by 9. Fusion regions and buffer placement have limits that such small models
do not reach."""


@pytest.mark.parametrize("form", FORMS)
def test_stages_grow_as_the_model_does(form: str) -> None:
    clock = CallCounter()
    try:
        measure(model_of(form, NODES // 4))  # imports, and what is computed once
        small, large = (measure(model_of(form, n), clock).stages for n in (NODES, 3 * NODES))
    finally:
        clock.stop()
    assert len(large) > 20
    steep = {stage: (small[stage], n) for stage, n in large.items() if n > FEW and n > GROWTH * small[stage]}
    assert steep == {}


def test_calls_are_counted() -> None:
    clock = CallCounter()
    before = clock()
    for _ in range(1000):
        len([])
    after = clock()
    clock.stop()
    assert 1e-3 <= after - before < 1.1e-3
