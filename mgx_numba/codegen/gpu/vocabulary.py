"""The language that GPU kernel source is written in: every name a kernel may call.

A kernel is ``def kernel(args)``, run by every thread of every block of a grid (`kernel.gpu_kernel`). Its text also sets
``THREADS``, the threads of a block, and ``SLOTS``, the int64 words of ``args``. Values, pointers and all names of
`mgx_numba.codegen.cpu.vocabulary` under "Making values", "Arithmetic", "Elementary functions" and "Index arithmetic"
have the same meaning as there. So have these names of "Memory": ``pointer_<dtype> offset load_scalar store_scalar
load_splat load store``. A vector belongs to one thread. Functions that call the C library on the CPU have their own
implementation here (`lang.periodic`, `lang.double`), or do not exist: ``fmod`` and ``mod`` of floats.

Threads
    thread_index(AXIS)                   0 to THREADS - 1 along axis 0
    warp_index()                         number of the thread's warp along axis 0, known to be uniform in the warp; all
                                         32 threads call it
    block_index(AXIS)                    index of the thread's block in the grid, along axis 0, 1 or 2
    idiv32(a, b)                         idiv of numbers below 2**32, in a third of the time
    barrier()                            wait for all threads of the block; their earlier writes are visible to all
    grid_wait()                          wait for the preceding launches. A kernel whose text has no such call makes it
                                         first. Before it a thread may touch only the block's memory and the program's
                                         constants
    grid_barrier(p, count)               wait for all threads of all blocks of a cooperative launch. The int32 at p, 0
                                         at first, counts the blocks that have reached such barriers; count is its
                                         value when all blocks have reached this barrier
    grid_leave(p, count)                 after a block's last grid_barrier(p, ...): the counter is reset to 0 when all
                                         blocks have left; count includes these arrivals
    last_block(p, count)                 one thread of each of ``count`` blocks calls it after a barrier(): int32 1 if
                                         all others have called it, else 0. After the next barrier() the last block
                                         sees what the others wrote before. The int32 at p, 0 at first, is reset to 0
    atomic_add(p, i, v)                  add v to the elements from p[i] on, in no fixed order among threads; float32,
                                         float64, and integers of 32 and 64 bits. Two and four lanes of float32 lie
                                         where the address is a multiple of the vector's bytes
    atomic_mul(p, i, v)                  multiply them by v, and make them the lesser and the greater number (NaN if
    atomic_min(p, i, v)                  either is), in the same way
    atomic_max(p, i, v)
    tagged_store(p, i, x, tag)           store x, a float32, with a tag of 31 bits, as one word at the int64 p[i]
    tagged_load4(p, i, tag)              wait until four adjacent words have this tag or a higher tag, and return their
                                         float32 lanes; with a higher tag the values are undefined. Blocks of a
                                         cooperative launch wait this way for data that other blocks store
    shuffle_xor(x, MASK)                 x of the thread of the same warp whose index differs in the bits of MASK (1 to
                                         31); all 32 threads of the warp call it
    shuffle_halves(x)                    x, float32 or int32, of the thread of the same wave of 64 whose index differs
                                         by 32; all 64 threads of the wave call it

Memory of a block
    shared_<dtype>(COUNT)                pointer to COUNT (an integer literal) uninitialised elements that all threads
                                         of the block share; each call in the text has separate memory
    load_aligned(p, i, LANES)            load and store where the address of p[i] is a multiple of the vector's bytes,
    store_aligned(p, i, v)               or of 16 for longer vectors

Tensor cores (sm_75 and above, sm_80 for bfloat16 and float32, sm_89 for float8; `lang.tensor_cores` describes the
fragments of each lane)
    mma_<product>(c, a, b)               c + a b for 16 by 8 accumulators over 32 bytes of each row and column; c has 4
                                         lanes of the accumulator dtype, a and b have 4 and 2 lanes of int32; all 32
                                         threads of a warp call it. Products: float16, bfloat16, float32 (only its
                                         TF32 bits count), <a>_<b> of int8 and uint8 with int32 accumulators, and
                                         float8_e4m3fn_float8_e4m3fn and float8_e5m2_float8_e5m2
    words_of(p) floats_of(p)             the same address as a pointer to int32, to float32
    join2(a, b) join4(a, b, c, d)        concatenated vectors
    pack_words(v)                        pairs of 16-bit elements as int32
    codes_float16(u, v, WORD, PAIR, points, exponents) codes_bfloat16(...)
                                         the operand a of mma from 4-bit codes: row g from word WORD of u minus the
                                         first point, row g + 8 from word WORD of v minus the second point; of each
                                         word codes k and k + 4, adjacent, for k = 2 PAIR and 2 PAIR + 1 (`lang.codes`)
    low2(v) high2(v)                     the first and the last two of four lanes
    ldmatrix4(p, i)                      load four tiles of eight rows of 16 bytes from the block's memory; p[i] is the
                                         row that this lane points to (`lang.pipelines`)
    ldmatrix4_turned(p, i)               the same with each tile of 16-bit elements transposed
    warp_barrier()                       wait for all threads of the warp; their earlier writes are visible to the warp

Matrix cores (AMD; `codegen.gpu.matrix_tiles` describes the fragments of each lane, and the architectures)
    mfma_<n>x<n>x<depth>_<product>(c, a, b)
                                         c + a b for n by n accumulators over a reduction length of depth; c are a
                                         lane's accumulators, a and b its fragments of the operands; all 64 threads of
                                         a wave call it. Products: float16, bfloat16, float32, float64 and int8_int8
    wmma_16x16x16_<product>(c, a, b) wmma_16x16x16_<product>_both(c, a, b)
                                         the same by all 32 threads of a wave. Products: float16, bfloat16, <a>_<b> of
                                         int8 and uint8, float8_e4m3fn_float8_e4m3fn and float8_e5m2_float8_e5m2.
                                         ``_both``: each half of the wave holds the whole operands

Asynchronous copies (sm_80 and above; `lang.pipelines`)
    copy_async(p, i, q, j, inside)       copy 16 bytes from q[j] to p[i] of the block's memory, zeros if not ``inside``
    copy_commit() copy_wait(PENDING)     close a group of the copies since the last commit; wait for all but the last
                                         PENDING groups
    prefetch_l2(p, i)                    prefetch the cache line of p[i] to the L2 cache; exists on every architecture,
                                         but has an effect on NVIDIA's only

Tensor memory accelerator (TMA, sm_90 and above; `lang.mbarriers`, `lang.tensor_copies`)
    dynamic_<dtype>(START)               pointer into the memory that the launch gives each block, START bytes in
    mbarrier_init(p, n)                  initialise a barrier of n arrivals at the int64 p of the block's memory
    mbarrier_fence()                     make barriers that this thread initialised visible; followed by a barrier()
    mbarrier_arrive(p)                   one arrival
    mbarrier_arrive_at(p, rank)          one arrival at the barrier at the same address in the cluster's block rank
    mbarrier_expect(p, bytes)            one arrival; the phase also waits for this number of transferred bytes
    mbarrier_wait(p, parity)             wait for the end of the phase of this parity; phases count from 0
    tensor_map(args, SLOT)               the tensor described by the words from SLOT (`codegen.launch.TensorLayout`)
    tensor_prefetch(map)                 prefetch the description of a tensor
    place4(i, j, k, l)                   indices of a box's first element, the contiguous dimension first
    tensor_load(p, map, b, place)        load a box to p, and count its bytes at the barrier b; one thread calls it
    tensor_load_window(p, map, b, place, dx, dy)
                                         load a filter's positions from ``place``, shifted by the tap (dx, dy)
    tensor_load_to(p, map, b, place, BLOCKS, first) tensor_load_window_to(p, map, b, place, dx, dy, BLOCKS, first)
                                         multicast the box to blocks of the cluster, and count its bytes at the barrier
                                         of each block: bit n of BLOCKS stands for block first + n

Clusters of blocks (sm_90 and above; `lang.clusters`). ``CLUSTER`` in the text sets their blocks along axis 0
    cluster_rank()                       number of the thread's block in its cluster
    cluster_barrier()                    wait for all threads of all blocks of the cluster
    cluster_arrive() cluster_wait()      the same, split in two; of writes before cluster_arrive, other blocks only see
                                         barriers that mbarrier_fence() has made visible
    cluster_send(p, i, x, rank, b)       store x, of 4 or 8 bytes, to p[i] in another block's memory, and count its
                                         bytes at the barrier b there

Products of warpgroups (sm_90a; `lang.warpgroups`); all 128 threads call them
    operand_store(p, row, piece, v)      store v, of 16 bytes, as piece 0 to 7 of a row of an operand at p, in the
                                         layout of boxes with rows of 128 bytes (`lang.operand_stores`)
    operand_fence()                      make these stores visible to products in threads that wait for a later arrival
                                         of this thread
    wgmma_zero(COLUMNS)                  zero accumulators of 64 rows, in float32
    wgmma_zero_int32(COLUMNS)            the same in int32
    wgmma_<product>(sums, a, b, TURNED, STEPS)
                                         sums + a b, for 64 rows a and the columns b, each of 128 bytes along k, in the
                                         layout of boxes. TURNED 1: b has a row for each k, with 64 columns in each
                                         box. Products as for mma
    wgmma_<product>_first(COLUMNS, a, b, TURNED, STEPS)
                                         a b, without earlier accumulators
    wgmma_<product>_held(sums, words, b, TURNED)
                                         sums + a b for 16-bit products with a in registers: int32 lanes in the layout
                                         of accumulators. 16 lanes cover all k of b; 4, 8 or 12 lanes its first quarters
    wgmma_keep(words)                    after the wait for such a product: keeps the words in their registers up to
                                         here
    wgmma_fence()                        before the first product that adds to accumulators or has new register words
    wgmma_commit()                       close a group of the products since the last commit
    wgmma_wait(sums, PENDING)            the accumulators, once all but the last PENDING groups are complete
    sums_part(sums, PART)                this thread's four accumulators of a piece of eight columns
    add_sums(sums, more)                 the sum of two sets of accumulators; in float32
    finite_sums(sums)                    int32: 1 if all accumulators of this thread are finite, else 0
    scale_sums(sums, x, y)               a thread's accumulators of its first row times x, of its second row times y
    fma_sums(sums, x, y, more)           the same plus the accumulators ``more``, rounded once; in float32
    sums_row(sums, ROW, PART, LANES)     LANES (2, 4, 8, 16) adjacent accumulators of the thread's first or second row,
                                         from piece PART of 4 LANES columns. For thread q of four they start at column
                                         q LANES; with 4 lanes at column 8 (q % 2) + 4 (q // 2). All 32 threads of a
                                         warp call it
    sums_in_turns(sums, ROW, PART, LANES)
                                         the same for interleaved columns (`contraction.placed.in_turns`): the thread's
                                         own accumulators, from column q LANES
    row_of_turns(x)                      exchange 16-bit lanes that sums_in_turns took from columns in plain order, for
                                         adjacent columns as of sums_row; all 32 threads of a warp call it

Fast math on float32
    exp2_quick exp_quick sigmoid_quick tanh_quick gelu_erf_quick gelu_tanh_quick silu_quick softplus_quick
                                         within 5 units in the last place (`lang.quick`)
    reciprocal_quick                     within one unit
    gelu_erf_short                       within 4e-7, for results of 16 bits
    gelu_erf_bytes                       within 3e-5, for results that are rounded to 8 bits

Elements of 8 bits
    max_bytes(x, y)                      elementwise maximum of vectors of a multiple of four lanes (`lang.bytes`)

Quantising
    rounded_int8(x, z)                   round float32 lanes to the nearest integers, ties to even, plus z (float32
    rounded_uint8(x, z)                  lanes of integers in the result's range), saturated; NaN gives 0
                                         (`lang.rounding`)
    rounded_product_<int8, uint8>(x, y, z)
                                         the same for x * y + z, which is rounded once
    gelu_erf_product_<int8, uint8>(x, y, z) gelu_erf_product_<float8>(x, y)
                                         the same for GELU(x) times y (up to 24,000), as exact as float16; -infinity
                                         gives 0, NaN gives z in int8. For float8: saturated_<float8> of the product
    saturated_<float8>(x)                the nearest float8_e4m3fn or float8_e5m2, saturated to the largest number

Exact remainders of float32 and float64 (`lang.remainders`)
    fmod_exact(x, y) mod_exact(x, y)     with the sign of x, and with the sign of y

Faults
    note_fault(p, step, check, index)    write the three numbers to the int64 words from p, unless an earlier fault did

Between two barriers no thread may touch an element, of a block's memory or of a result, that another thread writes.
"""

from __future__ import annotations

from ..lang import arith, memory, reduce, values, vecmath
from ..lang.values import INF, NAN
from ..lang.vector import kernel_functions
from .lang import (
    atomics,
    blocks,
    bytes,
    clusters,
    codes,
    double,
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
)  # fmt: skip

_FUNCTIONS = kernel_functions(
    arith, memory, reduce, values, vecmath, atomics, blocks, bytes, clusters, codes, double, faults, grids,
    matrix_cores, mbarriers, operand_stores, pipelines, quick, remainders, rounding, tagged, tensor_copies,
    tensor_cores, threads, warpgroups,
)  # fmt: skip
globals().update(_FUNCTIONS)
__all__ = ["INF", "NAN", *_FUNCTIONS]
