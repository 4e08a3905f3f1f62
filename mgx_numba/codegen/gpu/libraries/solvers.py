"""NVIDIA's libraries as solvers: only measuring chooses them, among what they have for a contraction."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

from ....errors import DeviceError, UnsupportedError
from ...launch import Launch, Operand, Solution
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED
from ...tuning.request import least_bytes
from ..contraction.cost import BANDWIDTH, CLOCK
from ..contraction.parts import add_parts
from ..contraction.placed import VECTOR_BYTES, PlacedRequest
from ..contraction.text import ACCUMULATORS
from ..contraction.wgmma_tiles import BEGINNING, multiprocessors
from ..driver.device import device
from ..driver.library import missing
from ..products import product_of
from ..units import TENSOR_CORES
from .calls import bound_call, call_launch
from .convolutions import Convolution, ConvolutionCall, ConvolutionEngine, engines
from .cublaslt import Algorithm, MatmulCall, ProductTypes, algorithms, cublaslt
from .cudnn import DATA_TYPES, cudnn
from .epilogues import Finish, finish_of
from .matrices import Matrices, matrices_of

__all__ = ["LIBRARIES", "CublasLtProducts", "CudnnConvolutions"]

PRODUCTS = 2048.0
"""Of 16-bit numbers that tensor cores of a multiprocessor of an H200 multiply in a cycle, at most: libraries are not
estimated better, since nothing is chosen by it."""
MOST_KEPT = 512
"""Contractions whose algorithms are remembered: more than a program has. No figures kept."""


class CublasLtProducts:
    """Products, and convolutions of single pixels, by cuBLASLt; its algorithms are the tilings."""

    name = "cublaslt"
    columns = True

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        reason = _without_device()
        if reason:
            return reason
        try:
            cublaslt()
            _product(placed)
        except (DeviceError, UnsupportedError) as error:
            return str(error)
        return "" if self.tilings(placed) else f"cuBLASLt has no algorithm for {placed.problem.types} that lie so"

    def tilings(self, placed: PlacedRequest) -> list[Algorithm]:
        """See `GpuSolver.tilings`."""
        return list(_algorithms(placed))

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`: the device's limits, for how often measuring runs it."""
        return least_seconds(placed)

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        matrices, types, finish = _product(placed)
        algorithm = tiling or self.tilings(placed)[0]
        fields = MatmulCall.fields(matrices, types, finish.bias >= 0, finish.relu, algorithm)
        name = f"cublaslt_{types.left}{finish.name}_algorithm{algorithm.number}_tile{algorithm.tile}_kernel"
        return called(placed, self.name, name, fields, finish, finishes(placed) is not None, algorithm.workspace)

    def builds(self, placed: PlacedRequest, tiling: Algorithm) -> bool:
        """Whether the library takes an algorithm that a record names."""
        return _builds(self.plan(placed, tiling))


