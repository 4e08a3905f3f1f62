"""MMA operand types of NVIDIA tensor cores: pairs of element types, accumulator types, and their names in the kernel
language."""

from __future__ import annotations

from ...dataclass import dataclass
from ..problems.element_types import ITEMSIZE, ElementTypes


@dataclass(frozen=True)
class Product:
    """An MMA of two element types of one size.

    Attributes:
        a, b: dtypes of the left and right operand.
        accumulator: dtype of the accumulators.
        kind: PTX name of the operands.
        capability: least compute capability of a warp-level MMA: PTX ISA, "mma".
    """

    a: str
    b: str
    accumulator: str
    kind: str
    capability: tuple[int, int]

    @property
    def name(self) -> str:
        """Return the suffix of its ``mma_...`` and ``wgmma_...`` names."""
        return types_name(self.a, self.b)

    @property
    def size(self) -> int:
        """Return the bytes per element."""
        return ITEMSIZE[self.a]


_INTEGERS = {"int8": "s8", "uint8": "u8"}
_FLOATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def _pairs(kinds: dict[str, str], accumulator: str, capability: tuple[int, int]) -> list[Product]:
    return [Product(a, b, accumulator, f"{kinds[a]}.{kinds[b]}", capability) for a in kinds for b in kinds]


PRODUCTS = {
    (p.a, p.b): p
    for p in (
        Product("float16", "float16", "float32", "f16.f16", (7, 5)),
        Product("bfloat16", "bfloat16", "float32", "bf16.bf16", (8, 0)),
        Product("float32", "float32", "float32", "tf32.tf32", (8, 0)),
        *_pairs(_INTEGERS, "int32", (7, 5)),
        *(p for p in _pairs(_FLOATS, "float32", (8, 9)) if p.a == p.b),
    )
}
"""All products by operand dtypes."""


def product_of(types: ElementTypes) -> Product | None:
    """Return the MMA of a contraction's operand types, whose result has the operands' type (for 8 bits: the
    accumulator's); None if tensor cores have none."""
    found = PRODUCTS.get((types.a, types.b))
    return found if found is not None and types.out == result_type(found.a, found.accumulator) else None


def types_name(a: str, b: str) -> str:
    """Return the name suffix of two dtypes: the dtype, or both for 8 bits."""
    return f"{a}_{b}" if ITEMSIZE[a] == 1 else a


def result_type(a: str, accumulator: str) -> str:
    """Return the stored type of accumulated products of ``a``: ``a``, or the accumulator's for 8 bits."""
    return accumulator if ITEMSIZE[a] == 1 else a
