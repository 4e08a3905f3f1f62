"""Decoders of ONNX Runtime's searches: how their inputs begin and follow from their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...errors import ParseError, UnsupportedError
from .node import Node
from .node_list import NodeList

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

Room = Callable[[str], tuple[str, str]]


class SearchedDecoder(Protocol):
    """The decoder of a search.

    Attributes:
        prompt: int32 tokens [rows, prompt] with which sequences begin.
    """

    prompt: str

    def begin(self, spread: str, room: Room) -> tuple[str, str]:
        """Compute the first inputs.

        Args:
            spread: batch entry of each row (empty: rows are the batch).
            room: returns a prompt's length and the tokens to generate.

        Returns:
            What ``room`` returns.
        """
        ...

    def run(self, turn: str, sequences: str, at: str) -> str:
        """Add the decoder's nodes to the loop's body, and return the name of its logits [rows, tokens, vocabulary]."""
        ...

    def carried(self, tokens: str, sequences: str, at: str, origins: str | None) -> dict[str, tuple[str, str]]:
        """Return the decoder's inputs: by name the first value and the value after an iteration.

        Args:
            tokens: chosen tokens [rows, 1].
            sequences: sequences that end with them.
            at: position of these tokens.
            origins: row from which each row goes on (None: itself).
        """
        ...


def fixed_length(info: ValueInfoProto, axis: int, count: int) -> int:
    """Return a length that a subgraph declares.

    Raises:
        ParseError: it declares another number of dimensions than ``count``, or no length.
    """
    dims = info.type.tensor_type.shape.dim
    if len(dims) != count or dims[axis].dim_value <= 0:
        raise ParseError(f"the subgraph's {info.name!r} needs {count} dimensions and a length of dimension {axis}")
    return dims[axis].dim_value


def _element_type(info: ValueInfoProto) -> np.dtype:
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))


def _reordered(body: NodeList, value: str, origins: str | None, axis: int) -> str:
    return value if origins is None else body.op("Gather", value, origins, axis=axis)


def _branches(body: NodeList, turn: str, first: GraphProto, then: GraphProto) -> list[str]:
    """Return the results of ``first`` in the loop's first turn, else of ``then``."""
    start = body.op("Equal", turn, body.constant(0))
    graphs = []
    for graph in (first, then):
        branch = type(graph)()
        branch.CopyFrom(graph)
        del branch.input[:]
        graphs.append(branch)
    return body.ops("If", len(then.output), start, then_branch=graphs[0], else_branch=graphs[1])


class GptDecoder:
    """A decoder alone: `input_ids`, `position_ids`, `attention_mask`, and `past_i` [2, rows, heads, past, d]."""

    def __init__(self, body: NodeList, node: Node, n: NodeList, names: dict[str, str], pad: int) -> None:
        self._body, self._n, self._names, self._pad = body, n, names, pad
        self._graph = node.get_graph("decoder")
        self._first = node.get_graph("init_decoder") if node.has("init_decoder") else None
        inputs = [i.name for i in self._graph.input]
        if inputs[:3] != ["input_ids", "position_ids", "attention_mask"] or len(inputs) < 4:
            raise ParseError(
                f"the decoder's inputs are {inputs}, expected input_ids, position_ids, attention_mask, past_0"
            )
        if len(inputs) != len(self._graph.output) + 2:
            raise UnsupportedError(
                f"the decoder's inputs {inputs[3:]} do not continue as its results; shared buffers need a GPU"
            )
        if self._first is not None and [i.name for i in self._first.input] != inputs:
            raise ParseError("init_decoder has other inputs than decoder")

    def begin(self, spread: str, room: Room) -> tuple[str, str]:
        n = self._n
        self.prompt = self._names["input_ids"]
        pads = n.op("Equal", self.prompt, n.constant(self._pad, np.int32))
        tokens = n.cast(n.op("Not", pads), np.int32)
        mask = self._names.get("attention_mask", tokens)  # positions do not depend on it
        if spread:
            self.prompt, mask, tokens = (n.op("Gather", x, spread, axis=0) for x in (self.prompt, mask, tokens))
        count = n.op("CumSum", tokens, n.constant(1))
        before, zero = n.op("Sub", count, n.constant(1, np.int32)), n.constant(0, np.int32)
        places = n.op("Where", n.cast(tokens, np.bool_), before, zero)
        total = n.op("Gather", count, n.constant([-1]), axis=1)
        past, rows = [], n.length(self.prompt, 0)
        for info in self._graph.input[3:]:
            heads, size = fixed_length(info, 2, 5), fixed_length(info, 4, 5)
            lengths = [n.constant([2]), rows, *(n.constant([x]) for x in (heads, 0, size))]
            past.append(n.filled(0, _element_type(info), *lengths))
        self._start = [self.prompt, places, mask, *past]
        self._total = total
        return room(self.prompt)

    def run(self, turn: str, sequences: str, at: str) -> str:
        if self._first is None:
            self._body.include(self._graph)
            self._results = [o.name for o in self._graph.output]
        else:
            self._results = _branches(self._body, turn, self._first, self._graph)
        return self._results[0]

    def carried(self, tokens: str, sequences: str, at: str, origins: str | None) -> dict[str, tuple[str, str]]:
        body, inputs = self._body, [i.name for i in self._graph.input]
        place = body.fresh("place")
        ones = body.filled(1, np.int32, body.length(inputs[2], 0), body.constant([1]))
        after = [tokens, place, body.op("Concat", inputs[2], ones, axis=1)]
        after += [_reordered(body, x, origins, 1) for x in self._results[1:]]
        following = body.op("Add", place, body.constant(1, np.int32))
        return {**dict(zip(inputs, zip(self._start, after, strict=True), strict=True)), place: (self._total, following)}


