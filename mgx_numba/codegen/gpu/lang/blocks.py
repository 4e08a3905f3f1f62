"""Shared memory, and aligned vector loads and stores."""

from __future__ import annotations

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.memory import loader, memory_element, storer
from ...lang.target import itemsize
from ...lang.vector import DTYPES, Definition, KernelFunction, Values, constant_int, make_intrinsic, pointer_type
from ...toolchain.numba_core import types

SHARED_SPACE = 3
"""LLVM address space of shared memory, for NVPTX and AMDGPU."""
SHARED_ALIGNMENT = 16
"""Alignment (bytes) of shared arrays: the widest load."""
MOST_SHARED = 48 << 10
"""Most static shared memory (bytes): CUDA C++ programming guide, "Shared memory"."""
MOST_ALIGNED = 16
"""Bytes of a thread's widest load."""

_I32 = ir.IntType(32)


def _shared(dtype: str) -> KernelFunction:
    name = f"shared_{dtype}"
    result = pointer_type(dtype)

    def define(count: types.Type) -> Definition:
        size = constant_int(name, "COUNT", count, low=1, high=MOST_SHARED // itemsize(dtype))

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            element = memory_element(dtype)
            array = ir.ArrayType(element, size)
            unique = builder.module.get_unique_name("shared")
            place = ir.GlobalVariable(builder.module, array, unique, addrspace=SHARED_SPACE)
            place.linkage, place.align = "internal", SHARED_ALIGNMENT
            place.initializer = ir.Constant(array, ir.Undefined)
            first = builder.gep(place, [_I32(0), _I32(0)])
            return builder.addrspacecast(first, element.as_pointer())

        return result(count), emit

    return make_intrinsic(name, define, literal=True)


def _alignment(dtype: str, lanes: int) -> int:
    return min(lanes * itemsize(dtype), MOST_ALIGNED)


def _load_aligned(b: VectorBuilder, dtype: str, lanes: int, p: ir.Value, i: ir.Value) -> ir.Value:
    kind = ir.VectorType(memory_element(dtype), lanes)
    return b.ir.load(b.ir.bitcast(b.ir.gep(p, [i]), kind.as_pointer()), align=_alignment(dtype, lanes))


def _store_aligned(b: VectorBuilder, dtype: str, p: ir.Value, i: ir.Value, v: ir.Value) -> None:
    place = b.ir.bitcast(b.ir.gep(p, [i]), v.type.as_pointer())
    b.ir.store(v, place, align=_alignment(dtype, v.type.count))


load_aligned = loader("load_aligned", 3, _load_aligned)
store_aligned = storer("store_aligned", 3, 2, _store_aligned)

for _dtype in DTYPES:
    globals()[f"shared_{_dtype}"] = _shared(_dtype)
