"""Steps of ONNX Runtime's beam search: which beams go on, and which sequences have ended."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...dataclass import dataclass
from .node import Node
from .node_list import NodeList
from .search_scores import LOWEST


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
        self._beams = n.cast(n.shaped(names["num_beams"], 1), np.int64)
        self._returned = n.cast(n.shaped(names["num_return_sequences"], 1), np.int64)
        self._penalty = n.cast(n.shaped(names["length_penalty"], 1), np.float32)
        self._batch = n.length(names["input_ids"], 0)
        self._rows = n.op("Mul", self._batch, self._beams)
        self.spread = n.op("Div", n.count(self._rows), self._beams)
        self._carried = {h: body.fresh(h) for h in ("scores", "finished", "ended_scores", "ended_tokens")}

    def _normalised(self, n: NodeList, sums: str, length: str) -> str:
        """Return sums of log-probabilities by ``length**penalty``."""
        return n.op("Div", sums, n.op("Pow", n.cast(length, np.float32), self._penalty))

    def _merged(self, n: NodeList, scores: tuple[str, str], tokens: tuple[str, str], width: str) -> tuple[str, str]:
        """Return the best sequences of two lists [b, beams], sorted, the first list's before equal others."""
        both = n.op("Concat", *scores, axis=1)
        lowest, nothing = (n.constant(x, np.float32) for x in (LOWEST, -np.inf))
        ranked = n.op("Where", n.op("IsNaN", both), nothing, n.op("Max", both, lowest))
        place = n.ops("TopK", 2, ranked, self._beams, axis=1)[1]
        best = n.op("GatherElements", both, place, axis=1)
        sequences = n.op("Concat", *(n.shaped(t, self._batch, self._beams, width) for t in tokens), axis=1)
        twice = n.op("Add", self._beams, self._beams)
        begin = n.op("Mul", n.shaped(n.count(self._batch), -1, 1), twice)
        chosen = n.shaped(n.op("Add", begin, place), -1)
        rows = n.op("Gather", n.shaped(sequences, n.op("Mul", self._batch, twice), width), chosen, axis=0)
        return best, rows

    def step(self, scores: str, sequences: str, at: str) -> BeamStep:
        """Add the choice of the next tokens.

        Args:
            scores: log-probabilities of the next token [rows, vocabulary].
            sequences: tokens so far [rows, width].
            at: number of these tokens, an int64 vector of one element.
        """
        n, own, beams, batch = self._body, self._carried, self._beams, self._batch
        self._width = n.length(sequences, 1)
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

        closed = n.op("And", leading(ends), n.op("Not", own["finished"]))
        nothing = n.constant(np.nan, np.float32)
        gained = n.op("Where", closed, self._normalised(n, leading(values), at), nothing)
        texts = n.op("Gather", sequences, n.shaped(leading(origin), -1), axis=0)
        kept = (own["ended_scores"], gained), (own["ended_tokens"], texts)
        self._after = dict(zip(("ended_scores", "ended_tokens"), self._merged(n, *kept, self._width)))
        number = n.count(twice)
        order = n.op("Where", ends, n.op("Add", number, twice), number)
        place = n.ops("TopK", 2, order, beams, axis=1, largest=0)[0]
        go_on = {k: n.op("GatherElements", x, place, axis=1) for k, x in (("v", values), ("t", token), ("o", origin))}
        worst = n.op("Gather", self._after["ended_scores"], n.constant([-1]), axis=1)
        full = n.op("Not", n.op("IsNaN", worst))
        if not self._early:
            best = self._normalised(n, self._hoped(values, twice), at)
            full = n.op("And", full, n.op("Not", n.op("Less", worst, best)))
        finished = n.op("Or", own["finished"], full)
        was = own["finished"]
        zero = n.constant(0)
        tokens = n.op("Where", was, n.constant(self._pad), go_on["t"])
        going = n.op("Where", was, n.constant(0, np.float32), go_on["v"])
        origins = n.shaped(n.op("Where", was, zero, go_on["o"]), -1)
        self._after |= {"scores": n.shaped(going, -1, 1), "finished": finished}
        return BeamStep(
            n.shaped(n.cast(tokens, np.int32), -1, 1), origins, finished, n.shaped(sums, batch, beams, size)
        )

    def _hoped(self, values: str, twice: str) -> str:
        """Return the sum [b, 1] that a batch entry's beams may still reach: the largest that ONNX Runtime looks at.

        It looks at 2 * beams candidates of the whole batch from number ``entry * beams`` on, where those of an entry
        begin at ``entry * 2 * beams``.
        """
        n = self._body
        begin = n.op("Mul", n.shaped(n.count(self._batch), -1, 1), self._beams)
        looked = n.op("Gather", n.shaped(values, -1), n.op("Add", begin, n.count(twice)))
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
        running = self._normalised(n, n.shaped(last["scores"], self._batch, self._beams), width)
        running = n.op("Where", last["finished"], n.constant(np.nan, np.float32), running)
        best, rows = self._merged(n, (last["ended_scores"], running), (last["ended_tokens"], sequences), width)
        bounds = n.constant([0]), self._returned, n.constant([1])
        tokens = n.op("Slice", n.shaped(rows, self._batch, self._beams, width), *bounds)
        return [tokens, n.op("Slice", best, *bounds)]
