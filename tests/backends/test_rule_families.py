"""Lowering rules are imported only for programs that need them."""

from __future__ import annotations

import pytest

from ..running import said

_PROGRAM = """
import sys
from mgx_numba.targets.lowering.rules import RuleTable
registered, register = {{}}, RuleTable.lowering
def noted(self, *names, **options):
    module = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
    registered.setdefault(module, set()).update(names)
    return register(self, *names, **options)
RuleTable.lowering = noted
from mgx_numba.targets.{target}.rules import FAMILIES, RULES
def imported():
    return sorted(name for name in FAMILIES if f"mgx_numba.targets.{target}.rules.{{name}}" in sys.modules)
assert imported() == [], imported()
assert RULES.get("convolution") is not None and RULES.get("no_such_operator") is None
assert imported() == [], imported()
assert RULES.get("topk").lower.__module__.endswith(".ordering")
assert imported() == ["ordering"], imported()
assert {{"topk", "convolution", "pooling", "gather", "add"}} <= set(RULES.rules)
assert imported() == sorted(FAMILIES), imported()
for name, operators in FAMILIES.items():
    assert registered[name] == set(operators.split()), (name, registered[name])
"""


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_families_are_imported_when_a_program_has_an_operator_that_is_declared(target: str) -> None:
    said(_PROGRAM.format(target=target))
