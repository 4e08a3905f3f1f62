"""cuBLASLt: its functions, its algorithms for a product, and products as calls.

Names and values are those of cublasLt.h and library_types.h. The library is column-major: a row-major product is passed
as the product of the transposes, operands swapped.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping, Sequence
from ctypes import byref, c_double, c_float, c_int, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import asdict
from typing import Any

from ....dataclass import dataclass
from ....errors import DeviceError
from .finding import ContractionLibrary, loaded_library

_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
TYPES = {
    "float32": 0, "float64": 1, "float16": 2, "int8": 3, "int32": 10, "bfloat16": 14, "float8_e4m3fn": 28,
    "float8_e5m2": 29,
}  # fmt: skip
"""cudaDataType_t."""
COMPUTES = {"float32": 68, "tf32": 77, "float64": 70, "int32": 72}
"""cublasComputeType_t, by what sums are added in."""
_SCALES: dict[str, Any] = {"float32": c_float, "float64": c_double, "int32": c_int}
_LEFT_TURNED, _RIGHT_TURNED, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MOST_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t
_IN_SUMS_TYPE = 2
"""CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: split-K partial sums are added in the compute type, in a fixed order."""
_ACTIVATIONS = {"": 0, "relu": 2, "gelu_tanh": 32}  # cublasLtEpilogue_t
_BIAS = 4
"""cublasLtEpilogue_t: bias, added to an activation's value. GELU is the tanh approximation."""
WORKSPACE_BYTES = 32 << 20
"""NVIDIA's recommendation for Hopper, sufficient for others (cublasSetWorkspace)."""
MOST_ALGORITHMS = 12
"""Most algorithms that tuning measures: as many as tiles of our solvers."""


class _AlgorithmWords(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", c_uint64 * 8),)


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _AlgorithmWords),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of a library version with all its parameters (cublasLtMatmulAlgoConfigAttributes_t), and
    ``workspace`` in bytes."""

    version: int
    number: int
    tile: int
    splits: int
    reduction: int
    swizzle: int
    custom: int
    stages: int
    inner: int
    cluster: int
    workspace: int


_PARAMETERS: dict[str, tuple[int, Any]] = {
    "tile": (1, c_uint32), "splits": (2, c_int), "reduction": (3, c_uint32), "swizzle": (4, c_uint32),
    "custom": (5, c_uint32), "stages": (6, c_uint32), "inner": (7, c_uint16), "cluster": (8, c_uint16),
}  # fmt: skip


@dataclass(frozen=True)
class ProductTypes:
    """Dtypes of a product's operands, result and accumulators; ``sums`` is ``tf32`` for float32 multiplied in TF32."""

    left: str
    right: str
    out: str
    sums: str

    @property
    def scale(self) -> str:
        """Return the dtype of alpha and beta."""
        return "float32" if self.sums == "tf32" else self.sums


class CublasLt(ContractionLibrary):
    """The functions of libcublasLt."""

    vendor = "cuBLASLt"
    get_version, get_name, create = "cublasLtGetVersion", "cublasLtGetStatusName", "cublasLtCreate"
    least = 120103  # 12.1 Update 1, the first in which algorithms have clusters of blocks


@functools.lru_cache(maxsize=1)
def cublaslt() -> CublasLt:
    """Return the process's library.

    Raises:
        DeviceError: it is missing or too old.
    """
    return CublasLt(loaded_library(_NAMES))


