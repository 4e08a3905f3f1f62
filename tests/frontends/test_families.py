"""Files of parsers are imported only for models with their operators."""

from __future__ import annotations

from ..running import said

_PROGRAM = """
import sys
from mgx_numba.frontends.onnx import registry
registered = {}
def note(function):
    def noted(*names, **options):
        frame = sys._getframe(1)
        while frame.f_code.co_name != "<module>":
            frame = frame.f_back
        module = frame.f_globals["__name__"].rpartition(".")[2]
        registered.setdefault(module, set()).update(n for n in names if isinstance(n, str))
        return function(*names, **options)
    return noted
registry.register = note(registry.register)
if hasattr(registry, "register_handler"):
    registry.register_handler = note(registry.register_handler)
def imported():
    return {name for name in registry.FAMILIES if f"mgx_numba.frontends.onnx.{name}" in sys.modules}
before = imported()
assert registry.find('', "NoSuchOperator") is None
assert imported() == before
assert registry.find('', "ArgMax") is not None
assert imported() - before == {"reduction"}, imported()
for name in registry.names():
    registry.find('', name)
assert imported() == set(registry.FAMILIES)
for name, operators in registry.FAMILIES.items():
    assert registered[name] == set(operators.split()), (name, registered[name])
"""


def test_files_of_parsers_have_the_operators_that_are_declared() -> None:
    said(_PROGRAM)
