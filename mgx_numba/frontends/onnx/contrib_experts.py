"""Mixtures of experts of ONNX Runtime.

The results of the experts that a token chose are summed with the token's weights; see `frontends.experts`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ...graph.module import Module
from ..experts import ROOM, Expert, Mixture
from .activation import gelu_tanh, swish
from .builder import Builder, rank
from .contrib import unpacked
from .node import Node
from .registry import MICROSOFT, register

Product = Callable[[int], Callable[[Builder, Instruction], Instruction]]
"""Prepares an expert's weights; the result emits their product with rows [n, k], and the bias."""
ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")


def _routing(g: Builder, node: Node, router: Instruction, weights: Instruction | None, normalized: bool) -> Instruction:
    """Emit the weight of each token for each expert, [n, experts], zero for experts that are not chosen."""
    if node.get_bool("use_sparse_mixer"):
        raise UnsupportedError("use_sparse_mixer is not supported")
    count, experts = node.get_int("k", 1), g.lens(router)[1]
    if not 0 < count <= experts:
        raise ParseError(f"k is {count}, expected 1 to {experts}, the number of experts")
    wide = g.convert(router, Type.float_type)
    shares = g.op("softmax", wide, axis=1)
    both = g.op("topk", wide, k=count, axis=1, largest=True)
    places = g.op("get_tuple_elem", both, index=1)
    source = shares if weights is None else g.convert(weights, Type.float_type)
    values = g.op("gather_elements", source, places, axis=1)
    if normalized:
        values = g.pointwise("div", values, g.op("reduce_sum", values, axes=(1,)))
    zero = g.broadcast(g.literal(0.0, Type.float_type), g.lens(router))
    return g.op("scatter_none", zero, places, values, axis=1)


def _activated(g: Builder, node: Node, x: Instruction, third: Instruction | None) -> Instruction:
    """Emit the activation of an expert's first product; ``third`` is the product that SwiGLU multiplies with it."""
    node.refuse("swiglu_limit_after_activation", 0)
    kind = node.get_choice("activation_type", ACTIVATIONS, "relu")
    if kind == "swiglu":
        fusion = node.get_int("swiglu_fusion", 0)
        width = g.lens(x)[1] // 2
        if fusion == 1:
            pairs = g.split(g.reshape(x, (g.lens(x)[0], width, 2)), 2, [1, 1])
            x, third = (g.squeeze(part, [2]) for part in pairs)
        elif fusion == 2:
            x, third = g.split(x, 1, [width, width])
        if third is None:
            raise ParseError("activation_type swiglu with swiglu_fusion 0 needs fc3_experts_weights")
        limit = node.get_float("swiglu_limit", float("inf"))
        if limit != float("inf"):
            x = g.pointwise("min", x, g.like(limit, x))
            third = g.pointwise("max", g.pointwise("min", third, g.like(limit, x)), g.like(-limit, x))
        gate = swish(g, x, node.get_float("activation_alpha", 1.0))
        beta = g.like(node.get_float("activation_beta", 0.0), third)
        return g.pointwise("mul", gate, g.pointwise("add", third, beta))
    if kind == "gelu":
        y = gelu_tanh(g, x)
    else:
        y = {"relu": lambda: g.op("relu", x), "silu": lambda: swish(g, x), "identity": lambda: x}[kind]()
    return y if third is None else g.pointwise("mul", y, third)


