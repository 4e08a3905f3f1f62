"""Warn of contractions of 8-bit integers that run in NumPy, about a hundred times slower than in a kernel."""

from __future__ import annotations

from ...core.dim import known_in
from ...core.types import Type
from ...graph.instruction import Instruction
from ...messages import warn

_PREFIXES = ("quant_", "integer_")
"""Prefixes of the names of operators that multiply 8-bit numbers."""
_INTEGERS = (Type.int8_type, Type.uint8_type)


def warn_if_slow(ins: Instruction, reason: str) -> None:
    """Warn if a fallback step computes, or packs weights for, a contraction of 8-bit integers that has elements.

    Args:
        ins: the instruction of the fallback step, perhaps with the contraction in its submodule.
        reason: why no kernel computes the contraction.
    """
    for core in (ins, *(inner for module in ins.module_args for inner in module)):
        if not core.name.startswith(_PREFIXES) or core.inputs[0].shape.type not in _INTEGERS:
            continue
        shapes = [core.shape, *(i.shape for i in core.inputs[:2])]
        if any(known_in(n, 0) for shape in shapes for n in shape.max_lens):
            continue
        of = ", ".join(f"{i.shape.type.name} {list(i.shape.max_lens)}" for i in core.inputs[:2])
        node = f" (node {', '.join(sorted(ins.debug_symbols))})" if ins.debug_symbols else ""
        warn(f"{core.name} of {of}{node} runs in NumPy, which is slow: {reason}", RuntimeWarning)
