"""ONNX Runtime's operators of models with a recurrent state: linear attention and what surrounds it."""

from __future__ import annotations

import math

from ...core.dim import known_equal
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ..arithmetic import mul_scalar
from .activation import swish
from .attention import merge_heads, repeat_heads, split_heads
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register

RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""For each rule: whether the state decays, and whether its value for the key is retrieved first."""


def _rule(node: Node) -> tuple[bool, bool]:
    return RULES[node.get_choice("update_rule", tuple(RULES), "gated_delta")]


def recurrence(
    g: Builder, values: tuple[Instruction, ...], state: Instruction | None, scale: float, retrieves: bool
) -> tuple[Instruction, Instruction]:
    """Emit the operator ``linear_attention`` in float32, or for one token its primitives; return result and state.

    Args:
        values: q, k, v, the logarithm of the decay, and beta, each [b, heads, t, ...].
        state: state [b, heads, d, e]; None for zeros.
        scale: factor of the results.
        retrieves: whether the state's value for the key is subtracted.
    """
    q, k, v, decay, beta = (g.convert(x, Type.float_type) for x in values)
    (b, heads, t, d), (shared, e) = g.lens(q), (g.lens(k)[1], g.lens(v)[3])
    if state is None:
        state = g.broadcast(g.literal(0.0, Type.float_type), (b, shared, d, e))
    state = g.convert(state, Type.float_type)
    if not known_equal(t, 1):
        both = g.op("linear_attention", q, k, v, state, decay, beta, scale=scale, retrieves=retrieves)
        return g.op("get_tuple_elem", both, index=0), g.op("get_tuple_elem", both, index=1)
    column = g.transpose(g.op("exp", decay), (0, 1, 3, 2))
    state = g.pointwise("mul", state, column)
    new = g.pointwise("sub", v, g.op("dot", k, state)) if retrieves else v
    state = g.pointwise("add", state, g.pointwise("mul", g.transpose(k, (0, 1, 3, 2)), g.pointwise("mul", beta, new)))
    rows = g.op("dot", g.reshape(q, (b, shared, heads // shared, d)), state)
    return mul_scalar(g, g.reshape(rows, (b, heads, 1, e)), scale), state


@register("LinearAttention", domain=MICROSOFT)
def linear_attention(
    g: Builder,
    node: Node,
    query: Instruction,
    key: Instruction,
    value: Instruction,
    past: Instruction | None = None,
    decay: Instruction | None = None,
    beta: Instruction | None = None,
) -> list[Instruction]:
    """Emit linear attention of packed heads [b, t, heads * d]; the state is [b, kv_heads, d, e]."""
    node.refuse("state_window", 0)
    heads, shared = node.get_int("q_num_heads"), node.get_int("kv_num_heads")
    decays, retrieves = _rule(node)
    q, k, v = (split_heads(g, x, n) for x, n in ((query, heads), (key, shared), (value, shared)))
    b, _, t, d = g.lens(q)
    if heads < shared:
        q = repeat_heads(g, q, shared // heads)
    zero = g.broadcast(g.literal(0.0, Type.float_type), (b, shared, t, 1))
    one = g.broadcast(g.literal(1.0, Type.float_type), (b, shared, t, 1))
    if (decays and decay is None) or (retrieves and beta is None):
        raise ParseError(f"update_rule {node.get_str('update_rule', 'gated_delta')} needs inputs 'decay' and 'beta'")
    fading = split_heads(g, decay, shared) if decays and decay is not None else zero
    rate = one
    if retrieves and beta is not None:
        width = g.lens(beta)[2]
        rate = split_heads(g, beta, shared if width == shared else 1)
        rate = g.broadcast(rate, (b, shared, t, 1))
    scale = node.get_float("scale", 0.0) or 1 / math.sqrt(d)
    y, state = recurrence(g, (q, k, v, fading, rate), past, scale, retrieves)
    state_type = query.shape.type if past is None else past.shape.type
    return [g.convert(merge_heads(g, y), query.shape.type), g.convert(state, state_type)]


@register("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(
    g: Builder, node: Node, a: Instruction, bias: Instruction, factor: Instruction, b: Instruction | None = None
) -> list[Instruction]:
    """Emit ``factor * softplus(a + bias)`` and ``sigmoid(b)``."""
    wide = g.pointwise("add", g.convert(a, Type.float_type), bias)
    decay = g.convert(g.pointwise("mul", g.op("softplus", wide), factor), a.shape.type)
    return [decay] if b is None else [decay, g.op("sigmoid", b)]


@register("GatedDeltaNet", domain=MICROSOFT)
def gated_delta_net(
    g: Builder,
    node: Node,
    query: Instruction,
    key: Instruction | None = None,
    value: Instruction | None = None,
    starts: Instruction | None = None,
    decay: Instruction | None = None,
    beta: Instruction | None = None,
    state: Instruction | None = None,
    a_log: Instruction | None = None,
    bias: Instruction | None = None,
    *others: Instruction | None,
) -> list[Instruction]:
    """Emit linear attention of tokens [n, heads, d] or [b, t, heads, d]; the state is [b, heads, e, d] in float32."""
    node.refuse("state_update_capacity", 0)
    if starts is not None:
        raise UnsupportedError("input 'cu_seqlens' (sequences of different lengths) is not supported")
    if state is None:
        raise UnsupportedError("input 'initial_state' is needed: it says how many sequences there are")
    decays, retrieves = _rule(node)
    b, heads, e, d = g.lens(state)
    if key is None or value is None:
        whole = g.lens(query)[-1]
        shared = (whole - heads * e) // (2 * d)
        query, key, value = g.split(query, rank(query) - 1, [shared * d, shared * d, heads * e])
    tokens = g.lens(query)[0] // b if rank(query) in (2, 3) else g.lens(query)[1]

    def apart(x: Instruction, width: int) -> Instruction:
        """Emit [n, heads, width] as [b, heads, t, width], in float32."""
        count = x.shape.elements // (b * tokens * width)
        return g.transpose(g.reshape(g.convert(x, Type.float_type), (b, tokens, count, width)), (0, 2, 1, 3))

    q, k, v = apart(query, d), apart(key, d), apart(value, e)
    if node.get_bool("qk_l2_norm"):
        q, k = (_unit(g, x) for x in (q, k))
    q, k = (repeat_heads(g, x, heads // g.lens(x)[1]) for x in (q, k))
    zero, one = (g.broadcast(g.literal(n, Type.float_type), (b, heads, tokens, 1)) for n in (0.0, 1.0))
    fading, rate = zero, one
    if decays:
        if decay is None:
            raise ParseError("input 'decay' is missing")
        width = decay.shape.elements // (b * tokens * heads)
        fading = _decay(g, node, apart(decay, width), a_log, bias, heads, width)
    if retrieves:
        if beta is None:
            raise ParseError("input 'beta' is missing")
        rate = apart(beta, 1)
        if node.get_choice("beta_activation", ("none", "sigmoid"), "none") == "sigmoid":
            rate = g.op("sigmoid", rate)
    scale = node.get_float("scale", 0.0) or 1 / math.sqrt(d)
    y, last = recurrence(g, (q, k, v, fading, rate), g.transpose(state, (0, 1, 3, 2)), scale, retrieves)
    lens = (*g.lens(query)[: 2 if rank(query) == 4 else 1], heads, e)
    y = g.reshape(g.transpose(y, (0, 2, 1, 3)), lens)
    return [g.convert(y, query.shape.type), g.transpose(last, (0, 1, 3, 2))]


def _unit(g: Builder, x: Instruction) -> Instruction:
    """Emit x with the features of each head scaled to length 1."""
    total = g.op("reduce_sum", g.pointwise("mul", x, x), axes=(3,))
    return g.pointwise("mul", x, g.op("rsqrt", g.pointwise("add", total, g.like(1e-6, x))))


def _decay(
    g: Builder,
    node: Node,
    x: Instruction,
    a_log: Instruction | None,
    bias: Instruction | None,
    heads: int,
    width: int,
) -> Instruction:
    """Emit the logarithm of the decay of x [b, heads, t, width]."""
    kind = node.get_choice("gate_activation", ("none", "softplus", "qwen", "sigmoid", "kda"), "none")
    if kind == "none":
        return x
    if a_log is None or bias is None:
        raise ParseError(f"gate_activation {kind} needs inputs 'a_log' and 'dt_bias'")
    shifted = g.pointwise("add", x, g.reshape(bias, (heads, 1, bias.shape.elements // heads)))
    rate = g.op("exp", g.reshape(a_log, (heads, 1, 1)))
    if kind in ("softplus", "qwen"):
        return g.op("neg", g.pointwise("mul", g.op("softplus", shifted), rate))
    return mul_scalar(g, g.op("sigmoid", g.pointwise("mul", shifted, rate)), node.get_float("gate_lower_bound", -5.0))


@register("CausalConvWithState", domain=MICROSOFT)
def causal_conv(
    g: Builder,
    node: Node,
    x: Instruction,
    weight: Instruction,
    bias: Instruction | None = None,
    past: Instruction | None = None,
) -> list[Instruction]:
    """Emit a depthwise convolution of x [b, c, t] after the state [b, c, n], and the state after it."""
    for name, usual in (
        ("state_window", 0), ("state_update_capacity", 0), ("state_channels_last", -1), ("state_length", 0),
        ("input_channel_offset", 0), ("input_channels", 0), ("ndim", 1),
    ):  # fmt: skip
        node.refuse(name, usual)
    last, lens = node.get_bool("channels_last"), g.lens(x)
    step = node.get_int("dilation", 1)
    channels, _, taps = g.lens(weight)
    if step < 1:
        raise ParseError(f"dilation is {step}, expected at least 1")
    state = (taps - 1) * step

    def first(v: Instruction, length: int) -> Instruction:
        """Emit a value with channels before positions."""
        return g.transpose(g.reshape(v, (lens[0], length, channels)), (0, 2, 1)) if last else v

    t = lens[1] if last else lens[2]
    if not last and len(lens) != 3:
        raise ShapeError(f"input is {list(lens)}, expected [batch, channels, positions]")
    given = first(x, t)
    before = g.like(0, x) if past is None else first(past, state)
    whole = g.op("concat", g.broadcast(before, (lens[0], channels, state)), given, axis=2) if state else given
    total = None
    for tap in range(taps):
        seen = g.slice(whole, 2, tap * step, tap * step + t)
        part = g.pointwise("mul", seen, g.reshape(g.slice(weight, 2, tap, tap + 1), (channels, 1)))
        total = part if total is None else g.pointwise("add", total, part)
    assert total is not None
    if bias is not None:
        total = g.pointwise("add", total, g.reshape(bias, (channels, 1)))
    if node.get_choice("activation", ("none", "silu", "swish"), "none") != "none":
        total = swish(g, total)
    kept = g.slice(whole, 2, t, t + state)
    if last:
        total = g.reshape(g.transpose(total, (0, 2, 1)), lens)
        kept = g.reshape(g.transpose(kept, (0, 2, 1)), (lens[0], state, *lens[2:]))
    return [total, kept]
