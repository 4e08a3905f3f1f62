"""Successive k of AVX2's register tiles in assembly.

LLVM schedules eight k of a tile of 6x2 vectors so that accumulators spill to the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

VECTOR_BYTES = 32
"""Bytes of a vector of AVX2."""


class Products(NamedTuple):
    """The instructions of one kind of product, in AT&T syntax.

    Attributes:
        size: bytes of a word of the left-hand side.
        load: loads a vector.
        broadcast: loads a word into all lanes.
        add: add the products of ``{left}`` and ``{right}`` to ``{sums}``; they may use the register ``{made}``.
        constant: value of the int16 lanes of a register ``{constant}``; 0 if there is none.
    """

    size: int
    load: str
    broadcast: str
    add: tuple[str, ...]
    constant: int = 0


FLOATS = {
    4: Products(4, "vmovups", "vbroadcastss", ("vfmadd231ps {right}, {left}, {sums}",)),
    8: Products(8, "vmovupd", "vbroadcastsd", ("vfmadd231pd {right}, {left}, {sums}",)),
}
"""float32 and float64, by their bytes."""
PAIRS = Products(
    4, "vmovdqu", "vpbroadcastd", ("vpmaddwd {right}, {left}, {made}", "vpaddd {made}, {sums}, {sums}")
)  # fmt: skip
"""Words of two int16."""
BYTES = Products(
    4, "vmovdqu", "vpbroadcastd",
    ("vpmaddubsw {right}, {left}, {made}", "vpmaddwd {constant}, {made}, {made}", "vpaddd {made}, {sums}, {sums}"), 1,
)  # fmt: skip
"""Words of four unsigned bytes on the left, of four signed bytes on the right; two products are added in 16 bits."""


def multiply_add_steps(
    builder: ir.IRBuilder,
    products: Products,
    count: int,
    sums: Sequence[ir.Value],
    rows: Sequence[ir.Value],
    index: ir.Value,
    w: ir.Value,
    prefetched: Sequence[tuple[ir.Value, int, int]],
) -> list[ir.Value]:
    """Emit ``count`` successive k of packed operands; return the accumulators.

    Args:
        products: kind of the products.
        count: number of k.
        sums: accumulators, vectors of 256 bits, row by row.
        rows: address of each row of the left-hand side.
        index: first k, in words from these addresses.
        w: address of the first k of the right-hand side, whose k have as many vectors as a row of accumulators, without
            gaps.
        prefetched: address of a cache line to prefetch with the first k, bytes from there to that of the next k, and
            1, 2 or 3 for the L3, L2 or L1 cache.
    """
    vectors = len(sums) // len(rows)
    vector, results = sums[0].type, len(sums) + vectors + 2
    right = [f"${len(sums) + j}" for j in range(vectors)]
    left, made = f"${results - 2}", f"${results - 1}"
    operands = [*sums, *rows, index, w, *(pointer for pointer, _, _ in prefetched)]
    constraints = [*map(str, range(len(sums))), *["r"] * (len(operands) - len(sums))]
    numbers = iter(range(results + len(sums), results + len(operands) + 1))
    row_of, at, columns = [f"${next(numbers)}" for _ in rows], f"${next(numbers)}", f"${next(numbers)}"
    lines = [f"${next(numbers)}" for _ in prefetched]
    constant = f"${next(numbers)}"
    if products.constant:
        halves = ir.VectorType(ir.IntType(16), VECTOR_BYTES // 2)
        operands.append(ir.Constant(halves, [products.constant] * halves.count))
        constraints.append("x")
    text = []
    for k in range(count):
        text += [f"prefetcht{3 - near} {k * step}({line})" for line, (_, step, near) in zip(lines, prefetched)]
        for j, own in enumerate(right):
            text.append(f"{products.load} {(k * vectors + j) * VECTOR_BYTES}({columns}), {own}")
        for i, row in enumerate(row_of):
            text.append(f"{products.broadcast} {k * products.size}({row},{at},{products.size}), {left}")
            for j, own in enumerate(right):
                names = {"left": left, "right": own, "made": made, "sums": f"${i * vectors + j}", "constant": constant}
                text += [line.format(**names) for line in products.add]
    constraints = ["=x"] * len(sums) + ["=&x"] * (vectors + 2) + constraints + ["~{memory}"]
    kind = ir.FunctionType(ir.LiteralStructType([vector] * results), [operand.type for operand in operands])
    after = builder.call(ir.InlineAsm(kind, "\n".join(text), ",".join(constraints), side_effect=True), operands)
    return [builder.extract_value(after, k) for k in range(len(sums))]
