"""Comparison of the cpu target with ref where rounding is the only licence.

How far rounding may move a result is measured, not guessed: the reference runs again with every floating result
disturbed by a few units in the last place, and what the results then move by bounds the difference that is allowed.
Elements that change their kind (integers, NaN, infinity) under that noise decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mgx_numba.core.types import from_numpy
from mgx_numba.graph.instruction import Instruction, Parameter, Return
from mgx_numba.graph.program import Program
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import compute

__all__ = ["Reference", "assert_agrees", "assert_identical", "reference", "run"]

COMPOSITE = frozenset("elu gelu_erf gelu_tanh silu softplus mish acosh atanh asinh sinh".split())
"""Operations whose NumPy meaning cancels: it is wrong by some units in the last place of 1."""
SUMS = frozenset({"reduce_sum", "reduce_mean", "dot", "convolution", "prefix_scan_sum", "pooling", "scatter_add"})
UNITS = 4
RUNS = 6
MARGIN = 16


class Reference:
    """Results of ``ref`` and how far each element may be away from them (infinitely where it decides nothing)."""

    def __init__(self, results: list[np.ndarray], allowed: list[np.ndarray]) -> None:
        self.results, self.allowed = results, allowed


def reference(program: Program, inputs: Mapping[str, np.ndarray], runs: int = RUNS) -> Reference | None:
    """The reference of a program without submodules, or ``None`` if its values come close to overflow."""
    wanted = program.main.results()
    values = _run(program, inputs, None)
    if any(_overflows(ins, v) for ins, v in values.items()):
        return None
    exact = [values[r] for r in wanted]
    allowed = [np.zeros(np.shape(e)) for e in exact]
    for seed in range(runs):
        noisy = _run(program, inputs, np.random.default_rng(seed))
        for k, r in enumerate(wanted):
            allowed[k] = np.maximum(allowed[k], _distance(exact[k], noisy[r]))
    for k, e in enumerate(exact):
        if from_numpy(e.dtype).is_floating:
            info = ml_dtypes.finfo(e.dtype)
            wide = np.abs(e.astype(np.float64))
            last = UNITS * float(info.eps) * np.where(np.isfinite(wide), wide, 0) + 4 * float(info.tiny)
            allowed[k] = MARGIN * allowed[k] + last
        else:
            allowed[k] = np.where(allowed[k] > 0, np.inf, 0)
    return Reference(exact, allowed)


def _run(program: Program, inputs: Mapping[str, np.ndarray], rng: np.random.Generator | None) -> dict[Instruction, Any]:
    values: dict[Instruction, Any] = {}
    for ins in program.main:
        if isinstance(ins.op, Return):
            break
        if ins.literal is not None:
            values[ins] = ins.literal.numpy()
        elif isinstance(ins.op, Parameter):
            values[ins] = inputs[ins.op.parameter]
        else:
            args = [values[i] for i in ins.inputs]
            values[ins] = compute(ins, args, lambda m, a: [])
            if rng is not None:
                values[ins] = _disturbed(ins, args, values[ins], rng)
    return values


def _disturbed(ins: Instruction, args: list[Any], value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, tuple) or not ins.shape.type.is_floating or ins.op.view or ins.name == "get_tuple_elem":
        return value
    scale = np.abs(value.astype(np.float64))
    if ins.name in SUMS:
        magnitudes = [np.abs(a) if from_numpy(a.dtype).is_floating else a for a in args]
        with np.errstate(all="ignore"):
            scale = np.maximum(scale, compute(ins, magnitudes, lambda m, a: []).astype(np.float64))
    elif ins.name in COMPOSITE:
        scale = scale + 1
    elif not ins.op.pointwise and ins.name not in ("softmax", "logsoftmax"):
        return value
    with np.errstate(all="ignore"):
        noise = UNITS * float(ml_dtypes.finfo(value.dtype).eps) * scale * rng.uniform(-1, 1, value.shape)
        return (value.astype(np.float64) + np.where(np.isfinite(noise), noise, 0)).astype(value.dtype)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not from_numpy(a.dtype).is_floating:
        return np.where(a != b, np.inf, 0.0)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(same, 0.0, np.where(np.isfinite(x) & np.isfinite(y), np.abs(x - y), np.inf))


def _overflows(ins: Instruction, value: Any) -> bool:
    """Whether finite arithmetic came near the limit of its type, where the order of operations decides."""
    if isinstance(value, tuple) or not from_numpy(value.dtype).is_floating or not value.size or not ins.inputs:
        return False
    wide = np.abs(value.astype(np.float64))
    finite = wide[np.isfinite(wide)]
    narrow = from_numpy(value.dtype).compute is not from_numpy(value.dtype)
    if narrow and not np.isfinite(wide).all():
        return True
    return bool(finite.size) and float(finite.max()) > float(ml_dtypes.finfo(value.dtype).max) / 64


def run(optimized: Program, batches: Sequence[Mapping[str, np.ndarray]], **options: Any) -> list[list[np.ndarray]]:
    """Results of an optimised program, compiled once, for each set of inputs."""
    settings = TargetOptions(**{"fast_math": False, **options})
    executable = Executable(lower(optimized, settings), num_threads=settings.num_threads or None)
    names = [p.name for p in executable.plan.parameters]
    return [executable.run([np.ascontiguousarray(inputs[n]) for n in names]) for inputs in batches]


def assert_agrees(got: Sequence[np.ndarray], wanted: Reference) -> None:
    """Same number, types, lengths, and values within what rounding allows."""
    assert len(got) == len(wanted.results)
    for k, (a, b, allowed) in enumerate(zip(got, wanted.results, wanted.allowed)):
        assert a.dtype == b.dtype and a.shape == b.shape, f"result {k}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
        wrong = _distance(b, a) > allowed
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"result {k}: {int(wrong.sum())} of {wrong.size} elements differ, first at {place}:"
                f" {a[place]!r}, not {b[place]!r} (allowed {allowed[place]:.3g})"
            )


def assert_identical(got: Sequence[np.ndarray], again: Sequence[np.ndarray]) -> None:
    """The very same bits, whatever NaN they are."""
    for k, (a, b) in enumerate(zip(got, again, strict=True)):
        assert a.tobytes() == b.tobytes(), f"result {k} differs between runs"
