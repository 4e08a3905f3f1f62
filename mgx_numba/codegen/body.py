"""Pointwise work as calls of the scalar-operation protocol: of a fused module, or recorded as data for any back end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..core.types import Type
from ..dataclass import dataclass
from ..graph.instruction import Instruction
from ..graph.module import Module
from ..ops.base import Pointwise
from ..ops.scalar import ScalarOps, TypeScalar

MAX_NAME = 96
"""Most characters of a kernel's display name; file systems allow 255."""


@dataclass(frozen=True)
class ScalarCall:
    """One call of the protocol: method, operand numbers, result type.

    For ``const`` the type is the constant's, and ``constant`` holds its bytes as NumPy stores them, so that zeros of
    different signs, and NaNs, compare bitwise.
    """

    method: str
    operands: tuple[int, ...]
    dtype: Type
    constant: bytes = b""


@dataclass(frozen=True)
class ScalarBody:
    """A sequence of scalar operations as data, with one result.

    Values are numbered: first the parameters, with these types, then the results of the calls.
    """

    parameters: tuple[Type, ...]
    calls: tuple[ScalarCall, ...]
    result: int

    @property
    def dtype(self) -> Type:
        """Return the element type of the result."""
        first = len(self.parameters)
        return self.parameters[self.result] if self.result < first else self.calls[self.result - first].dtype

    @property
    def last(self) -> str:
        """Return the method that computes the result; "" if it is a parameter."""
        first = len(self.parameters)
        return "" if self.result < first else self.calls[self.result - first].method

    def evaluate(self, handler: ScalarOps, arguments: Sequence[object]) -> Any:
        """Return the result for a handler's values of the parameters."""
        values = list(arguments)
        for call in self.calls:
            operands = [values[k] for k in call.operands]
            if call.method == "const":
                values.append(handler.const(np.frombuffer(call.constant, call.dtype.numpy)[0].item(), call.dtype))
            elif call.method in ("cast", "cast_loosely"):
                values.append(getattr(handler, call.method)(operands[0], call.dtype))
            else:
                values.append(getattr(handler, call.method)(*operands))
        return values[self.result]


def scalar_body(function: Callable[..., Any], parameters: Sequence[Type]) -> ScalarBody:
    """Record the calls that ``function(handler, *values)`` makes for parameters of these types."""
    recorder = _Recorder(parameters)
    result = function(recorder, *range(len(parameters)))
    return ScalarBody(tuple(parameters), tuple(recorder.calls), result)


class _Recorder:
    """Handler whose values are their numbers in a body."""

    def __init__(self, parameters: Sequence[Type]) -> None:
        self.calls: list[ScalarCall] = []
        self._types = list(parameters)

    def dtype(self, x: int) -> Type:
        return self._types[x]

    def const(self, value: float | int | bool, dtype: Type) -> int:
        return self._add(ScalarCall("const", (), dtype, np.asarray(value).astype(dtype.numpy).tobytes()))

    def cast(self, x: int, dtype: Type) -> int:
        return self._add(ScalarCall("cast", (x,), dtype))

    def cast_loosely(self, x: int, dtype: Type) -> int:
        return self._add(ScalarCall("cast_loosely", (x,), dtype))

    def where(self, condition: int, a: int, b: int) -> int:
        return self._add(ScalarCall("where", (condition, a, b), self._types[a]))

    def fma(self, a: int, b: int, c: int) -> int:
        return self._add(ScalarCall("fma", (a, b, c), self._types[a]))

    def __getattr__(self, name: str) -> object:
        infer = getattr(TypeScalar(), name)
        return lambda *x: self._add(ScalarCall(name, x, infer(*(self._types[k] for k in x))))

    def _add(self, call: ScalarCall) -> int:
        self.calls.append(call)
        self._types.append(call.dtype)
        return len(self._types) - 1


def evaluate_instructions(
    instructions: Iterable[Instruction], handler: ScalarOps, values: dict[Instruction, object]
) -> None:
    """Add a handler's values of literals and pointwise instructions to ``values``, which has their other operands."""
    for ins in instructions:
        if ins in values:
            continue
        if ins.literal is not None:
            values[ins] = handler.const(ins.literal.numpy().reshape(-1)[0].item(), ins.shape.type)
        elif ins.name == "multibroadcast" and ins.inputs[0].is_literal:
            values[ins] = values[ins.inputs[0]]
        elif isinstance(ins.op, Pointwise):
            values[ins] = ins.op.scalar(handler, *(values[i] for i in ins.inputs))


def evaluate_scalar_module(module: Module, handler: ScalarOps, arguments: Sequence[object]) -> list[Any]:
    """Return the results of a module of pointwise instructions for a handler's values of its parameters."""
    values: dict[Instruction, object] = dict(zip(module.parameters(), arguments))
    evaluate_instructions(module, handler, values)
    return [values[r] for r in module.results()]


def cluster_name(module: Module, fallback: str) -> str:
    """Return a MIGraphX-style kernel name: the fused operations in order, ``mul_add_relu_kernel``."""
    skipped = ("@literal", "@param", "@return", "multibroadcast", "broadcast")
    operations = [ins.name for ins in module if ins.name not in skipped]
    stem = "_".join(operations) or fallback
    return f"{stem[:MAX_NAME].replace(':', '_')}_kernel"


def scalar_flops(module: Module) -> int:
    """Return the operations per element."""
    return sum(isinstance(ins.op, Pointwise) and ins.name not in ("identity", "convert") for ins in module)
