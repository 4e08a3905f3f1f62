"""Scores of the next token in ONNX Runtime's searches: penalties, masks, and drawing a token."""

from __future__ import annotations

import numpy as np

from ...errors import ParseError, UnsupportedError
from .node import Node
from .node_list import NodeList

LOWEST = np.finfo(np.float32).min
"""Score of a token that may not follow."""
MODULUS, FACTOR = 2**31 - 1, 16807
"""C++'s ``minstd_rand0``, from which ONNX Runtime draws."""


class LogitsRules:
    """Changes that a search makes to the scores of the next token."""

    def __init__(self, node: Node, body: NodeList, names: dict[str, str], width: str, spread: str = "") -> None:
        """Begin.

        Args:
            names: names of the search's inputs.
            width: number of columns of the sequences.
            spread: batch entry of each row (empty: rows are the batch).
        """
        self._node, self._body, self._names, self._width, self._spread = node, body, names, width, spread

    def last(self, logits: str) -> str:
        """Return the logits of the last position in float32 [rows, vocabulary]."""
        body, size = self._body, self._node.get_int("vocab_size", -1)
        scores = body.cast(body.op("Gather", logits, body.constant(-1), axis=1), np.float32)
        if size <= 0:
            return scores
        return body.op("Slice", scores, *(body.constant([x]) for x in (0, size, 1)))

    def apply(self, scores: str, sequences: str, at: str, turn: str) -> str:
        """Return the scores [rows, vocabulary] after penalties and masks.

        Args:
            sequences: tokens so far, of which the first ``at`` columns count.
            at: int64 vector of one element.
            turn: number of the iteration.
        """
        body, node, names = self._body, self._node, self._names
        lowest = body.constant(LOWEST, np.float32)
        places = body.count(self._width)
        if "repetition_penalty" in names:
            seen = self._marked(scores, sequences, body.op("Less", places, at))
            penalty = body.cast(body.shaped(names["repetition_penalty"], 1), np.float32)
            negative = body.op("Less", scores, body.constant(0, np.float32))
            less = body.op("Where", negative, body.op("Mul", scores, penalty), body.op("Div", scores, penalty))
            scores = body.op("Where", seen, less, scores)
        size = node.get_int("no_repeat_ngram_size", 0)
        if size > 0:
            scores = body.op("Where", self.repeating(scores, sequences, at, places, size), lowest, scores)
        if "vocab_mask" in names:
            scores = body.op("Where", body.cast(names["vocab_mask"], np.bool_), scores, lowest)
        if "prefix_vocab_mask" in names:
            mask = names["prefix_vocab_mask"]
            if self._spread:
                mask = body.op("Gather", mask, self._spread, axis=0)
            later = body.op("Greater", turn, body.constant(0))
            scores = body.op("Where", body.op("Or", body.cast(mask, np.bool_), later), scores, lowest)
        if "min_length" in names:
            early = body.op("Less", at, body.cast(body.shaped(names["min_length"], 1), np.int64))
            end = body.op("Equal", body.count(body.length(scores, 1)), body.constant(node.get_int("eos_token_id")))
            scores = body.op("Where", body.op("And", end, early), lowest, scores)
        temperature = node.get_float("temperature", 1.0)
        if temperature > 0 and temperature != 1:
            scores = body.op("Div", scores, body.constant(temperature, np.float32))
        if "presence_mask" in names and node.get_float("presence_penalty", 0.0):
            raise UnsupportedError("presence_penalty is not supported")
        return scores

    def _marked(self, scores: str, tokens: str, counted: str) -> str:
        """Return whether each token of the vocabulary [rows, vocabulary] is among ``tokens`` where ``counted``."""
        body = self._body
        rows, size, one = body.length(scores, 0), body.length(scores, 1), body.constant([1])
        wide = body.filled(0, np.int32, rows, body.op("Add", size, one))  # the last column: not counted
        index = body.op("Where", counted, body.cast(tokens, np.int64), size)
        ones = body.op("Expand", body.constant(1, np.int32), body.op("Shape", index))
        marks = body.op("ScatterElements", wide, index, ones, axis=1)
        return body.cast(body.op("Slice", marks, body.constant([0]), size, one), np.bool_)

    def repeating(self, scores: str, sequences: str, at: str, places: str, size: int) -> str:
        """Return whether each token of the vocabulary would repeat ``size`` tokens of the sequence."""
        body = self._body
        end = body.op("Sub", self._width, body.constant([1]))
        zero = body.constant([0])

        def shifted(by: int) -> str:
            there = body.smaller(body.op("Add", places, body.constant(by)), end)
            return body.op("Gather", sequences, there, axis=1)

        same = body.op("Less", places, body.op("Sub", at, body.constant([size - 1])))
        for k in range(size - 1):
            place = body.larger(body.op("Add", at, body.constant([k + 1 - size])), zero)
            same = body.op("And", same, body.op("Equal", shifted(k), body.op("Gather", sequences, place, axis=1)))
        return self._marked(scores, shifted(size - 1), same)


