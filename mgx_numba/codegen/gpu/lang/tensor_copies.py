"""TMA loads of tensor boxes to shared memory (sm_90 and above).

PTX ISA, "cp.async.bulk.tensor". `codegen.launch.TensorLayout` describes tensors. A box is 1024-byte aligned and
completes its bytes at an mbarrier (`mbarriers`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ...lang.memory import memory_element
from ...lang.target import itemsize
from ...lang.vector import (
    DTYPES,
    Definition,
    KernelFunction,
    Values,
    Vec,
    constant_int,
    kernel_function,
    make_intrinsic,
    pointer_dtype,
    pointer_type,
)
from ...launch import DYNAMIC_ALIGNMENT
from ...toolchain.numba_core import TypingError, types
from .blocks import SHARED_SPACE
from .mbarriers import shared_address
from .threads import effect, elements, expect, target, vector_of

_I16, _I32, _I64, _I8 = (ir.IntType(bits) for bits in (16, 32, 64, 8))
_PLACE = Vec("int32", 4)
_LEAST_CAPABILITY = (9, 0)
"""Least compute capability with TMA."""
DYNAMIC = "dynamic_memory"
"""Symbol of dynamic shared memory."""
LEAST_ALIGNMENT = 16
"""Alignment (bytes) of dynamic shared memory that the driver guarantees, whatever is declared."""
MOST_DYNAMIC = 226 << 10
"""Most dynamic shared memory (bytes), one KiB less than CUDA C++ programming guide, "Technical specifications per
compute capability"."""


def _dynamic(dtype: str) -> KernelFunction:
    name, result = f"dynamic_{dtype}", pointer_type(dtype)

    def define(start: types.Type) -> Definition:
        first = constant_int(name, "START", start, high=MOST_DYNAMIC)
        if first % itemsize(dtype):
            raise TypingError(f"{name}: START must be a multiple of {itemsize(dtype)}, got {first}")

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            module = builder.module
            if DYNAMIC not in module.globals:
                made = ir.GlobalVariable(module, ir.ArrayType(_I8, 0), DYNAMIC, addrspace=SHARED_SPACE)
                made.linkage, made.align = "external", LEAST_ALIGNMENT
            start = builder.ptrtoint(module.globals[DYNAMIC], _I32)
            whole = builder.and_(builder.add(start, _I32(DYNAMIC_ALIGNMENT - 1)), _I32(-DYNAMIC_ALIGNMENT))
            element = memory_element(dtype)
            place = builder.inttoptr(builder.add(whole, _I32(first)), ir.PointerType(element, SHARED_SPACE))
            return builder.addrspacecast(place, element.as_pointer())

        return result(start), emit

    return make_intrinsic(name, define, literal=True)


@kernel_function
def tensor_map(args: types.Type, slot: types.Type) -> Definition:
    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        return builder.gep(values[0], [values[1]])

    words = types.CPointer(types.int64)
    return words(words, types.int64), emit


@kernel_function
def tensor_prefetch(tensor: types.Type) -> Definition:
    pointer_dtype("tensor_prefetch", tensor)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        _check("tensor_prefetch")
        place = builder.ptrtoint(values[0], _I64)
        effect(builder, "prefetch.tensormap [$0];", "l", [place])

    return types.void(tensor), emit


@kernel_function
def place4(*parts: types.Type) -> Definition:
    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        return vector_of(builder, [builder.trunc(value, _I32) for value in values])

    return _PLACE(*[types.int64] * 4), emit


_COPY = (
    "cp.async.bulk.tensor.4d.shared::cluster.global.{}.mbarrier::complete_tx::bytes{} [$0], "
    "[$1, {{$3, $4, $5, $6}}], [$2]{};"
)
MOST_BLOCKS = 8
"""Most blocks per cluster: CUDA C++ programming guide, "Thread Block Clusters"."""


def _load(name: str, window: bool) -> KernelFunction:
    text = _COPY.format("im2col" if window else "tile", "", ", {$7, $8}" * window)
    constraints = "r,l,r,r,r,r,r" + ",h,h" * window

    def define(
        to: types.Type, tensor: types.Type, barrier: types.Type, place: types.Type, *taps: types.Type
    ) -> Definition:
        _expect_place(name, to, place)

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            _check(name)
            operands = [*_copied(builder, values), *(builder.trunc(v, _I16) for v in values[4:])]
            effect(builder, text, constraints, operands)

        return types.void(to, tensor, barrier, place, *[types.int64] * len(taps)), emit

    return make_intrinsic(name, define, 6 if window else 4)


def _load_to(name: str, window: bool) -> KernelFunction:
    shapes = ("im2col", ", {$7, $8}, $9") if window else ("tile", ", $7")
    text = _COPY.format(shapes[0], ".multicast::cluster", shapes[1])
    constraints = "r,l,r,r,r,r,r" + ",h,h" * window + ",h"

    def define(
        to: types.Type, tensor: types.Type, barrier: types.Type, place: types.Type, *rest: types.Type
    ) -> Definition:
        _expect_place(name, to, place)
        *taps, blocks, _ = rest
        pattern = constant_int(name, "BLOCKS", blocks, low=1, high=(1 << MOST_BLOCKS) - 1)

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            _check(name)
            mask = builder.shl(_I16(pattern), builder.trunc(values[-1], _I16))
            operands = [*_copied(builder, values), *(builder.trunc(v, _I16) for v in values[4:-2]), mask]
            effect(builder, text, constraints, operands)

        return types.void(to, tensor, barrier, place, *[types.int64] * len(taps), blocks, types.int64), emit

    return make_intrinsic(name, define, 8 if window else 6, literal=True)


def _expect_place(name: str, to: types.Type, place: types.Type) -> None:
    pointer_dtype(name, to)
    if place != _PLACE:
        raise TypingError(f"{name}: a place is what place4 gives, got {place}")


def _check(name: str) -> None:
    expect(name, target().capability >= _LEAST_CAPABILITY, "copy engine")


def _copied(builder: ir.IRBuilder, values: Any) -> list[ir.Value]:
    """Return the destination, the tensor map, the mbarrier and the coordinates of a box."""
    to, barrier = shared_address(builder, values[0]), shared_address(builder, values[2])
    return [to, builder.ptrtoint(values[1], _I64), barrier, *elements(builder, values[3])]


tensor_load = _load("tensor_load", False)
tensor_load_window = _load("tensor_load_window", True)
tensor_load_to, tensor_load_window_to = _load_to("tensor_load_to", False), _load_to("tensor_load_window_to", True)

for _dtype in DTYPES:
    globals()[f"dynamic_{_dtype}"] = _dynamic(_dtype)