def _mixed(
    g: Builder, node: Node, x: Instruction, shares: Instruction, first: Product, second: Product, third: Product | None
) -> Instruction:
    """Emit the weighted sum of the experts' results."""
    lens, (count, number) = g.lens(x), g.lens(shares)
    used = node.get_int("k", 1)

    def expert(e: int) -> Expert:
        into, out, gate = first(e), second(e), None if third is None else third(e)

        def emit(inner: Builder, rows: Instruction) -> Instruction:
            beside = None if gate is None else gate(inner, rows)
            return out(inner, _activated(inner, node, into(inner, rows), beside))

        return emit

    def inside() -> tuple[Builder, Module]:
        module = g.parser.program.unique_module("expert")
        return Builder(module, g.parser), module

    def zeros(type: Type, kind: type[np.generic]) -> Instruction:
        slots = -(-ROOM * used * count // number)
        return g.broadcast(g.literal(kind(0), type), (number, slots))

    rows = g.reshape(g.convert(x, Type.float_type), (x.shape.elements // lens[-1], lens[-1]))
    total = Mixture(g, inside)(rows, shares, used, [expert(e) for e in range(number)], zeros)
    return g.convert(g.reshape(total, lens), x.shape.type)


def _expert(g: Builder, x: Instruction, number: int) -> Instruction:
    """Emit an expert's part of a tensor [experts, ...]."""
    return g.squeeze(g.slice(x, 0, number, number + 1), [0])


def _with_bias(g: Builder, y: Instruction, bias: Instruction | None, number: int) -> Instruction:
    return y if bias is None else g.pointwise("add", y, g.convert(_expert(g, bias, number), y.shape.type))


@register("MoE", domain=MICROSOFT)
def moe(
    g: Builder,
    node: Node,
    x: Instruction,
    router: Instruction,
    weights1: Instruction,
    bias1: Instruction | None,
    weights2: Instruction,
    bias2: Instruction | None = None,
    weights3: Instruction | None = None,
    bias3: Instruction | None = None,
) -> Instruction:
    """Emit a mixture of experts with weights [experts, outputs, inputs]."""

    def product(weights: Instruction, bias: Instruction | None) -> Product:
        def prepared(number: int) -> Callable[[Builder, Instruction], Instruction]:
            own = g.swap_last(g.convert(_expert(g, weights, number), Type.float_type))
            return lambda inner, rows: _with_bias(inner, inner.op("dot", rows, own), bias, number)

        return prepared

    shares = _routing(g, node, router, None, node.get_bool("normalize_routing_weights"))
    third = None if weights3 is None else product(weights3, bias3)
    return _mixed(g, node, x, shares, product(weights1, bias1), product(weights2, bias2), third)


@register("QMoE", domain=MICROSOFT)
def qmoe(
    g: Builder,
    node: Node,
    x: Instruction,
    router: Instruction,
    weights1: Instruction,
    scales1: Instruction | None,
    bias1: Instruction | None,
    weights2: Instruction,
    scales2: Instruction | None,
    bias2: Instruction | None = None,
    weights3: Instruction | None = None,
    scales3: Instruction | None = None,
    bias3: Instruction | None = None,
    zeros1: Instruction | None = None,
    zeros2: Instruction | None = None,
    zeros3: Instruction | None = None,
    router_weights: Instruction | None = None,
    *others: Instruction | None,
) -> Instruction:
    """Emit a mixture of experts with weights of 2, 3, 4 or 8 bits, with scales per column or per block of inputs."""
    if node.get_str("quant_type", "int") != "int" or any(other is not None for other in others):
        raise UnsupportedError(f"quant_type {node.get_str('quant_type', 'int')} is not supported; int is")
    block, usual = node.get_int("block_size", 0), node.get_int("expert_weight_bits", 4)

    def product(
        name: str, weights: Instruction, scales: Instruction | None, zeros: Instruction | None, bias: Instruction | None
    ) -> Product:
        bits = node.get_int(f"{name}_expert_weight_bits", usual)
        if bits not in (2, 3, 4, 8) or rank(weights) != 3 or scales is None:
            raise ShapeError(
                f"{name}: weights {weights.shape} of {bits} bits, expected 3 axes, 2 to 8 bits, and scales"
            )
        _, outer, stored = g.lens(weights)
        inner = stored * 8 // bits
        size = block or inner
        blocks = inner // size

        def prepared(number: int) -> Callable[[Builder, Instruction], Instruction]:
            codes = g.reshape(unpacked(g, _expert(g, weights, number), bits), (outer, blocks, size))
            scale = g.reshape(g.convert(_expert(g, scales, number), Type.float_type), (outer, blocks, 1))
            if zeros is None:
                zero = g.literal(1 << (bits - 1), Type.uint8_type)
            else:
                own = unpacked(g, _expert(g, zeros, number), bits)
                zero = g.slice(own, rank(own) - 1, 0, blocks if block else outer)
                zero = g.reshape(zero, (outer, blocks, 1))
            parts = (g.broadcast(part, (outer, blocks, size)) for part in (scale, zero))
            own = g.swap_last(g.reshape(g.op("dequantizelinear", codes, *parts), (outer, inner)))
            return lambda inner, rows: _with_bias(inner, inner.op("dot", rows, own), bias, number)

        return prepared

    # ONNX Runtime's kernels apply softmax to the chosen scores, whatever normalize_routing_weights is
    normalized = router_weights is None or node.get_bool("normalize_routing_weights")
    shares = _routing(g, node, router, router_weights, normalized)
    third = None if weights3 is None else product("fc3", weights3, scales3, zeros3, bias3)
    first = product("fc1", weights1, scales1, zeros1, bias1)
    return _mixed(g, node, x, shares, first, product("fc2", weights2, scales2, zeros2, bias2), third)
