"""Our way to static single assignment against Numba's: the same LLVM IR."""

from __future__ import annotations

import re
from typing import Any

import numba.core.ssa
import pytest

from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.toolchain import compiler
from mgx_numba.codegen.toolchain import numba_passes

BODIES = {
    "nothing twice": "p = words_at(args, 0)\np[0] = begin",
    "a loop": "p = words_at(args, 0)\ntotal = 0\nfor i in range(begin, end):\n    total += p[i]\np[0] = total",
    "a definition that uses the one before": "a = begin\na = a + end\na = a * a\nwords_at(args, 0)[0] = a",
    "loops in loops": (
        "p = words_at(args, 0)\na = b = 0\nwhile a < end:\n    b = a\n    for i in range(b):\n        if p[i] > a:\n"
        "            b += i\n            a = b\n        else:\n            a += 1\n    p[a] = b\np[b] = a"
    ),
    "branches": (
        "if begin > 3:\n    x = begin\nelif end > 5:\n    x = end\nelse:\n    x = 7\ny = x\nif y > 9:\n    y = x + 1\n"
        "words_at(args, 0)[y] = x"
    ),
    "one branch only": (
        "x = 1\nif begin > 3:\n    x = 2\n    y = x\n    words_at(args, 0)[x] = y\nwords_at(args, 0)[0] = x"
    ),
    "a swap": "a = begin\nb = end\nfor i in range(args[1]):\n    a, b = b, a + b\nwords_at(args, 0)[a] = b",
}


def lowered(body: str) -> str:
    """LLVM IR of a kernel, without the numbers that tell functions of a process apart."""
    text = "def kernel(args, begin, end):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    return re.sub(r"B\d+v\d+B|kernel\$\d+", "", compiler.inspect(cpu_kernel("kernel", text)).lowered)


@pytest.mark.parametrize("name", BODIES)
def test_ssa_is_that_of_numba(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = lowered(BODIES[name])
    called = []

    def theirs(blocks: dict[int, Any]) -> None:
        called.append(name)
        blocks.update(numba.core.ssa._run_ssa(blocks))

    monkeypatch.setattr(numba_passes, "reconstruct_ssa", theirs)
    assert ours == lowered(BODIES[name])
    assert called
