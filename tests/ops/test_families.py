"""Files of operators are imported on first request of their operators."""

from __future__ import annotations

from ..running import said

_PROGRAM = """
import sys
from mgx_numba.ops import OPERATORS, POINTWISE_FILES, base
registered, register = {}, base.register
def noted(cls):
    module = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
    registered.setdefault(module, set()).add(cls.name)
    return register(cls)
base.register = noted
def imported():
    return {name for name in OPERATORS if f"mgx_numba.ops.{name}" in sys.modules}
import mgx_numba.graph.program
assert imported() == set(), imported()
assert base.is_known("topk") and not base.is_known("no_such_operator") and "topk" in base.known_operators()
assert imported() == set(), imported()
assert base.make_op("topk", k=2).name == "topk"
assert "topk" in imported() and "rnn" not in imported(), imported()
for name in base.known_operators():
    cls = base.operator_class(name)
    assert cls.name == name
    if issubclass(cls, base.Pointwise):
        assert any(name in OPERATORS[file].split() for file in POINTWISE_FILES), name
assert imported() == set(OPERATORS)
for module, names in OPERATORS.items():
    assert registered[module] == set(names.split()), (module, registered[module])
"""


def test_files_of_operators_have_the_operators_that_are_declared() -> None:
    said(_PROGRAM)
