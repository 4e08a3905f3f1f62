"""Find paths of a compiled kernel that end without a return: traps, and code that LLVM considers unreachable.

LLVM turns undefined behaviour into `unreachable`: a division by a constant 0, an access through a null pointer, a
branch on an undefined value. On a GPU such a path aborts the launch, and the process loses the device. On a CPU
execution continues into the code after the path. No valid kernel has such a path.
"""

from __future__ import annotations

import re

from ..kernel import KernelSource
from .kernel_text import failure

__all__ = ["dead_end", "expect_returns"]

_ENDS = re.compile(r"^\s*unreachable\b|@llvm\.(?:debug|ubsan)?trap\b|\b(?:trap|brkpt)\s*;", re.MULTILINE)

_WORDS = ("unreachable", "trap", "brkpt")
"""Of which each match of `_ENDS` contains one."""


def expect_returns(source: KernelSource, text: str) -> None:
    """Check that every path through a kernel's optimised LLVM IR or PTX ends in a return.

    Raises:
        CompileError: a path does not, because the kernel's generator printed code with undefined behaviour.
    """
    line = dead_end(text)
    if line:
        raise failure(source, f"a path ends without a return, at {line}: its text does something undefined")


def dead_end(text: str) -> str:
    """Return the first line of LLVM IR or PTX, with its number, that ends a path without a return; "" if none does."""
    if not any(word in text for word in _WORDS):  # a search for words is far faster
        return ""
    found = _ENDS.search(text)
    if found is None:
        return ""
    start = text.rfind("\n", 0, found.start() + 1) + 1 if text[found.start()] != "\n" else found.start() + 1
    line = text[start : text.find("\n", found.end())].strip()
    return f"line {text.count(chr(10), 0, found.end()) + 1}: {line}"
