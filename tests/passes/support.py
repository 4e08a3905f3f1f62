"""Small hand-built programs, and the check for every pass: equal values, valid IR, idempotence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import mgx_numba.ops  # noqa: F401  registers the operators
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy, parse_type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options, Pass, run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.targets.ref.interpreter import evaluate

FAST = Options(fast_math=True)
STRICT = Options()


class Graph:
    """A main module under construction."""

    def __init__(self) -> None:
        self.program = Program()
        self.module = self.program.main

    def param(self, name: str, lens: Sequence[int], type: str = "float") -> Instruction:
        return self.module.add_parameter(name, Shape(parse_type(type), lens))

    def lit(self, value: Any, dtype: Any = np.float32) -> Instruction:
        return self.module.add_literal(np.asarray(value, dtype))

    def random(self, *lens: int, seed: int = 7, low: float = -1.0, high: float = 1.0) -> Instruction:
        """A literal of random float32 values."""
        values = np.random.default_rng([seed, *lens]).uniform(low, high, lens)
        return self.lit(values)

    def op(self, op: str, *inputs: Instruction, **attributes: Any) -> Instruction:
        return self.module.add_instruction(op, inputs, **attributes)

    def own(self, x: Instruction, type: Type) -> Instruction:
        """A conversion that the compiler added, not the model's author."""
        return self.op("convert", x, target_type=type, elidable=True)

    def spread(self, x: Instruction, *lens: int) -> Instruction:
        return self.op("multibroadcast", x, out_lens=lens)

    def scalar(self, value: float, like: Instruction) -> Instruction:
        """A constant with the lengths and type of another value, all elements equal."""
        return self.spread(self.lit(value, like.shape.type.numpy), *like.shape.lens)

    def channels(self, x: Instruction, like: Instruction) -> Instruction:
        """A vector along axis 1 of another value."""
        return self.op("broadcast", x, axis=1, out_lens=like.shape.lens)

    def ret(self, *results: Instruction) -> Program:
        self.module.add_return(results)
        return self.program


def random_inputs(program: Program, seed: int = 0, special: bool = False, low: float = -2.0) -> dict[str, np.ndarray]:
    """A value for every parameter; ``special`` puts NaN, infinities, zeros of both signs and tiny numbers in."""
    rng = np.random.default_rng(seed)
    values = {}
    for name, shape in program.parameter_shapes().items():
        dtype = shape.type.numpy
        if shape.type is Type.bool_type:
            array = rng.integers(0, 2, shape.lens).astype(dtype)
        elif shape.type.is_integral:
            array = rng.integers(0 if dtype.kind == "u" else -5, 6, shape.lens).astype(dtype)
        else:
            array = rng.uniform(low, 2.0, shape.lens).astype(dtype)
            if special and array.size:
                odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40], np.float32).astype(dtype)
                places = rng.integers(0, array.size, max(1, array.size // 4))
                array.reshape(-1)[places] = rng.choice(odd, places.size)
        values[name] = array
    return values


def flat(results: Sequence[Any]) -> list[np.ndarray]:
    """Arrays of possibly nested results."""
    arrays: list[np.ndarray] = []
    for r in results:
        arrays.extend(flat(r) if isinstance(r, (tuple, list)) else [r])
    return arrays


def assert_same(expected: Sequence[Any], actual: Sequence[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Same types, lengths and values; NaN equals NaN, infinities must agree."""
    left, right = flat(expected), flat(actual)
    assert len(left) == len(right)
    for a, b in zip(left, right):
        assert a.dtype == b.dtype and a.shape == b.shape
        if from_numpy(a.dtype).is_floating:
            np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(b, a)


def check(
    program: Program,
    *passes: Pass,
    options: Options = STRICT,
    special: bool = False,
    low: float = -2.0,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    idempotent: bool = True,
    inputs: dict[str, np.ndarray] | None = None,
) -> Program:
    """Run passes on a copy; values stay, the IR is valid, running them again changes nothing. Returns the copy."""
    validate(program)
    after = program.clone()
    run_passes(after, passes, options, validate=True)
    for seed in range(2):
        values = inputs or random_inputs(program, seed, special, low)
        with np.errstate(all="ignore"):
            assert_same(evaluate(program, values), evaluate(after, values), rtol, atol)
    if idempotent:
        again = after.clone()
        run_passes(again, passes, options, validate=True)
        assert str(again) == str(after)
    for step in passes:
        log = getattr(step, "log", None)
        assert log is None or not log.exhausted
    return after


def names(program: Program, views: bool = True) -> list[str]:
    """Operator names of the main module in order, without parameters, literals and ``@return``."""
    skipped = set() if views else {"multibroadcast", "broadcast", "squeeze", "unsqueeze", "reshape", "transpose"}
    return [i.name for i in program.main if not i.name.startswith("@") and i.name not in skipped]


def find(program: Program, name: str) -> Instruction:
    """The only instruction with an operator name."""
    (found,) = [i for i in program.main if i.name == name]
    return found
