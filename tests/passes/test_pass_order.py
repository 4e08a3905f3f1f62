"""The order of passes follows from the reasons that each run of a pass gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from graphlib import TopologicalSorter

import pytest

from mgx_numba.graph.passes.base import known_passes
from mgx_numba.targets.passes import GPU_PASSES, ORDER, PASSES, PassRun


def relations(runs: Sequence[PassRun]) -> dict[str, set[str]]:
    """Return for each run the runs that its own reasons, or theirs, put before it."""
    found: dict[str, set[str]] = {run.run: set(run.after) for run in runs}
    for run in runs:
        for later in run.before:
            found[later].add(run.run)
    return found


def derived(runs: Sequence[PassRun], listed: Sequence[str]) -> list[str]:
    """Return the order that the reasons give; runs without an order between them come as they are listed."""
    sorter = TopologicalSorter(relations(runs))
    sorter.prepare()
    ready: list[str] = []
    order: list[str] = []
    while sorter.is_active():
        ready += sorter.get_ready()
        ready.sort(key=listed.index)
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return order


def test_the_reasons_give_the_order() -> None:
    listed = [run.run for run in ORDER]
    assert len(set(listed)) == len(listed)
    shuffled = list(ORDER)
    random.Random(0).shuffle(shuffled)
    assert derived(shuffled, listed) == listed


@pytest.mark.parametrize("run", [run for run in ORDER if run.after or run.before], ids=lambda run: run.run)
def test_a_run_at_a_wrong_place_is_found(run: PassRun) -> None:
    listed = [other.run for other in ORDER if other is not run]
    for other in run.after:
        wrong = list(listed)
        wrong.insert(wrong.index(other), run.run)
        assert derived(ORDER, wrong) != wrong
    for other in run.before:
        wrong = list(listed)
        wrong.insert(wrong.index(other) + 1, run.run)
        assert derived(ORDER, wrong) != wrong


def test_each_run_gives_a_reason_or_is_named_in_one() -> None:
    related = relations(ORDER)
    named = {earlier for runs in related.values() for earlier in runs}
    assert [run.run for run in ORDER if not related[run.run] and run.run not in named] == []
    assert all(reason for run in ORDER for reason in (*run.after.values(), *run.before.values()))


def test_runs_are_those_of_known_passes_and_numbered_in_order() -> None:
    count: dict[str, int] = {}
    for run in ORDER:
        count[run.name] = count.get(run.name, 0) + 1
        assert run.run == (run.name if count[run.name] == 1 else f"{run.name}:{count[run.name]}")
    assert set(count) <= set(known_passes())


def test_targets_leave_out_runs_and_move_none() -> None:
    names = [run.name for run in ORDER]
    for passes in (PASSES, GPU_PASSES):
        rest = iter(names)
        assert all(name in rest for name in passes)
    assert set(PASSES) - set(GPU_PASSES) == {
        "eliminate_data_type", "store_bfloat16", "one_pass_variance", "rewrite_narrow_convolution",
    }  # fmt: skip