class _Descriptions:
    """The library's descriptors of a product, without addresses."""

    def __init__(self, library: CublasLt, matrices: Matrices, types: ProductTypes, bias: bool, activation: str) -> None:
        self._library = library
        self._made: list[tuple[str, c_void_p]] = []
        rows, columns, depth = matrices.rows, matrices.columns, matrices.depth
        self.product = self._new("MatmulDesc", COMPUTES[types.sums], TYPES[types.scale])
        self.set("MatmulDesc", self.product, _LEFT_TURNED, c_int(matrices.right.turned))
        self.set("MatmulDesc", self.product, _RIGHT_TURNED, c_int(matrices.left.turned))
        if bias or activation:
            self.set("MatmulDesc", self.product, _EPILOGUE, c_int(_ACTIVATIONS[activation] + _BIAS * bias))
        batch = matrices.batch
        self.left = self._layout(types.right, matrices.right, depth, columns, batch)
        self.right = self._layout(types.left, matrices.left, rows, depth, batch)
        self.out = self._layout(types.out, matrices.out, rows, columns, batch)
        self.added = self._layout(types.out, matrices.added or matrices.out, rows, columns, batch)

    def _new(self, kind: str, *arguments: object) -> c_void_p:
        made = c_void_p()
        self._library.call(f"cublasLt{kind}Create", byref(made), *arguments)
        self._made.append((kind, made))
        return made

    def set(self, kind: str, what: c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute."""
        name = f"cublasLt{kind}SetAttribute"
        self._library.call(name, what, attribute, byref(value), c_size_t(ctypes.sizeof(value)))

    def _layout(self, dtype: str, matrix: Matrix, rows: int, columns: int, batch: int) -> c_void_p:
        """Return the layout of a matrix: row-major ones are passed as column-major transposes."""
        inner, outer = (rows, columns) if matrix.turned else (columns, rows)
        made = self._new("MatrixLayout", TYPES[dtype], c_uint64(inner), c_uint64(outer), c_int64(matrix.pitch))
        if batch > 1:
            self.set("MatrixLayout", made, _BATCH_COUNT, c_int(batch))
            self.set("MatrixLayout", made, _BATCH_STRIDE, c_int64(matrix.plane))
        return made

    def preference(self, alignments: Sequence[int]) -> c_void_p:
        """Return the constraints on algorithms; alignments are of left, right, added and out."""
        made = self._new("MatmulPreference")
        self.set("MatmulPreference", made, _MOST_WORKSPACE, c_uint64(WORKSPACE_BYTES))
        self.set("MatmulPreference", made, _REDUCTIONS, c_uint32(_IN_SUMS_TYPE))
        for attribute, alignment in zip(_ALIGNMENTS, alignments, strict=True):
            self.set("MatmulPreference", made, attribute, c_uint32(alignment))
        return made

    @property
    def layouts(self) -> tuple[c_void_p, ...]:
        """Return the layouts of left, right, added and out."""
        return self.left, self.right, self.added, self.out

    def __del__(self) -> None:
        for kind, what in self._made if not self._library.forked else ():
            self._library.succeeds(f"cublasLt{kind}Destroy", what)


def algorithms(
    number: int, matrices: Matrices, types: ProductTypes, bias: bool, activation: str, alignments: Sequence[int]
) -> list[Algorithm]:
    """Return the heuristic's algorithms for a product, best first; empty if it has none.

    Args:
        number: device number; the device is current.
        alignments: alignment (bytes) of the left operand, of the right operand, and of result and summand.

    Raises:
        DeviceError: the library is missing or rejects the types.
    """
    library = cublaslt()
    told = _Descriptions(library, matrices, types, bias, activation)
    left, right, out = alignments
    if bias:  # the heuristic takes from it at what multiples biases lie
        told.set("MatmulDesc", told.product, _BIAS_POINTER, c_uint64(out))
    found, count = (_Heuristic * MOST_ALGORITHMS)(), c_int()
    able = library.succeeds(
        "cublasLtMatmulAlgoGetHeuristic", library.handle(number), told.product, *told.layouts,
        told.preference((right, left, out, out)), MOST_ALGORITHMS, found, byref(count),
    )  # fmt: skip
    usable = [one for one in found[: count.value] if one.state == 0] if able else []
    return list(dict.fromkeys(_parameters(library, one) for one in usable))


def _parameters(library: CublasLt, found: _Heuristic) -> Algorithm:
    def read(attribute: int, kind: Any) -> int:
        value, written = kind(), c_size_t()
        library.call(
            "cublasLtMatmulAlgoConfigGetAttribute", byref(found.algorithm), attribute, byref(value),
            c_size_t(ctypes.sizeof(value)), byref(written),
        )  # fmt: skip
        return int(value.value)

    own = {name: read(*how) for name, how in _PARAMETERS.items()}
    return Algorithm(library.version, read(0, c_int), **own, workspace=found.workspace)


class MatmulCall:
    """See `LibraryCall`. Operands: ``left``, ``right``, ``out``, and as needed ``bias``, ``added``, ``workspace``."""

    def __init__(
        self, number: int, matrices: Matrices, types: ProductTypes, bias: bool, activation: str, algorithm: Algorithm
    ) -> None:
        """Prepare the call.

        Raises:
            DeviceError: the library has another version or lacks the algorithm.
        """
        self._library = library = cublaslt()
        library.check_version(algorithm.version)
        self._handle = library.handle(number)
        self._told = told = _Descriptions(library, matrices, types, bias, activation)
        self._bias = bias
        self._algorithm, checked = _AlgorithmWords(), _Heuristic()
        dtypes = [TYPES[t] for t in (types.right, types.left, types.out, types.out)]
        library.call(
            "cublasLtMatmulAlgoInit", self._handle, COMPUTES[types.sums], TYPES[types.scale], *dtypes,
            algorithm.number, byref(self._algorithm),
        )  # fmt: skip
        for name, (attribute, kind) in _PARAMETERS.items():
            value = kind(getattr(algorithm, name))
            library.call(
                "cublasLtMatmulAlgoConfigSetAttribute", byref(self._algorithm), attribute, byref(value),
                c_size_t(ctypes.sizeof(value)),
            )  # fmt: skip
        library.call(
            "cublasLtMatmulAlgoCheck", self._handle, told.product, *told.layouts, byref(self._algorithm), byref(checked)
        )
        if checked.workspace > algorithm.workspace:
            raise DeviceError(
                f"cuBLASLt's algorithm takes {checked.workspace} bytes of workspace, {algorithm.workspace} were known"
            )
        self._workspace = algorithm.workspace
        scale = _SCALES[types.scale]
        self._one, self._added_times = scale(1), scale(matrices.added is not None)
        self._lock = threading.Lock()  # the address of a bias is part of the product's description

    @classmethod
    def described(cls, fields: Mapping[str, Any], number: int) -> MatmulCall:
        """Restore a call from `fields` on device ``number``, which is the current device.

        Raises:
            DeviceError: see the class.
        """
        own = dict(fields["matrices"])
        for name in ("left", "right", "out", "added"):
            own[name] = own[name] and Matrix(**own[name])
        types, algorithm = ProductTypes(**fields["types"]), Algorithm(**fields["algorithm"])
        return cls(number, Matrices(**own), types, fields["bias"], fields["activation"], algorithm)

    @staticmethod
    def fields(
        matrices: Matrices, types: ProductTypes, bias: bool, activation: str, algorithm: Algorithm
    ) -> dict[str, object]:
        """Return a call as JSON values."""
        return {
            "matrices": asdict(matrices),
            "types": asdict(types),
            "bias": bias,
            "activation": activation,
            "algorithm": asdict(algorithm),
        }

    def enqueue(self, addresses: Mapping[str, int], stream: int) -> None:
        told, out = self._told, addresses["out"]
        left, right, added = addresses["right"], addresses["left"], addresses.get("added", out)
        with self._lock:
            if self._bias:
                told.set("MatmulDesc", told.product, _BIAS_POINTER, c_uint64(addresses["bias"]))
            self._library.call(
                "cublasLtMatmul", self._handle, told.product, byref(self._one),
                c_void_p(left), told.left, c_void_p(right), told.right, byref(self._added_times),
                c_void_p(added), told.added, c_void_p(out), told.out, byref(self._algorithm),
                c_void_p(addresses.get("workspace")), c_size_t(self._workspace), c_void_p(stream),
            )  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix, or column-major if ``turned``: ``pitch`` elements between rows (columns), ``plane`` between
    matrices of the batch."""

    pitch: int
    plane: int = 0
    turned: bool = False


@dataclass(frozen=True)
class Matrices:
    """``out[rows, columns] = left[rows, depth] @ right[depth, columns] + added[rows, columns]``, ``batch`` times; where
    ``added`` is None there is nothing to add."""

    rows: int
    columns: int
    depth: int
    batch: int
    left: Matrix
    right: Matrix
    out: Matrix
    added: Matrix | None = None
