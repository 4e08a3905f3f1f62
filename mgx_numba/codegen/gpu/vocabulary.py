"""The language that GPU kernel source is written in: every name a kernel may call.

A kernel is ``def kernel(args)``, run by every thread of every block of a grid (`kernel.gpu_kernel`); its text also sets
``THREADS``, the threads of a block, and ``SLOTS``, the int64 words of ``args``. Values, pointers and all names of
`mgx_numba.codegen.cpu.vocabulary` under "Making values", "Arithmetic", "Elementary functions", "Index arithmetic" and
the following of "Memory" mean what they mean there: ``pointer_<dtype> offset load_scalar store_scalar load_splat load
store``. A vector belongs to one thread. What calls the C library there is here of its own (`lang.periodic`,
`lang.double`), or does not exist: ``fmod`` and ``mod`` of floats.

Threads
    thread_index(AXIS)                   0 to THREADS - 1 along axis 0
    warp_index()                         number of the thread's warp along axis 0, known to be one for all of its
                                         threads; all 32 of them call it
    block_index(AXIS)                    of the thread's block in the grid, along axis 0, 1 or 2
    idiv32(a, b)                         as idiv, of numbers below 2**32: takes a third of the time
    barrier()                            until all threads of the block are here; what they wrote before is seen by all
    grid_wait()                          until the launches before are done; a kernel whose text has no such call makes
                                         it first. Before it a thread may touch the block's memory and the program's
                                         constants
    grid_barrier(p, count)               until all threads of all blocks of a cooperative launch are here; the int32 at
                                         p, 0 at first, counts the blocks that have come to such barriers: count of them
                                         with those of this one
    grid_leave(p, count)                 behind a block's last grid_barrier(p, ...): the counter is 0 again when all
                                         have left, these counted, too
    tagged_store(p, i, x, tag)           x, a float32, with a tag of 31 bits, as one word at the int64 p[i]
    tagged_load4(p, i, tag)              the float32 lanes of four neighbouring words when all have this tag, or, of
                                         which nobody may rely on the values, a higher one; blocks of a cooperative
                                         launch wait so for what others store
    shuffle_xor(x, MASK)                 x of the thread of the same warp whose index differs in the bits of MASK (1 to
                                         31); all 32 threads of the warp call it
    shuffle_halves(x)                    x, float32 or int32, of the thread of the same wave of 64 whose index differs
                                         by 32; all 64 threads of the wave call it

Memory of a block
    shared_<dtype>(COUNT)                pointer to COUNT (an integer literal) uninitialised elements that all threads
                                         of the block share; each call in the text has memory of its own
    load_aligned(p, i, LANES)            as load and store, where the address of p[i] is a multiple of the vector's
    store_aligned(p, i, v)               bytes, or of 16 if it has more

Tensor cores (sm_75 and above, sm_80 for bfloat16 and float32, sm_89 for float8; `lang.tensor_cores` says which lane
holds what)
    mma_<product>(c, a, b)               c + a b for 16 by 8 sums over 32 bytes of each row and column; c are 4 lanes of
                                         the sums' dtype, a and b 4 and 2 of int32; all 32 threads of a warp call it.
                                         Products: float16, bfloat16, float32 (of which TF32's bits count) and
                                         <a>_<b> of int8 and uint8, whose sums are int32, or one of float8_e4m3fn
                                         and float8_e5m2 twice
    words_of(p) floats_of(p)             the same place as a pointer to int32, to float32
    join2(a, b) join4(a, b, c, d)        vectors side by side
    pack_words(v)                        pairs of 16-bit elements as int32
    codes_float16(u, v, WORD, PAIR, points, exponents) codes_bfloat16(...)
                                         the operand a of mma from codes of 4 bits: those of word WORD of u less the
                                         first point as row g, of v less the second one as row g + 8, of each word codes
                                         k and k + 4, side by side, for k = 2 PAIR and the next one (`lang.codes`)
    low2(v) high2(v)                     the first and the last two of four lanes
    ldmatrix4(p, i)                      four tiles of eight rows of 16 bytes of the block's memory; p[i] is the row
                                         that this lane points to (`lang.pipelines`)
    ldmatrix4_turned(p, i)               the same, each tile's 16-bit elements by columns
    warp_barrier()                       until all threads of the warp are here; what they wrote before is seen by it

Matrix cores (AMD's; `codegen.gpu.matrix_tiles` says which lane holds what, and which architecture has them)
    mfma_<n>x<n>x<depth>_<product>(c, a, b)
                                         c + a b for n by n sums over so many positions; c are a lane's sums, a and b
                                         what it holds of the operands; all 64 threads of a wave call it. Products:
                                         float16, bfloat16, float32, float64 and int8_int8
    wmma_16x16x16_<product>(c, a, b) wmma_16x16x16_<product>_both(c, a, b)
                                         the same by all 32 threads of a wave. Products: float16, bfloat16, <a>_<b> of
                                         int8 and uint8, and one of float8_e4m3fn and float8_e5m2 twice; ``_both``:
                                         either half of the wave has all of the operands

Copies beside other work (sm_80 and above; `lang.pipelines`)
    copy_async(p, i, q, j, inside)       16 bytes from q[j] to p[i] of the block's memory, zeros if not ``inside``
    copy_commit() copy_wait(PENDING)     what was copied since is a group; wait for all but the last PENDING groups
    prefetch_l2(p, i)                    asks for the line of memory that has p[i], which comes to the second-level
                                         cache; on every architecture, of NVIDIA's alone it does something

The copy engine (sm_90 and above; `lang.mbarriers`, `lang.tensor_copies`)
    dynamic_<dtype>(START)               pointer into the memory that the launch gives each block, START bytes in
    mbarrier_init(p, n)                  a barrier of n arrivals at the int64 p of the block's memory
    mbarrier_fence()                     before the barrier() after which others use barriers that this thread made
    mbarrier_arrive(p)                   one arrival
    mbarrier_arrive_at(p, rank)          one arrival at the barrier that lies where p does in the cluster's block rank
    mbarrier_expect(p, bytes)            one arrival, and the phase is not over before so many bytes have come
    mbarrier_wait(p, parity)             until the phase of this parity is over; phases count from 0
    tensor_map(args, SLOT)               what the words from SLOT on describe (`codegen.launch.TensorLayout`)
    tensor_prefetch(map)                 asks for the description of a tensor before it is needed
    place4(i, j, k, l)                   indices of a box's first element, the contiguous dimension first
    tensor_load(p, map, b, place)        a box to p, with its bytes to the barrier b; one thread asks for it
    tensor_load_window(p, map, b, place, dx, dy)
                                         positions of a filter from one on, moved by a tap of it
    tensor_load_to(p, map, b, place, BLOCKS, first) tensor_load_window_to(p, map, b, place, dx, dy, BLOCKS, first)
                                         the same to blocks of the cluster, with its bytes to the barrier of each: bit
                                         n of BLOCKS stands for block first + n

Clusters of blocks (sm_90 and above; `lang.clusters`), of as many blocks along axis 0 as the text says by ``CLUSTER``
    cluster_rank()                       number of the thread's block in its cluster
    cluster_barrier()                    until all threads of all blocks of the cluster are here
    cluster_arrive() cluster_wait()      the same in two; of what was done before the first, others only see barriers
                                         that mbarrier_fence() has told of
    cluster_send(p, i, x, rank, b)       x, of 4 or 8 bytes, to p[i] of another block's memory, with its bytes to the
                                         barrier b there

Products of warpgroups (sm_90a; `lang.warpgroups`); all 128 threads call them
    operand_store(p, row, piece, v)      v, of 16 bytes, as a piece (0 to 7) of a row of an operand at p, which lies as
                                         boxes of rows of 128 bytes do (`lang.operand_stores`)
    operand_fence()                      what this thread has stored so may be multiplied by those who wait for what it
                                         arrives at after this
    give_registers(COUNT), take_registers(COUNT)
                                         this warpgroup's threads have COUNT registers each from now on, fewer or more
                                         than before; the second waits until others have given as many
    wgmma_zero(COLUMNS)                  sums of 64 rows, in float32
    wgmma_zero_int32(COLUMNS)            the same in int32
    wgmma_<product>(sums, a, b, TURNED, STEPS)
                                         sums + a b, for 64 rows a and the columns b of 128 bytes of the sum each, as
                                         boxes lie; TURNED 1: b has a row for each position, 64 columns in each box;
                                         products as of mma
    wgmma_<product>_first(COLUMNS, a, b, TURNED, STEPS)
                                         the same of sums of nothing
    wgmma_<product>_held(sums, words, b, TURNED)
                                         the same of 16 bits, where a are lanes of int32 that each thread holds, as
                                         sums lie: 16 of all positions of b, or 4, 8 or 12 of the first quarters
    wgmma_keep(words)                    after the wait for such a product: until here the words stay in their registers
    wgmma_fence()                        before the first product that adds to sums, or whose words are new
    wgmma_commit()                       what was multiplied since is a group
    wgmma_wait(sums, PENDING)            the sums, when all but the last PENDING groups are complete
    sums_part(sums, PART)                this thread's four of a piece of eight columns
    add_sums(sums, more)                 each sum and another one; in float32
    finite_sums(sums)                    int32: 1 if all sums of this thread are finite, else 0
    scale_sums(sums, x, y)               a thread's sums of its first row times x, those of its second one times y
    fma_sums(sums, x, y, more)           the same, and another one added to each, rounded once; in float32
    sums_row(sums, ROW, PART, LANES)     LANES (2, 4, 8, 16) neighbouring sums of the thread's first or second row, of
                                         piece PART of 4 LANES columns; for thread q of four from column q LANES on,
                                         of 4 lanes from 8 (q % 2) + 4 (q // 2) on; all 32 threads of a warp call it
    sums_in_turns(sums, ROW, PART, LANES)
                                         the same of columns that lie in turns (`contraction.placed.in_turns`): the
                                         thread's own sums, from column q LANES on
    row_of_turns(x)                      of lanes of 16 bits made of such sums of columns that do not lie in turns:
                                         those of neighbours, as of sums_row; all 32 threads of a warp call it

Fast math on float32
    exp2_quick exp_quick sigmoid_quick tanh_quick gelu_erf_quick gelu_tanh_quick silu_quick softplus_quick
                                         within 5 units in the last place (`lang.quick`)
    gelu_erf_short                       within 4e-7, for results of 16 bits
    gelu_erf_bytes                       within 3e-5, for results that are rounded to 8 bits

Elements of 8 bits
    max_bytes(x, y)                      the larger ones, of vectors of a multiple of four lanes (`lang.bytes`)

Quantising
    rounded_int8(x, z)                   the nearest integers, ties to even, of float32 lanes, plus z (float32 lanes of
    rounded_uint8(x, z)                  integers of the result's range), saturated; of NaN 0 (`lang.rounding`)
    rounded_product_<int8, uint8>(x, y, z)
                                         the same of x * y + z, which is rounded once
    gelu_erf_product_<int8, uint8>(x, y, z) gelu_erf_product_<float8>(x, y)
                                         the same of GELU of x times y (up to 24,000), as exact as float16 is, of
                                         -infinity 0, of NaN in int8 z; and saturated_<float8> of that
    saturated_<float8>(x)                the nearest float8_e4m3fn or float8_e5m2, of what is too large the largest one
    rounded_bfloat16(x)                  cast_bfloat16 of pairs of float32 lanes by an instruction (sm_80 and above)

Exact remainders of float32 and float64 (`lang.remainders`)
    fmod_exact(x, y) mod_exact(x, y)     with the sign of x, and with that of y

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
from .lang import (
    blocks,
    bytes,
    clusters,
    codes,
    faults,
    grids,
    matrix_cores,
    mbarriers,
    operand_stores,
    pipelines,
    quick,
    remainders,
    rounding,
    tagged,
    tensor_copies,
    tensor_cores,
    threads,
    warpgroups,
)
from .lang.blocks import *
from .lang.bytes import *
from .lang.clusters import *
from .lang.codes import *
from .lang.double import *
from .lang.faults import *
from .lang.grids import *
from .lang.matrix_cores import *
from .lang.mbarriers import *
from .lang.operand_stores import *
from .lang.pipelines import *
from .lang.quick import *
from .lang.remainders import *
from .lang.rounding import *
from .lang.tagged import *
from .lang.tensor_copies import *
from .lang.tensor_cores import *
from .lang.threads import *
from .lang.warpgroups import *

_PARTS = (
    arith, blocks, bytes, clusters, codes, faults, grids, matrix_cores, mbarriers, memory, operand_stores, pipelines,
    quick, reduce, remainders, rounding, tagged, tensor_copies, tensor_cores, threads, values, vecmath, warpgroups,
)  # fmt: skip
__all__ = [name for part in _PARTS for name in part.__all__]
