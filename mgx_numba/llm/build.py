"""Decoders as programs: a configuration and the weights of a file become operators.

Parameters and results have the names of onnxruntime-genai's models. Attention is GroupQueryAttention, which appends to
the caches; sequences of a batch begin at position 0 and are padded at their ends.

In a mixture of experts (`frontends.experts`) every token uses the few feed-forward networks for which a router has the
highest scores.

Nodes of ONNX's and ONNX Runtime's operators are expanded when open lengths are known (`onnx_node`), so a decoder that
is built here has the attention of decoders that come as ONNX files.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type
from ..errors import FormatError, OptionError, ShapeError
from ..frontends.builder import GraphBuilder
from ..frontends.experts import ROOM, Expert, Mixture
from ..frontends.onnx.activation import gelu_erf, gelu_tanh, swish
from ..frontends.onnx.normalization import layer_norm, rms_norm
from ..frontends.onnx.registry import MICROSOFT, OWN
from ..frontends.onnx.tensors import type_proto
from ..graph.emitter import Emitter
from ..graph.folding import Constants
from ..graph.instruction import Instruction
from ..graph.module import Module
from ..graph.origin import Origin
from ..graph.program import Program
from ..ops.deferred import Deferred
from .architectures import GGUF_NAMES, DecoderArchitecture
from .config import ModelConfig, Rope
from .linear import Linear, embedding
from .weights import Weight, WeightSource

CACHE_TYPES = {
    "float32": Type.float_type, "float16": Type.half_type, "bfloat16": Type.bf16_type, "float8": Type.fp8e4m3fn_type,
}  # fmt: skip
"""Element types of caches by name; float8 is e4m3fn."""
LAST = (1 << 63) - 1
"""End of a slice that goes to the end of an axis."""


def build_decoder(
    architecture: DecoderArchitecture,
    config: ModelConfig,
    source: WeightSource,
    gguf: bool,
    *,
    last_logits: bool = False,
    positions: int | None = None,
    shared_cache: bool = False,
    accuracy_level: int = 4,
    cache_type: str = "float32",
    block: int = 0,
) -> Program:
    """Return the program of a decoder with open lengths.

    Args:
        architecture: the layers' description.
        config: lengths and constants.
        source: the weights.
        gguf: whether names and matrices are those of a GGUF file.
        last_logits: whether logits are of the last position alone, [batch, 1, vocabulary].
        positions: positions of the rotary tables; None for the context length.
        shared_cache: whether caches have a length of their own, ``max_length``, and keep it: past and present may be
            the same memory.
        accuracy_level: 4 allows products with block-quantised weights to round rows to int8.
        cache_type: element type of the caches, a name in `CACHE_TYPES`; keys and values are rounded to it.
        block: above 0, caches are blocks [blocks, key heads, block, head size] that sequences share. Instead of the
            mask there are int64 parameters ``past_lengths`` [batch] and ``block_table`` [batch, pages], -1: no block.

    Raises:
        FormatError: a tensor is missing.
        OptionError: an option is out of range.
        UnsupportedError: a tensor's type is not supported.
    """
    if positions is not None and positions < 1:
        raise OptionError(f"positions is {positions}, expected at least 1")
    if cache_type not in CACHE_TYPES:
        raise OptionError(f"cache_type is {cache_type!r}, expected one of {', '.join(CACHE_TYPES)}")
    kind = CACHE_TYPES[cache_type]
    return DecoderBuilder(architecture, config, source, gguf, accuracy_level, shared_cache, kind, block).program(
        last_logits, positions or config.context_length
    )


class DecoderBuilder:
    """A decoder that is being built."""

    def __init__(
        self,
        architecture: DecoderArchitecture,
        config: ModelConfig,
        source: WeightSource,
        gguf: bool,
        accuracy_level: int,
        shared_cache: bool,
        cache_type: Type,
        block: int,
    ) -> None:
        self._cache_type, self._block = cache_type, block
        self.a, self.c, self.source, self.gguf = architecture, config, source, gguf
        self.names = GGUF_NAMES if gguf else architecture.names
        self._program = Program()
        self.g = GraphBuilder(self._program.main, Constants(self._program.allowance))
        self.linear = Linear(self.g, accuracy_level)
        cache = "max_length" if shared_cache else "past_sequence"
        total = "total_sequence" if shared_cache else "past_sequence + sequence"
        self.batch, self.sequence, self.past, self.total = map(_open, ("batch", "sequence", cache, total))
        self._tables: dict[tuple[Rope, int], list[Instruction]] = {}

    def program(self, last_logits: bool, positions: int) -> Program:
        """Emit everything and return the program."""
        g, c = self.g, self.c
        main = self._program.main
        ids = main.add_parameter("input_ids", self._shape(Type.int64_type, self.batch, self.sequence))
        if self._block:
            past = main.add_parameter("past_lengths", self._shape(Type.int64_type, self.batch))
            pages = main.add_parameter("block_table", self._shape(Type.int64_type, self.batch, _open("pages")))
            new = g.op("dimensions_of", ids, start=1, end=2)
            ends = g.pointwise("sub", g.pointwise("add", past, new), g.literal(np.int64(1)))
            known = [past, pages]
            lens: tuple[DynamicDimension | int, ...] = (_open("blocks"), c.key_heads, self._block, c.head_size)
        else:
            mask = main.add_parameter("attention_mask", self._shape(Type.int64_type, self.batch, self.total))
            ends = g.convert(g.reduce("reduce_sum", mask, [1], keep=False), Type.int32_type)
            ends = g.pointwise("sub", ends, g.literal(np.int32(1)))
            known = [ends, g.convert(g.op("dimensions_of", mask, start=1, end=2), Type.int32_type)]
            lens = (self.batch, c.key_heads, self.past, c.head_size)
        self.cache_lens = lens
        caches = [
            [main.add_parameter(f"past_key_values.{i}.{what}", self._shape(self._cache_type, *lens)) for what in KINDS]
            for i in range(c.layers)
        ]
        table = self.needed("embed")
        if len(table.lens) != 2 or table.lens[1] != c.hidden:
            raise FormatError(f"the table of embeddings is {list(table.lens)}, expected rows of {c.hidden}")
        x = embedding(self.linear, table, ids)
        if c.embedding_scale != 1:
            x = g.pointwise("mul", x, g.literal(np.float32(c.embedding_scale)))
        if "positions" in self.names and (rows := self.weight("positions")) is not None:
            x = g.pointwise("add", x, embedding(self.linear, rows, self._places(ids, ends)))
        present: list[Instruction] = []
        for i in range(c.layers):
            x, cache = self._attention(i, x, [*caches[i], *known], positions)
            present += cache
            x = self._feed_forward(i, x)
        if last_logits:
            x = g.op("slice", x, axes=(1,), starts=(-1,), ends=(LAST,))
        x = self._norm("output_norm", x)
        output = self.weight("output") or table
        if len(output.lens) != 2 or output.lens[1] != c.hidden:
            raise FormatError(f"{self.names['output']}.weight is {list(output.lens)}, expected rows of {c.hidden}")
        (logits,) = self.linear(x, [output])
        if c.logit_scale != 1:
            logits = g.pointwise("mul", logits, g.literal(np.float32(c.logit_scale)))
        main.add_return([_capped(g, logits, c.logit_cap), *present])
        names = [f"present.{i}.{what}" for i in range(c.layers) for what in KINDS]
        self._program.origin = Origin(output_names=("logits", *names), producer_name="mgx_numba.llm")
        main.remove_unused()
        return self._program

    def weight(self, role: str, i: int = 0, part: str = "weight", e: int = 0) -> Weight | None:
        """Return the tensor of a role; None if the file has none."""
        if role not in self.names:
            return None
        return self.source.weight(f"{self.names[role].format(i=i, e=e)}.{part}")

    def needed(self, role: str, i: int = 0, e: int = 0) -> Weight:
        """Return the tensor of a role.

        Raises:
            FormatError: the file has none.
        """
        found = self.weight(role, i, e=e)
        if found is None:
            name = self.names.get(role, role).format(i=i, e=e)
            raise FormatError(f"a {self.a.name} model needs a tensor {name + '.weight'!r}, which the file lacks")
        return found

    def _shape(self, type: Type, *lens: DynamicDimension | int) -> Shape:
        return Shape.dynamic(type, lens)

    def _places(self, ids: Instruction, ends: Instruction) -> Instruction:
        """Emit the positions [batch, sequence] of the tokens, as GroupQueryAttention counts them.

        The last tokens of a sequence are those of the step; a padded sequence of a first step begins at 0.

        Args:
            ids: tokens [batch, sequence].
            ends: position of the last token of each sequence, int32 [batch].
        """
        g = self.g
        ones = g.op("multibroadcast", g.literal(np.ones((1, 1), np.int64)), ids)
        steps = g.op("prefix_scan_sum", ones, axis=1, exclusive=False, reverse=False)
        before = g.pointwise("sub", g.convert(ends, Type.int64_type), g.op("dimensions_of", ids, start=1, end=2))
        first = g.pointwise("max", before, g.literal(np.int64(-1)))
        return g.pointwise("add", steps, g.unsqueeze(first, [1]))

    def _norm(self, role: str, x: Instruction, i: int = 0) -> Instruction:
        """Emit a norm over the last axis, or nothing if the file has no such norm."""
        g, weight = self.g, self.weight(role, i)
        if self.a.norm == "plain":
            return layer_norm(g, x, None, None, x.shape.ndim - 1, self.c.norm_epsilon)[0]
        if weight is None:
            return x
        axis = x.shape.ndim - 1
        width = x.shape.dims[axis].max
        if weight.lens != (width,):
            name = self.names[role].format(i=i, e=0)
            raise FormatError(f"{name}.weight has lengths {list(weight.lens)}, expected [{width}]")
        shift = np.float32(0 if self.gguf else self.a.norm_shift)
        scale, bias = g.literal(weight.dense() + shift), self.weight(role, i, "bias")
        if self.a.norm == "rms":
            return rms_norm(g, x, scale, axis, self.c.norm_epsilon)[0]
        shifted = None if bias is None else g.literal(bias.dense())
        return layer_norm(g, x, scale, shifted, axis, self.c.norm_epsilon)[0]

    def _project(self, i: int, x: Instruction, roles: tuple[str, ...]) -> list[Instruction]:
        weights = [self.needed(role, i) for role in roles]
        try:
            return self.linear(x, weights, [self.weight(role, i, "bias") for role in roles], self._transposed)
        except ShapeError as error:
            names = ", ".join(f"{self.names[role].format(i=i, e=0)}.weight" for role in roles)
            raise FormatError(f"the lengths of {names} do not fit the model's: {error}") from error

    def _check_width(self, x: Instruction, size: int, what: str) -> None:
        """Raise if the last axis is not as long as the configuration says.

        Raises:
            FormatError: the message names ``what``.
        """
        if x.shape.dims[-1].max != size:
            raise FormatError(
                f"{what} have {x.shape.dims[-1].max} features, but the configuration has {self.c.heads} heads, "
                f"{self.c.key_heads} key heads and a head size of {self.c.head_size}: expected {size}"
            )

    @property
    def _transposed(self) -> bool:
        return self.a.transposed and not self.gguf

    def _attention(
        self, i: int, x: Instruction, known: list[Instruction], positions: int
    ) -> tuple[Instruction, list[Instruction]]:
        """Emit a layer's attention with its norms and the sum, and the longer caches.

        Args:
            known: the layer's caches, and the two inputs that say what is in them.
        """
        g, c = self.g, self.c
        y = self._norm("attention_norm", x, i)
        sizes = [c.heads * c.head_size] + [c.key_heads * c.head_size] * 2
        if self.weight("qkv", i) is not None:
            (whole,) = self._project(i, y, ("qkv",))
            self._check_width(whole, sum(sizes), f"queries, keys and values of layer {i}")
            bounds = np.cumsum([0, *sizes]).tolist()
            parts = [g.op("slice", whole, axes=(2,), starts=(a,), ends=(b,)) for a, b in itertools.pairwise(bounds)]
        else:
            parts = self._project(i, y, ("q", "k", "v"))
            for part, size, what in zip(parts, sizes, ("queries", "keys", "values"), strict=True):
                self._check_width(part, size, f"{what} of layer {i}")
        if c.clip_qkv:
            limits = [g.literal(np.float32(v)) for v in (-c.clip_qkv, c.clip_qkv)]
            parts = [g.pointwise("clip", part, *limits) for part in parts]
        q, k, v = parts
        q, k = (self._head_norm(role, part, i) for role, part in (("q_norm", q), ("k_norm", k)))
        rope, window = c.ropes[i], c.windows[i]
        tables = [] if rope is None else self._rotation(rope, positions)
        growing = self.past.symbol != "max_length" and not self._block
        grown = (self.batch, c.key_heads, _open(""), c.head_size) if growing else self.cache_lens
        results = [self._shape(Type.float_type, self.batch, self.sequence, sizes[0])]
        results += [self._shape(self._cache_type, *grown)] * 2
        y, *present = deferred_node(
            g, "PagedGroupQueryAttention" if self._block else "GroupQueryAttention", [q, k, v, *known, *tables],
            results, OWN if self._block else MICROSOFT,
            num_heads=c.heads, kv_num_heads=c.key_heads, do_rotary=int(rope is not None), scale=c.attention_scale,
            rotary_interleaved=int(self.gguf and self.a.interleaved), local_window_size=window or -1,
            softcap=c.score_cap,
        )  # fmt: skip
        (y,) = self._project(i, y, ("o",))
        return self._sum(x, self._norm_after("attention_post_norm", y, i)), present

    def _rotation(self, rope: Rope, positions: int) -> list[Instruction]:
        """Return the tables of cosines and sines."""
        if (rope, positions) not in self._tables:
            self._tables[rope, positions] = [self.g.literal(table) for table in rope.tables(positions)]
        return self._tables[rope, positions]

    def _head_norm(self, role: str, x: Instruction, i: int) -> Instruction:
        """Emit the norm of queries or keys, over each head if its weights have a head's length."""
        weight = self.weight(role, i)
        if weight is None:
            return x
        size, whole = self.c.head_size, x.shape.dims[2].max
        if weight.lens[0] == whole:
            return self._norm(role, x, i)
        heads = self.g.op("reshape", x, dims=(0, 0, whole // size, size))
        return self.g.op("reshape", self._norm(role, heads, i), dims=(0, 0, whole))

    def _norm_after(self, role: str, y: Instruction, i: int) -> Instruction:
        return self._norm(role, y, i) if self.a.norm == "rms" else y

    def _sum(self, x: Instruction, y: Instruction) -> Instruction:
        if self.c.residual_scale != 1:
            y = self.g.pointwise("mul", y, self.g.literal(np.float32(self.c.residual_scale)))
        return self.g.pointwise("add", x, y)

    def _feed_forward(self, i: int, x: Instruction) -> Instruction:
        """Emit a layer's feed-forward network with its norms and the sum."""
        y = self._norm("ffn_norm", x, i)
        try:
            y = mixture_of_experts(self, i, y) if self.weight("router", i) is not None else self._network(i, y)
        except ShapeError as error:
            raise FormatError(f"the lengths of the feed-forward weights of layer {i} do not fit: {error}") from error
        return self._sum(x, self._norm_after("ffn_post_norm", y, i))

    def _network(self, i: int, x: Instruction) -> Instruction:
        g, inner = self.g, self.c.feed_forward
        up = self.weight("up", i)
        both = self.weight("gate_up", i) is not None or (up is not None and up.lens[0] == 2 * inner and self.gguf)
        if both:
            (whole,) = self._project(i, x, ("up" if self.gguf else "gate_up",))
            gate, y = (g.op("slice", whole, axes=(2,), starts=(a,), ends=(a + inner,)) for a in (0, inner))
        elif self.weight("gate", i) is not None:
            gate, y = self._project(i, x, ("gate", "up"))
        else:
            (gate,) = self._project(i, x, ("up",))
            y = None
        gate = self.activated(g, gate)
        (y,) = self._project(i, gate if y is None else g.op("mul", gate, y), ("down",))
        return y

    def activated(self, g: GraphBuilder, x: Instruction) -> Instruction:
        """Emit the activation."""
        kinds = {"silu": swish, "gelu": gelu_erf, "gelu_tanh": gelu_tanh}
        return g.op("relu", x) if self.c.activation == "relu" else kinds[self.c.activation](g, x)

    def inside(self) -> tuple[GraphBuilder, Module]:
        """Return the builder of a new submodule, and the submodule."""
        module = self._program.unique_module("inside")
        return GraphBuilder(module, self.g.constants), module


KINDS = ("key", "value")


def _open(symbol: str) -> DynamicDimension:
    return DynamicDimension(0, UNBOUNDED, symbol=symbol)


def _capped(g: GraphBuilder, x: Instruction, cap: float) -> Instruction:
    """Emit ``cap * tanh(x / cap)``; ``x`` itself for a cap of 0."""
    if not cap:
        return x
    inner = g.pointwise("mul", x, g.literal(np.float32(1 / cap)))
    return g.pointwise("mul", g.op("tanh", inner), g.literal(np.float32(cap)))


def mixture_of_experts(decoder: DecoderBuilder, i: int, x: Instruction) -> Instruction:
    """Emit a layer's mixture of experts.

    Args:
        decoder: the decoder that is being built.
        i: number of the layer.
        x: normalised tokens [batch, sequence, features].
    """
    g, c = decoder.g, decoder.c
    (scores,) = decoder.linear(x, [decoder.needed("router", i)])
    used = c.experts_used
    if not c.normalize_experts:
        scores = g.op("softmax", scores, axis=2)
    both = g.op("topk", scores, k=used, axis=2, largest=1)
    best, places = (g.op("get_tuple_elem", both, index=k) for k in range(2))
    if c.normalize_experts:  # equal to the normalised softmax of all scores
        best = g.op("softmax", best, axis=2)
    flat, places, best = (g.op("reshape", each, dims=(-1, each.shape.dims[2].max)) for each in (x, places, best))
    none = g.op(
        "multibroadcast", g.literal(np.zeros((1, 1), np.float32)), g.op("reshape", scores, dims=(-1, c.experts))
    )
    shares = g.op("scatter_none", none, places, best, axis=1)

    def expert(e: int) -> Expert[GraphBuilder]:
        weights = [_expert(decoder, name, i, e) for name in ("gate", "up", "down")]

        def emit(inner: GraphBuilder, rows: Instruction) -> Instruction:
            linear = decoder.linear.within(inner)
            gate, up = linear(inner.unsqueeze(rows, [0]), weights[:2])
            (y,) = linear(inner.op("mul", decoder.activated(inner, gate), up), weights[2:])
            return inner.op("squeeze", y, axes=(0,))

        return emit

    def zeros(type: Type, kind: type[np.generic]) -> Instruction:
        count = g.op("dimensions_of", flat, start=0, end=1)
        room, even = (g.literal(np.array([n], np.int64)) for n in (ROOM * used, c.experts))
        most = g.pointwise("add", g.pointwise("mul", count, room), g.literal(np.array([c.experts - 1], np.int64)))
        lens = g.op("concat", even, g.pointwise("div", most, even), axis=0)
        shape = Shape.dynamic(type, (c.experts, DynamicDimension(0, UNBOUNDED, symbol="slots")))
        return deferred_node(g, "Expand", [g.literal(np.zeros((1, 1), kind)), lens], [shape], "")[0]

    total = Mixture(g, decoder.inside)(flat, shares, used, [expert(e) for e in range(c.experts)], zeros)
    lens = g.op("dimensions_of", x, start=0, end=3)
    return deferred_node(g, "Reshape", [total, lens], [Shape.dynamic(Type.float_type, x.shape.dims)], "")[0]


def _expert(decoder: DecoderBuilder, name: str, i: int, e: int) -> Weight:
    """Return an expert's matrix, which a file stores separately or stacked with all experts."""
    whole = decoder.weight(f"experts_{name}", i)
    if whole is not None:
        return Weight(np.asarray(whole.array[e]), whole.layout)
    return decoder.needed(f"expert_{name}", i, e)


OPERATOR_SET = 21
"""Operator set of ONNX that nodes name; other domains have version 1."""


def deferred_node(
    g: Emitter,
    operator: str,
    inputs: Sequence[Instruction | None],
    results: Sequence[Shape],
    domain: str = "com.microsoft",
    **attributes: Any,
) -> list[Instruction]:
    """Emit a node of ONNX or ONNX Runtime, to be expanded later, and return its results.

    Args:
        operator: name of the operator.
        inputs: the node's inputs; None for an absent one.
        results: shapes of the results.
        domain: the operator's.
        attributes: the node's attributes.
    """
    import onnx
    from onnx import helper

    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    outputs = [f"y{k}" for k in range(len(results))]
    given = [(name, x) for name, x in zip(names, inputs, strict=True) if x is not None]
    node = helper.make_node(operator, names, outputs, domain=domain, **attributes)
    graph = onnx.GraphProto(name=operator)
    graph.node.append(node)
    for name, x in given:
        graph.input.add(name=name).type.CopyFrom(type_proto(x.shape, ranked=False))
    for name in outputs:
        graph.output.add(name=name)
    opsets = [helper.make_opsetid("", OPERATOR_SET), helper.make_opsetid(domain or "com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    op = Deferred(
        operator=operator,
        source=base64.b64encode(model.SerializeToString(deterministic=True)).decode(),
        result=Shape.tuple(results),
    )
    whole = g.op(op, *(x for _, x in given))
    return [g.op("get_tuple_elem", whole, index=k) for k in range(len(results))]
