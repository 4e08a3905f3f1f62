"""What tensor cores (NVIDIA's) multiply: pairs of element types, the type of sums, the names of words for them."""

from __future__ import annotations

from ...dataclass import dataclass
from ..problems.element_types import ITEMSIZE, ElementTypes

__all__ = ["PRODUCTS", "Product", "product_of", "result_type", "types_name"]


@dataclass(frozen=True)
class Product:
    """Products of two element types of one size.

    Attributes:
        a, b: dtypes of the left and of the right operand.
        accumulator: of the sums.
        kind: the operands as PTX calls them.
        capability: compute capability from which on warps multiply them: PTX ISA, "mma".
    """

    a: str
    b: str
    accumulator: str
    kind: str
    capability: tuple[int, int]

    @property
    def name(self) -> str:
        """What the words ``mma_...`` and ``wgmma_...`` for it end with."""
        return types_name(self.a, self.b)

    @property
    def size(self) -> int:
        """Bytes of an element."""
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
"""All of them, by the operands' dtypes."""


def product_of(types: ElementTypes) -> Product | None:
    """That of a contraction's operands whose result is in the operands' type or, of 8 bits, in that of the sums; None
    if tensor cores have none."""
    found = PRODUCTS.get((types.a, types.b))
    return found if found is not None and types.out == result_type(found.a, found.accumulator) else None


def types_name(a: str, b: str) -> str:
    """What words for products of two dtypes end with: the dtype, or both of 8 bits."""
    return f"{a}_{b}" if ITEMSIZE[a] == 1 else a


def result_type(a: str, accumulator: str) -> str:
    """What is stored of sums of products of ``a``: that dtype or, of 8 bits, the sums."""
    return accumulator if ITEMSIZE[a] == 1 else a
