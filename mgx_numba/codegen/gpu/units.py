"""Which of a GPU's units multiply in a kernel, by the names of products in its text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..kernel import KernelSource

__all__ = ["TENSOR_CORES", "unit_of"]

TENSOR_CORES = {"float16": "float16 on tensor cores", "bfloat16": "bfloat16 on tensor cores", "float32": "TF32"}
"""Units by the type of what they multiply."""
_PRODUCT = re.compile(r"\b(?:wg)?mma_([a-z]+\d\w*?)(?:_held|_first)?\(")


def unit_of(kernels: Sequence[KernelSource]) -> str:
    """The tensor cores' type; empty for kernels that multiply otherwise."""
    found = next((m for kernel in kernels if (m := _PRODUCT.search(kernel.text))), None)
    return "" if found is None else TENSOR_CORES.get(found[1], f"{found[1]} on tensor cores")
