"""Uniform random numbers of the Mersenne Twister MT19937 (`ops.RandomUniform`)."""

from __future__ import annotations

from math import prod

from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...statements import cast_text, const_text, dtype_name, for_tasks, indent, kernel_text, store_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty

WORDS, AHEAD = 624, 397
"""Words of the generator's state, and the distance of the word that each is combined with: those of MT19937 (Matsumoto
and Nishimura, "Mersenne Twister", 1998), as are the constants below."""
STATE = 640
"""Words of memory for the state: whole vectors of up to 16 words behind the last begin it anew."""
SCRATCH = STATE + WORDS
"""Words of scratch memory: the state, and as many words of output."""


def uniform_launch(seed: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that makes numbers of [0, 1); one task.

    Operands: ``seed`` [1], ``out`` (contiguous), and uint32 scratch memory ``words`` [`SCRATCH`]. Each number is made
    of two words, the first of which is the low one.
    """
    lanes, wide = host.lanes("uint32"), host.lanes("uint64")
    arguments = Arguments()
    arguments.pointer("p_seed", "seed", dtype_name(seed.type))
    arguments.pointer("p_out", "out", dtype_name(out.type))
    arguments.pointer("words", "words", "uint32")
    arguments.pointer("pairs", "words", "uint64")
    arguments.integers(count=prod(out.lens))

    def word(number: int) -> str:
        return const_text("uint32", number, lanes)

    def shifted(value: str, by: int, mask: int = 0) -> str:
        moved = f"shift_{'left' if mask else 'right'}({value}, {word(by)})"
        return f"bitwise_and({moved}, {word(mask)})" if mask else moved

    def twist(other: str) -> list[str]:
        return [
            f"low = bitwise_and(load(words, e + 1, {lanes}), {word(0x7FFFFFFF)})",
            f"v = bitwise_or(bitwise_and(load(words, e, {lanes}), {word(0x80000000)}), low)",
            f"odd = where(eq(bitwise_and(v, {word(1)}), {word(0)}), {word(0)}, {word(0x9908B0DF)})",
            f"v = bitwise_xor(bitwise_xor(load(words, {other}, {lanes}), {shifted('v', 1)}), odd)",
            "store(words, e, v)",
            f"v = bitwise_xor(v, {shifted('v', 11)})",
            f"v = bitwise_xor(v, {shifted('v', 7, 0x9D2C5680)})",
            f"v = bitwise_xor(v, {shifted('v', 15, 0xEFC60000)})",
            f"store(words, {STATE} + e, bitwise_xor(v, {shifted('v', 18)}))",
        ]

    def number(left: str) -> list[str]:
        pair = f"mul(cast_float64(load(pairs, {STATE // 2} + c, {wide})), {const_text('float64', 2.0**-64, wide)})"
        value = f"min({pair}, {const_text('float64', 1 - 2.0**-53, wide)})"  # the least number below 1
        return [store_text("p_out", "done + c", 1, "", cast_text(value, "float64", dtype_name(out.type)), left)]

    behind = -(-(WORDS - AHEAD) // lanes) * lanes
    block = [
        f"for e in range(0, {behind}, {lanes}):",
        *indent(twist(f"e + {AHEAD}")),
        "    if e == 0:",
        f"        store(words, {WORDS}, load(words, 0, {lanes}))",
        f"for e in range({behind}, {WORDS}, {lanes}):",
        *indent(twist(f"e - {WORDS - AHEAD}")),
        f"last = imin({WORDS // 2}, count - done)",
        *vector_loop(wide, number, first="0"),
        f"done += {WORDS // 2}",
    ]
    task = [
        "s = cast_uint32(load_scalar(p_seed, 0))",
        "store_scalar(words, 0, s)",
        f"for e in range(1, {WORDS}):",
        "    s = bitwise_xor(s, shift_right(s, cast_uint32(30)))",
        "    s = add(mul(s, cast_uint32(1812433253)), cast_uint32(e))",
        "    store_scalar(words, e, s)",
        "done = 0",
        "while done < count:",
        *indent(block),
    ]
    return Launch(
        kernel=cpu_kernel("random_uniform_kernel", kernel_text([*arguments.bind(), *for_tasks(task)]), origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(1, out.lens)),
        bytes=out.footprint,
    )
