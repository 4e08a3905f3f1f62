"""The tokenizer of a GGUF file, as a tokenizer of the package ``tokenizers``.

`SentencePieces` merges tokens by scores, as SentencePiece and llama.cpp do. The package ``tokenizers`` needs all pairs
of tokens that make a token: half a million for Gemma, which take longer to list and to load than a first answer takes.
A text has few of these pairs, so they are looked up while it is merged.
"""

from __future__ import annotations

import functools
import heapq
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import FormatError, UnsupportedError
from ..garbage import uncollected
from ..json_types import JsonObject
from .optional import required

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Kinds in ``tokenizer.ggml.token_type``: llama_token_type of llama.h."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: dict[str, Sequence[str]] = {
    "default": (_GPT2,),
    "gpt-2": (_GPT2,),
    "olmo": (_GPT2,),
    "phi-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "refact": (r"\p{N}", _GPT2),
    "llama-bpe": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",),
    "llama3": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",),
    "dbrx": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",),
    "smaug-bpe": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",),
    "qwen2": (rf"{_CONTRACTIONS}|\p{{N}}|{_REST}",),
    "stablelm2": (rf"{_CONTRACTIONS}|\p{{N}}|{_REST}",),
}
"""Expressions that split a text before byte pairs are merged, by ``tokenizer.ggml.pre``, as in llama-vocab.cpp."""


def tokenizer_of_gguf(metadata: Mapping[str, object]) -> Tokenizer | SentencePieces:
    """Return the ``tokenizers.Tokenizer``, or `SentencePieces`, that metadata of a GGUF file describe.

    Args:
        metadata: values by key, ``tokenizer.ggml.model`` and others.

    Raises:
        FormatError: a key is missing, or its value is malformed; the message names it.
        UnsupportedError: the kind of tokenizer or its way of splitting is unknown.
    """
    with uncollected():
        return _tokenizer(required("tokenizers", "a tokenizer"), metadata)


def _tokenizer(package: ModuleType, metadata: JsonObject) -> Tokenizer | SentencePieces:
    kind = str(metadata.get("tokenizer.ggml.model"))
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(f"tokenizer.ggml.model is {kind!r}; expected 'gpt2' or 'llama'")
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    if not tokens:
        raise FormatError("the GGUF file has no tokenizer.ggml.tokens")
    vocabulary = dict(zip(tokens, range(len(tokens))))
    unknown = _token(metadata, "unknown", len(tokens)) if kind == "llama" else None
    if kind == "gpt2":
        found = _byte_pairs(package, metadata, vocabulary)
    else:
        found = _sentence_pieces(package, metadata, vocabulary, None if unknown is None else tokens[unknown])
    kinds = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens))
    # Each call prepares the search for all added tokens again, so there are two calls.
    for special, wanted in ((False, kinds == _USER_DEFINED), (True, (kinds == _CONTROL) | (kinds == _UNKNOWN))):
        places = np.flatnonzero(wanted).tolist()
        added = [package.AddedToken(tokens[place], special=special, normalized=False) for place in places]
        (found.add_special_tokens if special else found.add_tokens)(added)
    ends = _ends(metadata, kind, len(tokens))
    before, behind = ([(tokens[place], place) for place in places] for places in ends)
    if before or behind:
        template = [*(name for name, _ in before), "$A", *(name for name, _ in behind)]
        found.post_processor = package.processors.TemplateProcessing(single=template, special_tokens=before + behind)
    if kind == "gpt2":
        return found
    if "tokenizer.ggml.scores" not in metadata:
        raise FormatError("the GGUF file has no tokenizer.ggml.scores")
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens)).astype(np.float64).tolist()
    return SentencePieces(found, vocabulary, scores, _prefixed(metadata), ends, unknown)


