"""Host steps from files: their instructions, and operators, are read when they are first called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..interrupts import whole_module
from ..runtime.plan_json import LengthsReader, LengthsWriter

if TYPE_CHECKING:
    from ..core.dim import Dim
    from .lowering.function_call import FunctionCall
    from .lowering.host_call import HostCall, ReturnCall

__all__ = ["StoredCall", "read_host"]


class StoredCall:
    """What `HostCall.write`, or the ``write`` of another function of host steps, wrote.

    Attributes:
        body: makes a body with a plan: of a module that has its shapes, of kind, content and values from outside that
            `Body.write` gave, and of what reads the plan's lengths. To be set before it is called.
    """

    body: Callable[..., Any]

    def __init__(self, written: Mapping[str, Any], lengths: LengthsReader) -> None:
        self._written = written
        self._lengths = lengths

    def __call__(self, arrays: list) -> list:
        return self._call(arrays)

    def at(self, values: Mapping[Dim, int]) -> HostCall | FunctionCall | ReturnCall:
        """Return it for values of symbols."""
        return self._call.at(values)

    def write(self, lengths: LengthsWriter) -> dict[str, Any]:
        """See `HostStep.write`."""
        return self._call.write(lengths)

    @functools.cached_property
    def _call(self) -> HostCall | FunctionCall | ReturnCall:
        written = self._written
        if "function" in written and not any(isinstance(value, dict) for value in written["values"]):
            whole_module("mgx_numba.targets.lowering.function_call")
            from .lowering.function_call import FunctionCall
            from .lowering.package_names import named

            return FunctionCall(named(*written["function"]), *written["values"])
        return self._of_instructions(written)

    def _of_instructions(self, written: Mapping[str, Any]) -> HostCall | FunctionCall | ReturnCall:
        """Return a call whose values or instruction are read by all that knows operators."""
        whole_module("mgx_numba.targets.lowering.host_call")
        whole_module("mgx_numba.ops")
        from ..graph.instruction import Instruction, Outline
        from .lowering.function_call import FunctionCall
        from .lowering.host_call import EvaluatedBody, HostCall, ReturnCall
        from .lowering.instruction_json import InstructionReader, signature
        from .lowering.package_names import named

        reader = InstructionReader(self._lengths)
        if "function" in written:
            return FunctionCall(named(*written["function"]), *map(reader.value, written["values"]))
        if "returned" in written:
            return ReturnCall(reader.shape(written["returned"]))

        def given(shape: list[Any]) -> Instruction:
            return Instruction(Outline(), (), reader.shape(shape))

        captured = list(map(given, written["captured"]))
        bodies: dict[Any, Any] = {}
        for name, parameters, results, kind, content, places in written["modules"]:
            module = signature(name, list(map(reader.shape, parameters)), list(map(reader.shape, results)))
            outer = [captured[k] for k in places]
            if kind == "program":
                bodies[module] = EvaluatedBody(reader.program(content), outer)
            else:
                bodies[module] = self.body(module, kind, content, outer, self._lengths)
        inputs = list(map(given, written["inputs"]))
        ins = Instruction(reader.operator(written["operator"]), inputs, reader.shape(written["shape"]), list(bodies))
        ins.debug_symbols = tuple(written["debug_symbols"])
        return HostCall(ins, written["layout"], captured, bodies or None)


def read_host(written: dict[str, Any], lengths: LengthsReader) -> Mapping[str, Any]:
    """Return the function of a host step, and what else the step has of it."""
    plans = []
    for module in written.get("modules", ()):
        if module[3] == "plan":
            module[4] = lengths.reader.plan(module[4])
            plans.append(module[4])
    call = StoredCall(written, lengths)
    return {
        "function": call,
        "bind": call.at if written.get("bound") else None,
        "write": call.write,
        "plans": tuple(plans),
        "kernels": tuple([lengths.reader.kernels[number] for number in written.get("kernels", ())]),
    }
