"""Constraints by grammars: the package ``llguidance`` says which tokens may come next."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import OptionError
from ..optional import required
from ..tokenizer import Tokenizer

_PURPOSE = "a constraint by a grammar"
_known: weakref.WeakKeyDictionary[Tokenizer, dict[tuple[int, tuple[int, ...]], Any]] = weakref.WeakKeyDictionary()


class Guide:
    """The state of a grammar for one sequence."""

    def __init__(self, matcher: Any, words: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros((1, words), np.int32)
        self._fill = required("llguidance.numpy", _PURPOSE).fill_next_token_bitmask

    @property
    def ended(self) -> bool:
        """Return whether the grammar admits no more text."""
        return bool(self._matcher.is_stopped())

    def exclude(self, logits: np.ndarray) -> None:
        """Set the logits of tokens that the grammar excludes to minus infinity, in place."""
        self._fill(self._matcher, self._bits, 0)
        self._check()
        admitted = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")[: len(logits)]
        logits[: len(admitted)][admitted == 0] = -np.inf
        logits[len(admitted) :] = -np.inf

    def accept(self, token: int) -> None:
        """Advance by a token that was chosen."""
        if not self.ended:
            self._matcher.consume_token(token)
            self._check()

    def forced(self) -> list[int]:
        """Return the tokens that the grammar forces next, without accepting them."""
        return [] if self.ended else list(self._matcher.compute_ff_tokens())

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` tokens that were accepted."""
        self._matcher.rollback(count)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise OptionError(f"guidance: {self._matcher.get_error()}")


def guide(kind: str, text: str, tokenizer: Tokenizer, vocabulary: int, ends: Sequence[int]) -> Guide:
    """Return the initial state of a grammar.

    Args:
        kind: ``json_schema``, ``regex`` or ``lark_grammar``.
        text: the schema, regular expression or grammar.
        vocabulary: number of logits.
        ends: tokens that end a sequence.

    Raises:
        OptionError: the grammar is wrong; the message has llguidance's reason.
        UnsupportedError: the package ``llguidance`` is not installed.
    """
    package = required("llguidance", _PURPOSE)
    matcher_type = package.LLMatcher
    try:
        if kind == "json_schema":
            grammar = matcher_type.grammar_from_json_schema(text)
        elif kind == "regex":
            grammar = matcher_type.grammar_from_regex(text)
        else:
            grammar = matcher_type.grammar_from_lark(text)
    except ValueError as error:
        raise OptionError(f"guidance {kind}: {error}") from error
    wrong = matcher_type.validate_grammar(grammar)
    if wrong:
        raise OptionError(f"guidance {kind}: {wrong}")
    vocabularies = _known.setdefault(tokenizer, {})
    key = vocabulary, tuple(ends)
    if key not in vocabularies:
        vocabularies[key] = package.LLTokenizer(
            tokenizer.as_json(), n_vocab=vocabulary, eos_token=list(ends) if ends else None
        )
    matcher = matcher_type(vocabularies[key], grammar, log_level=0)
    found = Guide(matcher, -(-vocabulary // 32))
    found._check()
    return found
