"""Name the functional unit that a kernel's multiplications use, by the MMA names in its text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..kernel import KernelSource
from .libraries.calls import described
from .matrix_tiles import TILES

TENSOR_CORES = {"float16": "float16 on tensor cores", "bfloat16": "bfloat16 on tensor cores", "float32": "TF32"}
"""Names of units by operand type."""
_PRODUCT = re.compile(r"\b(?:(?:wg)?mma_([a-z]+\d\w*?)(?:_held|_first)?|((?:mfma|wmma)_\w+))\(")


def unit_of(kernels: Sequence[KernelSource]) -> str:
    """Return the tensor or matrix core type that the kernels use; "" if none."""
    call = next(filter(None, map(described, kernels)), None)
    if call is not None:
        return str(call["unit"])
    found = next((m for kernel in kernels if (m := _PRODUCT.search(kernel.text))), None)
    if found is None:
        return ""
    if found[1]:
        return TENSOR_CORES.get(found[1], f"{found[1]} on tensor cores")
    tile = next(t for t in TILES if t.name == found[2])
    rounds = tile.a != "float32" or tile.rounds
    return TENSOR_CORES[tile.a] if rounds and tile.a in TENSOR_CORES else f"{tile.types} on tensor cores"