class T5Decoder:
    """A decoder over an encoder's results.

    The encoder has the inputs `encoder_input_ids`, `encoder_attention_mask` and, in the older form,
    `decoder_input_ids`; then it computes the first logits and caches too. The decoder has `input_ids`,
    `encoder_attention_mask`, possibly `encoder_hidden_states`, then caches [rows, heads, past, d]: keys and values of
    each layer for its own tokens, which it continues, then for the encoder's.
    """

    def __init__(self, body: NodeList, node: Node, n: NodeList, names: dict[str, str], pad: int) -> None:
        self._body, self._n, self._names, self._pad = body, n, names, pad
        self._graph, self._encoder = node.get_graph("decoder"), node.get_graph("encoder")
        self._token = node.get_int("decoder_start_token_id", -1)
        if self._token < 0:
            raise ParseError("decoder_start_token_id is missing")
        inputs = [i.name for i in self._graph.input]
        given = [i.name for i in self._encoder.input]
        if given not in (INPUTS := ["encoder_input_ids", "encoder_attention_mask", "decoder_input_ids"], INPUTS[:2]):
            raise ParseError(f"the encoder's inputs are {given}, expected {INPUTS}, the last of which may be absent")
        if inputs[:2] != ["input_ids", "encoder_attention_mask"]:
            raise ParseError(f"the decoder's inputs are {inputs}, expected input_ids, encoder_attention_mask, ...")
        self._hidden = int(inputs[2:3] == ["encoder_hidden_states"])
        self._own = len(self._graph.output) - 1
        self._older = len(given) == 3
        caches = len(inputs) - 2 - self._hidden
        made = len(self._encoder.output) - 2 if self._older else len(self._encoder.output) + self._own
        if self._own < 2 or caches != 2 * self._own or made != caches or (self._hidden and not self._older):
            raise UnsupportedError(
                f"the decoder has {caches} caches and continues {self._own}, "
                f"the encoder has {len(self._encoder.output)} results; expected keys and values of each layer, "
                "for its own tokens and for the encoder's"
            )

    def begin(self, spread: str, room: Room) -> tuple[str, str]:
        n, ids = self._n, self._names["input_ids"]
        mask = self._names.get("attention_mask")
        if mask is None:  # padding at the beginning alone
            other = n.op("Not", n.op("Equal", ids, n.constant(self._pad, np.int32)))
            begun = n.op("CumSum", n.cast(other, np.int32), n.constant(1))
            mask = n.cast(n.op("Greater", begun, n.constant(0, np.int32)), np.int32)
        rows, one = n.length(ids, 0), n.constant([1])
        start = n.filled(self._token, np.int32, rows, one)
        given = [ids, mask, start]
        for info, value in zip(self._encoder.input, given):
            n.rename(value, info.name)
        n.include(self._encoder)
        found = [n.op("Gather", o.name, spread, axis=0) for o in self._encoder.output]
        self.prompt, wide = (n.op("Gather", x, spread, axis=0) for x in (start, mask))
        caches = found[2:]
        if not self._older:
            lens = [n.length(self.prompt, 0)]
            own = []
            for info in self._graph.input[2 : 2 + self._own]:
                heads, size = fixed_length(info, 1, 4), fixed_length(info, 3, 4)
                own.append(n.filled(0, _element_type(info), *lens, *(n.constant([x]) for x in (heads, 0, size))))
            caches = [*own, *found]
        self._logits = found[0]
        self._start = [self.prompt, wide, *found[1 : 1 + self._hidden], *caches]
        return room(self.prompt)

    def run(self, turn: str, sequences: str, at: str) -> str:
        body, inputs = self._body, [i.name for i in self._graph.input]
        if self._older:
            first = NodeList(body.fresh("first"))
            kept = [self._logits, *inputs[2 + self._hidden :][: self._own]]
            same = first.graph("first", [], [first.op("Identity", x) for x in kept])
            self._results = _branches(body, turn, same, self._graph)
        else:
            body.include(self._graph)
            self._results = [o.name for o in self._graph.output]
        return self._results[0]

    def carried(self, tokens: str, sequences: str, at: str, origins: str | None) -> dict[str, tuple[str, str]]:
        body, inputs = self._body, [i.name for i in self._graph.input]
        dims = self._graph.input[0].type.tensor_type.shape.dim
        if len(dims) != 2 or dims[1].dim_value != 1:  # it reads all tokens
            end = body.op("Add", at, body.constant([1]))
            tokens = body.op("Slice", sequences, body.constant([0]), end, body.constant([1]))
        made = [_reordered(body, x, origins, 0) for x in self._results[1:]]
        fixed = inputs[1 : 2 + self._hidden]
        after = [tokens, *fixed, *made, *inputs[2 + self._hidden + self._own :]]
        return dict(zip(inputs, zip(self._start, after, strict=True), strict=True))
