"""Pack contiguous pixels of one to three 8-bit channels into the words that tiles read."""

from __future__ import annotations

import math

from ....core.dim import known_same
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...statements import for_tasks, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import claim
from ..microkernels.register_tile import RegisterTile
from .pack_kernel import row_start

MOST_CHANNELS = 3
"""Most channels. With four channels pixels already are words, or two vectors of them are."""


def pixel_words(problem: GemmProblem, tile: RegisterTile) -> Launch | None:
    """Return the launch that writes each left-hand row as one integer of all its words, a vector of rows at once.

    A line of ``m`` rows is one task. Returns None if rows are longer, not contiguous, or of other types.
    """
    channels = problem.k
    if problem.types.a not in ("int8", "uint8"):
        return None
    if not 1 <= channels <= MOST_CHANNELS or not known_same(problem.a_strides[-2:], (channels, 1)):
        return None
    given, form = problem.types.a, tile.packing.a or problem.types.a
    bits = 8 * ITEMSIZE[form]
    word = f"int{bits * tile.packing.k_interleave * tile.depth(channels)}"
    lanes = host.lanes(word)
    arguments = Arguments()
    arguments.pointer("x", "x", given)
    arguments.pointer("packed", "scratch", word)
    arguments.integers(pixels=problem.m)
    task = row_start(arguments, problem.batch, problem.a_strides[:-2])

    def vector(left: str) -> list[str]:
        parts = [_element(given, form, word, channels, k, lanes, left) for k in range(channels)]
        joined = parts[0]
        for k, part in enumerate(parts[1:], 1):
            joined = f"bitwise_or({joined}, shift_left({part}, const_{word}({bits * k}, {lanes})))"
        tail = ("_tail", f", {left}") if left else ("", "")
        return [f"store{tail[0]}(packed, task * pixels + c, {joined}{tail[1]})"]

    task += vector_loop(lanes, vector, "0", "pixels", past=channels > 1)
    text = kernel_text([*arguments.bind(), *for_tasks(task)])
    source = cpu_kernel(f"pixels_{given}_{channels}_as_{word}_kernel", text)
    lines = math.prod(problem.batch)
    moved = lines * problem.m * (channels + ITEMSIZE[word])
    return Launch(source, arguments.values, TaskRange(lines, claim(lines, moved)), 0, moved)


def _element(given: str, form: str, word: str, channels: int, k: int, lanes: int, left: str) -> str:
    """Return the expression of channel ``k`` of a vector of pixels in the low bits of words, with the other bits
    zero."""
    every, count = ("_every", f"{channels}, ") if channels > 1 else ("", "")
    tail, fill = ("_tail", f"{left}, 0, ") if left else ("", "")
    value = f"cast_{word}(load{every}{tail}(x, start + c * {channels} + {k}, {count}{fill}{lanes}))"
    if form != given and ITEMSIZE[form] == 1:  # shifted by 128
        value = f"bitwise_xor({value}, const_{word}(128, {lanes}))"
    if given == "uint8":
        return value
    return f"bitwise_and({value}, const_{word}({(1 << 8 * ITEMSIZE[form]) - 1}, {lanes}))"