def _byte_pairs(package: ModuleType, metadata: JsonObject, vocabulary: Mapping[str, int]) -> Tokenizer:
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if pre not in _SPLITS:
        raise UnsupportedError(f"tokenizer.ggml.pre is {pre!r}; expected one of {', '.join(_SPLITS)}")
    merges = _pairs(_texts(metadata, "tokenizer.ggml.merges"))
    try:
        model = package.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.startswith("llama"))
    except Exception as error:  # the package raises Exception itself
        if type(error) is not Exception:
            raise
        raise FormatError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}") from error
    found = package.Tokenizer(model)
    steps = [package.pre_tokenizers.Split(package.Regex(text), "isolated") for text in _SPLITS[pre]]
    steps.append(package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    found.pre_tokenizer = package.pre_tokenizers.Sequence(steps)
    found.decoder = package.decoders.ByteLevel()
    return found


def _pairs(merges: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the two parts of each merge, which the first space separates."""
    parts = " ".join(merges).split(" ")  # at once, where no part has a space
    if len(parts) == 2 * len(merges):
        return list(zip(parts[::2], parts[1::2]))
    wrong = next((merge for merge in merges if " " not in merge), None)
    if wrong is not None:
        raise FormatError(f"tokenizer.ggml.merges has {wrong!r}, expected two parts and a space between them")
    return [tuple(merge.split(" ", 1)) for merge in merges]


def _sentence_pieces(
    package: ModuleType, metadata: JsonObject, vocabulary: Mapping[str, int], unknown: str | None
) -> Tokenizer:
    """Return a tokenizer without merges, which `SentencePieces` does by scores."""
    prefixed = _prefixed(metadata)
    model = package.models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, fuse_unk=True, unk_token=unknown)
    found = package.Tokenizer(model)
    space = package.normalizers.Replace(" ", SPACE)
    found.normalizer = package.normalizers.Sequence([package.normalizers.Prepend(SPACE), space]) if prefixed else space
    decoders = package.decoders
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        steps.append(decoders.Strip(" ", 1, 0))
    found.decoder = decoders.Sequence(steps)
    return found


def _prefixed(metadata: JsonObject) -> bool:
    """Return whether a space is put before a text."""
    return _flag(metadata, "tokenizer.ggml.add_space_prefix", True)


def _ends(metadata: JsonObject, kind: str, count: int) -> tuple[list[int], list[int]]:
    """Return the tokens that begin and end a text, where the file wants them."""
    found = []
    for role, plain in (("bos", kind == "llama"), ("eos", False)):
        wanted = _flag(metadata, f"tokenizer.ggml.add_{role}_token", plain)
        place = _token(metadata, role, count) if wanted else None
        found.append([] if place is None else [place])
    return found[0], found[1]


def _token(metadata: JsonObject, role: str, count: int) -> int | None:
    """Return the token of a role among ``count`` tokens, None without such a token.

    Raises:
        FormatError: it is no token.
    """
    key = f"tokenizer.ggml.{role}_token_id"
    found = metadata.get(key)
    if found is not None and not (isinstance(found, int) and 0 <= found < count):
        raise FormatError(f"{key} is {found!r}, expected a token from 0 to {count - 1}")
    return found


def _flag(metadata: JsonObject, key: str, default: bool) -> bool:
    """Return the truth value of a key.

    Raises:
        FormatError: it is none.
    """
    found = metadata.get(key, default)
    if not isinstance(found, int):
        raise FormatError(f"{key} is {found!r}, expected true or false")
    return bool(found)


def _texts(metadata: JsonObject, key: str) -> list[str]:
    """Return the strings of a key, none without the key.

    Raises:
        FormatError: it is no list of strings.
    """
    found = metadata.get(key, [])
    if not isinstance(found, list) or set(map(type, found)) - {str}:
        raise FormatError(f"{key} is no list of strings")
    return found


def _numbers(metadata: JsonObject, key: str, count: int) -> np.ndarray:
    """Return the numbers of a key, one for each of ``count`` tokens; none without the key.

    Raises:
        FormatError: they are no numbers, or not as many.
    """
    if key not in metadata:
        return np.zeros(0)
    found = metadata[key]
    array = np.asarray(found) if isinstance(found, (list, np.ndarray)) else np.zeros(())
    if array.shape != (count,) or array.dtype.kind not in "iuf":
        raise FormatError(f"{key} is an array of shape {list(array.shape)}, expected {count} numbers: one a token")
    return array


SPACE = "\u2581"
_KNOWN_PIECES, _KNOWN_LENGTH = 1 << 14, 64  # pieces of a text, and characters of each, whose tokens are kept: a few MB


class Encoding(NamedTuple):
    """The tokens of a text."""

    ids: list[int]


class SentencePieces:
    """A tokenizer with the methods of ``tokenizers.Tokenizer`` that are used here."""

    def __init__(
        self,
        plain: Tokenizer,
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

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
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
