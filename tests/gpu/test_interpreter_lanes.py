"""Threads that the interpreter runs together have the values of threads that run one after another."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu.kernel import gpu_grid, gpu_kernel
from mgx_numba.runtime.memory import address_of, aligned_empty

from ..interpreter.lanes import KernelFault
from ..interpreter.memory import Memory
from ..interpreter.run import interpret

THREADS, SLOTS = 64, 6
_VARIABLES = ("a", "b", "c", "t", "n")


def _interpreted(lines: list[str]) -> np.ndarray:
    memory, out = Memory(), aligned_empty((THREADS * SLOTS,), "int64")
    out[:] = 0
    memory.add(address_of(out), out.view(np.uint8), "out")
    kernel = gpu_kernel("k", ["out = pointer_int64(args, 0)", *lines], THREADS, 1)
    interpret(kernel, [address_of(out)], gpu_grid(1, THREADS), memory)
    return out.reshape(THREADS, SLOTS)


def _one_by_one(lines: list[str]) -> np.ndarray:
    """Run the text as Python, once for each thread."""
    out = np.zeros((THREADS, SLOTS), np.int64)
    code = compile("\n".join(lines), "k", "exec")
    for thread in range(THREADS):
        names: dict[str, Any] = {
            "out": out.reshape(-1),
            "thread_index": lambda axis, thread=thread: thread,
            "load_scalar": lambda p, i: int(p[i]),
            "store_scalar": lambda p, i, x: p.__setitem__(i, x),
            "imod": lambda a, b: a % b,
            "idiv": lambda a, b: a // b,
            "imin": min,
        }
        exec(code, names)
    return out


class _Program:
    """A random program over a few numbers, with nested branches and loops."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._loops = 0
        self.lines = ["t = thread_index(0)", "n = 5", "a = imod(t, 7)", "b = 3", "c = t * 2"]
        self._body(0, 6, breaks=False)
        for slot, name in enumerate((*_VARIABLES, "a + b")):
            self.lines.append(f"store_scalar(out, t * {SLOTS} + {slot}, {name})")

    def _number(self) -> str:
        rng = self._rng
        some = (*_VARIABLES, str(rng.randrange(9)))
        kind = rng.randrange(7)
        a, b = rng.choice(some), rng.choice(some)
        if kind == 0:
            return f"imod({a} * 5 + {b}, {rng.randint(2, 9)})"
        if kind == 1:
            return f"idiv({a}, {rng.randint(1, 4)}) - {b}"
        if kind == 2:
            return f"imin({a}, {b})"
        if kind == 3:
            return f"({a} if {self._condition()} else {b})"
        if kind == 4:
            return f"load_scalar(out, t * {SLOTS} + {rng.randrange(SLOTS)})"
        return f"{a} + {b}"

    def _condition(self) -> str:
        rng = self._rng
        compare = f"{rng.choice(_VARIABLES)} {rng.choice(('<', '==', '>='))} {rng.randrange(12)}"
        other = f"imod({rng.choice(_VARIABLES)}, 3) == {rng.randrange(3)}"
        return rng.choice((compare, other, f"{compare} or {other}", f"{compare} and {other}", f"not ({other})"))

    def _body(self, depth: int, most: int, breaks: bool) -> None:
        rng, pad = self._rng, "    " * depth
        for _ in range(rng.randint(1, most)):
            kind = rng.randrange(10) if depth < 4 else 9
            if kind < 3:
                self.lines.append(f"{pad}if {self._condition()}:")
                self._body(depth + 1, 3, breaks)
                if breaks and rng.random() < 0.3:
                    self.lines.append(f"{pad}    break")
                if rng.random() < 0.5:
                    self.lines.append(f"{pad}else:")
                    self._body(depth + 1, 3, breaks)
            elif kind == 3:
                self._loops += 1
                k = f"k{self._loops}"
                self.lines += [f"{pad}{k} = 0", f"{pad}while {k} < imod({rng.choice(_VARIABLES)}, 4):"]
                self._body(depth + 1, 2, True)
                self.lines.append(f"{pad}    {k} = {k} + 1")
            elif kind == 4:
                self._loops += 1
                bounds = rng.choice(("3", "imod(t, 3)", "imod(a, 4), 5", "t, 70, 30"))
                self.lines.append(f"{pad}for j{self._loops} in range({bounds}):")
                self._body(depth + 1, 2, True)
            elif kind == 5:
                self.lines.append(f"{pad}store_scalar(out, t * {SLOTS} + {rng.randrange(SLOTS)}, {self._number()})")
            else:
                value = self._number()
                self.lines.append(f"{pad}{rng.choice('abc')} = imod({value}, 1000)")


@pytest.mark.parametrize("seed", range(40))
def test_random_branches_and_loops_have_the_values_of_single_threads(seed: int) -> None:
    program = _Program(seed).lines
    assert np.array_equal(_interpreted(program), _one_by_one(program)), "\n".join(program)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["x = idiv(5, imod(t, 32) - 7)"], "thread 7, .*a division by zero"),
        (["x = idiv32(8 - t, 3)"], "thread 9, .*idiv32 of -1 by 3, which are no numbers of 32 bits"),
        (["if t > 40:", "    x = load_scalar(out, t * 1000)"], "thread 41, .*reads bytes 328000 to 328008 of out"),
        (["if t < 40:", "    x = shuffle_xor(t, 1)"], "8 threads .the first is 32. wait at shuffle_xor in line 9; 24 "),
        (["x = load_scalar(out, imod(t, 2))", "if t == 5:", "    store_scalar(out, 1, x)"],
         "thread 5, .*which several threads of block 0 read without a barrier"),
        (["store_scalar(out, 1 - imin(t, 1), t)"], "thread 2, .*writes byte 0 of out, which thread 1 of block 0 wrote"),
    ],
)  # fmt: skip
def test_faults_name_the_first_thread_that_makes_them(lines: list[str], said: str) -> None:
    with pytest.raises(KernelFault, match=said):
        _interpreted(["t = thread_index(0)", *lines])


def test_what_inactive_threads_would_do_is_no_fault() -> None:
    lines = [
        "t = thread_index(0)",
        "if t < 32:",
        f"    store_scalar(out, t * {SLOTS} + idiv(0, t - 32), shuffle_xor(t, 3) + idiv32(31 - t, 32 - t))",
    ]
    found = _interpreted(lines)
    t = np.arange(32)
    assert np.array_equal(found[:32, 0], (t ^ 3) + (31 - t) // (32 - t))
    assert not found[32:].any()
