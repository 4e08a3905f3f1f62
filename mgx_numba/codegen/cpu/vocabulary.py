"""The language that CPU kernel source is written in: every name a kernel may call.

A kernel is ``def kernel(args, begin, end)`` (see :mod:`mgx_numba.codegen.kernel`); its text is executed in a
namespace that holds this module's names, so no import is printed. All names are Numba intrinsics: they inline
to LLVM IR, raise nothing at run time and need no Numba run time.

Values
    *vector*  ``lanes`` elements of one dtype. A bool vector is a mask (i1) in registers and uint8 in memory.
    *scalar*  a Numba int64, float32, ... or bool. Arithmetic names work on scalars as well as on vectors.
              Where a vector meets a scalar, the scalar is converted to the vector's dtype and broadcast;
              where scalars of two dtypes meet, int64 and float64 (Python's literals) give way.
    *pointer* typed address of elements. Indices, strides and counts are in elements, int64.
``<dtype>`` below is one of bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32
float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz. The 16- and 8-bit floats are *storage*
dtypes: they can be loaded, stored, moved, selected and cast; anything else needs ``cast_float32`` first.
``LANES`` must be an integer literal in the source, a power of two from 1 to 256.

Memory
    pointer_<dtype>(args, slot)          pointer held by an argument slot; ``args[slot]`` reads an integer
    local_<dtype>(COUNT)                 pointer to COUNT (an integer literal) uninitialised elements on the
                                         stack, 64-byte aligned, at most 64 KiB
    local_pointer_<dtype>(words, k)      pointer held by word k of words that the kernel may write
    offset(p, i)                         pointer to p[i]
    load_scalar(p, i)                    p[i] as a scalar
    store_scalar(p, i, x)
    load_splat(p, i, LANES)              p[i] in every lane
    load(p, i, LANES)                    p[i], p[i+1], ...
    load_tail(p, i, count, fill, LANES)  the first count (0 to LANES) lanes from memory, fill in the others
    store(p, i, v)
    store_tail(p, i, v, count)           the first count lanes only
    load_strided(p, i, stride, LANES)    p[i], p[i+stride], ...
    load_strided_tail(p, i, stride, count, fill, LANES)
    store_strided(p, i, stride, v)
    store_strided_tail(p, i, stride, v, count)
    store_where(p, i, v, mask)           the lanes of v whose mask is set, side by side; returns how many; what follows
                                         them up to LANES elements becomes undefined
    gather(p, index)                     p[index[0]], p[index[1]], ...; index is an int32 or int64 vector
    gather_tail(p, index, count, fill)
    lookup(p, v)                         p[v[0]], p[v[1]], ... for a uint8 vector; may read all of p[0] to p[255]
    load_near(p, i, index)               p[i + index[0]], ...; indices are from 0 and below 2 * lanes; may read all of
                                         these elements
    scatter(p, index, v)                 in the order of lanes
    scatter_tail(p, index, v, count)
    load_every(p, i, COUNT, LANES)       p[i], p[i+COUNT], ...; may read the COUNT - 1 elements after the last
    load_every_tail(p, i, COUNT, count, fill, LANES)
                                         reads nothing after the last of count elements
    load_back(p, i, LANES)               p[i], p[i-1], ...
    interleave(p, p_step, q, COUNT, LANES)
                                         q[k*COUNT + r] = p[r*p_step + k] for r < COUNT (2 to 4), k < LANES
    deinterleave(p, q, q_step, COUNT, LANES)
                                         q[r*q_step + k] = p[k*COUNT + r] for r < COUNT (2 to 4), k < LANES
    transpose_block(p, p_row, rows, q, q_row, LANES)
                                         q[i*q_row + j] = p[min(j, rows-1)*p_row + i] for i, j < LANES
    transpose_block_stream(...)          the same, past the caches where rows of the target are whole lines of 64 bytes
    transpose_part(p, p_row, rows, q, q_row, COLUMNS, LANES)
                                         the same for i < COLUMNS
    prefetch(p, i)                       ask for the cache line of p[i], which may be any address
    keep_rolled()                        in a loop: LLVM does not unroll it, if how often it is run is not in the source
    store_stream(p, i, v)                as store, past the caches where the address is a multiple of 64 bytes
    stream_head(p, i)                    elements from p[i] to the first such address
    stream_fence()                       after the last store_stream of a call
No tail form touches memory of the lanes from count on. Floating fills may be written INF, -INF, NAN.

Making values
    const_<dtype>(value, LANES)          value is a Python number in the source; LANES 0 gives a scalar
    cast_<dtype>(x)                      NumPy's astype; float to integer saturates and NaN becomes 0
    splat(x, LANES)                      scalar to vector; a vector of LANES lanes stays as it is
    iota_<dtype>(LANES)                  0, 1, 2, ... (integer dtypes)
    lane_mask(count, LANES)              bool vector: lane < count
    extract(v, k)                        lane k as a scalar
    bits_<dtype>(x)                      same bits as another dtype of the same width

Arithmetic (same dtype in, same dtype out unless said otherwise)
    add sub mul div neg abs max min fmod mod pow sqrt recip floor ceil nearbyint sign
    fma(a, b, c)                         a * b + c, rounded once
    lt le gt ge eq ne -> bool            isnan isinf -> bool
    logical_and logical_or logical_xor logical_not -> bool (operands of any dtype: nonzero is true)
    bitwise_and bitwise_or bitwise_xor bitwise_not shift_left shift_right
    where(cond, a, b)
    first_greater(a, b)                  a if a > b else b, on floats
``max`` and ``min`` pass NaN on; print a constant operand first (one comparison less). Integer div truncates,
mod takes the divisor's sign, fmod the dividend's; a zero divisor gives 0. Shifts by the width or more give
what NumPy gives. On bool, add is or, sub is xor, mul is and. On scalars, ``max``/``min`` serve index
arithmetic in place of Python's.

Elementary functions (accuracy: :mod:`mgx_numba.codegen.lang.vecmath`)
    exp log log2 erf sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid rsqrt pow
    gelu_erf gelu_tanh silu softplus mish
    over_power_075(x, y)                 x / y ** 0.75, y**0.75 normal or 0 or infinite
Fast math is chosen per call by the suffix ``_fast``, add_fast mul_fast exp_fast ..., which exists for the functions
that are ``fast`` in :mod:`mgx_numba.ops.scalar_functions`, and for rounding to float8. Arithmetic so named may be
contracted.

Across lanes (vector to scalar)
    reduce_add reduce_mul reduce_max reduce_min reduce_and reduce_or reduce_first_greater (v)
                                         in a fixed tree order; "and" and "or" on bool
    reduce_argmax(v, index) reduce_argmin(v, index)
                                         index of the extreme lane, lowest index among equals
    reduce_argmax_last(v, index) reduce_argmin_last(v, index)
                                         highest index among equals
    scan_add(v) scan_add_back(v) -> vector
                                         sum of each lane and all before it, or behind it
    scan_add_before(v) scan_add_behind(v) -> vector
                                         sum of all lanes before each, or behind it
    arg_gt(x, best) arg_ge arg_lt arg_le -> bool
                                         comparisons in which NaN is the extreme (as NumPy argmax)

Index arithmetic on int64 scalars
    imin(a, b) imax(a, b) idiv(a, b) imod(a, b)
                                         idiv and imod: a >= 0, b > 0, unchecked

Their own modules describe the contraction tiles (`microkernels`, `contraction.strassen.tile`,
`contraction.winograd.transforms`), products of bytes (`lang.dots`), rounding (`lang.bfloat16`, `lang.byte_rounding`,
`lang.float8_rounding`), storing in parts (`lang.part_stores`),
moves through registers (`lang.shuffle`, `lang.transpose`), and atomics, waiting and bulk copies (`lang.executor`).
"""

from __future__ import annotations

from ..lang import arith, memory, reduce, values, vecmath
from ..lang.values import INF, NAN
from ..lang.vector import kernel_functions
from .contraction.strassen import tile as strassen_tile
from .contraction.winograd import transforms
from .lang import (
    bfloat16,
    byte_rounding,
    dots,
    executor,
    float8_rounding,
    indexed,
    part_stores,
    shuffle,
    stream,
    transpose,
)  # fmt: skip
from .microkernels import amx, depthwise, fused_epilogue, int8, matrix_rows, stored, tile
from .microkernels import bfloat16 as bfloat16_tiles

_FUNCTIONS = kernel_functions(
    amx, arith, bfloat16, bfloat16_tiles, byte_rounding, depthwise, dots, executor, float8_rounding, fused_epilogue,
    indexed, int8, matrix_rows, memory, part_stores, reduce, shuffle, stored, strassen_tile, stream, tile, transforms,
    transpose, values, vecmath,
)  # fmt: skip
globals().update(_FUNCTIONS)
__all__ = ["INF", "NAN", *_FUNCTIONS]
