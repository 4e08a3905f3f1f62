"""Solvers that call cuBLASLt and cuDNN: applicability, heuristics, and the launch of a call. Only tuning by
measurement selects them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ....dataclass import dataclass
from ....errors import DeviceError, UnsupportedError
from ...launch import Launch, Operand, Solution
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED
from ...problems.gemm import GemmProblem
from ...space import collapse
from ...tuning.request import least_bytes
from ..driver.device import device
from ..driver.library import missing
from ..libraries.calls import bound_call, call_launch
from ..libraries.convolutions import ConvolutionCall, ConvolutionEngine, RequestedConvolution, engines
from ..libraries.cublaslt import Algorithm, MatmulCall, Matrices, Matrix, ProductTypes, algorithms, cublaslt
from ..libraries.cudnn import DATA_TYPES, cudnn
from ..libraries.epilogues import Finish, finish_of
from ..machine import machine
from ..products import product_of
from ..units import TENSOR_CORES
from .contraction_text import ACCUMULATORS
from .cost import BEGINNING
from .gpu_contraction import COLUMNS, VECTOR_BYTES, GpuContraction
from .split_k import add_split_k

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

    def asked(self, contraction: GpuContraction) -> object:
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
    fields: dict[str, object],
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


def matrices_of(problem: GemmProblem | ConvProblem, added: Sequence[int] = ()) -> Matrices:
    """Return the matrices of a product or of a 1x1 convolution.

    Args:
        problem: a convolution has weights in the layout `weights.COLUMNS`.
        added: strides of a summand of the result (beta * C); empty for none.

    Raises:
        UnsupportedError: the contraction is not a single GEMM, or the library cannot describe an operand's strides.
    """
    if problem.prologue is not None:
        raise UnsupportedError(NOT_COMPUTED)
    results = [problem.out_strides, *([added] if added else [])]
    if isinstance(problem, ConvProblem):
        return _of_pixels(problem, results)
    if problem.blocks is not None:
        raise UnsupportedError("its weights are in blocks of a few bits")
    rank, (m, n, k) = len(problem.batch), (problem.m, problem.n, problem.k)
    left, right = problem.a_strides, problem.b_strides
    if not any(s for s, length in zip(right[:rank], problem.batch) if length > 1):
        # One right operand for all of the batch: where its matrices follow one another they are one.
        rows = collapse((*problem.batch, m), [left[:-1], *results], order_by=1)
        if rows.rank <= 1:
            m *= prod(problem.batch)
            pitches = [s[0] if s else 0 for s in rows.strides]
            a = _matrix((pitches[0], left[-1]), (m, k))
            return Matrices(m, n, k, 1, a, _matrix(right[rank:], (k, n)), *(_rows(p, (m, n)) for p in pitches[1:]))
    planes = collapse(problem.batch, [s[:rank] for s in (left, right, *results)], order_by=2)
    if planes.rank > 1:
        raise UnsupportedError("matrices of the batch are at no one distance")
    of_left, of_right, *others = (s[0] if s else 0 for s in planes.strides)
    a, b = _matrix(left[rank:], (m, k), of_left), _matrix(right[rank:], (k, n), of_right)
    return Matrices(
        m, n, k, problem.batch_count, a, b, *(_rows(s[rank], (m, n), plane) for s, plane in zip(results, others))
    )


def _of_pixels(problem: ConvProblem, results: Sequence[Sequence[int]]) -> Matrices:
    """Return the matrices of a 1x1 convolution; the pixels are the rows."""
    single = problem.taps == 1 and set(problem.stride) == {1} and not any((*problem.pads_begin, *problem.pads_end))
    if not single or problem.groups > 1 or problem.transposed:
        raise UnsupportedError("it is a convolution of more than single pixels")
    steps = [prod(problem.out_lens[d + 1 :]) for d in range(len(problem.out_lens))]
    walked = [(image, *(pixel * step for step in steps)) for image, pixel in results]
    pixels = collapse((problem.batch, *problem.out_lens), [problem.x_strides, *walked], order_by=1)
    if pixels.rank > 1:
        raise UnsupportedError("pixels are at no one distance")
    rows, k, n = problem.batch * problem.out_pixels, problem.in_channels, problem.out_channels
    of_x, *others = (s[0] if s else 0 for s in pixels.strides)
    return Matrices(rows, n, k, 1, _rows(of_x, (rows, k)), Matrix(k, 0, True), *(_rows(p, (rows, n)) for p in others))


def _rows(pitch: int, lens: tuple[int, int], plane: int = 0) -> Matrix:
    """Return a row-major matrix.

    Raises:
        UnsupportedError: its rows overlap.
    """
    rows, columns = lens
    if rows > 1 and pitch < columns:
        raise UnsupportedError(f"rows of {columns} elements that begin {pitch} apart")
    return Matrix(pitch if rows > 1 else columns, plane)


def _matrix(strides: Sequence[int], lens: tuple[int, int], plane: int = 0) -> Matrix:
    """Return a row-major or column-major matrix with these strides of rows and columns.

    Raises:
        UnsupportedError: neither rows nor columns are contiguous, or they overlap.
    """
    (row, column), (rows, columns) = strides, lens
    if 1 in (column, columns) and (rows == 1 or row >= columns):
        return _rows(row, lens, plane)
    if 1 in (row, rows) and (columns == 1 or column >= rows):
        return Matrix(_rows(column, (columns, rows)).pitch, plane, True)
    raise UnsupportedError(f"a matrix of {rows} by {columns} with strides {row} and {column}")


_WORKSPACE_ALIGNMENT = 256
"""Required alignment of a workspace in bytes: NVIDIA's cuBLAS documentation, cublasSetWorkspace."""


