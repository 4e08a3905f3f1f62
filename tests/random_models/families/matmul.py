"""Matrix products of any ranks, and following operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import LENGTHS, Builder, Value
from .elementwise import BINARY, SAFE, like
from .registry import step

__all__ = ["epilogue"]


def _matrix(v: Value) -> bool:
    return v.floating and v.rank > 0


def epilogue(b: Builder, x: Value | None) -> Value | None:
    """A few pointwise operations after a contraction."""
    for _ in range(b.integer(0, 3)):
        if x is None:
            return None
        made = b.node(b.pick(SAFE), [x]) if b.chance(3) else b.node(b.pick(BINARY), [x, like(b, x)])
        x = made or x
    return x


@step(4)
def matmul(b: Builder) -> Any:
    """Vectors, matrices and batches that broadcast."""
    x = b.tensor(_matrix)
    k = x.lens[-1]
    kind = b.integer(0, 4)
    n = b.pick(LENGTHS)
    if kind == 0:
        y = b.new((k,), x.type)
    elif kind == 1 or x.rank == 1:
        y = b.new((k, n), x.type)
    elif kind == 2:
        order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        turned = b.node("Transpose", [x], perm=order)
        if turned is None:
            return None
        y = turned
    else:
        batch = [1 if b.chance(3) else m for m in x.lens[:-2]][b.integer(0, 1) if b.chance(3) else 0 :]
        y = b.new((*([2] if b.chance(9) else []), *batch, k, n), x.type)
    if not b.shape_elements(*x.lens[:-1], n):
        return None
    return epilogue(b, b.node("MatMul", [x, y]))


@step(2)
def gemm(b: Builder) -> Any:
    x = b.tensor(lambda v: v.floating and v.rank == 2)
    if x.rank != 2:
        return None
    left, right = b.integer(0, 1), b.integer(0, 1)
    m, k = x.lens[::-1] if left else x.lens
    n = b.pick(LENGTHS)
    y = b.new((n, k) if right else (k, n), x.type)
    c = None if b.chance(3) else b.new(b.pick([(n,), (1, n), (m, 1), (m, n), (), (1,)]), x.type)
    scale = {"alpha": b.pick((0.5, 1.0, 2.0)), "beta": b.pick((0.5, 1.0, 0.0))} if b.chance(2) else {}
    return epilogue(b, b.node("Gemm", [x, y, c], transA=left, transB=right, **scale))


@step()
def einsum(b: Builder) -> Any:
    x = b.tensor(lambda v: v.floating and 2 <= v.rank <= 3)
    if x.rank == 2:
        equation, lens = b.pick([("ij,jk->ik", (x.lens[1], 3)), ("ij,kj->ki", (4, x.lens[1])), ("ij,ij->i", x.lens)])
    elif x.rank == 3:
        pairs = [
            ("bij,bjk->bik", (x.lens[0], x.lens[2], 3)),
            ("bij,jk->bki", (x.lens[2], 4)),
            ("bij,b->ji", x.lens[:1]),
        ]
        equation, lens = b.pick(pairs)
    else:
        return None
    return epilogue(b, b.node("Einsum", [x, b.new(lens, x.type)], equation=equation))


@step()
def integer_product(b: Builder) -> Any:
    types = (np.uint8, np.int8)
    x = b.tensor(lambda v: v.type in types and v.rank >= 2 and v.array.size > 0, np.uint8)
    if x.rank < 2 or x.type not in types:
        return None
    y = b.new((x.lens[-1], b.pick(LENGTHS)), b.pick(types))
    zeros = [None if b.chance(2) else b.constant(b.integer(0, 5), v.type) for v in (x, y)]
    return b.node("MatMulInteger", [x, y, *zeros])


@step()
def two_layers(b: Builder) -> Any:
    """A perceptron, whose residual is its input."""
    x = b.tensor(lambda v: v.type == np.float32 and v.rank >= 2)
    if x.rank < 2 or not b.shape_elements(*x.lens) or x.type != np.float32:
        return None
    n = b.pick((8, 16, 33))
    w1 = b.constant(b.rng.standard_normal((x.lens[-1], n)) / 4, x.type)
    w2 = b.constant(b.rng.standard_normal((n, x.lens[-1])) / 4, x.type)
    h = b.node("MatMul", [x, w1])
    h = h and b.node(b.pick(("Relu", "Tanh", "Sigmoid", "Gelu")), [h])
    y = h and b.node("MatMul", [h, w2])
    return y and b.node("Add", [x, y])
