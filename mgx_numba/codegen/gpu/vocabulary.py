"""The language that GPU kernel source is written in: every name a kernel may call.

A kernel is ``def kernel(args)``, run by every thread of every block of a grid (`kernel.gpu_kernel`); its text also sets
``THREADS``, the threads of a block, and ``SLOTS``, the int64 words of ``args``. Values, pointers and all names of
`mgx_numba.codegen.cpu.vocabulary` under "Making values", "Arithmetic", "Elementary functions", "Index arithmetic" and
the following of "Memory" mean what they mean there: ``pointer_<dtype> offset load_scalar store_scalar load_splat load
store``. A vector belongs to one thread. What calls the C library there (float64 functions without a polynomial of our
own, ``fmod`` and ``mod`` of floats, ``sin cos tan``) does not exist here.

Threads
    thread_index(AXIS)                   0 to THREADS - 1 along axis 0
    block_index(AXIS)                    of the thread's block in the grid, along axis 0, 1 or 2
    barrier()                            until all threads of the block are here; what they wrote before is seen by all
    shuffle_xor(x, MASK)                 x of the thread of the same warp whose index differs in the bits of MASK (1 to
                                         31); all 32 threads of the warp call it

Memory of a block
    shared_<dtype>(COUNT)                pointer to COUNT (an integer literal) uninitialised elements that all threads
                                         of the block share; each call in the text has memory of its own
    load_aligned(p, i, LANES)            as load and store, where the address of p[i] is a multiple of the vector's
    store_aligned(p, i, v)               bytes, or of 16 if it has more

Tensor cores (sm_80 and above; `lang.tensor_cores` says which lane holds what)
    mma_float16(c, a, b)                 c + a b for 16 by 8 sums over 16 positions; c are 4 lanes of float32, a and b 4
    mma_bfloat16(c, a, b)                and 2 of int32; all 32 threads of a warp call it
    mma_float32(c, a, b)                 over 8 positions, of which TF32's bits count
    words_of(p) floats_of(p)             the same place as a pointer to int32, to float32
    join2(a, b) join4(a, b, c, d)        vectors of one lane side by side

Fast math on float32
    exp_quick sigmoid_quick tanh_quick gelu_erf_quick gelu_tanh_quick silu_quick softplus_quick
                                         within 4 units in the last place (`lang.quick`)

Faults
    note_fault(p, step, check, index)    write the three numbers to the int64 words from p on, unless an earlier one has

Between two barriers no thread may touch an element of a block's memory, nor of a result, that another one writes.
"""

# ruff: noqa: F403
from __future__ import annotations

from ..lang import arith, memory, reduce, values, vecmath
from ..lang.arith import *
from ..lang.memory import *
from ..lang.reduce import *
from ..lang.values import *
from ..lang.vecmath import *
from .lang import blocks, faults, mbarriers, quick, tensor_copies, tensor_cores, threads, warpgroups
from .lang.blocks import *
from .lang.faults import *
from .lang.mbarriers import *
from .lang.quick import *
from .lang.tensor_copies import *
from .lang.tensor_cores import *
from .lang.threads import *
from .lang.warpgroups import *

_PARTS = (
    arith, blocks, faults, mbarriers, memory, quick, reduce, tensor_copies, tensor_cores, threads, values, vecmath,
    warpgroups,
)  # fmt: skip
__all__ = [name for part in _PARTS for name in part.__all__]
