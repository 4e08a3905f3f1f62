"""Uniform random numbers of the Mersenne Twister MT19937 (Matsumoto, Nishimura 1998), as `RandomUniform` has them."""

from __future__ import annotations

from math import prod

from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...statements import cast_text, dtype_name, for_tasks, indent, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty

WORDS, SHIFT = 624, 397
"""Words of the state, and the distance of the words that are combined. All constants are the authors'."""
UPPER, LOWER, MATRIX = 0x80000000, 0x7FFFFFFF, 0x9908B0DF
"""The bits of a word that two neighbours contribute, and the matrix of the recurrence."""
INITIAL_FACTOR, WORD = 1812433253, 0xFFFFFFFF
"""The factor of the sequence that fills the state from a seed (the authors' ``init_genrand``), modulo 2**32."""
TEMPERING = ((11, None), (-7, 0x9D2C5680), (-15, 0xEFC60000), (18, None))
"""Shifts of a word to the right (negative: to the left), and the masks of what is shifted."""
NUMBERS = WORDS // 2  # a number takes two words, the lower one first
LARGEST = "0.9999999999999999"
"""The largest double below 1, where ``std::uniform_real_distribution`` ends."""


def uniform_launch(seed: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that fills ``out`` (row-major) with numbers of [0, 1) from the integer in ``seed``; one task.

    The words of the state are made, tempered and converted as vectors, 624 at a time.
    """
    lanes = host.lanes("uint32")
    assert WORDS % lanes == 0
    arguments = Arguments()
    arguments.pointer("p_seed", "seed", dtype_name(seed.type))
    arguments.pointer("p_out", "out", dtype_name(out.type))
    count = arguments.integer("count", prod(out.lens))

    def updated(source: int) -> list[str]:
        """Return lines that replace words by combinations with those ``source`` words further."""

        def body(left: str) -> list[str]:
            y = f"bitwise_or(bitwise_and(load(state, c, {lanes}), {UPPER}), "
            y += f"bitwise_and(load(state, c + 1, {lanes}), {LOWER}))"
            twisted = f"bitwise_xor(shift_right(y, 1), mul(bitwise_and(y, 1), {MATRIX}))"
            value = f"bitwise_xor(load(state, c + {source}, {lanes}), {twisted})"
            return [f"y = {y}", f"store_tail(state, c, {value}, left)" if left else f"store(state, c, {value})"]

        first, last = (0, WORDS - SHIFT) if source > 0 else (WORDS - SHIFT, WORDS - 1)
        return vector_loop(lanes, body, first=str(first), last=str(last))

    tempered = [f"v = load(state, c, {lanes})"]
    for shift, mask in TEMPERING:
        moved = f"shift_right(v, {shift})" if shift > 0 else f"shift_left(v, {-shift})"
        tempered.append(f"v = bitwise_xor(v, {moved if mask is None else f'bitwise_and({moved}, {mask})'})")
    tempered.append("store(words, c, v)")

    def converted(left: str) -> list[str]:
        low, high = (f"cast_float64(load_every(words, 2 * c + {k}, 2, {lanes}))" for k in range(2))
        number = f"min({LARGEST}, mul(add({low}, mul({high}, {2.0**32})), {2.0**-64!r}))"
        value = cast_text(number, "float64", dtype_name(out.type))
        return [f"store_tail(p_out, done + c, {value}, left)" if left else f"store(p_out, done + c, {value})"]

    last = WORDS - 1
    block = [
        *updated(SHIFT),
        *updated(SHIFT - WORDS),
        f"end = (cast_int64(load_scalar(state, {last})) & {UPPER}) | (cast_int64(load_scalar(state, 0)) & {LOWER})",
        f"end = cast_int64(load_scalar(state, {SHIFT - 1})) ^ (end >> 1) ^ ((end & 1) * {MATRIX})",
        f"store_scalar(state, {last}, cast_uint32(end))",
        f"for c in range(0, {WORDS}, {lanes}):",
        *indent(tempered),
        f"end = imin({NUMBERS}, {count} - done)",
        *vector_loop(lanes, converted, first="0", last="end"),
        f"done += {NUMBERS}",
    ]
    room = WORDS + 2 * lanes  # vectors may be read, not stored, beyond the last word
    task = [
        f"state = local_uint32({room})",
        f"words = local_uint32({room})",
        f"word = cast_int64(load_scalar(p_seed, 0)) & {WORD}",
        f"for k in range({WORDS}):",
        "    store_scalar(state, k, cast_uint32(word))",
        f"    word = ({INITIAL_FACTOR} * (word ^ (word >> 30)) + k + 1) & {WORD}",
        "done = 0",
        f"while done < {count}:",
        *indent(block),
    ]
    return Launch(
        kernel=cpu_kernel("random_uniform_kernel", kernel_text([*arguments.bind(), *for_tasks(task)]), origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(1, out.lens)),
        bytes=out.footprint,
    )
