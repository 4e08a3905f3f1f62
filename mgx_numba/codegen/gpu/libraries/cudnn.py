"""cuDNN: the functions of its graph API, and its descriptors.

Names and values are those of cudnn_graph.h of version 9.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import byref, c_bool, c_double, c_float, c_int, c_int64, c_void_p
from enum import IntEnum
from typing import Any

from .finding import ContractionLibrary, loaded_library

_NAMES = ("libcudnn.so.9",)
_NEEDS = (
    "libnvrtc.so.13", "libnvrtc.so.12", "libcublasLt.so.13", "libcublasLt.so.12", "libcublas.so.13", "libcublas.so.12",
)  # fmt: skip
"""Libraries that cuDNN opens by name; it finds them if they are loaded before."""
DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
"""cudnnDataType_t of the supported types; for int8, cuDNN's engines do not store int32 accumulators."""


class Kind(IntEnum):
    """cudnnBackendDescriptorType_t."""

    # Of cudnn_graph.h.
    POINTWISE = 0
    CONVOLUTION = 1
    ENGINE = 2
    CONFIGURATION = 3
    HEURISTIC = 4
    PLAN = 5
    KNOB_CHOICE = 7
    CONVOLVING = 10
    CALCULATING = 13
    GRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17


class Value(IntEnum):
    """cudnnBackendAttributeType_t."""

    # Of cudnn_graph.h.
    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    POINTER = 6
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    KNOB_TYPE = 9
    NUMERICAL_NOTE = 11
    POINTWISE_MODE = 14
    DESCRIPTOR = 15


_STORED: dict[Value, Any] = {
    Value.HANDLE: c_void_p, Value.BOOLEAN: c_bool, Value.INT64: c_int64, Value.FLOAT: c_float, Value.DOUBLE: c_double,
    Value.POINTER: c_void_p, Value.DESCRIPTOR: c_void_p,
}  # fmt: skip
"""C types of attribute values; enumerations are int."""


class Attribute(IntEnum):
    """cudnnBackendAttributeName_t."""

    # Of cudnn_graph.h.
    POINTWISE_MODE = 0
    POINTWISE_PRECISION = 1
    CONVOLUTION_PRECISION = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_RANK = 106
    HEURISTIC_MODE = 200
    HEURISTIC_GRAPH = 201
    HEURISTIC_RESULTS = 202
    CONFIGURATION_ENGINE = 300
    CONFIGURATION_KNOBS = 302
    CONFIGURATION_WORKSPACE = 303
    PLAN_HANDLE = 400
    PLAN_CONFIGURATION = 401
    PLAN_WORKSPACE = 402
    KNOB_TYPE = 600
    KNOB_VALUE = 601
    CONVOLVING_ALPHA = 700
    CONVOLVING_BETA = 701
    CONVOLVING_HOW = 702
    CONVOLVING_W = 703
    CONVOLVING_X = 704
    CONVOLVING_Y = 705
    CALCULATING_HOW = 750
    CALCULATING_X = 751
    CALCULATING_B = 752
    CALCULATING_Y = 753
    GRAPH_HANDLE = 800
    GRAPH_OPERATIONS = 801
    TENSOR_ALIGNMENT = 900
    TENSOR_TYPE = 901
    TENSOR_LENS = 902
    TENSOR_STRIDES = 903
    TENSOR_ID = 906
    TENSOR_VIRTUAL = 907
    PACK_IDS = 1000
    PACK_ADDRESSES = 1001
    PACK_WORKSPACE = 1003
    ENGINE_GRAPH = 1300
    ENGINE_NUMBER = 1301
    ENGINE_NOTES = 1303


class Cudnn(ContractionLibrary):
    """The functions of libcudnn."""

    vendor = "cuDNN"
    get_version, get_name, create = "cudnnGetVersion", "cudnnGetErrorString", "cudnnCreate"
    least = 90200  # the first that tells the workspace of an engine's configuration before there is a plan of it


@functools.lru_cache(maxsize=1)
def cudnn() -> Cudnn:
    """Return the process's library.

    Raises:
        DeviceError: it is missing or too old.
    """
    return Cudnn(loaded_library(_NAMES, _NEEDS))


class Descriptor:
    """A backend descriptor; it keeps the descriptors alive that it refers to."""

    def __init__(self, library: Cudnn, kind: Kind) -> None:
        self._library = library
        self.pointer = c_void_p()
        self._told: list[object] = []
        library.call("cudnnBackendCreateDescriptor", int(kind), byref(self.pointer))

    def set(self, name: Attribute, kind: Value, *values: object) -> Descriptor:
        """Set an attribute; return this descriptor."""
        own = [v.pointer if isinstance(v, Descriptor) else v for v in values]
        self._told += values
        stored = (_STORED.get(kind, c_int) * len(own))(*own)
        self._library.call("cudnnBackendSetAttribute", self.pointer, int(name), int(kind), c_int64(len(own)), stored)
        return self

    def finish(self) -> Descriptor:
        """Finalise; return this descriptor.

        Raises:
            DeviceError: the library does not support the combination.
        """
        self._library.call("cudnnBackendFinalize", self.pointer)
        return self

    def numbers(self, name: Attribute, kind: Value, most: int = 1) -> list[Any]:
        """Return an attribute's values, at most ``most``."""
        count, stored = c_int64(), (_STORED.get(kind, c_int) * most)()
        self._get(name, kind, most, count, stored)
        return list(stored[: count.value])

    def descriptors(self, name: Attribute, kind: Kind, most: int = 1) -> list[Descriptor]:
        """Return an attribute's descriptors, at most ``most``."""
        made = [Descriptor(self._library, kind) for _ in range(most)]
        count, stored = c_int64(), (c_void_p * most)(*(d.pointer.value for d in made))
        self._get(name, Value.DESCRIPTOR, most, count, stored)
        return made[: count.value]

    def _get(self, name: Attribute, kind: Value, most: int, count: c_int64, stored: object) -> None:
        self._library.call(
            "cudnnBackendGetAttribute", self.pointer, int(name), int(kind), c_int64(most), byref(count), stored
        )

    def __del__(self) -> None:
        if self.pointer.value and not self._library.forked:
            self._library.succeeds("cudnnBackendDestroyDescriptor", self.pointer)


def tensor(
    library: Cudnn, number: int, dtype: str, lens: Sequence[int], strides: Sequence[int], alignment: int, stored: bool
) -> Descriptor:
    """Return tensor ``number``; a tensor that is not ``stored`` is virtual."""
    made = Descriptor(library, Kind.TENSOR)
    made.set(Attribute.TENSOR_TYPE, Value.DATA_TYPE, DATA_TYPES[dtype])
    made.set(Attribute.TENSOR_LENS, Value.INT64, *lens)
    made.set(Attribute.TENSOR_STRIDES, Value.INT64, *strides)
    made.set(Attribute.TENSOR_ID, Value.INT64, number)
    made.set(Attribute.TENSOR_ALIGNMENT, Value.INT64, alignment)
    return made.set(Attribute.TENSOR_VIRTUAL, Value.BOOLEAN, not stored).finish()
