"""The tokenizer of a GGUF file, as a tokenizer of the package ``tokenizers``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import FormatError, UnsupportedError
from .optional import required

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Kinds in ``tokenizer.ggml.token_type``: llama_token_type of llama.h."""

_FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64: the golden ratio's, as in Fibonacci hashing

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


def tokenizer_of_gguf(metadata: Mapping[str, Any]) -> Any:
    """Return the ``tokenizers.Tokenizer`` that metadata of a GGUF file describe.

    Args:
        metadata: values by key, ``tokenizer.ggml.model`` and others.

    Raises:
        FormatError: a key is missing.
        UnsupportedError: the kind of tokenizer or its way of splitting is unknown.
    """
    package = required("tokenizers", "a tokenizer")
    kind = metadata.get("tokenizer.ggml.model")
    if "tokenizer.ggml.tokens" not in metadata:
        raise FormatError("the GGUF file has no tokenizer.ggml.tokens")
    tokens = [str(token) for token in metadata["tokenizer.ggml.tokens"]]
    if kind == "gpt2":
        found = _byte_pairs(package, metadata, tokens)
    elif kind == "llama":
        found = _sentence_pieces(package, metadata, tokens)
    else:
        raise UnsupportedError(f"tokenizer.ggml.model is {kind!r}; expected 'gpt2' or 'llama'")
    kinds = np.asarray(metadata.get("tokenizer.ggml.token_type", ()))
    # Each call prepares the search for all added tokens again, so there are two calls.
    for special, wanted in ((False, kinds == _USER_DEFINED), (True, (kinds == _CONTROL) | (kinds == _UNKNOWN))):
        places = np.flatnonzero(wanted).tolist()
        added = [package.AddedToken(tokens[place], special=special, normalized=False) for place in places]
        (found.add_special_tokens if special else found.add_tokens)(added)
    _add_ends(package, found, metadata, tokens, kind)
    return found


def _byte_pairs(package: Any, metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if pre not in _SPLITS:
        raise UnsupportedError(f"tokenizer.ggml.pre is {pre!r}; expected one of {', '.join(_SPLITS)}")
    merges = [tuple(str(merge).split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    found = package.Tokenizer(
        package.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.startswith("llama"))
    )
    steps = [package.pre_tokenizers.Split(package.Regex(text), "isolated") for text in _SPLITS[pre]]
    steps.append(package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    found.pre_tokenizer = package.pre_tokenizers.Sequence(steps)
    found.decoder = package.decoders.ByteLevel()
    return found


def _sentence_pieces(package: Any, metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    """Return a tokenizer that merges the pair whose joint token has the highest score first."""
    scores = np.asarray(metadata.get("tokenizer.ggml.scores", ()), np.float64)
    if len(scores) != len(tokens):
        raise FormatError(f"tokenizer.ggml.scores has {len(scores)} numbers, expected {len(tokens)}: one a token")
    vocabulary = {token: place for place, token in enumerate(tokens)}
    merges = _merges(tokens, np.argsort(np.argsort(-scores, kind="stable")))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    model = package.models.BPE(
        vocab=vocabulary,
        merges=merges,
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[int(unknown)],
    )
    found = package.Tokenizer(model)
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    space = package.normalizers.Replace(" ", "▁")
    found.normalizer = package.normalizers.Sequence([package.normalizers.Prepend("▁"), space]) if prefixed else space
    decoders = package.decoders
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        steps.append(decoders.Strip(" ", 1, 0))
    found.decoder = decoders.Sequence(steps)
    return found


def _merges(tokens: list[str], ranks: np.ndarray) -> list[tuple[str, str]]:
    """Return all pairs of tokens whose joint text is a token, by the joint token's rank, then by the tokens' numbers.

    Parts of tokens are looked up by hashes of 64 bits, whose collisions are as good as impossible: one in 2**26 files of
    262,144 tokens, which have 2**20 parts.
    """
    codes = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    ends = np.cumsum([len(token) for token in tokens])
    starts = ends - np.diff(ends, prepend=0)
    # hash(text) = sum of text[i] * factor**i modulo 2**64, from sums over all tokens' joint text
    powers = np.multiply.accumulate(np.full(len(codes) + 1, _FACTOR, np.uint64))
    inverse = np.multiply.accumulate(np.full(len(codes) + 1, pow(_FACTOR, -1, 1 << 64), np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes * powers[:-1])])

    def hashes(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        return (sums[end] - sums[begin]) * inverse[begin]

    own = hashes(starts, ends)
    order = np.argsort(own, kind="stable")
    own = own[order]

    def known(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the token of each part, and whether there is one."""
        wanted = hashes(begin, end)
        places = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
        return order[places], own[places] == wanted

    whole = np.repeat(np.arange(len(tokens)), ends - starts)
    cuts = np.arange(len(codes))
    inner = cuts > starts[whole]
    whole, cuts = whole[inner], cuts[inner]
    first, found = known(starts[whole], cuts)
    whole, cuts, first = whole[found], cuts[found], first[found]
    second, found = known(cuts, ends[whole])
    whole, first, second = whole[found], first[found], second[found]
    order = np.lexsort((second, first, ranks[whole]))
    left, right = (map(tokens.__getitem__, places[order].tolist()) for places in (first, second))
    return list(zip(left, right, strict=True))


def _add_ends(package: Any, found: Any, metadata: Mapping[str, Any], tokens: list[str], kind: str) -> None:
    """Let the tokenizer add the tokens that begin and end a text, where the file wants them."""
    template, special = ["$A"], []
    for role, first, plain in (("bos", True, kind == "llama"), ("eos", False, False)):
        place = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if place is None or not metadata.get(f"tokenizer.ggml.add_{role}_token", plain):
            continue
        special.append((tokens[int(place)], int(place)))
        template.insert(0 if first else len(template), tokens[int(place)])
    if special:
        found.post_processor = package.processors.TemplateProcessing(single=template, special_tokens=special)