@dataclass(frozen=True)
class _RequestedProduct:
    """A cuBLASLt product. If ``finish`` is None, the call stores accumulators and a kernel of ours computes the
    epilogue."""

    matrices: Matrices
    types: ProductTypes
    finish: Finish | None

    @property
    def told(self) -> tuple[Matrices, ProductTypes, bool, str]:
        """Return the arguments of the library's heuristic query."""
        finish = self.finish or Finish()
        return self.matrices, self.types, finish.bias >= 0, finish.activation


class CublasLtProducts(LibrarySolver):
    """cuBLASLt for products and 1x1 convolutions; an epilogue that cuBLASLt lacks runs as a kernel of ours."""

    name = "cublaslt"
    library = staticmethod(cublaslt)

    def asked(self, contraction: GpuContraction) -> _RequestedProduct:
        types, request = contraction.problem.types, contraction.request
        sums, finish = sums_dtype(contraction), finish_of(request.epilogue)
        accumulator, stored = ACCUMULATORS[types.out], request.epilogue.out_dtype(types.out)
        able = stored in (types.a, accumulator) and all(o.dtype == stored for o in request.epilogue.operands)
        if ITEMSIZE[types.a] == 1:  # of 8 bits it is asked for sums alone: what it would store in 8 bits is its own
            able = stored == accumulator and finish == Finish()
        if finish is None or not able:
            matrices = matrices_of(replace(contraction.problem, out_strides=()))
            return _RequestedProduct(matrices, ProductTypes(types.a, types.b, accumulator, sums), None)
        matrices = matrices_of(contraction.problem, request.strides[finish.added] if finish.added >= 0 else ())
        return _RequestedProduct(matrices, ProductTypes(types.a, types.b, stored, sums), finish)

    def found(self, number: int, contraction: GpuContraction) -> list[Algorithm]:
        product = self.asked(contraction)
        out = VECTOR_BYTES if product.finish is None else contraction.alignment
        return algorithms(number, *product.told, (VECTOR_BYTES, VECTOR_BYTES, out))

    def plan(self, contraction: GpuContraction, tiling: Any = None) -> Solution:
        product, algorithm = self.asked(contraction), tiling or self.tilings(contraction)[0]
        name, workspace = f"algorithm{algorithm.number}_tile{algorithm.tile}", algorithm.workspace
        fields = MatmulCall.fields(*product.told, algorithm)
        call = call_of(contraction, self, name, fields, product.finish or Finish(), workspace)
        if product.finish is not None:
            return Solution((call,), workspace)
        finished = add_split_k(contraction, call, 1)
        start = -(-finished.scratch // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
        moved = {Operand("out"): Operand("scratch"), Operand("scratch"): Operand("scratch", start)}
        args = tuple(moved.get(arg, arg) if isinstance(arg, Operand) else arg for arg in call.args)
        return Solution((replace(call, args=args), finished.launches[1]), start + workspace)


class CudnnConvolutions(LibrarySolver):
    """cuDNN for 16-bit and float32 convolutions with their whole epilogue."""

    name = "cudnn"
    library = staticmethod(cudnn)

    def asked(self, contraction: GpuContraction) -> tuple[RequestedConvolution, Finish]:
        problem, epilogue = contraction.problem, contraction.request.epilogue
        if not isinstance(problem, ConvProblem):
            raise UnsupportedError("it is no convolution")
        if problem.prologue is not None:
            raise UnsupportedError(NOT_COMPUTED)
        types, finish = problem.types, finish_of(epilogue)
        if types.a not in DATA_TYPES:
            raise UnsupportedError(f"cuDNN is not asked for convolutions of {types.a}")
        stored = (epilogue.out_dtype(types.out), *(o.dtype for o in epilogue.operands))
        if finish is None or finish.activation not in ("", "relu") or not {*stored} <= {*DATA_TYPES}:
            raise UnsupportedError("cuDNN is asked for a tensor that is added, a bias and ReLU after it")
        if problem.transposed or min((*problem.pads_begin, *problem.pads_end)) < 0:
            raise UnsupportedError("it is transposed, or crops")
        if problem.groups > 1 and tuple(problem.pads_begin) != tuple(problem.pads_end):
            raise UnsupportedError("it has groups and unequal padding, of which cuDNN 9.19 gave a wrong result")
        if problem.x_strides[-1] < problem.in_channels:
            raise UnsupportedError("pixels overlap")
        dtypes = dict(enumerate(stored, -1))
        added = contraction.request.strides[finish.added] if finish.added >= 0 else ()
        if problem.batch > 1 and 0 in (problem.x_strides[0], *added[:1]):
            raise UnsupportedError("an image is one for all of the batch")
        full = problem.volume()
        axes = slice(1 if len(problem.in_lens) < 3 else 0, 3)  # it has none of one dimension
        steps = [prod(full.out_lens[d + 1 :]) for d in range(3)][axes]
        told = RequestedConvolution(
            x_lens=(full.batch, full.in_channels, *full.in_lens[axes]),
            x_strides=(full.x_strides[0] or problem.in_pixels * full.x_strides[3], 1, *_walked(full)[axes]),
            w_lens=(full.out_channels, full.group_in, *full.kernel[axes]),
            y_lens=(full.batch, full.out_channels, *full.out_lens[axes]),
            y_strides=_strides(full, steps, *problem.out_strides),
            left=types.a, right=types.b, out=stored[0], sums=sums_dtype(contraction),
            before=full.pads_begin[axes], after=full.pads_end[axes], steps=full.stride[axes],
            dilation=full.dilation[axes], added=dtypes[finish.added] if added else "",
            added_strides=_strides(full, steps, *added) if added else (),
            bias=dtypes[finish.bias] if finish.bias >= 0 else "", relu=bool(finish.activation),
            rounds=problem.fast_math, alignment=contraction.alignment,
        )  # fmt: skip
        return told, finish

    def found(self, number: int, contraction: GpuContraction) -> list[ConvolutionEngine]:
        return engines(number, self.asked(contraction)[0])

    def plan(self, contraction: GpuContraction, tiling: Any = None) -> Solution:
        (told, finish), engine = self.asked(contraction), tiling or self.tilings(contraction)[0]
        fields = ConvolutionCall.fields(told, engine)
        call = call_of(contraction, self, f"engine{engine.number}", fields, finish, engine.workspace)
        return Solution((call,), engine.workspace)


LIBRARIES: tuple[LibrarySolver, ...] = (CublasLtProducts(), CudnnConvolutions())
"""Solvers that only tuning by measurement selects."""


def _strides(full: ConvProblem, steps: Sequence[int], image: int, pixel: int) -> tuple[int, ...]:
    """Return the strides (images, channels, spatial axes) of a tensor shaped like the result; the image stride is
    defined for a batch of one, too."""
    return (image or pixel * full.out_pixels, 1, *(pixel * step for step in steps))


def _walked(full: ConvProblem) -> tuple[int, ...]:
    """Return the strides of the input's three spatial axes; axes of length 1 get the stride of a packed tensor."""
    found, step = list(full.x_strides[1:]), full.x_strides[3]
    for axis in (2, 1, 0):
        if full.in_lens[axis] == 1:
            found[axis] = step
        step = found[axis] * full.in_lens[axis]
    return tuple(found)
