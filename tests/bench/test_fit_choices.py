"""The cost model's choices on recorded machines, against the times that were measured there."""

from __future__ import annotations

import pytest

from bench import fit_choices
from bench.fit_choices import Data, machines, regret
from mgx_numba.codegen.cpu.contraction.strassen import solver
from mgx_numba.codegen.cpu.machine_record import SHIPPED

RECORDED = {data.name: data for data in machines()}


def test_every_recorded_machine_has_a_shipped_record() -> None:
    assert {"znver3", "znver5", "emeraldrapids"} <= set(RECORDED)
    assert {data.cpu for data in RECORDED.values()} <= {path.stem for path in SHIPPED.glob("*.json")}


@pytest.mark.parametrize("data", RECORDED.values(), ids=RECORDED)
def test_choices_lose_at_most_three_percent(data: Data) -> None:
    found = data.choices()
    assert len(found) == len(data.problems) and regret(found) <= 0.03


def test_a_fit_finds_what_was_spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With estimates of Strassen's method a third too low, random steps reduce the loss, and report the change."""
    data = RECORDED["znver5"]
    few = Data(
        data.name, data.cpu, data.features, data.threads, tuple(m for m in data.problems if "products" in m.family)
    )
    monkeypatch.setattr(fit_choices, "COEFFICIENTS", {"strassen.solver": "EFFICIENCY"})
    monkeypatch.setattr(solver, "EFFICIENCY", 1.4)
    before = fit_choices.regret_of([few])
    changed = fit_choices.fit([few], 20)
    assert fit_choices.regret_of([few]) < before and list(changed) == [("strassen.solver", "EFFICIENCY")]
    monkeypatch.undo()
    fit_choices.forget_estimates()
