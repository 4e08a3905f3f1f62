"""Comparison of two results by MIGraphX's error measures."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..core.types import Type
from ..dataclass import dataclass
from ..environment import environment_flag
from ..graph.program import Program

_TINY = float(np.finfo(np.float64).tiny)
_HALF = frozenset({Type.half_type, Type.bf16_type})
_SHORT = frozenset(
    {Type.fp8e4m3fn_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2_type, Type.fp8e5m2fnuz_type, Type.fp4x2_type}
)


@dataclass(frozen=True)
class Tolerance:
    """Largest acceptable difference of a result.

    Attributes:
        rms: largest root mean square of the differences, relative to the largest magnitude.
        atol, rtol: every element must satisfy ``|found - expected| <= atol + rtol * |expected|``.
        elementwise: whether ``atol`` and ``rtol`` apply; by default only ``rms`` decides.
    """

    rms: float = 1e-3
    atol: float = 1e-3
    rtol: float = 1e-3
    elementwise: bool = False


def default_tolerance(
    programs: Iterable[Program], rms: float | None = None, atol: float | None = None, rtol: float | None = None
) -> Tolerance:
    """Return MIGraphX's default tolerance, which is wider if a value of the programs is a 16-bit or 8-bit float.

    Arguments override the defaults. Elements are compared individually if ``atol`` or ``rtol`` is given, or
    ``MIGRAPHX_VERIFY_ENABLE_ALLCLOSE`` is set.
    """
    modules = [m for p in programs for m in p.reachable_modules()]
    types = {leaf.type for m in modules for ins in m for leaf in ins.shape.flatten()}
    base = (0.8, 0.4, 0.4) if types & _SHORT else (0.08, 0.04, 0.04) if types & _HALF else (1e-3, 1e-3, 1e-3)
    wanted = environment_flag("MIGRAPHX_VERIFY_ENABLE_ALLCLOSE")
    return Tolerance(
        base[0] if rms is None else rms,
        base[1] if atol is None else atol,
        base[2] if rtol is None else rtol,
        elementwise=wanted or atol is not None or rtol is not None,
    )


@dataclass(frozen=True)
class Difference:
    """Outcome of one comparison.

    Attributes:
        problem: why the results differ beyond the tolerance; empty if they agree.
        rms: as `Tolerance.rms`; NaN if it could not be computed.
        largest: the largest absolute difference.
    """

    problem: str
    rms: float
    largest: float

    @property
    def passed(self) -> bool:
        """Return whether the results agree."""
        return not self.problem

    def __str__(self) -> str:
        numbers = f"RMS error {self.rms:.3g}, largest difference {self.largest:.3g}"
        return f"{numbers}: {self.problem}" if self.problem else numbers


def compare(found: np.ndarray, expected: np.ndarray, tolerance: Tolerance) -> Difference:
    """Compare two arrays; NaNs must be at the same places, and infinities equal.

    ``MIGRAPHX_VERIFY_DUMP_DIFF`` prints the elements of arrays that differ.
    """
    result = _compared(found, expected, tolerance)
    if result.problem and found.shape == expected.shape and environment_flag("MIGRAPHX_VERIFY_DUMP_DIFF"):
        for place in np.ndindex(found.shape):
            if found[place].tobytes() != expected[place].tobytes():
                print(f"{list(place)}: {found[place]}, expected {expected[place]}")
    return result


def _compared(found: np.ndarray, expected: np.ndarray, tolerance: Tolerance) -> Difference:
    if found.shape != expected.shape:
        return Difference(f"lengths are {list(found.shape)}, expected {list(expected.shape)}", math.nan, math.nan)
    if found.dtype != expected.dtype:
        return Difference(f"type is {found.dtype}, expected {expected.dtype}", math.nan, math.nan)
    if expected.dtype.hasobject:
        return _compared_texts(found, expected)
    if not expected.size or found.tobytes() == expected.tobytes():
        return Difference("", 0.0, 0.0)
    a, b = (np.asarray(x).astype(np.float64).ravel() for x in (found, expected))
    special = ~(np.isfinite(a) & np.isfinite(b))
    unequal = special & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if unequal.any():
        problem = f"element {_place(unequal, found)} is {a[unequal][0]:.6g}, expected {b[unequal][0]:.6g}"
        return Difference(problem, math.inf, math.inf)
    a, b = np.where(special, 0, a), np.where(special, 0, b)
    apart = np.abs(a - b)
    rms, largest = _rms(a, b), float(apart.max())
    if rms > tolerance.rms:
        worst = int(apart.argmax())
        where = f"element {_place(apart == apart[worst], found)} is {a[worst]:.6g}, expected {b[worst]:.6g}"
        return Difference(f"RMS error exceeds {tolerance.rms:g}; {where}", rms, largest)
    if tolerance.elementwise:
        wrong = apart > tolerance.atol + tolerance.rtol * np.abs(b)
        if wrong.any():
            where = f"element {_place(wrong, found)} is {a[wrong][0]:.6g}, expected {b[wrong][0]:.6g}"
            count = int(wrong.sum())
            problem = f"{count} elements exceed atol {tolerance.atol:g}, rtol {tolerance.rtol:g}; {where}"
            return Difference(problem, rms, largest)
    return Difference("", rms, largest)


def _compared_texts(found: np.ndarray, expected: np.ndarray) -> Difference:
    """Compare two arrays of strings for equality."""
    wrong = np.asarray(found != expected, bool)
    if not wrong.any():
        return Difference("", 0.0, 0.0)
    problem = f"element {_place(wrong, found)} is {found[wrong][0]!r}, expected {expected[wrong][0]!r}"
    return Difference(problem, math.inf, math.inf)


def _rms(a: np.ndarray, b: np.ndarray) -> float:
    """Return the root mean square of the differences divided by the largest magnitude of both."""
    magnitude = max(float(np.abs(a).max()), float(np.abs(b).max()), _TINY)
    return float(np.sqrt(np.mean(((a - b) / magnitude) ** 2)))


def _place(mask: np.ndarray, array: np.ndarray) -> list[int]:
    return [int(i) for i in np.unravel_index(int(mask.argmax()), array.shape)]
