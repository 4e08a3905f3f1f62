"""Each check of the interpreter: a small kernel that makes the fault, and the same kernel without it."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.gpu.kernel import gpu_kernel
from mgx_numba.codegen.launch import Grid
from mgx_numba.runtime.memory import address_of, aligned_empty

from ..interpreter.lanes import KernelFault
from ..interpreter.memory import Memory
from ..interpreter.run import interpret

THREADS = 128
SHARED = 3 * 8192
"""Bytes of dynamic memory: operands of 64 rows of 128 bytes."""

_BARRIER = ["b = shared_int64(2)", "if t == 0:", "    mbarrier_init(b, 1)", "    mbarrier_fence()", "barrier()"]
_OPERANDS = ["p = dynamic_float16(0)", "q = dynamic_float16(8192)", "row = idiv(t, 2)", "zero = const_float16(0, 8)"]
_STORES = [
    "for k in range(4):",
    "    operand_store(p, row, k * 2 + t - row * 2, zero)",
    "    operand_store(q, row, k * 2 + t - row * 2, zero)",
]
_PRODUCT = ["sums = wgmma_zero(64)", "sums = wgmma_float16(sums, p, q, 0, 4)", "wgmma_commit()"]
_RESULT = ["store(out, t * 4, sums_part(sums, 0))"]
_COPY = ["s = shared_float32(512)"]


def _run(lines: list[str]) -> None:
    memory, out = Memory(), aligned_empty((4 * THREADS,), "float32")
    out[:] = 0
    memory.add(address_of(out), out.view(np.uint8), "out")
    kernel = gpu_kernel("k", ["out = pointer_float32(args, 0)", "t = thread_index(0)", *lines], THREADS, 2)
    grid = Grid((1, 1, 1), (THREADS, 1, 1), shared_bytes=SHARED)
    interpret(kernel, [address_of(out), 8], grid, memory)


FAULTS = {
    "address": (["p = pointer_float32(args, 1)"], ["p = pointer_float32(args, 0)"], "address 0x8 lies in no memory"),
    "stored dtype": (["store(out, t, const_int32(0, 1))"], ["store(out, t, const_float32(0, 1))"], "stores int32 to"),
    "dtypes": (
        ["x = add(const_int32(0, 0), cast_float32(t))"],
        ["x = add(const_float32(0, 0), cast_float32(t))"],
        "operands of the dtypes",
    ),
    "undefined": (
        [*_COPY, "if t < 64:", "    store_scalar(s, t, 1.0)", "barrier()", "x = load_scalar(s, t)"],
        [*_COPY, "if t < 64:", "    store_scalar(s, t, 1.0)", "barrier()", "x = load_scalar(s, t - t)"],
        "thread 64, .*reads bytes 256 to 260 of the block's memory of line .*, which nobody has written",
    ),
    "copy alignment": (
        [*_COPY, "copy_async(s, t * 4, out, t, True)"],
        [*_COPY, "copy_async(s, t * 4, out, t - imod(t, 4), True)"],
        "thread 1, .*byte 4 of out is not at a multiple of 16",
    ),
    "copy that nobody waits for": (
        [*_COPY, "copy_async(s, t * 4, out, t * 4, t < 9)", "copy_commit()", "x = load(s, t * 4, 4)"],
        [*_COPY, "copy_async(s, t * 4, out, t * 4, t < 9)", "copy_commit()", "copy_wait(0)", "x = load(s, t * 4, 4)"],
        "which nobody has written",
    ),
    "copy of the last group": (
        [*_COPY, "copy_async(s, t * 4, out, t * 4, t < 9)", "copy_commit()", "copy_wait(1)", "x = load(s, t * 4, 4)"],
        [*_COPY, "copy_async(s, t * 4, out, t * 4, t < 9)", "copy_commit()", "copy_commit()", "copy_wait(1)",
         "x = load(s, t * 4, 4)"],
        "which nobody has written",
    ),
    "ldmatrix of what its warp writes": (
        ["s = shared_float16(1024)", "store_aligned(s, t * 8, const_float16(0, 8))", "x = ldmatrix4(s, t * 8)"],
        ["s = shared_float16(1024)", "store_aligned(s, t * 8, const_float16(0, 8))", "warp_barrier()",
         "x = ldmatrix4(s, t * 8)"],
        "thread 1, .*reads byte 16 .*, which thread 1 of block 0 wrote without a barrier between",
    ),
    "phase": (
        [*_BARRIER, "mbarrier_wait(b, 0)"],
        [*_BARRIER, "if t == 5:", "    mbarrier_arrive(b)", "mbarrier_wait(b, 0)"],
        "never meet: 128 threads .the first is 0. wait at mbarrier_wait",
    ),
    "phase of one thread": (
        [*_BARRIER, "if t == 7:", "    mbarrier_wait(b, 0)", "if t == 5:", "    mbarrier_arrive(b)"],
        [*_BARRIER, "if t == 5:", "    mbarrier_arrive(b)", "if t == 7:", "    mbarrier_wait(b, 0)"],
        "never meet: 1 threads .the first is 7. wait at mbarrier_wait",
    ),
    "parity": ([*_BARRIER, "mbarrier_wait(b, 2)"], [*_BARRIER, "mbarrier_wait(b, 1)"], "waits for parity 2"),
    "no barrier": (
        [*_BARRIER, "if t == 0:", "    mbarrier_arrive(offset(b, 1))"],
        [*_BARRIER, "if t == 0:", "    mbarrier_arrive(offset(b, 0))"],
        "byte 8 of .* is no barrier",
    ),
    "arrivals": (
        [*_BARRIER, "if t < 2:", "    mbarrier_expect(b, 64)"],
        [*_BARRIER, "if t < 1:", "    mbarrier_expect(b, 64)"],
        "thread 1, .*arrives once more than the barrier's phase has arrivals",
    ),
    "barrier of nobody": (
        ["b = shared_int64(1)", "if t == 0:", "    mbarrier_init(b, 0)"],
        ["b = shared_int64(1)", "if t == 0:", "    mbarrier_init(b, 1)"],
        "a barrier of 0 arrivals",
    ),
    "barriers": (
        ["b = shared_int64(128)", "if t < 65:", "    mbarrier_init(offset(b, t), 1)"],
        ["b = shared_int64(128)", "if t < 64:", "    mbarrier_init(offset(b, t), 1)"],
        "thread 64, .*more than 64 barriers",
    ),
    "block of a cluster": (
        [*_BARRIER, "if t == 0:", "    mbarrier_arrive_at(b, 1)"],
        [*_BARRIER, "if t == 0:", "    mbarrier_arrive_at(b, 0)"],
        "a cluster of 1 blocks has no block 1",
    ),
    "tensor": (
        [*_BARRIER, "if t == 3:", "    tensor_load(dynamic_float16(0), tensor_map(args, 1), b, place4(t, 0, 0, 0))"],
        _BARRIER,
        "thread 3, .*word 8 of an argument block describes no tensor",
    ),
    "piece": (
        [*_OPERANDS, "operand_store(p, row, t, zero)"],
        [*_OPERANDS, "operand_store(p, row, imod(t, 2), zero)"],
        "thread 8, .*no piece 8 of row 4 from byte 0",
    ),
    "row": (
        [*_OPERANDS, "operand_store(p, t + 65, 0, zero)"],
        [*_OPERANDS, "operand_store(p, t + 64, 0, zero)"],
        "thread 127, .*no piece 0 of row 192 from byte 0",
    ),
    "operand's place": (
        [*_OPERANDS, "operand_store(offset(p, 8), row, 0, zero)"],
        [*_OPERANDS, "operand_store(offset(p, 512), t, 0, zero)"],
        "an operand begins at byte 16 .*, no multiple of 1024",
    ),
    "piece of two threads": (
        [*_OPERANDS, "operand_store(p, row, 0, zero)"],
        [*_OPERANDS, "operand_store(p, row, imod(t, 2), zero)"],
        "stores bytes 0 to 16, which another thread may be storing",
    ),
    "piece of another thread": (
        [*_OPERANDS, "operand_store(p, t, 0, zero)", "operand_store(p, 127 - t, 0, zero)"],
        [*_OPERANDS, "operand_store(p, t, 0, zero)", "barrier()", "operand_store(p, 127 - t, 0, zero)"],
        "thread 0, .*stores bytes 16256 to 16272, which another thread may be storing",
    ),
    "nothing to multiply": (
        [*_OPERANDS, *_PRODUCT],
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", *_PRODUCT],
        "multiplies bytes 0 to 8192 of .*, to which no box has come",
    ),
    "operand without a fence": (
        [*_OPERANDS, *_STORES, "barrier()", *_PRODUCT],
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", *_PRODUCT],
        "multiplies bytes 0 to 8192, which thread 0 may be storing",
    ),
    "operands that differ": (
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", *_PRODUCT[:1],
         "sums = wgmma_float16(sums, offset(p, row), q, 0, 4)"],
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", *_PRODUCT[:1],
         "sums = wgmma_float16(sums, offset(p, row - row), q, 0, 4)"],
        "multiply different operands",
    ),
    "operand that is overwritten": (
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", *_PRODUCT, *_STORES],
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", *_PRODUCT, "sums = wgmma_wait(sums, 0)", *_STORES],
        "stores bytes 0 to 16 of .*, which warpgroup 0 may still be reading",
    ),
    "sums that are not complete": (
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", *_PRODUCT, *_RESULT],
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", *_PRODUCT, "sums = wgmma_wait(sums, 0)", *_RESULT],
        "reads sums that products may still be adding to",
    ),
    "part of a warpgroup": (
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", "if t < 64:", *(f"    {line}" for line in _PRODUCT)],
        [*_OPERANDS, *_STORES, "operand_fence()", "barrier()", "if t < 128:", *(f"    {line}" for line in _PRODUCT)],
        "never meet: 64 threads .the first is 0. wait at wgmma_float16 .*; 64 have not come",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_reported(name: str) -> None:
    wrong, right, said = FAULTS[name]
    _run(right)
    with pytest.raises(KernelFault, match=said):
        _run(wrong)
