"""Comparison of the cpu target with ref within rounding tolerances.

How far rounding may move a result is measured, not guessed: the reference runs again with every floating result
disturbed by a few units in the last place, and what the results then move by bounds the difference that is allowed.
Elements that change their kind (integers, NaN, infinity) under that noise decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.graph.instruction import Instruction, Parameter, Return
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.ops.deferred import Deferred
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import compute, deferred_value, expanded

__all__ = ["RUNS", "Reference", "assert_agrees", "assert_identical", "reference", "run", "wrong_elements"]

COMPOSITE = frozenset("elu gelu_erf gelu_tanh silu softplus mish acosh atanh asinh sinh logsoftmax".split())
"""Operations whose NumPy meaning cancels: it is wrong by some units in the last place of 1, as computed."""
SUMS = frozenset(
    {
        "reduce_sum",
        "reduce_mean",
        "dot",
        "convolution",
        "convolution_backwards",
        "prefix_scan_sum",
        "pooling",
        "col2im",
        "scatter_add",
        "window_sum",
    }
)
AVERAGES = frozenset({"resize", "gridsample", "roialign", "lrn"})
"""Operations that weigh their inputs, whose coordinates and weights are rounded too."""
RECURRENT = frozenset({"rnn", "gru", "lstm", "recurrent"})
UNITS = 4
RUNS = 6
MARGIN = 16
FAST = 2.0**-18
"""Error of the fast methods of products (16-bit weights are off by 2**-16 of a column's largest, Winograd's and
Strassen's sums by less) relative to products of the largest magnitudes, of which `MARGIN` times this is allowed."""


@dataclass(frozen=True)
class Reference:
    """Results of ``ref`` and how far each element may be away from them.

    Attributes:
        results: the results.
        allowed: for each result, how far its elements may be away, infinitely where they decide nothing.
        overflows: whether values come close to the limits of their types, so that no element decides anything.
    """

    results: list[np.ndarray]
    allowed: list[np.ndarray]
    overflows: bool = False


def reference(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    *,
    fast_math: bool = False,
    absolute: frozenset[str] = frozenset(),
    runs: int = RUNS,
) -> Reference:
    """The reference of a program.

    Args:
        program: any program; results whose lengths rounding changes decide nothing.
        inputs: a value for each parameter.
        fast_math: whether products and convolutions may be as far off as their fast methods are.
        absolute: operations that may be wrong by some units in the last place of 1 besides `COMPOSITE`.
        runs: how many are disturbed; an even number.
    """
    calm = _Evaluation(inputs)
    exact = calm.results(program.main)
    if calm.overflows:
        return Reference(exact, [np.full(np.shape(e), np.inf) for e in exact], overflows=True)
    allowed = [np.zeros(np.shape(e)) for e in exact]
    for seed in range(runs):
        noise = _Noise(seed // 2, -1 if seed % 2 else 1)
        noisy = _Evaluation(inputs, noise, fast_math, absolute).results(program.main)
        for k, (e, n) in enumerate(zip(exact, noisy)):
            allowed[k] = np.maximum(allowed[k], _distance(e, n))
    for k, e in enumerate(exact):
        if from_numpy(e.dtype).is_floating:
            info = ml_dtypes.finfo(e.dtype)
            wide = np.abs(e.astype(np.float64))
            last = UNITS * float(info.eps) * np.where(np.isfinite(wide), wide, 0) + 4 * float(info.tiny)
            allowed[k] = MARGIN * allowed[k] + last
        else:
            allowed[k] = np.where(allowed[k] > 0, np.inf, 0)
    return Reference(exact, allowed)


class _Noise:
    """Random numbers of a seed, or their negatives: one of the two runs moves a value that lies on the edge between two
    integers to either side."""

    def __init__(self, seed: int, sign: int) -> None:
        self._rng, self._sign = np.random.default_rng(seed), sign

    def numbers(self, lens: Sequence[int]) -> np.ndarray:
        """From -1 to 1."""
        return self._sign * self._rng.uniform(-1, 1, lens)


class _Evaluation:
    """One run of a program, disturbed if there is noise."""

    def __init__(
        self,
        inputs: Mapping[str, np.ndarray],
        noise: _Noise | None = None,
        fast_math: bool = False,
        absolute: frozenset[str] = frozenset(),
    ) -> None:
        self.inputs, self.noise, self.fast_math, self.absolute = inputs, noise, fast_math, COMPOSITE | absolute
        self.overflows = False

    def results(self, module: Module, outer: Mapping[Instruction, Any] | None = None, args: Sequence[Any] = ()) -> list:
        """Results of a module, called with ``args`` in the order of its parameters if it is a submodule."""
        values: dict[Instruction, Any] = dict(outer or {})
        values.update(zip(module.parameters(), args))
        for ins in module:
            if isinstance(ins.op, Return):
                break
            if ins.literal is not None:
                values[ins] = ins.literal.numpy()
            elif isinstance(ins.op, Parameter):
                if ins not in values:
                    given = self.inputs[ins.op.parameter]
                    values[ins] = given.reshape(ins.shape.lens) if ins.shape.without_axes else given
            else:
                given = [values[i] for i in ins.inputs]
                if isinstance(ins.op, Deferred):  # its operators are disturbed one by one
                    program = expanded(ins, given)
                    values[ins] = deferred_value(ins.op, program, self.results(program.main))
                    continue
                value = compute(ins, given, lambda inner, a: self.results(inner, values, a))
                self.overflows = self.overflows or _overflows(ins, value)
                if self.noise is not None:
                    value = _disturbed(ins, given, value, self.noise, self.fast_math, self.absolute)
                values[ins] = value
        return [values[r] for r in module.results()]


def _disturbed(
    ins: Instruction,
    args: list[Any],
    value: Any,
    source: _Noise,
    fast_math: bool,
    absolute: frozenset[str],
) -> Any:
    if isinstance(value, tuple):
        shapes = ins.shape.sub_shapes
        if ins.name not in RECURRENT:
            return value
        return tuple(_noisy(v, _recurrent_noise(ins, args, v, fast_math), source) for v in value) if shapes else value
    if not ins.shape.type.is_floating or ins.op.view or ins.name == "get_tuple_elem":
        return value
    if ins.name == "convert" and not ins.op.elidable:  # type: ignore[attr-defined]
        return value  # the model's author wrote it: it rounds as it is written, by whatever its operand is off
    if ins.name in RECURRENT:
        return _noisy(value, _recurrent_noise(ins, args, value, fast_math), source)
    unit = UNITS * float(ml_dtypes.finfo(value.dtype).eps)
    scale = np.abs(value.astype(np.float64))
    noise = unit * scale
    if ins.name in SUMS:
        magnitudes = [np.abs(a) if from_numpy(a.dtype).is_floating else a for a in args]
        noise = np.maximum(noise, unit * _of(ins, magnitudes))
        if fast_math and ins.name in ("dot", "convolution") and value.dtype == np.float32:
            largest = [np.full_like(m, m.max(initial=0, where=np.isfinite(m))) for m in magnitudes]
            noise = np.maximum(noise, FAST * _of(ins, largest))
    elif ins.name in absolute:
        noise = noise + UNITS * float(np.finfo(from_numpy(value.dtype).compute.numpy).eps)
    elif ins.name in AVERAGES:
        wide = np.abs(args[0].astype(np.float64))
        noise = noise + unit * wide.max(initial=0, where=np.isfinite(wide))
    elif ins.name == "attention":
        noise = unit * scale + _attention_noise(ins, args, FAST if fast_math else 0)
    elif ins.name == "matmul_nbits":
        rows, depth = np.abs(args[0].astype(np.float64)), args[0].shape[-1]
        weights = Shape(Type.double_type, (depth, value.shape[-1]))
        matrix = np.abs(ins.op.compute(weights, [np.eye(depth), *args[1:]]))
        noise = np.maximum(noise, unit * (rows @ matrix))
        if fast_math:
            noise = np.maximum(
                noise, FAST * depth * rows.max(initial=0, where=np.isfinite(rows)) * matrix.max(initial=0)
            )
    elif ins.name == "solve_triangular":  # no term of a sum cancels another
        matrix, given = (np.abs(a.astype(np.float64)) for a in args)
        matrix = np.where(np.eye(matrix.shape[-1], dtype=bool), matrix, -matrix)
        noise = np.maximum(noise, unit * ins.op.compute(Shape(Type.double_type, given.shape), [matrix, given]))
    elif ins.name == "reduce_prod":
        noise = noise * max(1, ins.inputs[0].shape.elements // max(1, value.size))
    elif not ins.op.pointwise and ins.name != "softmax":
        return value
    return _noisy(value, noise, source)


def _of(ins: Instruction, args: list[Any]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(compute(ins, args, lambda m, a: []).astype(np.float64))


def _attention_noise(ins: Instruction, args: list[Any], fast: float) -> float:
    """Scores are off by a part of what is added up for them, weights by twice that, relatively."""
    q, k, v = (float(np.abs(a.astype(np.float64)).max(initial=0, where=np.isfinite(a))) for a in args[:3])
    unit = max(UNITS * float(np.finfo(from_numpy(args[0].dtype).compute.numpy).eps), fast)
    scores = q * k * args[0].shape[-1] * abs(ins.op.attributes()["scale"])
    return unit * v * (1 + 2 * scores)


def _recurrent_noise(ins: Instruction, args: list[Any], value: np.ndarray, fast_math: bool) -> np.ndarray:
    """Gates are sums of products with weights: as many as the rows of both matrices have elements."""
    unit = max(UNITS * float(ml_dtypes.finfo(value.dtype).eps), FAST if fast_math else 0)
    largest = [max(1.0, float(np.abs(a).max(initial=0))) * a.shape[-1] for a in args[1:3]]
    return unit * sum(largest) * (1 + np.abs(value.astype(np.float64)))


def _noisy(value: np.ndarray, noise: np.ndarray, source: _Noise) -> np.ndarray:
    with np.errstate(all="ignore"):
        noise = noise * source.numbers(value.shape)
        return (value.astype(np.float64) + np.where(np.isfinite(noise), noise, 0)).astype(value.dtype)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.shape != b.shape:
        return np.full(a.shape, np.inf)
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
    """Check number, types and lengths of results, and values within the rounding tolerance."""
    assert len(got) == len(wanted.results)
    for k, (a, b, allowed) in enumerate(zip(got, wanted.results, wanted.allowed)):
        assert a.dtype == b.dtype and a.shape == b.shape, f"result {k}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
        message = wrong_elements(a, b, allowed)
        assert not message, f"result {k}: {message}"


def wrong_elements(got: np.ndarray, wanted: np.ndarray, allowed: np.ndarray) -> str:
    """Return a message on elements that differ by more than ``allowed``; empty if there are none."""
    wrong = _distance(wanted, got) > allowed
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements differ, first at {place}:"
        f" {got[place]!r}, not {wanted[place]!r} (allowed {allowed[place]:.3g})"
    )


def assert_identical(got: Sequence[np.ndarray], again: Sequence[np.ndarray]) -> None:
    """Check that results have equal bits, including the bits of NaN."""
    for k, (a, b) in enumerate(zip(got, again, strict=True)):
        assert a.tobytes() == b.tobytes(), f"result {k} differs between runs"
