"""Base class of solvers that call NVIDIA's libraries: applicability, heuristics, and the launch of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import DeviceError, UnsupportedError
from ...launch import Launch, Operand, Solution
from ...problems.element_types import ITEMSIZE
from ...tuning.request import least_bytes
from ..driver.device import device
from ..driver.library import missing
from ..libraries.calls import bound_call, call_launch
from ..libraries.epilogues import Finish
from ..machine import machine
from ..products import product_of
from ..units import TENSOR_CORES
from .contraction_text import ACCUMULATORS
from .cost import BEGINNING
from .gpu_contraction import COLUMNS, GpuContraction

PRODUCTS = 2048.0
"""Peak 16-bit multiplications per cycle of one H200 multiprocessor's tensor cores."""
MOST_KEPT = 512
"""Size of the cache of heuristics; more contractions than a program has. No figures kept."""


class LibrarySolver:
    """A solver (`gpu_contraction.GpuSolver`) whose tilings come from a vendor library's heuristic.

    Attributes:
        library: the loaded library; raises `DeviceError` if it cannot be used.
    """

    revision = 0  # it has no kernels of its own
    name: str
    order = COLUMNS
    library: Callable[[], Any]

    def asked(self, contraction: GpuContraction) -> Any:
        """Return the library's description of a contraction.

        Raises:
            UnsupportedError: the library does not support the contraction.
        """
        raise NotImplementedError

    def found(self, number: int, contraction: GpuContraction) -> Sequence[Any]:
        """Return the library heuristic's algorithms for a contraction on device ``number``, which is the current
        device."""
        raise NotImplementedError

    def plan(self, contraction: GpuContraction, tiling: object = None) -> Solution:
        raise NotImplementedError

    def refusal(self, contraction: GpuContraction) -> str:
        reason = missing()
        if reason:
            return reason
        try:
            self.asked(contraction)
            type(self).library()
        except (DeviceError, UnsupportedError) as error:
            return str(error)
        return (
            "" if self.tilings(contraction) else f"the library has nothing for {contraction.problem.types} that lie so"
        )

    def tilings(self, contraction: GpuContraction) -> list[Any]:
        return list(cached_tilings(self, contraction))

    def chosen(self, contraction: GpuContraction) -> Any | None:
        return self.tilings(contraction)[0]

    def estimate(self, contraction: GpuContraction, tiling: object = None) -> float:
        """See `GpuSolver.estimate`: the roofline, from which tuning derives the number of repetitions."""
        problem, here = contraction.problem, machine()
        products = PRODUCTS * 2 / ITEMSIZE[problem.types.a] * here.multiprocessors * here.clock
        return max(problem.flops / 2 / products, least_bytes(problem) / here.bandwidth) + BEGINNING / here.clock

    def builds(self, contraction: GpuContraction, tiling: object) -> bool:
        """Return whether the library accepts a tiling from a tuning record."""
        here = device()
        try:
            with here.use():
                bound_call(self.plan(contraction, tiling).launches[0].kernel, here.number)
        except DeviceError:
            return False
        return True


@functools.lru_cache(maxsize=MOST_KEPT)
def cached_tilings(solver: LibrarySolver, contraction: GpuContraction) -> tuple[object, ...]:
    here = device()
    try:
        with here.use():
            return tuple(solver.found(here.number, contraction))
    except DeviceError:
        return ()


def call_of(
    contraction: GpuContraction,
    solver: LibrarySolver,
    name: str,
    fields: dict[str, Any],
    finish: Finish,
    workspace: int,
) -> Launch:
    """Return the launch of a library call that computes a contraction and the part ``finish`` of its epilogue.

    Args:
        name: suffix of the launch's display name.
        fields: fields of the call, see `call_launch`.
        workspace: bytes of ``scratch`` that the call needs.
    """
    operands = {"left": Operand("x"), "right": Operand("w"), "out": Operand("out")}
    if finish.bias >= 0:
        operands["bias"] = Operand(f"e{finish.bias}")
    if finish.added >= 0:
        operands["added"] = Operand(f"e{finish.added}")
    if workspace:
        operands["workspace"] = Operand("scratch")
    problem = contraction.problem
    multiplied = problem.types.a
    exact = sums_dtype(contraction) == multiplied
    unit = "" if exact else TENSOR_CORES.get(multiplied, f"{multiplied} on tensor cores")
    name = f"{solver.name}_{multiplied}{finish.name}_{name}_kernel"
    return call_launch(solver.name, name, unit, fields, operands, problem.flops, least_bytes(problem))


def sums_dtype(contraction: GpuContraction) -> str:
    """Return the compute type of a library call; ``tf32`` if precision allows it for float32.

    Raises:
        UnsupportedError: no library supports the types.
    """
    types = contraction.problem.types
    if types.a == "float32" and contraction.precision == "medium":
        return "tf32"
    if types.uniform in ACCUMULATORS and types.uniform != "int32":
        return ACCUMULATORS[types.uniform]
    product = product_of(types)
    if product is None or "uint8" in (types.a, types.b):
        raise UnsupportedError(f"NVIDIA's libraries have no products of {types}")
    return product.accumulator