def sampled_tokens(node: Node, body: NodeList, scores: str, seed: str | None, turn: str) -> str:
    """Return tokens [rows, 1] drawn among the likeliest, whose probabilities reach ``top_p``."""
    top, kept = node.get_float("top_p", 0.0), node.get_int("min_tokens_to_keep", 0)
    size = body.length(scores, 1)
    custom = node.get_bool("custom")
    if kept < 0:
        raise ParseError(f"min_tokens_to_keep is {kept}, expected at least 0")
    values, order = body.ops("TopK", 2, scores, size, axis=1, largest=int(custom))
    sums = body.op("CumSum", body.op("Softmax", values, axis=-1), body.constant(1))
    places = body.count(size)
    if custom:  # the token after the tokens that reach top_p, and all further tokens
        reached = body.op("Greater", sums, body.constant(top, np.float32))
        before = body.op(
            "Gather", reached, body.larger(body.op("Sub", places, body.constant(1)), body.constant(0)), axis=1
        )
        dropped = body.op("And", before, body.op("Greater", places, body.constant(0)))
    else:
        low = body.op("Not", body.op("Greater", sums, body.constant(np.float32(1) - np.float32(top), np.float32)))
        last = body.larger(body.op("Sub", size, body.constant([kept])), body.constant([1]))
        dropped = body.op("And", low, body.op("Less", places, last))
    filtered = body.op("Where", dropped, body.constant(node.get_float("filter_value", -1e20), np.float32), values)
    scores = body.op("ScatterElements", scores, order, filtered, axis=1)
    top_value = body.ops("TopK", 2, scores, body.constant([1]), axis=1)[0]
    wide, top_wide = body.cast(scores, np.float64), body.cast(top_value, np.float64)
    cumulated = body.op("CumSum", body.op("Exp", body.op("Sub", wide, top_wide)), body.constant(1))
    total = body.op("Gather", cumulated, body.constant([-1]), axis=1)
    sought = body.op("Mul", _uniform(body, body.length(scores, 0), seed, turn), total)
    beyond = body.cast(body.op("Greater", cumulated, sought), np.int32)
    return body.op("ArgMax", beyond, axis=1, keepdims=1)


def _uniform(body: NodeList, rows: str, seed: str | None, turn: str) -> str:
    """Return a float64 number from 0 to 1 for each row [rows, 1]: those that ONNX Runtime draws with a seed."""
    if seed is None:
        like = body.filled(0, np.float64, rows, body.constant([1]))
        return body.op("RandomUniformLike", like)
    modulus, one = body.constant(MODULUS), body.constant(1)
    start = body.op("Mod", body.cast(body.shaped(seed, 1), np.int64), modulus)
    start = body.op("Where", body.op("Equal", start, body.constant(0)), one, start)
    # number k of the generator is start * FACTOR**k; each row takes two
    rank = body.op("Add", body.shaped(body.count(rows), -1, 1), body.op("Mul", turn, body.scalar(rows)))
    exponent = body.op("Add", body.op("Mul", rank, body.constant(2)), body.constant([[1, 2]]))
    draws, square = start, FACTOR
    for bit in range(31):
        odd = body.op("Mod", body.op("Div", exponent, body.constant(1 << bit)), body.constant(2))
        factor = body.op("Where", body.op("Equal", odd, one), body.constant(square), one)
        draws = body.op("Mod", body.op("Mul", draws, factor), modulus)
        square = square * square % MODULUS
    digits = body.cast(body.op("Sub", draws, one), np.float64)
    low, high = (body.op("Gather", digits, body.constant([k]), axis=1) for k in range(2))
    span = float(MODULUS - 1)
    wide = body.op("Add", low, body.op("Mul", high, body.constant(span, np.float64)))
    return body.op("Div", wide, body.constant(span * span, np.float64))
