"""Fallback steps read from files; their instructions and operators are decoded at the first call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..interrupts import whole_module
from ..json_types import JsonArray, JsonObject
from ..runtime.plan_json import LengthsReader, LengthsWriter

if TYPE_CHECKING:
    from ..core.dim import Dim
    from ..graph.program import Program
    from .lowering.fallback_call import FallbackCall, ReturnCall
    from .lowering.function_call import FunctionCall
    from .ref.interpreter import RunProgram


class StoredCall:
    """A fallback step's function as `FallbackCall.write` (or the ``write`` of another host function) stored it,
    decoded when first called.

    Attributes:
        body: makes a submodule's body that has a plan. Arguments: a module with the submodule's shapes; kind, content
            and captured values as `Body.write` returned them; the reader of the plan's lengths. Set by the target
            before the first call.
        compile: see `StepMemory.compile`; set by the target, too.
    """

    body: Callable[..., object]
    compile: Callable[[Program], RunProgram] | None = None

    def __init__(self, written: JsonObject, lengths: LengthsReader) -> None:
        self._written = written
        self._lengths = lengths

    def __call__(self, arrays: list) -> list:
        return self._call(arrays)

    def at(self, values: Mapping[Dim, int]) -> FallbackCall | ReturnCall:
        """Return the call with the symbols replaced by values."""
        return self._call.at(values)  # type: ignore[union-attr]  # a function is not bound to lengths

    def write(self, lengths: LengthsWriter) -> dict[str, object]:
        return self._call.write(lengths)

    @functools.cached_property
    def _call(self) -> FallbackCall | FunctionCall | ReturnCall:
        written = self._written
        if "function" in written and not any(isinstance(value, dict) for value in written["values"]):
            whole_module("mgx_numba.targets.lowering.function_call")
            from .lowering.function_call import FunctionCall
            from .lowering.package_names import named

            return FunctionCall(named(*written["function"]), *written["values"])
        return self._of_instructions(written)

    def _of_instructions(self, written: JsonObject) -> FallbackCall | FunctionCall | ReturnCall:
        """Return the call of a step that holds operators or shapes; imports all operators."""
        whole_module("mgx_numba.targets.lowering.fallback_call")
        whole_module("mgx_numba.ops")
        from ..graph.instruction import Instruction, Outline
        from .lowering.fallback_call import EvaluatedBody, FallbackCall, ReturnCall, signature
        from .lowering.function_call import FunctionCall
        from .lowering.instruction_json import InstructionReader
        from .lowering.package_names import named

        reader = InstructionReader(self._lengths)
        if "function" in written:
            return FunctionCall(named(*written["function"]), *map(reader.value, written["values"]))
        if "returned" in written:
            return ReturnCall(reader.shape(written["returned"]))

        def given(shape: JsonArray) -> Instruction:
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
        return FallbackCall(ins, written["layout"], captured, bodies or None, self.compile)


def read_host(written: dict[str, Any], lengths: LengthsReader) -> Mapping[str, object]:
    """Return the fields of a fallback step that a file stores: its function, binding, writer, plans and kernels."""
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
