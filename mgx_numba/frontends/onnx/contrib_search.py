"""ONNX Runtime's generation of tokens around a decoder: a loop of ONNX's operators, which is read in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...dataclass import dataclass
from ...errors import ParseError, UnsupportedError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .node import Node
from .node_list import NodeList
from .registry import MICROSOFT, register
from .search_decoders import GptDecoder, SearchedDecoder, T5Decoder
from .search_scores import LOWEST, LogitsRules, sampled_tokens

if TYPE_CHECKING:
    from onnx import GraphProto

GREEDY = (
    "input_ids max_length min_length repetition_penalty vocab_mask prefix_vocab_mask attention_mask presence_mask seed"
).split()
"""Names of the inputs of GreedySearch and Sampling, by position."""
BEAMS = (
    "input_ids max_length min_length num_beams num_return_sequences length_penalty repetition_penalty vocab_mask "
    "prefix_vocab_mask attention_mask decoder_input_ids logits_processor"
).split()
"""Names of the inputs of BeamSearch, by position."""


@register("GreedySearch", "Sampling", domain=MICROSOFT)
def greedy_search(
    g: Builder, node: Node, input_ids: Instruction, max_length: Instruction, *others: Instruction | None
) -> list[Instruction]:
    """Emit a loop that appends the likeliest or a drawn token to each sequence of int32 ids [b, s].

    The result is [b, max_length], padded after the end of a sequence.
    """
    if node.get_int("model_type", 0) != 0:
        raise UnsupportedError("only decoders (model_type 0) are supported; BeamSearch has encoders")
    search = _TokenLoop(g, node, GREEDY, [input_ids, max_length, *others])
    decoder = GptDecoder(search.body, node, search.n, search.names, search.pad)
    length, room = decoder.begin("", search.room)
    n, body = search.n, search.body
    ids = search.names["input_ids"]
    rows = n.length(ids, 0)
    sequences = search.buffer(ids, rows)
    rules = LogitsRules(node, body, search.names, search.width)
    at, finished, tokens_so_far = (body.fresh(h) for h in ("at", "finished", "tokens"))
    turn = body.fresh("turn")
    logits = decoder.run(turn, tokens_so_far, at)
    scores = rules.apply(rules.last(logits), tokens_so_far, at, turn)
    if node.op_type == "Sampling":
        tokens = sampled_tokens(node, body, scores, search.names.get("seed"), turn)
    else:
        tokens = body.op("ArgMax", scores, axis=1, keepdims=1)
    ends = body.op("Equal", tokens, body.constant(node.get_int("eos_token_id")))
    ended = body.op("Or", finished, ends)
    chosen = body.cast(body.op("Where", ended, body.constant(search.pad), tokens), np.int32)
    written = search.appended(tokens_so_far, chosen, at)
    further = body.op("Not", search.all_of(ended))
    carried = {
        tokens_so_far: (sequences, written),
        at: (length, body.op("Add", at, body.constant(1))),
        finished: (n.filled(False, np.bool_, rows, n.constant([1])), ended),
        **decoder.carried(chosen, written, at, None),
    }
    found = search.loop(turn, room, further, carried)
    return search.read([found[tokens_so_far]])


@register("BeamSearch", domain=MICROSOFT)
def beam_search(
    g: Builder, node: Node, input_ids: Instruction, max_length: Instruction, *others: Instruction | None
) -> list[Instruction]:
    """Emit a loop that keeps the likeliest sequences [b, beams].

    Results are int32 sequences [b, returned, max_length], their scores [b, returned], and the scores of all tokens
    [steps, b, beams, vocabulary].
    """
    kind = node.get_int("model_type", 0)
    if kind not in (0, 1):
        raise UnsupportedError(f"model_type is {kind}, expected 0 (a decoder) or 1 (an encoder and a decoder)")
    search = _TokenLoop(g, node, BEAMS, [input_ids, max_length, *others])
    n, body, names = search.n, search.body, search.names
    if kind == 1:
        decoder: SearchedDecoder = T5Decoder(body, node, n, names, search.pad)
    else:
        decoder = GptDecoder(body, node, n, names, search.pad)
    beams = Beams(node, n, body, names, search.pad)
    length, room = decoder.begin(beams.spread, search.room)
    sequences = search.buffer(decoder.prompt, n.length(decoder.prompt, 0))
    rules = LogitsRules(node, body, names, search.width, beams.spread)
    at, tokens_so_far, turn = (body.fresh(h) for h in ("at", "tokens", "turn"))
    logits = decoder.run(turn, tokens_so_far, at)
    scores = rules.apply(body.op("LogSoftmax", rules.last(logits), axis=-1), tokens_so_far, at, turn)
    step = beams.step(scores, tokens_so_far, at)
    written = search.appended(body.op("Gather", tokens_so_far, step.origins, axis=0), step.tokens, at)
    carried = {
        tokens_so_far: (sequences, written),
        at: (length, body.op("Add", at, body.constant(1))),
        **beams.carried(search.width),
        **decoder.carried(step.tokens, written, at, step.origins),
    }
    wanted = [step.scores] if node.wants(2) else []
    found = search.loop(turn, room, body.op("Not", search.all_of(step.finished)), carried, wanted)
    results = beams.results(found, found[tokens_so_far], search.width)
    if node.wants(2):
        made, missing = found[step.scores], n.op("Sub", room, n.length(found[step.scores], 0))
        lens = n.op("Concat", missing, *(n.length(made, k) for k in (1, 2, 3)), axis=0)
        results.append(n.op("Concat", made, n.op("Expand", n.constant(0, np.float32), lens), axis=0))
    return search.read(results)


@register("NGramRepeatBlock", domain=MICROSOFT)
def ngram_repeat_block(g: Builder, node: Node, input_ids: Instruction, scores: Instruction) -> list[Instruction]:
    """Emit scores [rows, vocabulary] with -inf for each token that would repeat ``ngram_size`` tokens of the row."""
    size = node.get_int("ngram_size")
    if size < 1:
        raise ParseError(f"ngram_size is {size}, expected at least 1")
    n = NodeList("search_")
    width = n.length("ids", 1)
    repeating = LogitsRules(node, n, {}, width).repeating("scores", "ids", width, n.count(width), size)
    result = n.op("Where", repeating, n.constant(-np.inf, scores.shape.type.numpy), "scores")
    graph = n.graph(node.op_type, ["ids", "scores"], [result])
    return g.parser.subgraph(g, graph, node.scope, g.module, {"ids": input_ids, "scores": scores})


class _TokenLoop:
    """A search's graph and the body of its loop, and what all searches do."""

    def __init__(self, g: Builder, node: Node, names: Sequence[str], inputs: Sequence[Instruction | None]) -> None:
        if len(inputs) > len(names):
            raise ParseError(f"got {len(inputs)} inputs, expected at most {len(names)}")
        for name in ("attention_mask", "vocab_mask", "prefix_vocab_mask", "presence_mask"):
            axes = 1 if name == "vocab_mask" else 2
            given = inputs[names.index(name)] if name in names and names.index(name) < len(inputs) else None
            if given is not None and given.shape.ranked and rank(given) != axes:
                raise ParseError(f"input {name!r} has {rank(given)} dimensions, expected {axes}")
        for name in ("decoder_input_ids", "logits_processor"):
            if name in names and names.index(name) < len(inputs) and inputs[names.index(name)] is not None:
                raise UnsupportedError(f"input {name!r} is not supported")
        ids = inputs[0]
        assert ids is not None
        if rank(ids) != 2:
            raise ParseError(f"input_ids have {rank(ids)} dimensions, expected 2: [batch, tokens]")
        self._g, self._node = g, node
        self.pad = node.get_int("pad_token_id")
        prefix = _unused(node)
        self.n = NodeList(prefix)
        self.body = NodeList(prefix, self.n)
        self._given = {self.n.fresh(name): x for name, x in zip(names, inputs) if x is not None}
        self.names = dict(zip([m for m, x in zip(names, inputs) if x is not None], self._given, strict=True))
        self.width = self.n.size(self.names["max_length"])

    def room(self, prompt: str) -> tuple[str, str]:
        """Return the length of the prompt, and the number of tokens to generate, as vectors of one element."""
        length = self.n.length(prompt, 1)
        return length, self.n.op("Sub", self.width, length)

    def buffer(self, prompt: str, rows: str) -> str:
        """Return sequences of the largest length that begin with the prompt."""
        missing = self.n.op("Sub", self.width, self.n.length(prompt, 1))
        return self.n.op("Concat", prompt, self.n.filled(self.pad, np.int32, rows, missing), axis=1)

    def appended(self, sequences: str, tokens: str, at: str) -> str:
        """Return the sequences with ``tokens`` [rows, 1] at their position ``at``."""
        here = self.body.op("Equal", self.body.count(self.body.length(sequences, 1)), at)
        return self.body.op("Where", here, tokens, sequences)

    def all_of(self, flags: str) -> str:
        """Return whether all flags hold."""
        least = self.body.op("ReduceMin", self.body.cast(flags, np.int32), keepdims=0)
        return self.body.cast(least, np.bool_)

    def loop(
        self, turn: str, room: str, further: str, carried: dict[str, tuple[str, str]], collected: Sequence[str] = ()
    ) -> dict[str, str]:
        """Add the loop.

        Args:
            turn: name of the number of the iteration.
            room: most iterations.
            further: whether another iteration follows.
            carried: by the name of a carried value, its first value and its value after an iteration.
            collected: values of every iteration.

        Returns:
            Names of the carried values and the collected values after the loop.
        """
        inputs = [turn, self.body.fresh("goes_on"), *carried]
        after = [self.body.op("Identity", x) for x in (further, *(a for _, a in carried.values()), *collected)]
        body = self.body.graph(f"{self._node.op_type}_step", inputs, after)
        first = [b for b, _ in carried.values()]
        limit = self.n.scalar(room)
        start = self.n.constant(True, np.bool_)
        values = self.n.ops("Loop", len(carried) + len(collected), limit, start, *first, body=body)
        return dict(zip([*carried, *collected], values, strict=True))

    def read(self, results: Sequence[str]) -> list[Instruction]:
        """Read the graph and return the values of results."""
        graph = self.n.graph(self._node.op_type, list(self._given), results)
        return self._g.parser.subgraph(self._g, graph, self._node.scope, self._g.module, self._given)