class CudnnConvolutions:
    """Convolutions by cuDNN; configurations of its engines are the tilings."""

    name = "cudnn"
    columns = True

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        reason = _without_device()
        if reason:
            return reason
        try:
            cudnn()
            _convolution(placed, False)
        except (DeviceError, UnsupportedError) as error:
            return str(error)
        return "" if self.tilings(placed) else f"cuDNN has no engine for {placed.problem.types} that lie so"

    def tilings(self, placed: PlacedRequest) -> list[ConvolutionEngine]:
        """See `GpuSolver.tilings`."""
        return list(_engines(placed))

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`: the device's limits, for how often measuring runs it."""
        return least_seconds(placed)

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        engine = tiling or self.tilings(placed)[0]
        what, finish = _convolution(placed, engine.whole)
        name = f"cudnn_{what.left}{finish.name}_engine{engine.number}_kernel"
        fields = ConvolutionCall.fields(what, engine)
        return called(placed, self.name, name, fields, finish, engine.whole, engine.workspace)

    def builds(self, placed: PlacedRequest, tiling: ConvolutionEngine) -> bool:
        """See `CublasLtProducts.builds`."""
        return _builds(self.plan(placed, tiling))


LIBRARIES = (CublasLtProducts(), CudnnConvolutions())
"""The solvers that only measuring chooses."""


def called(
    placed: PlacedRequest,
    library: str,
    name: str,
    fields: dict[str, Any],
    finish: Finish,
    whole: bool,
    workspace: int,
) -> Solution:
    """The launches of a library's call, and of the epilogue behind it where the library has none of it.

    Args:
        fields: of the call, see `call_launch`.
        finish: what it computes of the epilogue, all of it if ``whole``, else nothing.
        workspace: bytes that it takes.
    """
    problem = placed.problem
    operands = {"left": Operand("x"), "right": Operand("w"), "out": Operand("out")}
    if finish.bias >= 0:
        operands["bias"] = Operand(f"e{finish.bias}")
    if finish.added >= 0:
        operands["added"] = Operand(f"e{finish.added}")
    if workspace:
        operands["workspace"] = Operand("scratch")

    def launch() -> Launch:
        return call_launch(library, name, _unit(placed), fields, operands, problem.flops, least_bytes(problem))

    if whole:
        return Solution((launch(),), workspace)
    sums = add_parts(placed, launch(), 1).scratch
    start = -(-sums // _ALIGNMENT) * _ALIGNMENT
    operands["out"] = Operand("scratch")
    if workspace:
        operands["workspace"] = Operand("scratch", start)
    return Solution(add_parts(placed, launch(), 1).launches, start + workspace)


_ALIGNMENT = 256
"""Bytes at whose multiples a workspace shall begin: NVIDIA's cuBLAS documentation, cublasSetWorkspace."""


def finishes(placed: PlacedRequest) -> Finish | None:
    """What a library computes of the epilogue, of integers none; None if that is for a launch behind the call."""
    out = placed.problem.types.out
    found = finish_of(placed.request.epilogue, out)
    return None if out == "int32" and found != Finish() else found


def least_seconds(placed: PlacedRequest) -> float:
    """What a contraction takes at least: the device's multiplications, and its memory."""
    problem = placed.problem
    products = PRODUCTS * 2 / ITEMSIZE[problem.types.a] * multiprocessors() * CLOCK
    return max(problem.flops / 2 / products, least_bytes(problem) / BANDWIDTH) + BEGINNING / CLOCK


def sums_dtype(placed: PlacedRequest) -> str:
    """In what a library adds sums: ``tf32`` where it may multiply float32 numbers so.

    Raises:
        UnsupportedError: the types are none of the libraries'.
    """
    types = placed.problem.types
    if types.a == "float32" and placed.precision == "medium":
        return "tf32"
    if types.uniform in ACCUMULATORS and types.uniform != "int32":
        return ACCUMULATORS[types.uniform]
    product = product_of(types)
    if product is None or "uint8" in (types.a, types.b):
        raise UnsupportedError(f"it has no products of {types}")
    return product.accumulator


def _without_device() -> str:
    """Why NVIDIA's libraries cannot be used; empty where there is a device of theirs."""
    return missing()


def _product(placed: PlacedRequest) -> tuple[Matrices, ProductTypes, Finish]:
    """A contraction as the library is asked for it.

    Raises:
        UnsupportedError: the library has no such contractions.
    """
    sums, problem = sums_dtype(placed), placed.problem
    matrices, finish, out = matrices_of(placed), finishes(placed), problem.types.out
    if finish is None:
        matrices, finish, out = matrices.written_to(matrices.whole), Finish(), ACCUMULATORS[problem.types.out]
    return matrices, ProductTypes(problem.types.a, problem.types.b, out, sums), finish


@functools.lru_cache(maxsize=MOST_KEPT)
def _algorithms(placed: PlacedRequest) -> tuple[Algorithm, ...]:
    """What cuBLASLt's heuristic has, none where it refuses."""
    matrices, types, finish = _product(placed)
    out = placed.alignment if finishes(placed) is not None else VECTOR_BYTES
    here = device()
    try:
        with here.use():
            return tuple(
                algorithms(
                    here.number, matrices, types, finish.bias >= 0, finish.relu, (VECTOR_BYTES, VECTOR_BYTES, out)
                )
            )
    except DeviceError:
        return ()


def _convolution(placed: PlacedRequest, whole: bool) -> tuple[Convolution, Finish]:
    """A convolution as the library is asked for it, with its epilogue if ``whole``.

    Raises:
        UnsupportedError: the library has no such convolutions.
    """
    problem, sums = placed.problem, sums_dtype(placed)
    if not isinstance(problem, ConvProblem):
        raise UnsupportedError("it is no convolution")
    if problem.prologue is not None:
        raise UnsupportedError(NOT_COMPUTED)
    types = problem.types
    finish = finishes(placed) if whole else Finish()
    if problem.transposed or min((*problem.pads_begin, *problem.pads_end)) < 0 or finish is None:
        raise UnsupportedError("cuDNN is not asked for transposed convolutions, nor for cropping ones")
    if types.a not in DATA_TYPES:
        raise UnsupportedError(f"cuDNN is not asked for {types.a}")
    if problem.x_strides[-1] < problem.in_channels:
        raise UnsupportedError("pixels overlap")
    full = problem.volume()
    axes = slice(1 if len(problem.in_lens) < 3 else 0, 3)  # it has none of one dimension
    lens = full.out_lens[axes]
    out = types.out if whole else ACCUMULATORS[types.out]
    pixels, result = (full.batch, full.out_channels, *lens), problem.out_strides
    own = placed.request.strides[finish.added] if finish.added >= 0 else ()
    if not whole:
        result = (problem.out_pixels * problem.out_channels, problem.out_channels)

    def strides(image: int, pixel: int) -> tuple[int, ...]:
        found = [pixel * prod(lens[d + 1 :]) for d in range(len(lens))]
        return (image if full.batch > 1 else pixel * prod(lens), 1, *found)

    found = Convolution(
        x_lens=(full.batch, full.in_channels, *full.in_lens[axes]),
        x_strides=(full.x_strides[0] or problem.in_pixels * problem.x_strides[-1], 1, *_walked(full)[axes]),
        w_lens=(full.out_channels, full.group_in, *full.kernel[axes]),
        y_lens=pixels, y_strides=strides(*result), left=types.a, right=types.b, out=out, sums=sums,
        before=full.pads_begin[axes], after=full.pads_end[axes], steps=full.stride[axes],
        dilation=full.dilation[axes], added=strides(*own) if own else None, bias=finish.bias >= 0, relu=finish.relu,
        rounds=problem.fast_math, alignment=placed.alignment if whole else VECTOR_BYTES,
    )  # fmt: skip
    return found, finish


def _walked(full: ConvProblem) -> tuple[int, ...]:
    """Strides of the three spatial axes, also of those of length 1."""
    found, step = list(full.x_strides[1:]), full.x_strides[3]
    for axis in (2, 1, 0):
        if full.in_lens[axis] == 1:
            found[axis] = step
        step = found[axis] * full.in_lens[axis]
    return tuple(found)


@functools.lru_cache(maxsize=MOST_KEPT)
def _engines(placed: PlacedRequest) -> tuple[ConvolutionEngine, ...]:
    """What cuDNN's heuristic has with the whole epilogue, else for the convolution alone; none where it refuses."""
    here = device()
    for whole in (True, False) if finishes(placed) is not None else (False,):
        what, _ = _convolution(placed, whole)
        try:
            with here.use():
                found = engines(here.number, what, whole)
        except DeviceError:
            found = []
        if found:
            return tuple(found)
    return ()


def _builds(solution: Solution) -> bool:
    """Whether a library takes the call of a solution."""
    here = device()
    try:
        with here.use():
            bound_call(solution.launches[0].kernel, here.number)
    except DeviceError:
        return False
    return True


def _unit(placed: PlacedRequest) -> str:
    """What multiplies, as `units.unit_of` has it."""
    multiplied = placed.problem.types.a
    return "" if sums_dtype(placed) == multiplied else TENSOR_CORES.get(multiplied, f"{multiplied} on tensor cores")
