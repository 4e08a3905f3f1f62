"""`SentencePieces`: tokens by scores, as SentencePiece and llama.cpp merge them.

The package ``tokenizers`` needs all pairs of tokens that make a token: half a million for Gemma, which take longer to
list and to load than a first answer takes. A text has few of these pairs, so they are looked up while it is merged.
"""

from __future__ import annotations

import functools
import heapq
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SPACE = "\u2581"
_KNOWN_PIECES, _KNOWN_LENGTH = 1 << 14, 64  # pieces of a text, and characters of each, whose tokens are kept: a few MB


class Encoding(NamedTuple):
    """The tokens of a text."""

    ids: list[int]


class SentencePieces:
    """A tokenizer with the methods of ``tokenizers.Tokenizer`` that are used here."""

    def __init__(
        self,
        plain: Any,
        vocabulary: Mapping[str, int],
        scores: Sequence[float],
        prefixed: bool,
        ends: tuple[list[int], list[int]],
        unknown: int | None,
    ) -> None:
        """Make a tokenizer.

        Args:
            plain: a ``tokenizers.Tokenizer`` without merges, with all added tokens.
            vocabulary: place of each token.
            scores: score of each token; the pair whose joint token has the highest score is merged first.
            prefixed: whether a space is put before a text.
            ends: tokens before and behind a text with special tokens.
            unknown: token of characters that have no token, and whose bytes have none; None leaves them out.
        """
        self._plain, self._vocabulary, self._scores = plain, vocabulary, scores
        self._prefix, self._ends, self._unknown = SPACE if prefixed else "", ends, unknown
        self._added = {token.content: place for place, token in plain.get_added_tokens_decoder().items()}
        lengths: dict[str, set[int]] = {}
        for text in self._added:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._firsts = re.compile(f"[{re.escape(''.join(lengths))}]") if lengths else re.compile("(?!)")
        # Behind other characters no token goes on over the beginning of a word: words are merged one by one.
        inside = {SPACE, *re.findall(f"(.){SPACE}", "\0".join(vocabulary), re.DOTALL)}
        self._words = re.compile(f"(?<=[^{re.escape(''.join(sorted(inside)))}])(?={SPACE})")
        self._merged_before = functools.lru_cache(_KNOWN_PIECES)(self._merged)

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
        """Return the tokens of a text."""
        first, last = self._ends if add_special_tokens else ([], [])
        ids = list(first)
        for part in self._parts(text):
            if isinstance(part, int):
                ids.append(part)
                continue
            for piece in self._words.split(self._prefix + part.replace(" ", SPACE)):
                ids += self._merged_before(piece) if len(piece) <= _KNOWN_LENGTH else self._merged(piece)
        return Encoding(ids + last)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens."""
        return str(self._plain.decode(ids, skip_special_tokens=skip_special_tokens))

    def token_to_id(self, text: str) -> int | None:
        """Return the token that is written ``text``; None if there is none."""
        return self._plain.token_to_id(text)  # type: ignore[no-any-return]

    def to_str(self) -> str:
        """Return the ``tokenizer.json`` of a tokenizer of ``tokenizers`` with all merges."""
        content = json.loads(self._plain.to_str())
        known = self._vocabulary
        merges = [
            (-self._scores[place], known[token[:k]], known[token[k:]], token[:k], token[k:])
            for token, place in known.items()
            for k in range(1, len(token))
            if token[:k] in known and token[k:] in known
        ]
        content["model"]["merges"] = [pair for *_, a, b in sorted(merges) for pair in [[a, b]]]
        return json.dumps(content)

    def _parts(self, text: str) -> Iterator[str | int]:
        """Yield added tokens, the longest where several begin, and the texts between them."""
        begin = at = 0
        while found := self._firsts.search(text, at):
            at = found.start()
            for length in self._lengths[found[0]]:
                token = self._added.get(text[at : at + length])
                if token is not None:
                    if at > begin:
                        yield text[begin:at]
                    yield token
                    begin = at = at + length
                    break
            else:
                at += 1
        if begin < len(text):
            yield text[begin:]

    def _merged(self, text: str) -> list[int]:
        """Return the tokens of a piece of text; of equal scores the first pair is merged."""
        known, scores = self._vocabulary, self._scores
        symbols = list(text)  # those that were merged into the one before are empty
        before, behind = list(range(-1, len(symbols) - 1)), list(range(1, len(symbols) + 1))
        heap: list[tuple[float, int, int, str]] = []

        def consider(a: int, b: int) -> None:
            if a >= 0 and b < len(symbols):
                joint = symbols[a] + symbols[b]
                place = known.get(joint)
                if place is not None:
                    heapq.heappush(heap, (-scores[place], a, b, joint))

        for b in range(1, len(symbols)):
            consider(b - 1, b)
        while heap:
            _, a, b, joint = heapq.heappop(heap)
            if not symbols[a] or not symbols[b] or symbols[a] + symbols[b] != joint:
                continue
            symbols[a], symbols[b] = joint, ""
            behind[a] = behind[b]
            if behind[a] < len(symbols):
                before[behind[a]] = a
            consider(before[a], a)
            consider(a, behind[a])
        ids: list[int] = []
        for symbol in filter(None, symbols):
            place = known.get(symbol)
            if place is not None:
                ids.append(place)
                continue
            bytes_ = [known.get(f"<0x{byte:02X}>") for byte in symbol.encode()]
            if None not in bytes_:
                ids += bytes_  # type: ignore[arg-type]
            elif self._unknown is not None and ids[-1:] != [self._unknown]:
                ids.append(self._unknown)
        return ids