def _unused(node: Node) -> str:
    """Return a beginning of names that no value of the node's subgraphs has."""
    names: set[str] = set()
    pending: list[GraphProto] = [a.g for a in node.proto.attribute if a.type == 5]
    for graph in pending:
        names.update(t.name for t in graph.initializer)
        for inner in graph.node:
            names.update([*inner.input, *inner.output])
            pending += [a.g for a in inner.attribute if a.type == 5]
    prefix = "search_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


@dataclass
class BeamStep:
    """Names of a step's results.

    Attributes:
        tokens: chosen int32 tokens [rows, 1].
        origins: row that each row continues [rows].
        finished: whether each batch entry [b, 1] has its result.
        scores: scores of all tokens [b, beams, vocabulary].
    """

    tokens: str
    origins: str
    finished: str
    scores: str


class Beams:
    """Beams of a batch, and the best ended sequences of each batch entry.

    ``rows`` are batch * beams. Ended sequences are sorted by score; NaN marks a free place.
    """

    def __init__(self, node: Node, n: NodeList, body: NodeList, names: Mapping[str, str], pad: int) -> None:
        """Begin.

        Args:
            node: the search.
            n: the graph around the loop.
            body: the loop's body.
            names: names of the search's inputs.
            pad: the padding token.
        """
        self._n, self._body, self._pad = n, body, pad
        self._end, self._early = node.get_int("eos_token_id"), node.get_bool("early_stopping")
        self._beams, self._returned = (n.size(names[k]) for k in ("num_beams", "num_return_sequences"))
        self._penalty = n.cast(n.shaped(names["length_penalty"], 1), np.float32)
        self._batch = n.length(names["input_ids"], 0)
        self._rows = n.op("Mul", self._batch, self._beams)
        self.spread = n.op("Div", n.count(self._rows), self._beams)
        self._carried = {h: body.fresh(h) for h in ("scores", "finished", "ended_scores", "ended_tokens")}

    def _normalised(self, n: NodeList, sums: str, length: str) -> str:
        """Return sums of log-probabilities by ``length**penalty``."""
        return n.op("Div", sums, n.op("Pow", n.cast(length, np.float32), self._penalty))

    def _merged(self, n: NodeList, scores: tuple[str, str], tokens: tuple[str, str]) -> tuple[str, str]:
        """Return the best sequences of two lists [b, beams], sorted, the first list's before equal others."""
        batch, beams = (n.length(scores[0], axis) for axis in (0, 1))
        both = n.op("Concat", *scores, axis=1)
        lowest, nothing = (n.constant(x, np.float32) for x in (LOWEST, -np.inf))
        ranked = n.op("Where", n.op("IsNaN", both), nothing, n.op("Max", both, lowest))
        place = n.ops("TopK", 2, ranked, beams, axis=1)[1]
        best = n.op("GatherElements", both, place, axis=1)
        sequences = n.op("Concat", *(n.shaped(t, batch, beams, n.length(t, 1)) for t in tokens), axis=1)
        twice = n.op("Add", beams, beams)
        begin = n.op("Mul", n.shaped(n.count(batch), -1, 1), twice)
        chosen = n.shaped(n.op("Add", begin, place), -1)
        rows = n.op("Gather", n.shaped(sequences, n.op("Mul", batch, twice), n.length(sequences, 2)), chosen, axis=0)
        return best, rows

    def step(self, scores: str, sequences: str, at: str) -> BeamStep:
        """Add the choice of the next tokens.

        Args:
            scores: log-probabilities of the next token [rows, vocabulary].
            sequences: tokens so far [rows, width].
            at: number of these tokens, an int64 vector of one element.
        """
        n, own = self._body, self._carried
        batch, beams = (n.length(own["ended_scores"], axis) for axis in (0, 1))
        was = n.shaped(own["finished"], -1, 1)  # its second length is known, so it broadcasts
        size = n.length(scores, 1)
        sums = n.op("Add", scores, own["scores"])
        twice = n.op("Add", beams, beams)
        values, index = n.ops("TopK", 2, n.shaped(sums, batch, n.op("Mul", beams, size)), twice, axis=1)
        beam = n.op("Div", index, size)
        token = n.op("Sub", index, n.op("Mul", beam, size))
        ends = n.op("Equal", token, n.constant(self._end))
        first_row = n.op("Mul", n.shaped(n.count(batch), -1, 1), beams)
        origin = n.op("Add", beam, first_row)

        def leading(x: str) -> str:
            return n.op("Slice", x, n.constant([0]), beams, n.constant([1]))

        closed = n.op("And", leading(ends), n.op("Not", was))
        nothing = n.constant(np.nan, np.float32)
        gained = n.op("Where", closed, self._normalised(n, leading(values), at), nothing)
        texts = n.op("Gather", sequences, n.shaped(leading(origin), -1), axis=0)
        kept = (own["ended_scores"], gained), (own["ended_tokens"], texts)
        self._after = dict(zip(("ended_scores", "ended_tokens"), self._merged(n, *kept)))
        number = n.count(twice)
        order = n.op("Where", ends, n.op("Add", number, twice), number)
        place = n.ops("TopK", 2, order, beams, axis=1, largest=0)[0]
        go_on = {k: n.op("GatherElements", x, place, axis=1) for k, x in (("v", values), ("t", token), ("o", origin))}
        worst = n.op("Gather", self._after["ended_scores"], n.constant([-1]), axis=1)
        full = n.op("Not", n.op("IsNaN", worst))
        if not self._early:
            best = self._normalised(n, self._hoped(values, batch, beams), at)
            full = n.op("And", full, n.op("Not", n.op("Less", worst, best)))
        finished = n.op("Or", was, full)
        zero = n.constant(0)
        tokens = n.op("Where", was, n.constant(self._pad), go_on["t"])
        going = n.op("Where", was, n.constant(0, np.float32), go_on["v"])
        origins = n.shaped(n.op("Where", was, zero, go_on["o"]), -1)
        self._after |= {"scores": n.shaped(going, -1, 1), "finished": finished}
        return BeamStep(
            n.shaped(n.cast(tokens, np.int32), -1, 1), origins, finished, n.shaped(sums, batch, beams, size)
        )

    def _hoped(self, values: str, batch: str, beams: str) -> str:
        """Return the sum [b, 1] that a batch entry's beams may still reach: the largest that ONNX Runtime looks at.

        It looks at 2 * beams candidates of the whole batch from number ``entry * beams`` on, where those of an entry
        begin at ``entry * 2 * beams``.
        """
        n = self._body
        begin = n.op("Mul", n.shaped(n.count(batch), -1, 1), beams)
        looked = n.op("Gather", n.shaped(values, -1), n.op("Add", begin, n.count(n.op("Add", beams, beams))))
        return n.ops("TopK", 2, looked, n.constant([1]), axis=1)[0]

    def carried(self, width: str) -> dict[str, tuple[str, str]]:
        """Return the carried values: by name the first value and the value after an iteration."""
        n, one = self._n, self._n.constant([1])
        first = n.op("Equal", n.op("Mod", n.count(self._rows), self._beams), n.constant(0))
        start = n.op("Where", first, n.constant(0, np.float32), n.constant(-1e9, np.float32))
        begin = {
            "scores": n.shaped(start, -1, 1),
            "finished": n.filled(False, np.bool_, self._batch, one),
            "ended_scores": n.filled(np.nan, np.float32, self._batch, self._beams),
            "ended_tokens": n.filled(self._pad, np.int32, self._rows, width),
        }
        return {self._carried[k]: (value, self._after[k]) for k, value in begin.items()}

    def results(self, found: Mapping[str, str], sequences: str, width: str) -> list[str]:
        """Return the best sequences [b, returned, width] and their scores [b, returned], after the loop."""
        n, last = self._n, {k: found[name] for k, name in self._carried.items()}
        batch, beams = (n.length(last["ended_scores"], axis) for axis in (0, 1))
        running = self._normalised(n, n.shaped(last["scores"], batch, beams), width)
        finished = n.shaped(last["finished"], -1, 1)
        running = n.op("Where", finished, n.constant(np.nan, np.float32), running)
        best, rows = self._merged(n, (last["ended_scores"], running), (last["ended_tokens"], sequences))
        bounds = n.constant([0]), self._returned, n.constant([1])
        tokens = n.op("Slice", n.shaped(rows, batch, beams, n.length(rows, 1)), *bounds)
        return [tokens, n.op("Slice", best, *bounds)]
