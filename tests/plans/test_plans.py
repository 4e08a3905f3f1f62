"""Plans as JSON: equal for equal programs, with named differences."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.options import TargetOptions

from .compare import differences
from .record import Record

NAME = "sum"


def recorded() -> dict[str, Any]:
    """Return a file's content with the plan of an addition."""
    program = Program()
    x, y = (program.main.add_parameter(name, Shape(Type.float_type, (3, 5))) for name in "xy")
    program.main.add_return([program.main.add_instruction("add", [x, y])])
    options, record = TargetOptions(num_threads=2), Record()
    record.plans[NAME] = record.plan(lower(optimize(program, options), options))
    content = {"about": {"threads": 2}, "plans": record.plans, "kernels": record.kernels}
    return json.loads(json.dumps(content))


def test_the_same_program_is_recorded_alike() -> None:
    assert differences(recorded(), recorded()) == []


def test_an_argument_that_differs_is_named() -> None:
    before = recorded()
    after = copy.deepcopy(before)
    after["plans"][NAME]["steps"][0]["args"][3] += 1
    (found,) = differences(before, after)
    assert found.startswith("sum.steps[0].args[3]: ")


def test_a_text_that_differs_is_shown_once() -> None:
    before = recorded()
    before["plans"]["again"] = copy.deepcopy(before["plans"][NAME])
    after = copy.deepcopy(before)
    (key,) = after["kernels"]
    name, text = after["kernels"].pop(key)
    after["kernels"]["other"] = [name, text.replace("while", "until")]
    for plan in after["plans"].values():
        plan["steps"][0]["kernel"] = "other"
    first, second = differences(before, after)
    assert "until" in first
    assert "until" not in second


def test_a_plan_that_only_one_has_differs() -> None:
    before = recorded()
    assert differences(before, {**before, "plans": {}}) == ["sum: only before"]


def test_plans_of_different_machines_are_not_compared() -> None:
    before = recorded()
    with pytest.raises(ValueError, match="different machines"):
        differences(before, {**before, "about": {"threads": 3}})
